"""Admits deployments of tenants to the nodes and GPUs of the farm, and forecasts how long the deployments
will wait. All functions are pure.

The deployments of all tenants are admitted in the order of their requests. A GPU belongs to one pod at a
time. If the owner of the farm divided the GPUs into shares, each share belongs to one pod at a time. The
forecast is based on how long earlier deployments ran.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from gridmill.domain.amounts import Amounts, devices_of, pick, show_bytes, show_count, show_cpus
from gridmill.domain.farm_protocol import FutureCapacity, QueuedDeployment
from gridmill.domain.frozen import dataclass
from gridmill.domain.ordering import remaining
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import GpuSlot, Node
from gridmill.errors import CapacityError
from gridmill.farm.deployment import HAS_ROOM, PodPlacement, TenantDeployment, TenantDeploymentState


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCapacity:
    """The free capacity of a node. `amounts` is the free capacity without GPUs, and `gpus` are the numbers
    of the free GPUs. `shares` is the number of shares into which each GPU of the machine is divided."""

    amounts: Amounts
    gpus: tuple[int, ...]
    shares: int = 1

    def holds(self, wanted: Amounts) -> bool:
        """Returns whether a pod of this size fits into the free capacity."""
        return self.pick(wanted) is not None and replace(wanted, gpus=0).fits_in(self.amounts)

    def pick(self, wanted: Amounts) -> tuple[int, ...] | None:
        """Returns the GPUs that a pod of this size would get."""
        return pick(self.gpus, wanted.gpus, self.shares)

    def without(self, taken: Amounts, gpus: Iterable[int]) -> "FreeCapacity":
        """Returns the capacity that is free after a pod was placed."""
        left = tuple(index for index in self.gpus if index not in set(gpus))
        return replace(self, amounts=self.amounts - replace(taken, gpus=0), gpus=left)


def admit(
    deployments: Sequence[TenantDeployment], nodes: Sequence[Node], now: float, shares: int = 1
) -> tuple[TenantDeployment, ...]:
    """Returns the deployments that can start now, with the placement of their pods. Deployments start in the
    order of their requests, and no later deployment starts before an earlier one. If later deployments could
    overtake, a large deployment could wait for ever. Only a deployment that is too large for the empty farm
    is skipped."""
    rooms = free(deployments, nodes, shares)
    whole = free((), nodes, shares)
    admitted: list[TenantDeployment] = []
    for waiting in queue(deployments):
        if _placements(waiting, whole) is None:
            continue
        found = _placements(waiting, rooms)
        if found is None:
            break
        placements, rooms = found
        admitted.append(replace(waiting.to(TenantDeploymentState.STARTING, now), placements=placements))
    return tuple(admitted)


def queue(deployments: Iterable[TenantDeployment]) -> list[TenantDeployment]:
    """Returns the waiting deployments in the order of their requests."""
    waiting = (deployment for deployment in deployments if deployment.state == TenantDeploymentState.WAITING)
    return sorted(waiting, key=lambda one: one.number)


def free(
    deployments: Iterable[TenantDeployment], nodes: Iterable[Node], shares: int = 1
) -> dict[str, FreeCapacity]:
    """Returns the capacity of each node that running and starting deployments do not use."""
    rooms = {
        node.name: FreeCapacity(
            amounts=replace(node.capacity, gpus=0), gpus=tuple(range(node.capacity.gpus)), shares=shares
        )
        for node in nodes
    }
    for deployment in deployments:
        if deployment.state not in HAS_ROOM:
            continue
        sizes = {order.pod_id: order.capacity for order in deployment.request.orders}
        for placement in deployment.placements:
            if placement.node in rooms and placement.pod_id in sizes:
                rooms[placement.node] = rooms[placement.node].without(
                    sizes[placement.pod_id], _numbers(placement, shares)
                )
    return rooms


def gpu_slots(
    deployments: Sequence[TenantDeployment], nodes: Iterable[Node], tenant: str, shares: int = 1
) -> dict[str, tuple[GpuSlot, ...]]:
    """Returns which pod has which GPU or share of a GPU, by node. The result contains only information that
    the tenant is allowed to see: GPUs of other tenants are marked as used, without the name of the
    tenant."""
    taken = {
        (placement.node, index): deployment.id if deployment.tenant == tenant else ""
        for deployment in deployments
        if deployment.state in HAS_ROOM
        for placement in deployment.placements
        for index in placement.gpus
    }
    return {
        node.name: tuple(
            GpuSlot(
                gpu=index // shares,
                taken=(node.name, index) in taken,
                deployment=taken.get((node.name, index), ""),
            )
            for index in range(node.capacity.gpus)
        )
        for node in nodes
    }


def queued(
    deployments: Iterable[TenantDeployment], tenant: str, starts: Mapping[int, float]
) -> tuple[QueuedDeployment, ...]:
    """Returns the waiting deployments of a tenant, with their positions in the queue of all tenants.
    `starts` contains, for the number of each deployment, the seconds until its expected start."""
    return tuple(
        QueuedDeployment(deployment=one.id, position=place, seconds=starts.get(one.number))
        for place, one in enumerate(queue(deployments))
        if one.tenant == tenant
    )


def _numbers(placement: PodPlacement, shares: int) -> Sequence[int]:
    """Returns the GPUs of a deployment with their present numbers. If the numbers of the GPUs have changed
    since the deployment started, the function assumes that the deployment uses all GPUs."""
    if placement.shares == shares:
        return placement.gpus
    whole = devices_of(placement.gpus, placement.shares)
    return [device * shares + part for device in whole for part in range(shares)]


def check_size(deployment: TenantDeployment, nodes: Sequence[Node], shares: int = 1) -> None:
    """Raises CapacityError if the deployment would not fit even if the farm were empty."""
    if _placements(deployment, free((), nodes, shares)) is None:
        largest = max(
            (order.capacity for order in deployment.request.orders), key=lambda one: one.memory_bytes
        )
        raise CapacityError(
            f"the farm is too small for {len(deployment.pods)} x {show_cpus(largest.cpus)}, "
            f"{show_bytes(largest.memory_bytes)}, {show_count(largest.gpus, 'GPU')}, even if no other "
            "deployment runs",
            hint="Request less. `gridmill nodes` shows the capacity of the farm.",
        )


_Found = tuple[tuple[PodPlacement, ...], dict[str, FreeCapacity]]


def _placements(deployment: TenantDeployment, rooms: dict[str, FreeCapacity]) -> _Found | None:
    """Returns a placement for each pod, and the capacity that is free afterwards. Returns None if a pod
    cannot be placed."""
    left, placements = dict(rooms), []
    for order in deployment.request.orders:
        name = next((name for name in _nodes_in_order(order, left) if left[name].holds(order.capacity)), None)
        if name is None:
            return None
        gpus = left[name].pick(order.capacity) or ()
        left[name] = left[name].without(order.capacity, gpus)
        placements.append(PodPlacement(pod_id=order.pod_id, node=name, gpus=gpus, shares=left[name].shares))
    return tuple(placements), left


def _nodes_in_order(order: PodOrder, rooms: dict[str, FreeCapacity]) -> list[str]:
    """Returns the nodes in the order in which they are tried. The node that the order requests is the
    first."""
    first = [name for name in rooms if name == order.node]
    return first if order.pinned and order.node else [*first, *(name for name in rooms if name != order.node)]


LEAST_STAYS = 3
"""If fewer deployments than this have ended, no forecast is made."""
MOST_WAITING = 200
"""The forecast places at most this number of waiting deployments one after another. Further deployments are
expected to start at the same rate."""
_LIKELY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueForecast:
    """A forecast of waiting times. All values are in seconds from now. `starts` contains, for the number of
    each waiting deployment, the time when this deployment can start. `openings` are the times at which
    deployments that are requested later can start. If a deployment is missing in `starts`, its waiting time
    is unknown."""

    starts: Mapping[int, float]
    openings: tuple[FutureCapacity, ...]


def forecast(
    deployments: Sequence[TenantDeployment], nodes: Sequence[Node], now: float, shares: int = 1
) -> QueueForecast:
    """Returns the forecast for all waiting deployments. Each deployment is expected to run for the median
    time of earlier deployments of the same tenant. If too few deployments of the tenant have ended, the
    median of all tenants is used."""
    line = [one for one in queue(deployments) if _fits(one, nodes, shares)]
    near, further = line[:MOST_WAITING], line[MOST_WAITING:]
    hold_room = [one for one in deployments if one.state != TenantDeploymentState.WAITING]
    nearest = _forecast([*hold_room, *near], nodes, now, shares)
    if not further:
        return nearest
    later: dict[int, float] = {}
    if all(one.number in nearest.starts for one in near):
        last = nearest.starts[near[-1].number]
        pace = last / len(near)
        later = {one.number: last + pace * at for at, one in enumerate(further, 1)}
    return QueueForecast(starts={**nearest.starts, **later}, openings=())


def _forecast(
    deployments: Sequence[TenantDeployment], nodes: Sequence[Node], now: float, shares: int
) -> QueueForecast:
    live = {one.number: one for one in deployments if one.state in HAS_ROOM}
    live |= {one.number: one for one in queue(deployments)}
    stays = _PastDurations(deployments)
    ends = [
        (now + stays.median_remaining(one, now), one.number) for one in live.values() if one.state in HAS_ROOM
    ]
    heapify(ends)
    starts: dict[int, float] = {}
    openings: list[FutureCapacity] = []
    at = now
    while True:
        for one in admit(list(live.values()), nodes, at, shares):
            starts[one.number], live[one.number] = at - now, one
            heappush(ends, (at + stays.median_remaining(one, at), one.number))
        if not queue(live.values()):
            _open(openings, at - now, _gpus(live.values(), nodes, shares))
        if not ends or ends[0][0] == inf:
            return QueueForecast(starts=starts, openings=tuple(openings))
        at, number = heappop(ends)
        del live[number]


def _fits(waiting: TenantDeployment, nodes: Sequence[Node], shares: int) -> bool:
    """Returns whether the deployment would fit if the farm were empty."""
    return bool(admit((waiting,), nodes, 0.0, shares))


def _open(openings: list[FutureCapacity], seconds: float, gpus: int | None) -> None:
    if gpus is not None and (not openings or gpus > openings[-1].gpus):
        openings.append(FutureCapacity(seconds=seconds, gpus=gpus))


def _gpus(deployments: Iterable[TenantDeployment], nodes: Sequence[Node], shares: int) -> int | None:
    """Returns the largest number of GPUs that one pod could get on a node that has a CPU and memory left.
    Returns None if there is no such node."""
    rooms = free(deployments, nodes, shares).values()
    roomy = (one for one in rooms if one.amounts.cpus >= 1.0 and one.amounts.memory_bytes > 0)
    return max((_most(room.gpus, shares) for room in roomy), default=None)


def _most(numbers: Sequence[int], shares: int) -> int:
    return next(count for count in range(len(numbers), -1, -1) if pick(numbers, count, shares) is not None)


class _PastDurations:
    """The run times of ended deployments, in ascending order: for each tenant, and for all tenants
    together."""

    def __init__(self, deployments: Iterable[TenantDeployment]) -> None:
        durations = sorted(
            (deployment.stayed_seconds, deployment.tenant)
            for deployment in deployments
            if deployment.stayed_seconds is not None
        )
        self._all = [seconds for seconds, _ in durations]
        self._of: dict[str, list[float]] = {}
        for seconds, tenant in durations:
            self._of.setdefault(tenant, []).append(seconds)

    def median_remaining(self, deployment: TenantDeployment, now: float) -> float:
        """Returns the expected seconds until the deployment ends, or infinity if the time of the end is
        unknown."""
        own = self._of.get(deployment.tenant, [])
        durations = own if len(own) >= LEAST_STAYS else self._all
        if len(durations) < LEAST_STAYS:
            return inf
        return remaining(durations, max(0.0, now - deployment.started), _LIKELY)
