"""This module declares the job of a service: the long-lived attempt in which the replicas of the service
run."""

from gridmill.domain.frozen import dataclass

DRAIN_SECONDS = 10.0
"""The time that the replicas of a stopped service have to answer their running requests."""
STOP_SECONDS = DRAIN_SECONDS + 5.0
"""The time between SIGTERM and SIGKILL for the attempt of a service. It includes the end of the processes
after the last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The declaration of the job of the service `name`. `replicas` is the number of replicas for which the
    attempt gets memory and CPUs. With `has_view`, a process keeps a view of contextual features. The record
    of the service has everything that an update can change.

    With `routes`, the job runs the router of a service whose replicas run at another site.

    If `calibrates` is set, the job measures a replica of this version of a model on a machine of the type
    `machine`, and ends; `name` then belongs to no service.
    """

    name: str
    replicas: int = 1
    routes: bool = False
    has_view: bool = False
    calibrates: str = ""
    machine: str = ""

    def references(self) -> tuple[str, ...]:
        """The names of other results that the job reads: none, because the record of the service names the
        version that it serves."""
        return ()
