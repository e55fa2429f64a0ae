"""Who may have how much of a quota: first come, first served, and whoever waits holds nobody up."""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from gridmill.errors import CapacityError, UnavailableError
from gridmill.model.amounts import show_bytes

_FRESH_SECONDS = 60.0
"""Whoever waits asks again and again; who has not for so long wants it no more."""
_NAMED = 3


class Room:
    """Sizes in bytes of what owners (attempts) use, by its names; what several use counts once. Not safe to
    use from several threads at once."""

    def __init__(self, quota_bytes: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._quota_bytes, self._monotonic = quota_bytes, monotonic
        self._numbers = count()
        self._since: dict[str, int] = {}
        self._taken: dict[str, Mapping[str, int]] = {}
        self._trees: dict[str, dict[str, Mapping[str, int]]] = {}
        self._waiting: dict[str, float] = {}

    def take(
        self, owner: str, tree: str, wanted: Mapping[str, int], others: Mapping[str, Mapping[str, int]]
    ) -> tuple[str, ...]:
        """Room for this tree too, in the place of what was wanted for it before. `others` is what owners of
        whom this does not know use. Answers owners who wait, came later, and must let go of what they have
        for it: they ask for all again.

        Raises CapacityError for more than the quota, UnavailableError while others have the room, or came
        earlier and wait.
        """
        trees = {**self._trees.get(owner, {}), tree: wanted}
        mine = {name: size for has in trees.values() for name, size in has.items()}
        if sum(mine.values()) > self._quota_bytes:
            raise CapacityError(
                f"{show_bytes(sum(mine.values()))} are more than the quota of "
                f"{show_bytes(self._quota_bytes)}",
                hint="Ask for less, or raise the quota.",
            )
        mark = self._since.setdefault(owner, next(self._numbers))
        self._forget_stale()
        used = {name: has for name, has in {**others, **self._taken}.items() if name != owner}
        later = [name for name in self._waiting if self._since[name] > mark]
        if mine != self._taken.get(owner):
            self._check(owner, mine, used, later)
        freed = [name for name in later if used.get(name) and not self._fits(mine, used.values())]
        for name in freed:
            self._forget(name)
        self._waiting.pop(owner, None)
        self._taken[owner], self._trees[owner] = mine, trees
        return tuple(freed)

    def _check(
        self, owner: str, mine: Mapping[str, int], used: Mapping[str, Mapping[str, int]], later: Iterable[str]
    ) -> None:
        ahead = [name for name in self._waiting if self._since[name] < self._since[owner]]
        hold = {name: has for name, has in used.items() if name not in set(later)}
        if not ahead and self._fits(mine, hold.values()):
            return
        self._waiting[owner] = self._monotonic()
        hint = "It waits for their ends; the farm's owner can raise the quota."
        if ahead:
            raise UnavailableError(f"it waits for room behind {_named(ahead)}", hint=hint)
        total = sum({name: size for has in hold.values() for name, size in has.items()}.values())
        raise UnavailableError(
            f"it needs {show_bytes(sum(mine.values()))}, and {_named(list(hold))} use {show_bytes(total)} of "
            f"the quota of {show_bytes(self._quota_bytes)}",
            hint=hint,
        )

    def _fits(self, mine: Mapping[str, int], others: Iterable[Mapping[str, int]]) -> bool:
        together = dict(mine)
        for one in others:
            together.update(one)
        return sum(together.values()) <= self._quota_bytes

    def _forget_stale(self) -> None:
        oldest = self._monotonic() - _FRESH_SECONDS
        self._waiting = {name: asked for name, asked in self._waiting.items() if asked > oldest}

    def left_over(self, owner: str, tree: str, wanted: Iterable[str]) -> set[str]:
        """Names that it had for this tree, and that nothing of it has once the tree is as wanted."""
        trees = self._trees.get(owner, {})
        kept = {name for uri, has in trees.items() if uri != tree for name in has}
        return set(trees.get(tree, ())) - kept - set(wanted)

    def waits_no_more(self, owner: str) -> None:
        """It has all that it needs: what it has is not to be let go of for others."""
        self._waiting.pop(owner, None)

    def give_back(self, owner: str) -> None:
        """It uses nothing any more, and waits for nothing. May be repeated."""
        self._forget(owner)
        self._since.pop(owner, None)
        self._waiting.pop(owner, None)

    def _forget(self, owner: str) -> None:
        self._taken.pop(owner, None)
        self._trees.pop(owner, None)


def _named(owners: list[str]) -> str:
    more = f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else ""
    return f"{', '.join(owners[:_NAMED])}{more}"
