"""This module chooses the number of pods of a service for a rate of requests: the smallest number of pods
that can serve the rate, and then the fewest replicas in each of them.

All pods of a service have the same size, and each has a node of its own. The router sends requests to the
pods in turn, so that each pod gets the same part of the rate.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import heappush, heappushpop

from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_cpus, show_number
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.service_settings import MOST_PODS
from gridmill.domain.service_size import (
    MOST_REPLICAS,
    Calibration,
    ServiceSize,
    fits,
    most_rate,
    size_for_count,
    size_for_range,
    size_for_rate,
)
from gridmill.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRooms:
    """The CPUs and the memory that one pod of a service can have on each node.

    `held` are those on the nodes of its running pods, which stay there: when the service needs fewer pods,
    the last of them end first. `free` are those on the other nodes. `empty` is a pod on the largest node
    without other services. `site` is the site whose nodes they are; if it is empty, the service can run in
    one pod only, for the reason `why_one`.
    """

    free: tuple[Amounts, ...] = ()
    held: tuple[Amounts, ...] = ()
    empty: Amounts = Amounts()
    site: str = ""
    why_one: str = ""

    @property
    def most_pods(self) -> int:
        """The largest number of pods that the service can have."""
        return min(MOST_PODS, len(self.held) + len(self.free)) if self.site else 1

    def less(self, memory_bytes: int) -> "PodRooms":
        """Return the rooms without this memory in each of them."""

        def smaller(one: Amounts) -> Amounts:
            return replace(one, memory_bytes=max(0, one.memory_bytes - memory_bytes))

        return replace(self, free=tuple(map(smaller, self.free)), held=tuple(map(smaller, self.held)))

    def with_nodes(self, number: int) -> "PodRooms":
        """Return the rooms with this number of further nodes, each without other services."""
        return replace(self, free=(*self.free, *(self.empty for _ in range(number))))


def common_rooms(rooms: PodRooms, pods: int) -> tuple[Amounts, ...]:
    """Return the amounts that this number of pods can each have at the same time. Something fits into all
    the pods if it fits into one of the amounts. The result is empty if there are too few nodes."""
    held = rooms.held[:pods]
    added = pods - len(held)
    cpus = min((one.cpus for one in held), default=math.inf)
    memory = min((one.memory_bytes for one in held), default=0)
    if not added:
        return (Amounts(cpus=cpus, memory_bytes=memory),)
    return tuple(
        Amounts(
            cpus=min(cpus, one.cpus),
            memory_bytes=min(memory, one.memory_bytes) if held else one.memory_bytes,
        )
        for one in _on_nodes(rooms.free, added)
    )


def _on_nodes(free: Sequence[Amounts], nodes: int) -> Iterator[Amounts]:
    """Yield the amounts that this number of nodes each have: fewer and fewer CPUs, more and more memory."""
    largest: list[int] = []
    """The memory of as many nodes, those with the most memory among the nodes with at least these CPUs."""
    memory = -1
    for one in sorted(free, key=lambda one: one.cpus, reverse=True):
        if len(largest) < nodes:
            heappush(largest, one.memory_bytes)
        else:
            heappushpop(largest, one.memory_bytes)
        if len(largest) == nodes and largest[0] > memory:
            memory = largest[0]
            yield Amounts(cpus=one.cpus, memory_bytes=memory)


def fewest_pods(calibration: Calibration, rate: float, rooms: PodRooms) -> int:
    """Return the smallest number of pods that can serve the rate; 0 if there are too few nodes."""
    numbers = range(1, rooms.most_pods + 1)
    return next((pods for pods in numbers if _serves(calibration, rate, rooms, pods)), 0)


def _serves(calibration: Calibration, rate: float, rooms: PodRooms, pods: int) -> bool:
    return any(fits(calibration, rate / pods, room) for room in common_rooms(rooms, pods))


def most_rate_in(calibration: Calibration, rooms: PodRooms, pods: int) -> float:
    """Return the largest whole rate per second that this number of pods can serve; 0 if none."""
    common = common_rooms(rooms, pods)
    low = 0
    high = math.floor(pods * MOST_REPLICAS * calibration.rate_per_replica) if common else 0
    while low < high:
        middle = (low + high + 1) // 2
        is_served = any(fits(calibration, middle / pods, room) for room in common)
        low, high = (middle, high) if is_served else (low, middle - 1)
    return float(low)


def size_by_rate(calibration: Calibration, rate: float, rooms: PodRooms, where: str) -> ServiceSize:
    """Return the size of a service for this rate of requests, in the smallest number of pods. Raises
    CapacityError, with the rate that can be served, and with the nodes that are missing."""
    pods = fewest_pods(calibration, rate, rooms)
    if not pods:
        raise (
            _too_few_nodes(calibration, rate, rooms, where)
            if rooms.site
            else _too_large(calibration, rate, rooms, where)
        )
    size = size_for_rate(calibration, rate, pods)
    if pods == 1:
        return size
    fewer = most_rate_in(calibration, rooms, pods - 1)
    why = (
        f"{pods} pods, each on a node of its own: {where} can serve {show_number(fewer)} requests/s in "
        f"{show_count(pods - 1, 'pod')}"
    )
    return replace(size, why=(why, *size.why))


def size_in_pods(
    calibration: Calibration,
    rate: float,
    replicas: int,
    least_replicas: int | None,
    pods: int,
    rooms: PodRooms,
    where: str,
) -> ServiceSize:
    """Return the size for a range of replicas, for a number of replicas, or for a rate alone, in a number of
    pods that a user has chosen. For a rate alone, 0 pods means as many as it needs; otherwise, it means one.
    Raises CapacityError if they cannot serve the rate, or do not fit."""
    if not (pods or replicas or least_replicas is not None):
        return size_by_rate(calibration, rate, rooms, where)
    pods = pods or 1
    # the number of nodes is checked elsewhere, because some clusters add nodes
    rooms = rooms.with_nodes(max(0, pods - len(rooms.held) - len(rooms.free)))
    common = common_rooms(rooms, pods)
    if least_replicas is None and not replicas:
        if not any(fits(calibration, rate / pods, room) for room in common):
            raise _too_few_pods(calibration, rate, pods, rooms, where)
        return size_for_rate(calibration, rate, pods)
    compute = size_for_count if least_replicas is None else size_for_range
    *others, best = sorted(common, key=lambda room: most_rate(calibration, room))
    for room in others:
        with suppress(CapacityError):
            return compute(calibration, rate, replicas, room, where, pods)
    return compute(calibration, rate, replicas, best, where, pods)


def _too_large(calibration: Calibration, rate: float, rooms: PodRooms, where: str) -> CapacityError:
    """Return the error about a rate that one pod cannot serve, where a service has only one."""
    [room] = common_rooms(rooms, 1)
    return CapacityError(
        f"{where} cannot serve {show_number(rate)} requests/s of {calibration.version}; it can serve "
        f"{show_number(most_rate_in(calibration, rooms, 1))} requests/s",
        hint=f"It has {show_cpus(room.cpus)} and {show_bytes(room.memory_bytes)} for it. Use a "
        f"lower --rate or a larger resource, or stop other services. {rooms.why_one}".rstrip(),
        place="rate",
    )


def _too_few_nodes(calibration: Calibration, rate: float, rooms: PodRooms, where: str) -> CapacityError:
    """Return the error about a rate that all nodes together cannot serve."""
    numbers = range(1, rooms.most_pods + 1)
    served = max((most_rate_in(calibration, rooms, pods) for pods in numbers), default=0.0)
    empty = rooms.empty
    each = f"{show_cpus(empty.cpus)} and {show_bytes(empty.memory_bytes)} for a pod"
    missing = next(
        (
            number
            for number in range(1, MOST_PODS + 1)
            if fewest_pods(calibration, rate, rooms.with_nodes(number))
        ),
        0,
    )
    why = f"A service has at most {MOST_PODS} pods, and {MOST_PODS} nodes with {each} cannot serve the rate."
    if missing:
        verb, total = "is" if missing == 1 else "are", show_cpus(missing * empty.cpus)
        why = f"{show_count(missing, 'more node')} with {each} {verb} missing, together {total}."
    return CapacityError(
        f"{where} cannot serve {show_number(rate)} requests/s of {calibration.version}; it can serve "
        f"{show_number(served)} requests/s in up to {show_count(rooms.most_pods, 'pod')}, one on each node "
        f"of site {rooms.site} that has room",
        hint=f"{why} Use a lower --rate, add nodes to the site, give the resource more CPUs or memory, or "
        "stop other services.",
        place="rate",
    )


def _too_few_pods(
    calibration: Calibration, rate: float, pods: int, rooms: PodRooms, where: str
) -> CapacityError:
    """Return the error about a rate that the chosen number of pods cannot serve."""
    if not rooms.site:
        return _too_large(calibration, rate, rooms, where)
    needed = fewest_pods(calibration, rate, rooms)
    options = (
        f"--pods {needed}, or --pods 0 to let Gridmill choose the number" if needed else "a lower --rate"
    )
    return CapacityError(
        f"{where} cannot serve {show_number(rate)} requests/s of {calibration.version} in "
        f"{show_count(pods, 'pod')}; it can serve {show_number(most_rate_in(calibration, rooms, pods))} "
        "requests/s in them",
        hint=f"Use {options}.",
        place="rate",
    )
