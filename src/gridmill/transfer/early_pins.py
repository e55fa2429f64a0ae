"""Keeps the inputs of attempts that have not started yet. These inputs give way to everything else.

The pins are only in memory: after a restart, the content is unused and may be evicted, and the transfer pins
it again.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress


class EarlyPins:
    """The content that is kept for attempts which have not started yet, by the attempt and its folder. An
    attempt whose pins are not renewed before their time has passed loses them (`expired`).

    This class is not safe to use from several threads at the same time.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[str, float] = {}
        self._trees: dict[str, dict[str, Mapping[str, int]]] = {}

    def __contains__(self, owner: str) -> bool:
        return owner in self._trees

    def __bool__(self) -> bool:
        return bool(self._trees)

    def pin(self, owner: str, tree: str, sizes: Mapping[str, int], seconds: float) -> None:
        """Pins the content of a folder, with its sizes in bytes, and renews all pins of the owner for
        `seconds`."""
        self._until[owner] = self._monotonic() + seconds
        self._trees.setdefault(owner, {})[tree] = sizes

    def sizes(self) -> dict[str, int]:
        """Returns the sizes in bytes of all pinned content by name."""
        trees = (tree for trees in self._trees.values() for tree in trees.values())
        return {name: size for tree in trees for name, size in tree.items()}

    def end(self, owner: str) -> None:
        """Ends all pins of the owner. May be repeated."""
        self._until.pop(owner, None)
        self._trees.pop(owner, None)

    def end_tree(self, owner: str, tree: str) -> None:
        """Ends the pins for one folder of the owner. May be repeated."""
        with suppress(KeyError):
            del self._trees[owner][tree]
            if not self._trees[owner]:
                self.end(owner)

    def expired(self) -> tuple[str, ...]:
        """Returns the owners whose time has passed."""
        now = self._monotonic()
        return tuple(owner for owner, until in self._until.items() if until <= now)

    def clear(self) -> None:
        """Ends all pins."""
        self._until.clear()
        self._trees.clear()
