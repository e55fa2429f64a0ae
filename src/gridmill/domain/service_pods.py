"""This module has the pods of a service that runs in several pods, each on a node of its own."""

from collections.abc import Iterable

from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import ReplicaState, ServiceReport, ServiceState


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherPod:
    """Replicas of a service in a pod beside the pod of its serving job. `job` is their job in the run of the
    service. `report` is their last report, which belongs to the attempt `reported_by`; None if no attempt of
    the job runs. `leaving` is the Unix time in seconds since which the replicas get no further requests,
    because the service needs fewer pods; None if they get requests."""

    job: str
    report: ServiceReport | None = None
    reported_by: str = ""
    leaving: float | None = None

    def is_ready(self, generation: int) -> bool:
        """Return whether all replicas of the pod are ready and serve the order with this generation."""
        report = self.report
        if self.leaving is not None or report is None or report.generation < generation:
            return False
        is_any_ready = any(one.state is ReplicaState.READY for one in report.replicas)
        return report.state is ServiceState.READY and is_any_ready


def by_use(pods: Iterable[FurtherPod]) -> tuple[FurtherPod, ...]:
    """Return the further pods that get requests, in the order in which they stay when the service needs fewer
    pods: first those that are ready."""
    return tuple(sorted((one for one in pods if one.leaving is None), key=lambda one: not one.is_ready(0)))


def job_of_pod(first: str, number: int) -> str:
    """Return the name of the job that runs the replicas of a service in its pod with this number, from 1.
    `first` is the name for the first pod."""
    return first if number == 1 else f"{first}-{number}"
