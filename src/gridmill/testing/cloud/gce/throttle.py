"""The limits on the rates of requests to Compute Engine: 1,500 requests per minute in each group of methods.

Source: https://cloud.google.com/compute/api-quota
"""

from gridmill.testing.cloud.gce.refusal import too_many_requests

_RATE_PER_SECOND, _BURST = 25.0, 1500.0


class Throttle:
    """A token bucket for each group of methods, such as `lists`."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def left(self, group: str) -> float:
        """Returns how many requests could follow at once after the last one."""
        return self._buckets.get(group, (_BURST, 0.0))[0]

    def take(self, group: str, now: float) -> None:
        """Counts a request at a time. Raises GoogleRefusalError if it is beyond the limit."""
        tokens, at = self._buckets.get(group, (_BURST, now))
        tokens = min(_BURST, tokens + max(0.0, now - at) * _RATE_PER_SECOND)
        if tokens < 1.0:
            self._buckets[group] = (tokens, now)
            raise too_many_requests()
        self._buckets[group] = (tokens - 1.0, now)
