"""Limits on the rates of requests, as all providers describe them: a bucket gets tokens at a rate, holds a
number of them, and each request takes at least one."""

from collections.abc import Hashable


class TokenBuckets:
    """Token buckets by key. A new bucket is full. Times are Unix times in seconds."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def take(self, key: Hashable, now: float, *, size: float, per_second: float, count: int = 1) -> bool:
        """Takes tokens for a request, and returns whether there were enough. A bucket with too few tokens
        keeps them."""
        tokens, at = self._buckets.get(key, (size, now))
        tokens = min(size, tokens + max(0.0, now - at) * per_second)
        has_enough = tokens >= count
        self._buckets[key] = (tokens - count if has_enough else tokens, now)
        return has_enough

    def left(self, key: Hashable) -> float | None:
        """Returns how many tokens the last request left in a bucket, or None if there was no request."""
        tokens, _ = self._buckets.get(key, (None, 0.0))
        return tokens
