"""Serving the jobs of a resource in order, tried out in advance: when each would start."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from gridmill.planning.fair import Standing
from gridmill.planning.queue import Claim, Ticket


class Stay(NamedTuple):
    """A place that an attempt holds until a time, in seconds from now (infinite: nobody knows when)."""

    ends: float
    claim: Claim


class Rehearsal:
    """`places`: how many jobs run at once; `here`: what runs there now, until known times; `elsewhere`: what
    counts for the projects beside; `standings`: how these stand now, and then change.

    Of several projects the one that used less goes first, as in a plan (gridmill.planning.fair); one at its
    quota lets others pass until enough of its jobs have ended.
    """

    def __init__(
        self, places: int, here: Sequence[Stay], elsewhere: Sequence[Stay], standings: Mapping[str, Standing]
    ) -> None:
        self._now = 0.0
        self._free = [0.0] * max(0, places - len(here))  # when each place is free
        self._free += (stay.ends for stay in here)
        self._numbers = count()
        self._ends = [(ends, next(self._numbers), claim) for ends, claim in (*here, *elsewhere)]
        self._standings = standings
        heapify(self._free)
        heapify(self._ends)

    def starts(
        self, lines: Mapping[str, Iterator[Ticket]], lasts: Callable[[Ticket], float | None]
    ) -> Iterator[tuple[Ticket, float]]:
        """Jobs in the order in which they start, and when, in seconds from now. `lines`: those that wait, by
        project; `lasts`: for how many seconds one runs. Ends behind the first for which that is not known."""
        heads = {name: head for name, line in lines.items() if (head := next(line, None)) is not None}
        while (first := self._first(heads.values())) is not None:
            demand = first[5].demand
            freed = [heappop(self._free) for _ in range(min(demand.workers, len(self._free)))]
            began, seconds = max(self._now, *freed), lasts(first)
            yield first, began
            if seconds is None:
                return
            self._hold(first[5], len(freed), began + seconds)
            following = next(lines[demand.project], None)
            if following is None:
                del heads[demand.project]
            else:
                heads[demand.project] = following

    def _first(self, heads: Iterable[Ticket]) -> Ticket | None:
        """Whose turn it is when a place is free next, and a quota has room; None: nobody's ever."""
        self._go_on(self._free[0])
        while heads:
            ready = [head for head in heads if not self._standing(head).is_over(head[5])]
            if ready:
                return min(ready, key=lambda head: (head[0], self._standing(head).score, head))
            if not self._ends or self._ends[0][0] == inf:
                break
            self._go_on(self._ends[0][0])
        return None

    def _standing(self, head: Ticket) -> Standing:
        return self._standings[head[5].demand.project]

    def _go_on(self, until: float) -> None:
        """Until then, and all that ends by then gives up what it holds."""
        while self._ends and self._ends[0][0] <= until:
            ended, _, claim = heappop(self._ends)
            self._lapse(ended)
            self._standings[claim.project].end(claim)
        self._lapse(until)

    def _lapse(self, until: float) -> None:
        for standing in self._standings.values():
            standing.lapse(max(0.0, until - self._now))
        self._now = max(self._now, until)

    def _hold(self, claim: Claim, places: int, ends: float) -> None:
        self._standings[claim.project].start(claim)
        heappush(self._ends, (ends, next(self._numbers), claim))
        for _ in range(places):
            heappush(self._free, ends)
