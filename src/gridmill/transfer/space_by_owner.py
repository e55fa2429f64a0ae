"""Shares the quota of a store among owners, in the order in which they request space. A transfer that waits
for space does not block other transfers."""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from gridmill.domain.amounts import show_bytes
from gridmill.errors import CapacityError, UnavailableError

_FRESH_SECONDS = 60.0
"""A transfer that waits for space repeats its request. A transfer that has not repeated its request for this
number of seconds has ended."""
_NAMED = 3


class SpaceByOwner:
    """The sizes in bytes of the content that owners (attempts) use, by the name of the content. Content that
    several owners use counts once.

    This class is not safe to use from several threads at the same time.
    """

    def __init__(self, quota_bytes: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._quota_bytes, self._monotonic = quota_bytes, monotonic
        self._numbers = count()
        self._since: dict[str, int] = {}
        self._owners: dict[str, Mapping[str, int]] = {}
        self._trees: dict[str, dict[str, Mapping[str, int]]] = {}
        self._waiting: dict[str, float] = {}

    def take(
        self, owner: str, tree: str, wanted: Mapping[str, int], others: Mapping[str, Mapping[str, int]]
    ) -> tuple[str, ...]:
        """Reserves space for this folder in addition to the owner's other folders. The reservation replaces
        an earlier reservation for the same folder.

        `others` contains the content of those owners that this object does not manage. Returns owners that
        came later and are still waiting. The returned owners lose their space and must request all of it
        again. Raises CapacityError if the request exceeds the quota. Raises UnavailableError while other
        owners use the space, or while owners that came earlier are waiting.
        """
        trees = {**self._trees.get(owner, {}), tree: wanted}
        mine = {name: size for has in trees.values() for name, size in has.items()}
        if sum(mine.values()) > self._quota_bytes:
            raise CapacityError(
                f"{show_bytes(sum(mine.values()))} are needed, which is more than the quota of "
                f"{show_bytes(self._quota_bytes)}",
                hint="Use less data, or raise the quota.",
            )
        mark = self._since.setdefault(owner, next(self._numbers))
        self._expire_requests()
        used = {name: has for name, has in {**others, **self._owners}.items() if name != owner}
        later = [name for name in self._waiting if self._since[name] > mark]
        if mine != self._owners.get(owner):
            self._check(owner, mine, used, later)
        freed = [name for name in later if used.get(name) and not self._fits(mine, used.values())]
        for name in freed:
            self._remove_owner(name)
        self._waiting.pop(owner, None)
        self._owners[owner], self._trees[owner] = mine, trees
        return tuple(freed)

    def _check(
        self, owner: str, mine: Mapping[str, int], used: Mapping[str, Mapping[str, int]], later: Iterable[str]
    ) -> None:
        ahead = [name for name in self._waiting if self._since[name] < self._since[owner]]
        hold = {name: has for name, has in used.items() if name not in set(later)}
        if not ahead and self._fits(mine, hold.values()):
            return
        self._waiting[owner] = self._monotonic()
        hint = "It starts when they end. The farm's owner can raise the quota."
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
        for other in others:
            together.update(other)
        return sum(together.values()) <= self._quota_bytes

    def _expire_requests(self) -> None:
        oldest = self._monotonic() - _FRESH_SECONDS
        self._waiting = {
            name: requested_at for name, requested_at in self._waiting.items() if requested_at > oldest
        }

    def check_beside(self, wanted: Mapping[str, int], others: Mapping[str, Mapping[str, int]]) -> None:
        """Checks whether content that gives way to all owners fits beside the content of the owners. Raises
        UnavailableError if it does not fit, or while an owner waits for space."""
        self._expire_requests()
        used = {**others, **self._owners}
        if self._waiting or not self._fits(wanted, used.values()):
            raise UnavailableError(
                f"{show_bytes(sum(wanted.values()))} of inputs of the next jobs do not fit beside the data "
                f"of running jobs, by the quota of {show_bytes(self._quota_bytes)}"
            )

    def left_over(self, owner: str, tree: str, wanted: Iterable[str]) -> set[str]:
        """Returns the names of content that the owner had reserved for this folder and that no folder of the
        owner needs any more."""
        trees = self._trees.get(owner, {})
        kept = {name for uri, has in trees.items() if uri != tree for name in has}
        return set(trees.get(tree, ())) - kept - set(wanted)

    def waits_no_more(self, owner: str) -> None:
        """Ends the wait of an owner that has received all its content, so that the owner keeps its space."""
        self._waiting.pop(owner, None)

    def give_back(self, owner: str) -> None:
        """Ends all uses and waits of the owner. May be repeated."""
        self._remove_owner(owner)
        self._since.pop(owner, None)
        self._waiting.pop(owner, None)

    def _remove_owner(self, owner: str) -> None:
        self._owners.pop(owner, None)
        self._trees.pop(owner, None)


def _named(owners: list[str]) -> str:
    more = f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else ""
    return f"{', '.join(owners[:_NAMED])}{more}"
