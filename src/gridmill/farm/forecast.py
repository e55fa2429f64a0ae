"""About how long those that wait for room on a farm will, told from how long others stayed (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from gridmill.farm.claims import admit, free, queue
from gridmill.farm.lodging import HAS_ROOM, Lodging
from gridmill.model.farm import Opening
from gridmill.model.gpus import pick
from gridmill.model.noun import dataclass
from gridmill.model.site import Node
from gridmill.planning.service import remaining

LEAST_STAYS = 3
"""From fewer nothing is told."""
MOST_WAITING = 200
"""Behind more nothing is told: errors would add up."""
_LIKELY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """In seconds from now: `starts`, when each that waits (by its number) gets room; `openings`, when there
    is room for more behind them all. Who is not there waits for nobody knows how long."""

    starts: Mapping[int, float]
    openings: tuple[Opening, ...]


def forecast(lodgings: Sequence[Lodging], nodes: Sequence[Node], now: float, shares: int = 1) -> Forecast:
    """All stay as long as half of those before did, of their own source where enough of it have left."""
    live = {one.number: one for one in lodgings if one.state in HAS_ROOM}
    live |= {one.number: one for one in queue(lodgings)}
    if len(live) > MOST_WAITING:
        return Forecast(starts={}, openings=())
    stays = _Stays(lodgings)
    ends = [(now + stays.left(one, now), one.number) for one in live.values() if one.state in HAS_ROOM]
    heapify(ends)
    starts: dict[int, float] = {}
    openings: list[Opening] = []
    at = now
    while True:
        for one in admit(list(live.values()), nodes, at, shares):
            starts[one.number], live[one.number] = at - now, one
            heappush(ends, (at + stays.left(one, at), one.number))
        if not any(True for one in queue(live.values()) if _fits(one, nodes, shares)):
            _open(openings, at - now, _gpus(live.values(), nodes, shares))
        if not ends or ends[0][0] == inf:
            return Forecast(starts=starts, openings=tuple(openings))
        at, number = heappop(ends)
        del live[number]


def _fits(waiting: Lodging, nodes: Sequence[Node], shares: int) -> bool:
    """Whether it would get room if nobody else were here."""
    return bool(admit((waiting,), nodes, 0.0, shares))


def _open(openings: list[Opening], seconds: float, gpus: int | None) -> None:
    if gpus is not None and (not openings or gpus > openings[-1].gpus):
        openings.append(Opening(seconds=seconds, gpus=gpus))


def _gpus(lodgings: Iterable[Lodging], nodes: Sequence[Node], shares: int) -> int | None:
    """The most that one pod would get, on nodes that have a CPU and memory left; None: there is none."""
    rooms = free(lodgings, nodes, shares).values()
    roomy = (one for one in rooms if one.amounts.cpus >= 1.0 and one.amounts.memory_bytes > 0)
    return max((_most(room.gpus, shares) for room in roomy), default=None)


def _most(numbers: Sequence[int], shares: int) -> int:
    return next(count for count in range(len(numbers), -1, -1) if pick(numbers, count, shares) is not None)


class _Stays:
    """How long those that have left had stayed, ascending: of each source, and of all."""

    def __init__(self, lodgings: Iterable[Lodging]) -> None:
        known = sorted((one.stayed_seconds, one.source) for one in lodgings if one.stayed_seconds is not None)
        self._all = [seconds for seconds, _ in known]
        self._of: dict[str, list[float]] = {}
        for seconds, source in known:
            self._of.setdefault(source, []).append(seconds)

    def left(self, lodging: Lodging, now: float) -> float:
        """Seconds until it leaves; infinite where nobody knows."""
        own = self._of.get(lodging.source, [])
        known = own if len(own) >= LEAST_STAYS else self._all
        if len(known) < LEAST_STAYS:
            return inf
        return remaining(known, max(0.0, now - lodging.began), _LIKELY)
