"""Who has room: first come, first served over all sources; GPUs, or the shares of one that its owner
declared, belong to one pod at a time (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gridmill.errors import CapacityError
from gridmill.farm.lodging import HAS_ROOM, Berth, Lodging, LodgingState
from gridmill.model.amounts import Amounts, show_bytes
from gridmill.model.farm import Queued
from gridmill.model.gpus import devices_of, pick
from gridmill.model.message import PodOrder
from gridmill.model.node import Seat
from gridmill.model.noun import dataclass
from gridmill.model.site import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a node has left: `amounts` without GPUs, and the numbers of its free GPUs, of which each of the
    machine's has `shares`."""

    amounts: Amounts
    gpus: tuple[int, ...]
    shares: int = 1

    def holds(self, wanted: Amounts) -> bool:
        """Whether a pod of that size fits."""
        return self.pick(wanted) is not None and replace(wanted, gpus=0).fits_in(self.amounts)

    def pick(self, wanted: Amounts) -> tuple[int, ...] | None:
        """The GPUs that a pod of that size would get."""
        return pick(self.gpus, wanted.gpus, self.shares)

    def without(self, taken: Amounts, gpus: Iterable[int]) -> "Room":
        """What a pod leaves."""
        left = tuple(index for index in self.gpus if index not in set(gpus))
        return replace(self, amounts=self.amounts - replace(taken, gpus=0), gpus=left)


def admit(
    lodgings: Sequence[Lodging], nodes: Sequence[Node], now: float, shares: int = 1
) -> tuple[Lodging, ...]:
    """Those that may be brought up now, with their berths. Who asked first goes first, and nobody overtakes:
    a large deployment would wait for ever. Only what no node here could ever hold is passed over."""
    rooms = free(lodgings, nodes, shares)
    whole = free((), nodes, shares)
    admitted: list[Lodging] = []
    for waiting in queue(lodgings):
        if _berths(waiting, whole) is None:
            continue
        found = _berths(waiting, rooms)
        if found is None:
            break
        berths, rooms = found
        admitted.append(replace(waiting.to(LodgingState.STARTING, now), berths=berths))
    return tuple(admitted)


def queue(lodgings: Iterable[Lodging]) -> list[Lodging]:
    """Those that wait, in their order."""
    waiting = (one for one in lodgings if one.state == LodgingState.WAITING)
    return sorted(waiting, key=lambda one: one.number)


def free(lodgings: Iterable[Lodging], nodes: Iterable[Node], shares: int = 1) -> dict[str, Room]:
    """What each node has left beside those that have room."""
    rooms = {
        node.name: Room(
            amounts=replace(node.capacity, gpus=0), gpus=tuple(range(node.capacity.gpus)), shares=shares
        )
        for node in nodes
    }
    for lodging in lodgings:
        if lodging.state not in HAS_ROOM:
            continue
        sizes = {order.pod_id: order.capacity for order in lodging.deploy.orders}
        for berth in lodging.berths:
            if berth.node in rooms and berth.pod_id in sizes:
                rooms[berth.node] = rooms[berth.node].without(sizes[berth.pod_id], _numbers(berth, shares))
    return rooms


def seats(
    lodgings: Sequence[Lodging], nodes: Iterable[Node], source: str, shares: int = 1
) -> dict[str, tuple[Seat, ...]]:
    """Who has which GPU, or share of one, by node, as a source may know it: of others, that it is taken."""
    taken = {
        (berth.node, index): one.id if one.source == source else ""
        for one in lodgings
        if one.state in HAS_ROOM
        for berth in one.berths
        for index in berth.gpus
    }
    return {
        node.name: tuple(
            Seat(
                gpu=index // shares,
                taken=(node.name, index) in taken,
                deployment=taken.get((node.name, index), ""),
            )
            for index in range(node.capacity.gpus)
        )
        for node in nodes
    }


def queued(lodgings: Iterable[Lodging], source: str, starts: Mapping[int, float]) -> tuple[Queued, ...]:
    """Those of a source that wait, and their places in the line of all; `starts`: in how many seconds each is
    expected to get room, by its number."""
    return tuple(
        Queued(deployment=one.id, before=place, seconds=starts.get(one.number))
        for place, one in enumerate(queue(lodgings))
        if one.source == source
    )


def _numbers(berth: Berth, shares: int) -> Sequence[int]:
    """Its GPUs, as they are numbered now: of those that were numbered otherwise when it came all is its."""
    if berth.shares == shares:
        return berth.gpus
    whole = devices_of(berth.gpus, berth.shares)
    return [device * shares + part for device in whole for part in range(shares)]


def check_size(lodging: Lodging, nodes: Sequence[Node], shares: int = 1) -> None:
    """Raises CapacityError for what would not fit if nothing else were here."""
    if _berths(lodging, free((), nodes, shares)) is None:
        largest = max((order.capacity for order in lodging.deploy.orders), key=lambda one: one.memory_bytes)
        raise CapacityError(
            f"the farm has no room for {len(lodging.pods)} x {largest.cpus:g} CPUs, "
            f"{show_bytes(largest.memory_bytes)}, {largest.gpus} GPUs, even when it is empty",
            hint="`gridmill nodes` shows what it has.",
        )


_Found = tuple[tuple[Berth, ...], dict[str, Room]]


def _berths(lodging: Lodging, rooms: dict[str, Room]) -> _Found | None:
    """A berth for each pod and what is left then; None where one of them has none."""
    left, berths = dict(rooms), []
    for order in lodging.deploy.orders:
        name = next((name for name in _wished(order, left) if left[name].holds(order.capacity)), None)
        if name is None:
            return None
        gpus = left[name].pick(order.capacity) or ()
        left[name] = left[name].without(order.capacity, gpus)
        berths.append(Berth(pod_id=order.pod_id, node=name, gpus=gpus, shares=left[name].shares))
    return tuple(berths), left


def _wished(order: PodOrder, rooms: dict[str, Room]) -> list[str]:
    """The nodes in the order in which they are tried; the one that was asked for first."""
    first = [name for name in rooms if name == order.node]
    return first if order.pinned and order.node else [*first, *(name for name in rooms if name != order.node)]
