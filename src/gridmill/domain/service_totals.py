"""This module computes the numbers of a whole service from the reports of all its pods.

Memory, replicas and counters are sums. Lags are those of the worst pod. Only reports of pods that get
requests count; counters also have the numbers of pods that have ended (`domain/service_counters.py`).
"""

from collections.abc import Collection, Iterator

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.service import Service, ready_replicas
from gridmill.domain.service_counters import PodNumbers, ServiceTotals, sum_of_shadows
from gridmill.domain.serving import ServiceReport, ShadowReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedPod:
    """The last report of one pod of a service. `report` is None if the pod has not reported yet."""

    job: str
    attempt_id: str = ""
    report: ServiceReport | None = None
    is_leaving: bool = False


def reported_pods(service: Service) -> tuple[ReportedPod, ...]:
    """Return the pods of a service with their reports, in the order of their jobs."""
    first = ReportedPod(job=service.serving_job, attempt_id=service.reported_by, report=service.report)
    further = (
        ReportedPod(
            job=one.job,
            attempt_id=one.reported_by,
            report=one.report,
            is_leaving=one.leaving is not None,
        )
        for one in service.further_pods
    )
    return tuple(sorted((first, *further), key=lambda one: one.job))


def reports_of(service: Service) -> tuple[ServiceReport, ...]:
    """Return the reports of the pods of a service that get requests, that of its serving job first."""
    further = (one.report for one in service.further_pods if one.leaving is None)
    return tuple(one for one in (service.report, *further) if one is not None)


def problems_of(service: Service) -> tuple[str, ...]:
    """Return the different problems that the pods of a service have reported."""
    return tuple(dict.fromkeys(one.problem for one in reports_of(service) if one.problem))


def is_refused(service: Service) -> bool:
    """Return whether a pod of a service has tried its newest order, and has a problem with it."""
    return any(one.seen_generation >= service.generation and one.problem for one in reports_of(service))


def served_generation(service: Service) -> int:
    """Return the newest order that all pods of a service serve; 0 if it is unknown."""
    served = (one.generation for one in reports_of(service) if one.generation)
    return min(served, default=0)  # a pod that starts serves none yet


def totals_of(service: Service, silent: Collection[str] = ()) -> ServiceTotals:
    """Return the numbers of a whole service. `silent` are the attempts whose pods are not connected to the
    control node."""
    pods = reported_pods(service) if service.is_meant_to_run else ()
    reports = [one.report for one in pods if one.report is not None and not one.is_leaving]
    changed = [one for one in reports if one.scale_reason]
    failed = [one for one in reports if one.last_failure]
    last = max(changed, key=lambda one: one.scaled_at or 0.0, default=None)
    failure = max(failed, key=lambda one: one.last_failure_at or 0.0, default=None)
    views = [view for one in reports for view in one.views]
    return ServiceTotals(
        pods=tuple(_pod_of(one, one.attempt_id in silent) for one in pods),
        ready=sum(map(ready_replicas, reports)),
        wanted=sum(len(one.replicas) if one.wanted is None else one.wanted for one in reports),
        memory_bytes=sum(map(_memory, reports)),
        gpu_memory_bytes=sum(map(_gpu_memory, reports)),
        restarts=sum(one.restarts for one in service.counted),
        log_lost=sum(one.log_lost for one in service.counted),
        shadow=sum_of_shadows(list(_shadows(service))),
        drift=service.drift_of_pods or (service.report.drift if service.report is not None else ()),
        scaled_at=last.scaled_at if last is not None else None,
        scale_reason=last.scale_reason if last is not None else "",
        last_failure=failure.last_failure if failure is not None else "",
        last_failure_at=failure.last_failure_at if failure is not None else None,
        views_behind_since=min((one.behind_since for one in views if one.behind_since), default=None),
        views_checked_at=min((one.checked_at for one in views if one.checked_at), default=None),
    )


def _shadows(service: Service) -> Iterator[ShadowReport]:
    """Yield the comparisons of the present shadow with the present version. Pods of an older Gridmill do not
    report the version."""
    for one in service.counted:
        shadow = one.shadow
        is_present = shadow is not None and shadow.label == service.shadow_version
        if shadow is not None and is_present and shadow.served in ("", service.version):
            # whether it runs is known of the present pods only
            present = one.attempt_id in {pod.attempt_id for pod in reported_pods(service)}
            yield shadow if present else replace(shadow, is_ready=False, problem="")


def _pod_of(pod: ReportedPod, is_silent: bool) -> PodNumbers:
    report = pod.report
    if report is None:
        return PodNumbers(job=pod.job, attempt_id=pod.attempt_id, is_leaving=pod.is_leaving)
    return PodNumbers(
        job=pod.job,
        attempt_id=pod.attempt_id,
        state=report.state,
        address=report.address,
        ready=ready_replicas(report),
        wanted=len(report.replicas) if report.wanted is None else report.wanted,
        memory_bytes=_memory(report),
        gpu_memory_bytes=_gpu_memory(report),
        restarts=report.restarts,
        log_lost=report.log_lost,
        reported_at=report.written_at,
        is_leaving=pod.is_leaving,
        is_silent=is_silent,
    )


def _memory(report: ServiceReport) -> int:
    return sum(one.memory_bytes for one in report.replicas)


def _gpu_memory(report: ServiceReport) -> int:
    return sum(one.gpu_memory_bytes for one in report.replicas)


def as_shown(service: Service) -> Service:
    """Return the record of a service for the user interfaces, without the counts of bins."""
    further = tuple(replace(one, report=_shown(one.report)) for one in service.further_pods)
    return replace(service, report=_shown(service.report), further_pods=further)


def _shown(report: ServiceReport | None) -> ServiceReport | None:
    return replace(report, drift_counts=()) if report is not None and report.drift_counts else report
