"""The future changes of a simulation, each at its time."""

import heapq
import itertools
from collections.abc import Callable


class Agenda:
    """Changes that are made when their time has come. A change gets its planned time as its argument, not the
    time at which it is made, so that a bill does not depend on how often the simulation is asked."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, change: Callable[[float], None]) -> None:
        """Plans a change at a Unix time in seconds."""
        heapq.heappush(self._changes, (time, next(self._numbers), change))

    def settle(self, now: float) -> None:
        """Makes all changes whose time has come, in the order of their times. A change can plan others."""
        while self._changes and self._changes[0][0] <= now:
            time, _, change = heapq.heappop(self._changes)
            change(time)

    def next_time(self) -> float | None:
        """Returns the time of the next change, or None if no change is planned."""
        return self._changes[0][0] if self._changes else None
