"""This module computes the size of a service on a rented machine. The machine is rented for the service,
measures the version first, and then gets the replicas that fit on it.

All functions of this module are pure."""

import math

from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_cpus, show_number
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import Lease
from gridmill.domain.service_size import (
    MOST_REPLICAS,
    Calibration,
    ServiceSize,
    amounts_for,
    fits,
    most_rate,
    most_replicas,
    replicas_for,
    scaling_of,
    size_for_count,
    size_for_range,
)
from gridmill.domain.service_spread import PodRooms, size_by_rate
from gridmill.domain.serving import Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """The size that a user requests for a service on rented machines: a `rate` of requests per second (0:
    none), a number of `replicas` (0: as many as the rate needs), or a range from `least_replicas` to
    `replicas`. The size is computed on each machine from the measurement on machines of its type.

    Before the first measurement, the machine has at least `cpus` CPUs and `memory_bytes` (0: the estimate
    for one replica).
    """

    rate: float = 0.0
    replicas: int = 0
    least_replicas: int | None = None
    cpus: float = 1.0
    memory_bytes: int = 0

    @property
    def terms(self) -> tuple[float, int, int | None]:
        """What the user has requested."""
        return self.rate, self.replicas, self.least_replicas


def type_at(instance_type: str, site: str) -> str:
    """Return the type of the machines of this instance type at a cloud site."""
    return f"{instance_type} at site {site}"


def rented_type(lease: Lease) -> str:
    """Return the type of the machine of a lease; empty if it has none yet."""
    launch_try = lease.machine_try or lease.last_try
    return type_at(launch_try.instance_type, lease.provider) if launch_try is not None else ""


def fitting_size(
    calibration: Calibration, request: SizeRequest, room: Amounts
) -> tuple[ServiceSize, Scaling | None]:
    """Return the size for a request that fits into the room on a machine of the type of the calibration, and
    the terms of a range of replicas. If the room is too small for the request, the size is the largest that
    fits, and its `shortage` states what is missing. Raises CapacityError if no replica fits."""
    size, scaling = _largest(calibration, request, room)
    size = replace(size, machine=calibration.machine)
    return replace(size, shortage=_shortage(calibration, request, size, room)), scaling


def _largest(
    calibration: Calibration, request: SizeRequest, room: Amounts
) -> tuple[ServiceSize, Scaling | None]:
    where = f"a machine {calibration.machine}"
    if request.least_replicas is not None:
        most = min(request.replicas, most_replicas(calibration, room)) or 1
        least = min(request.least_replicas, most)
        rate = min(request.rate, most * calibration.rate_per_replica)
        return size_for_range(calibration, rate, most, room, where), scaling_of(calibration, least, most)
    if request.replicas:
        count = next(
            (one for one in range(request.replicas, 1, -1) if _holds(calibration, request, one, room)), 1
        )
        rate = min(request.rate, count * calibration.rate_per_replica)
        return size_for_count(calibration, rate, count, room, where), None
    rate = request.rate if fits(calibration, request.rate, room) else largest_rate(calibration, room)
    rooms = PodRooms(free=(room,), empty=room)
    return size_by_rate(calibration, rate or request.rate, rooms, where), None


def _holds(calibration: Calibration, request: SizeRequest, count: int, room: Amounts) -> bool:
    rate = min(request.rate, count * calibration.rate_per_replica)
    return amounts_for(calibration, rate, count).fits_in(room)


def largest_rate(calibration: Calibration, room: Amounts) -> float:
    """Return the largest rate of requests that a service in this room can serve; 0 if no replica fits."""
    whole_replicas = most_replicas(calibration, room) * calibration.rate_per_replica
    return max(most_rate(calibration, room), whole_replicas)


def _shortage(calibration: Calibration, request: SizeRequest, size: ServiceSize, room: Amounts) -> str:
    """Return what the size lacks of the request; empty if it lacks nothing."""
    can = f"{show_count(size.replicas, 'replica')} of {size.version}"
    where = (
        f"its machine ({calibration.machine}) has {show_cpus(room.cpus)} and "
        f"{show_bytes(room.memory_bytes)} for the service"
    )
    if request.rate > size.rate:
        served = show_number(math.floor(size.rate) if size.rate >= 1 else size.rate)
        return f"{where}: {can} can serve {served} requests/s, not {show_number(request.rate)}"
    if request.replicas > size.replicas:
        return f"{where}: enough for {can}, not for {request.replicas}"
    return ""


def amounts_needed(calibration: Calibration, request: SizeRequest) -> Amounts | None:
    """Return the CPUs and the memory that a request would need on machines on which each request costs as
    much as on that of the calibration; None if a service cannot have so many replicas."""
    rate, replicas = request.rate, request.replicas
    replicas = max(replicas, replicas_for(calibration, rate)) if rate else replicas
    if replicas > MOST_REPLICAS:
        return None
    if request.least_replicas is not None:
        rate = max(rate, replicas * calibration.rate_per_replica)
    return amounts_for(calibration, rate, replicas)
