"""Decides how many replicas a service has, from the rate and the latency of its requests. All functions of
this module are pure. The parent process calls them, so services scale without the control node."""

import math
from collections.abc import Sequence
from itertools import pairwise

from gridmill.domain.amounts import show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.service_size import show_latency
from gridmill.domain.serving import Scaling
from gridmill.serving.metrics import BOUNDS

SAMPLE_SECONDS = 0.5
"""The interval between two samples of the load."""
UP_SECONDS = 5.0
"""Replicas are added by the rate and the latency of this time."""
SETTLE_SECONDS = 10.0
"""After a change, no replica is added because of the latency for this time, because the latency has not yet
followed the change."""
DOWN_SHARE = 0.8
"""A replica is only removed if each of the others then gets at most this share of its planned rate. The
distance to the share at which replicas are added (1) prevents that the number alternates."""
LEAST_REQUESTS = 20
"""The latency is ignored if fewer requests than this were answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """The requests of a service until the monotonic time `at`: the numbers of answered requests and of
    requests that were refused because too many waited, and the answers by duration (`BOUNDS`, and one number
    for longer durations)."""

    at: float
    answered: int = 0
    refused: int = 0
    durations: tuple[int, ...] = ()

    @property
    def requests(self) -> int:
        """The number of requests."""
        return self.answered + self.refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The number of replicas that a service should have. `reason` is empty if the number does not change."""

    replicas: int
    reason: str = ""


def first_wish(scaling: Scaling, replicas: int) -> Wish:
    """Return the number of replicas with which an order begins. There is at least one, which shows whether
    the version can be served."""
    return Wish(replicas=max(1, min(max(replicas, scaling.least), scaling.most)))


def decide_scale(
    scaling: Scaling, samples: Sequence[LoadSample], wanted: int, *, changed_at: float, now: float
) -> Wish:
    """Return the number of replicas that the service should have. `samples` are the samples of the last
    `history_seconds`, the oldest first. `wanted` is the present number. All these replicas have
    been ready since `changed_at`. Times are monotonic."""
    present = min(max(wanted, scaling.least), scaling.most)
    if present != wanted:
        return Wish(
            replicas=present, reason=f"the service may have {scaling.least} to {scaling.most} replicas"
        )
    if present == 0 or not samples:
        return Wish(replicas=present)
    since = max(changed_at, samples[0].at)
    return (
        _up_by_rate(scaling, samples, present, now)
        or (_up_by_latency(scaling, samples, present, now) if now - changed_at >= SETTLE_SECONDS else None)
        or (_to_zero(scaling, samples, present, now) if now - since >= scaling.idle_seconds else None)
        or (_down(scaling, samples, present, now) if now - since >= scaling.down_seconds else None)
        or Wish(replicas=present)
    )


def history_seconds(scaling: Scaling) -> float:
    """Return the time for which samples are needed."""
    return max(scaling.down_seconds, scaling.idle_seconds, UP_SECONDS) + 2 * SAMPLE_SECONDS


def needed_replicas(rate: float, rate_per_replica: float) -> int:
    """Return the number of replicas that a rate of requests needs."""
    return math.ceil(rate / rate_per_replica - 1e-9)


def _up_by_rate(scaling: Scaling, samples: Sequence[LoadSample], present: int, now: float) -> Wish | None:
    rate = _rate(_window(samples, now - UP_SECONDS))
    needed = min(needed_replicas(rate, scaling.rate_per_replica), scaling.most)
    if needed <= present:
        return None
    return Wish(
        replicas=needed,
        reason=f"{rate:,.0f} requests/s need {show_count(needed, 'replica')}: one serves "
        f"{scaling.rate_per_replica:,.0f} requests/s",
    )


def _up_by_latency(scaling: Scaling, samples: Sequence[LoadSample], present: int, now: float) -> Wish | None:
    window = _window(samples, now - UP_SECONDS)
    if present >= scaling.most or len(window) < 2:
        return None
    if refused := window[-1].refused - window[0].refused:
        return Wish(replicas=present + 1, reason=f"{show_count(refused, 'request')} were refused")
    slow = _p99(window)
    if slow <= scaling.slow_seconds:
        return None
    limit = show_latency(scaling.slow_seconds)
    return Wish(
        replicas=present + 1,
        reason=f"1 % of the requests took more than {show_latency(_bound_below(slow))}; the limit is {limit}",
    )


def _to_zero(scaling: Scaling, samples: Sequence[LoadSample], present: int, now: float) -> Wish | None:
    window = _window(samples, now - scaling.idle_seconds)
    if scaling.least > 0 or window[-1].requests != window[0].requests:
        return None
    return Wish(replicas=0, reason=f"no request for {scaling.idle_seconds:g} s")


def _down(scaling: Scaling, samples: Sequence[LoadSample], present: int, now: float) -> Wish | None:
    window = _window(samples, now - scaling.down_seconds)
    highest = highest_rate(window)
    enough = needed_replicas(highest, DOWN_SHARE * scaling.rate_per_replica)
    wanted = max(enough, scaling.least, 1)
    if wanted >= present or _p99(_window(samples, now - UP_SECONDS)) > scaling.slow_seconds:
        return None
    reason = f"at most {highest:,.0f} requests/s for {scaling.down_seconds:g} s"
    return Wish(replicas=wanted, reason=reason)


def highest_rate(samples: Sequence[LoadSample]) -> float:
    """Return the highest rate of requests in any `UP_SECONDS` of the samples."""
    highest, first = 0.0, 0
    for last, sample in enumerate(samples):
        while sample.at - samples[first].at > UP_SECONDS + SAMPLE_SECONDS / 2 and first < last - 1:
            first += 1
        if sample.at - samples[first].at >= UP_SECONDS - SAMPLE_SECONDS:
            highest = max(highest, _rate(samples[first : last + 1]))
    return highest if highest or len(samples) < 2 else _rate(samples)


def _window(samples: Sequence[LoadSample], begin: float) -> Sequence[LoadSample]:
    """Return the samples since `begin`, and the last one before."""
    first = next((number for number, one in enumerate(samples) if one.at >= begin), len(samples) - 1)
    return samples[max(0, first - 1) :]


def _rate(samples: Sequence[LoadSample]) -> float:
    seconds = samples[-1].at - samples[0].at
    if seconds < UP_SECONDS / 2:
        return 0.0
    return (samples[-1].requests - samples[0].requests) / seconds


def _p99(samples: Sequence[LoadSample]) -> float:
    """Return the upper bound of the durations in which the 99th percentile lies; 0 for few requests."""
    before = samples[0].durations or (0,) * (len(BOUNDS) + 1)
    after = samples[-1].durations or before
    counts = [late - early for early, late in zip(before, after, strict=True)]
    total, seen = sum(counts), 0
    if total < LEAST_REQUESTS:
        return 0.0
    for bound, count in zip((*BOUNDS, math.inf), counts, strict=True):
        seen += count
        if seen >= 0.99 * total:
            return bound
    return math.inf


def _bound_below(bound: float) -> float:
    """Return the bound before this one: more than 1 % of the durations are above it."""
    return next((low for low, high in pairwise((*BOUNDS, math.inf)) if high == bound), 0.0)
