"""This module has the counters from which the ids of runs, deployments and other records are made."""

from collections.abc import Mapping

FLOOR = "*floor"
"""The counter with the lower bound of all numbers in a recovered store. In a recovered store, it is unknown
which of the numbers up to this bound are used. The name of this counter contains `*`, which no name of a
user contains."""


class Counters:
    """The numbers from which ids are made. Each name has its own sequence of numbers, and no number is
    returned twice."""

    def __init__(self, used: Mapping[str, int]) -> None:
        self._used = dict(used)

    def raise_to(self, used: Mapping[str, int]) -> None:
        """Record that all numbers up to these numbers are used, so that they are not returned as new
        numbers. Another control node may have used the store in the meantime."""
        self._used |= {name: max(number, self._used.get(name, 0)) for name, number in used.items()}

    def used(self, name: str, number: int) -> None:
        """Record that a number is used."""
        self._used[name] = max(number, self._used.get(name, 0))

    def has_given(self, name: str) -> bool:
        """Return whether any number of `name` is used."""
        return self._used.get(name, 0) > 0

    def next(self, name: str) -> int:
        """Return the next number of `name`. Numbers start at 1, or above the lower bound of a recovered
        store."""
        self._used[name] = max(self._used.get(name, 0), self._used.get(FLOOR, 0)) + 1
        return self._used[name]
