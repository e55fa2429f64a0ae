"""Shares the free space of one disk among the chunk stores on it: a reserve stays free.

Space for a tree is reserved before its first byte arrives, so that transfers that start at the same time do
not stop each other half-way. If there is no space, unused chunks of all stores are evicted, the least
recently used first.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gridmill.disk_space import space_of
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.usage import DiskSpace
from gridmill.errors import CapacityError, UnavailableError

_LOG = logging.getLogger(__name__)
_EVICTED_BYTES = 8 << 20  # evicted from the store with the oldest chunks, before the ages are compared again


_RELIEVED_BYTES = 32 << 20


class EvictingStore(Protocol):
    """The methods of a chunk store that the disk uses."""

    def outstanding(self, sizes: Mapping[str, int]) -> int:
        """How many bytes of the content with these names and sizes are missing."""

    def count_outstanding(self, sizes: Mapping[str, int]) -> int:
        """How many files of these are missing."""

    def oldest_unused(self) -> int | None:
        """The time of the last use of the oldest unused content (ns); None if all content is in use."""

    def evict(self, wanted_bytes: int) -> int:
        """Deletes unused content, the least recently used first. Returns the largest number of bytes that
        this can free."""


class DiskRoom:
    """The space of the disk that contains `folder`. Safe to use from several threads.

    `why` returns, for a store's name, who uses the disk. This is the end of the error message.
    """

    def __init__(
        self,
        folder: Path,
        reserve_bytes: int | None = None,
        *,
        place: str = "farm",
        why: Callable[[str], str] = lambda name: "",
    ) -> None:
        self._folder, self._reserve_bytes, self._place, self._why = folder, reserve_bytes, place, why
        self._lock = threading.Lock()
        self._stores: dict[str, EvictingStore] = {}
        self._promised: dict[tuple[str, str], dict[str, Mapping[str, int]]] = {}
        self.evicted_bytes = 0

    def space(self) -> DiskSpace:
        """The present space. Raises OSError."""
        return space_of(self._place, self._folder, self._reserve_bytes)

    def add(self, name: str, store: EvictingStore) -> None:
        """Adds a store on this disk."""
        with self._lock:
            self._stores[name] = store

    def remove(self, name: str) -> None:
        """Removes a store that is closed, with its reservations. May be repeated."""
        with self._lock:
            self._stores.pop(name, None)
            self._promised = {key: trees for key, trees in self._promised.items() if key[0] != name}

    def promise(self, name: str, owner: str, tree: str, sizes: Mapping[str, int]) -> None:
        """Reserves space for all missing chunks of a tree in the store of that name. May be repeated.

        Raises CapacityError for more than the disk can ever hold, UnavailableError while it is short.
        """
        with self._lock:
            store = self._stores.get(name)
            if store is None:
                return
            lacking_bytes, lacking_files = store.outstanding(sizes), store.count_outstanding(sizes)
            if lacking_bytes:
                self._check_size(sum(sizes.values()))
            trees = {
                uri: wanted for uri, wanted in self._promised.get((name, owner), {}).items() if uri != tree
            }
            others = {**self._promised, (name, owner): trees}
            self._free(name, lacking_bytes, others, lacking_files)
            self._promised[name, owner] = {**trees, tree: sizes}

    def arrived(self, name: str, owner: str, tree: str) -> None:
        """Ends the reservation of a tree that is complete."""
        with self._lock:
            self._promised.get((name, owner), {}).pop(tree, None)

    def forget(self, name: str, owner: str) -> None:
        """Ends all reservations of an owner. May be repeated."""
        with self._lock:
            self._promised.pop((name, owner), None)

    def take(self, name: str, wanted_bytes: int, files: int = 0) -> None:
        """Makes space for bytes in so many new files. Raises UnavailableError while the disk is short."""
        space = self.space()
        if space.free_bytes - wanted_bytes < space.reserve_bytes or _lacks_files(space, files):
            with self._lock:
                self._free(name, wanted_bytes, {}, files)

    def relieve(self) -> None:
        """Evicts more after the disk was full unexpectedly, so that a retry can succeed."""
        with self._lock:
            self._evict(_RELIEVED_BYTES)

    def recover(self) -> DiskSpace:
        """The space, after eviction if the reserve is not free. Raises OSError."""
        space = self.space()
        if space.is_short:
            with self._lock:
                self._evict(space.lacking_bytes)
            space = self.space()
        return space

    def explain(self, name: str = "") -> str:
        """For the owner of that store: `the farm's disk has 3 MiB free, its reserve is 8 MiB; ...`."""
        space = self.space()
        has = f"the {self._place}'s disk has {show_bytes(space.free_bytes)} free"
        if space.lacks_files:
            has += f" and {space.free_files:,} inodes of a reserve of {space.reserve_files:,}"
        why = self._why(name)
        return f"{has}, its reserve is {show_bytes(space.reserve_bytes)}" + (f"; {why}" if why else "")

    def _check_size(self, size_bytes: int) -> None:
        space = self.space()
        if space.size_bytes and size_bytes > space.size_bytes - space.reserve_bytes:
            raise CapacityError(
                f"{show_bytes(size_bytes)} do not fit on the {self._place}'s disk, which has "
                f"{show_bytes(space.size_bytes)}, of which {show_bytes(space.reserve_bytes)} stay free",
                hint="Use less data, or give the farm a larger disk.",
            )

    def _free(
        self,
        name: str,
        wanted_bytes: int,
        promised: Mapping[tuple[str, str], Mapping[str, Mapping[str, int]]],
        files: int = 0,
    ) -> None:
        """Evicts the needed bytes and files. Raises UnavailableError."""
        space = self.space()
        missing = wanted_bytes + space.reserve_bytes - space.free_bytes + self._outstanding(promised, space)
        if missing > 0 or _lacks_files(space, files):
            self._evict(max(missing, 0), files)
            space = self.space()
            missing = (
                wanted_bytes + space.reserve_bytes - space.free_bytes + self._outstanding(promised, space)
            )
        if (wanted_bytes and missing > 0) or space.is_short or _lacks_files(space, files):
            coming = self._outstanding(promised, space)
            more = f"; {show_bytes(coming)} are reserved for running transfers" if coming else ""
            raise UnavailableError(
                f"{_waiting(wanted_bytes, files)} for room: {self.explain(name)}{more}",
                hint="The transfer continues automatically when the disk has space.",
            )

    def _outstanding(
        self, promised: Mapping[tuple[str, str], Mapping[str, Mapping[str, int]]], space: DiskSpace
    ) -> int:
        """The reserved bytes that have not arrived. It is exact only if the disk is nearly short."""
        trees = [(key[0], wanted) for key, trees in tuple(promised.items()) for wanted in trees.values()]
        most = sum(sum(wanted.values()) for _, wanted in trees)
        if most <= (space.free_bytes - space.reserve_bytes) // 2:
            return most
        return sum(self._stores[name].outstanding(wanted) for name, wanted in trees if name in self._stores)

    def _evict(self, wanted_bytes: int, files: int = 0) -> None:
        """Evicts until the disk shows that much more free space. Deleting files with other hard links frees
        none."""
        goal, evicted = self.space().free_bytes + wanted_bytes, 0
        while (space := self.space()).free_bytes < goal or _lacks_files(space, files):
            ages = [(age, name) for name, store in self._stores.items() if (age := store.oldest_unused())]
            if not ages:
                break
            lacking_bytes = goal - space.free_bytes
            wanted = min(lacking_bytes, _EVICTED_BYTES) if lacking_bytes > 0 else _EVICTED_BYTES
            freed = self._stores[min(ages)[1]].evict(wanted)
            if not freed:
                break
            evicted += freed
        if evicted:
            self.evicted_bytes += evicted
            total = show_bytes(self.evicted_bytes)
            _LOG.warning("chunks_evicted disk=%s bytes=%d total=%s", self._folder, evicted, total)


def _lacks_files(space: DiskSpace, wanted: int) -> bool:
    """Whether fewer inodes than the reserve would remain."""
    return bool(space.files) and space.free_files - wanted < space.reserve_files


def _waiting(size_bytes: int, files: int) -> str:
    if not size_bytes and files <= 1:
        return "a new transfer waits"
    amount = show_bytes(size_bytes)
    return f"{amount} in {show_count(files, 'file')} wait" if files > 1 else f"{amount} wait"


def who_uses(name: str, uses: Mapping[str, int]) -> str:
    """`tenant a uses 3 MiB of it, 2 other tenants use 40 MiB`. A tenant does not see the names of others."""
    others = [size for other, size in uses.items() if other != name]
    own = [f"tenant {name} uses {show_bytes(uses[name])} of it"] if name in uses else []
    if others:
        verb = "uses" if len(others) == 1 else "use"
        what = "other tenant" if own else "tenant"
        own.append(f"{show_count(len(others), what)} {verb} {show_bytes(sum(others))}")
    return ", ".join(own)
