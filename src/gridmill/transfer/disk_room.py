"""Shares the free space of one disk among the chunk stores on it, and keeps a reserve of space free.

The space for a folder is reserved before its first byte arrives. Without a reservation, transfers that start
at the same time could use up the space before any of them is complete. If there is no space, unused chunks
of all stores are evicted, starting with the least recently used.
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
_EVICTED_BYTES = 8 << 20
"""The number of bytes that are evicted from the store with the oldest chunks before the ages of the stores
are compared again."""


_RELIEVED_BYTES = 32 << 20


class EvictingStore(Protocol):
    """The methods of a chunk store that the class DiskRoom uses."""

    def outstanding(self, sizes: Mapping[str, int]) -> int:
        """Returns how many bytes of the content with these names and sizes the store does not have."""

    def count_outstanding(self, sizes: Mapping[str, int]) -> int:
        """Returns how many files of the content with these names the store does not have."""

    def oldest_unused(self) -> int | None:
        """Returns the time in nanoseconds at which the oldest unused content was last used, or None if all
        content is in use."""

    def evict(self, wanted_bytes: int) -> int:
        """Deletes unused content, starting with the least recently used. Returns the largest number of bytes
        that the deletion can free."""

    def end_early(self) -> None:
        """Ends the pins of attempts that have not started yet, so that their content may be evicted."""


class DiskRoom:
    """Shares the space of the disk that contains `folder`. This class is safe to use from several threads.

    `why` takes the name of a store and returns a text that shows who uses the disk. This text becomes the
    end of the error message.
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
        self._early: set[tuple[str, str]] = set()
        """The stores and owners whose reservations are for attempts that have not started yet."""
        self.evicted_bytes = 0

    def space(self) -> DiskSpace:
        """The present space. Raises OSError."""
        return space_of(self._place, self._folder, self._reserve_bytes)

    def add(self, name: str, store: EvictingStore) -> None:
        """Adds a chunk store that is on this disk."""
        with self._lock:
            self._stores[name] = store

    def remove(self, name: str) -> None:
        """Removes a closed chunk store and its reservations. May be repeated."""
        with self._lock:
            self._stores.pop(name, None)
            self._promised = {key: trees for key, trees in self._promised.items() if key[0] != name}
            self._early = {key for key in self._early if key[0] != name}

    def promise(
        self, name: str, owner: str, tree: str, sizes: Mapping[str, int], *, early: bool = False
    ) -> None:
        """Reserves space for all missing chunks of a folder, in the store with this name. May be repeated. A
        reservation that is `early` is for an attempt that has not started yet. It ends when anything else
        needs the space.

        Raises CapacityError if the request exceeds the size of the disk, and UnavailableError while the disk
        has too little free space.
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
            self._free(name, lacking_bytes, others, lacking_files, early=early)
            self._promised[name, owner] = {**trees, tree: sizes}
            if early:
                self._early.add((name, owner))

    def arrived(self, name: str, owner: str, tree: str) -> None:
        """Ends the reservation for a folder that is complete."""
        with self._lock:
            self._promised.get((name, owner), {}).pop(tree, None)

    def forget(self, name: str, owner: str) -> None:
        """Ends all reservations of an owner. May be repeated."""
        with self._lock:
            self._promised.pop((name, owner), None)
            self._early.discard((name, owner))

    def take(self, name: str, wanted_bytes: int, files: int = 0) -> None:
        """Makes space for this number of bytes in this number of new files. Raises UnavailableError while
        the disk has too little free space."""
        space = self.space()
        if space.free_bytes - wanted_bytes < space.reserve_bytes or _lacks_files(space, files):
            with self._lock:
                self._free(name, wanted_bytes, {}, files)

    def relieve(self) -> None:
        """Evicts more chunks after the disk was unexpectedly full, so that a retry can succeed."""
        with self._lock:
            self._make_way(_RELIEVED_BYTES)

    def recover(self) -> DiskSpace:
        """Returns the space of the disk. If the reserve is not free, chunks are evicted first. Raises
        OSError."""
        space = self.space()
        if space.is_short:
            with self._lock:
                self._make_way(space.lacking_bytes)
            space = self.space()
        return space

    def _make_way(self, wanted_bytes: int) -> None:
        """Evicts chunks. If there are not enough unused chunks, the inputs of attempts that have not started
        yet are evicted too."""
        if not self._evict(wanted_bytes) and self._end_early():
            self._evict(wanted_bytes)

    def _end_early(self) -> frozenset[tuple[str, str]]:
        """Ends the pins and reservations of attempts that have not started yet. Returns their keys."""
        ended, self._early = frozenset(self._early), set()
        for key in ended:
            self._promised.pop(key, None)
        for store in self._stores.values() if ended else ():
            store.end_early()
        return ended

    def explain(self, name: str = "") -> str:
        """Returns a text for the owner of the store, such as `the farm's disk has 3 MiB free, its reserve is
        8 MiB; ...`."""
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
        *,
        early: bool = False,
    ) -> None:
        """Evicts chunks until the needed bytes and files are available. Unless the request itself is
        `early`, it ends the pins and reservations of attempts that have not started yet. Raises
        UnavailableError."""
        space, missing = self._missing(wanted_bytes, promised)
        if missing > 0 or _lacks_files(space, files):
            self._evict(max(missing, 0), files)
            space, missing = self._missing(wanted_bytes, promised)
        if not early and _is_refused(space, wanted_bytes, missing, files) and (ended := self._end_early()):
            promised = {key: trees for key, trees in promised.items() if key not in ended}
            space, missing = self._missing(wanted_bytes, promised)
            self._evict(max(missing, 0), files)
            space, missing = self._missing(wanted_bytes, promised)
        if _is_refused(space, wanted_bytes, missing, files):
            coming = self._outstanding(promised, space)
            more = f"; {show_bytes(coming)} are reserved for running transfers" if coming else ""
            raise UnavailableError(
                f"{_waiting(wanted_bytes, files)} for room: {self.explain(name)}{more}",
                hint="The transfer continues automatically when the disk has space.",
            )

    def _missing(
        self, wanted_bytes: int, promised: Mapping[tuple[str, str], Mapping[str, Mapping[str, int]]]
    ) -> tuple[DiskSpace, int]:
        """Returns the present space, and how many bytes are missing (negative: left over)."""
        space = self.space()
        reserved_bytes = space.reserve_bytes + self._outstanding(promised, space)
        return space, wanted_bytes + reserved_bytes - space.free_bytes

    def _outstanding(
        self, promised: Mapping[tuple[str, str], Mapping[str, Mapping[str, int]]], space: DiskSpace
    ) -> int:
        """Returns the number of reserved bytes that have not arrived. The number is exact only if the disk
        has little free space."""
        trees = [(key[0], wanted) for key, trees in tuple(promised.items()) for wanted in trees.values()]
        most = sum(sum(wanted.values()) for _, wanted in trees)
        if most <= (space.free_bytes - space.reserve_bytes) // 2:
            return most
        return sum(self._stores[name].outstanding(wanted) for name, wanted in trees if name in self._stores)

    def _evict(self, wanted_bytes: int, files: int = 0) -> bool:
        """Evicts chunks until the disk shows this many more free bytes. Returns whether it does. Free space
        is measured, because deleting a file that has other hard links frees no space."""
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
        return space.free_bytes >= goal and not _lacks_files(space, files)


def _is_refused(space: DiskSpace, wanted_bytes: int, missing_bytes: int, files: int) -> bool:
    """Returns whether a request is refused because it does not fit on the disk."""
    return bool((wanted_bytes and missing_bytes > 0) or space.is_short or _lacks_files(space, files))


def _lacks_files(space: DiskSpace, wanted: int) -> bool:
    """Returns whether creating `wanted` files would leave fewer free inodes than the reserve."""
    return bool(space.files) and space.free_files - wanted < space.reserve_files


def _waiting(size_bytes: int, files: int) -> str:
    if not size_bytes and files <= 1:
        return "a new transfer waits"
    amount = show_bytes(size_bytes)
    return f"{amount} in {show_count(files, 'file')} wait" if files > 1 else f"{amount} wait"


def who_uses(name: str, uses: Mapping[str, int]) -> str:
    """Returns a text such as `tenant a uses 3 MiB of it, 2 other tenants use 40 MiB`. The text for a tenant
    does not contain the names of other tenants."""
    others = [size for other, size in uses.items() if other != name]
    own = [f"tenant {name} uses {show_bytes(uses[name])} of it"] if name in uses else []
    if others:
        verb = "uses" if len(others) == 1 else "use"
        what = "other tenant" if own else "tenant"
        own.append(f"{show_count(len(others), what)} {verb} {show_bytes(sum(others))}")
    return ", ".join(own)
