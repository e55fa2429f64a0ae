"""This module has the counters of the pods of a service, which the service keeps when a pod ends.

A counter of a service is the sum over all attempts in which its replicas have run since its start. Of each
attempt, the largest reported number counts. So a counter of a service never decreases, and reports that
arrive twice, late or in another order change nothing.
"""

from collections.abc import Collection, Sequence

from gridmill.domain.drift import VersionDrift
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.serving import ServiceReport, ServiceState, ShadowReport

MOST_ENDED = 16
"""The largest number of ended attempts whose counters are kept one by one. Those of older attempts are kept
as one sum."""
_SUM = ""
"""The attempt id of the sum of the counters of older attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCounters:
    """The counters that the pod of an attempt has reported: the `restarts` of its replicas, the lines and
    rows of the request log that were lost, and the comparison of the shadow."""

    attempt_id: str
    restarts: int = 0
    log_lost: int = 0
    shadow: ShadowReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNumbers:
    """The last numbers of one pod of a service; the pod of an attempt that has not reported yet has none.
    `reported_at` is the Unix time of its last report. If the pod `is_silent`, it is not connected to the
    control node, and its numbers are the last known ones. A pod that `is_leaving` gets no further
    requests."""

    job: str
    attempt_id: str = ""
    state: ServiceState | None = None
    address: str = ""
    ready: int = 0
    wanted: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    restarts: int = 0
    log_lost: int = 0
    reported_at: float | None = None
    is_leaving: bool = False
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTotals:
    """The numbers of a whole service, over all its `pods`.

    `ready` and `wanted` are replicas, and `memory_bytes` and `gpu_memory_bytes` their memory, over the pods
    that get requests. `restarts`, `log_lost` and `shadow` also have the numbers of pods that have ended
    since the start of the service. `scale_reason` is the reason for the last change of the number of
    replicas in a pod, and `last_failure` the last failure of a replica. Of all views, `views_behind_since`
    is the time since which the oldest one lacks a version (None: none lacks one), and `views_checked_at` the
    oldest time at which one had the newest versions. Times are Unix times in seconds.
    """

    pods: tuple[PodNumbers, ...] = ()
    ready: int = 0
    wanted: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    restarts: int = 0
    log_lost: int = 0
    shadow: ShadowReport | None = None
    drift: tuple[VersionDrift, ...] = ()
    scaled_at: float | None = None
    scale_reason: str = ""
    last_failure: str = ""
    last_failure_at: float | None = None
    views_behind_since: float | None = None
    views_checked_at: float | None = None


def with_reported(
    counted: Sequence[PodCounters], attempt_id: str, report: ServiceReport, live: Collection[str]
) -> tuple[PodCounters, ...]:
    """Return the counters after a report of an attempt. The attempts `live` can still report."""
    known = (one for one in counted if one.attempt_id == attempt_id)
    before = next(known, PodCounters(attempt_id=attempt_id))
    noted = PodCounters(
        attempt_id=attempt_id,
        restarts=max(before.restarts, report.restarts),
        log_lost=max(before.log_lost, report.log_lost),
        shadow=_later_shadow(before.shadow, report.shadow),
    )
    if noted == before and before in counted:
        return tuple(counted)
    others = tuple(one for one in counted if one.attempt_id != attempt_id)
    return _bounded((*others, noted), {*live, attempt_id})


def _bounded(counted: tuple[PodCounters, ...], live: Collection[str]) -> tuple[PodCounters, ...]:
    ended = [one for one in counted if one.attempt_id not in live]
    if len(ended) <= MOST_ENDED:
        return counted
    # the sum is the first entry, and those that follow are in the order of their last changes
    oldest = ended[: len(ended) - MOST_ENDED + 1]
    shadows = [one.shadow for one in oldest if one.shadow is not None]
    newest = max(shadows, key=lambda one: one.began, default=None)
    total = PodCounters(
        attempt_id=_SUM,
        restarts=sum(one.restarts for one in oldest),
        log_lost=sum(one.log_lost for one in oldest),
        shadow=sum_of_shadows([one for one in shadows if _is_same(one, newest)]),
    )
    return (total, *(one for one in counted if one not in oldest))


def _is_same(one: ShadowReport, other: ShadowReport | None) -> bool:
    return other is not None and (one.label, one.served) == (other.label, other.served)


def _later_shadow(before: ShadowReport | None, now: ShadowReport | None) -> ShadowReport | None:
    """Return the later one of two reports of an attempt about its shadow. The counts of one comparison never
    decrease, and a later comparison begins at 0."""
    if before is None or now is None:
        return now or before
    if (before.label, before.began) != (now.label, now.began):
        return now if now.began >= before.began else before
    later, other = (now, before) if _answered(now) >= _answered(before) else (before, now)
    return replace(
        later,
        dropped=max(later.dropped, other.dropped),
        restarts=max(later.restarts, other.restarts),
        largest_difference=max(later.largest_difference, other.largest_difference),
    )


def _answered(shadow: ShadowReport) -> int:
    return shadow.requests + shadow.failed


def sum_of_shadows(shadows: Sequence[ShadowReport]) -> ShadowReport | None:
    """Return the comparison of all pods together; None if there is none. The means are those of all rows and
    requests, and the percentiles are those of the pod with the largest. All reports are about the same
    shadow."""
    if not shadows:
        return None

    def mean(total: float, number: int) -> float:
        return total / max(1, number)

    requests = sum(one.requests for one in shadows)
    difference_rows = sum(one.difference_rows for one in shadows)
    return replace(
        max(shadows, key=lambda one: one.began),
        is_ready=any(one.is_ready for one in shadows),
        requests=requests,
        equal=sum(one.equal for one in shadows),
        different=sum(one.different for one in shadows),
        difference_rows=difference_rows,
        mean_difference=mean(
            sum(one.mean_difference * one.difference_rows for one in shadows), difference_rows
        ),
        largest_difference=max(one.largest_difference for one in shadows),
        failed=sum(one.failed for one in shadows),
        dropped=sum(one.dropped for one in shadows),
        mean_seconds=mean(sum(one.mean_seconds * one.requests for one in shadows), requests),
        p50_seconds=max(one.p50_seconds for one in shadows),
        p99_seconds=max(one.p99_seconds for one in shadows),
        served_p50_seconds=max(one.served_p50_seconds for one in shadows),
        served_p99_seconds=max(one.served_p99_seconds for one in shadows),
        restarts=sum(one.restarts for one in shadows),
        problem="; ".join(dict.fromkeys(one.problem for one in shadows if one.problem)),
    )


def without_shadows(counted: Sequence[PodCounters]) -> tuple[PodCounters, ...]:
    """Return the counters without the comparisons of a shadow that the service no longer has."""
    return tuple(replace(one, shadow=None) for one in counted)
