"""This module has the change of a service from one rented machine to another before the first one ends: the
successor of its replicas, and the time at which the successor starts."""

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import HOUR_SECONDS, Lease, cost_bound_micros, hourly_bound_micros
from gridmill.domain.service_size import ServiceSize
from gridmill.domain.serving import Scaling, ServiceReport

MARGIN = 1.5
"""The forecast of the time until a successor is ready is multiplied by this factor, because the next machine
may need longer than the machines before it."""
EXTRA_SECONDS = 60.0
"""The time in seconds that is left for requests and for a further try after the forecast and its margin."""
START_SECONDS = 120.0
"""The assumed seconds from the start of replicas on a machine, with the transfer of their version, until they
are ready. They are measured at the first start."""
MOST_SHARE = 0.5
"""A successor starts after at least this part of the time of a machine, so that a short limit does not pay
for two machines all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The measured seconds from the start of an attempt of a service until all its replicas were ready."""

    attempt_id: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """Replicas that start on another machine to replace the replicas of a service. `job` is their job in the
    run of the service, and `replaces` is the pod whose machine will end. `began` is the Unix time of the
    start in seconds. `report` is their last report, which belongs to the attempt `reported_by`. `size` is
    their size by measurement on their machine, with the terms of its range of replicas (`scaling`); None
    if the size is that of the service."""

    job: str
    replaces: str
    began: float
    report: ServiceReport | None = None
    reported_by: str = ""
    size: ServiceSize | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """The state of the change of a service to another machine.

    `successor` are the replicas that start on another machine; None if there are none. `retiring` is the job
    of the replicas that were replaced and have not ended yet; empty if there is none. `switched` is the Unix
    time in seconds at which the router was seen to use the new replicas. `problem` is the reason why no
    successor starts although the machine ends soon. No further successor starts for the machine of the pod
    `refused_for`. `warm_up` is the last measurement.
    """

    successor: Successor | None = None
    retiring: str = ""
    switched: float | None = None
    problem: str = ""
    refused_for: str = ""
    warm_up: WarmUp | None = None

    @property
    def start_seconds(self) -> float:
        """The forecast of the seconds from the start of replicas on a machine until they are ready."""
        return START_SECONDS if self.warm_up is None else self.warm_up.seconds

    @property
    def message(self) -> str:
        """The state of the change as a sentence; empty if there is nothing to show."""
        if self.successor is not None:
            return "replicas start on another machine, because the machine of the service ends soon"
        if self.retiring:
            return "the replicas on the machine before answer their last requests"
        return self.problem


NO_SUCCESSION = Succession()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEnd:
    """The Unix time in seconds at which the machine of a lease began and at which it ends, and the limit that
    ends it."""

    began: float
    at: float
    limit: str


def machine_end(lease: Lease, now: float) -> MachineEnd | None:
    """Return the end of the machine of a lease by its limits, or None if it has no machine yet."""
    launch_try = lease.machine_try
    if launch_try is None or launch_try.confirmed is None:
        return None
    began, terms = launch_try.confirmed, lease.terms
    by_time = MachineEnd(began=began, at=began + terms.max_seconds, limit="max_hours")
    if terms.max_cost_micros is None:
        return by_time
    left = terms.max_cost_micros - cost_bound_micros(lease, now)
    at = now + max(0.0, left * HOUR_SECONDS / (hourly_bound_micros(lease) or 1))
    return by_time if by_time.at <= at else MachineEnd(began=began, at=at, limit="max_cost")


def lead_seconds(boot_seconds: float, start_seconds: float, lifetime_seconds: float) -> float:
    """Return the seconds before the end of a machine at which its successor is rented: the forecast of the
    boot and of the start of the replicas with a margin, but at most a part of the lifetime of the machine."""
    forecast = MARGIN * (boot_seconds + start_seconds) + EXTRA_SECONDS
    return min(forecast, MOST_SHARE * lifetime_seconds)
