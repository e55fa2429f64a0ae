"""A store of chunks in a folder with a quota. The store verifies chunks, and never evicts chunks that are in
use."""

import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from gridmill import codec
from gridmill.disk_space import FULL
from gridmill.domain.amounts import show_bytes
from gridmill.domain.farm_protocol import ChunkHashes, Manifest
from gridmill.errors import (
    DataError,
    InputError,
    NotFoundError,
    StorageError,
    UnavailableError,
    UnsafePathError,
)
from gridmill.transfer.chunk_manifest import FairScheduler
from gridmill.transfer.disk_room import DiskRoom
from gridmill.transfer.durable import not_kept, seal_open, sync, touch, write_at
from gridmill.transfer.early_pins import EarlyPins
from gridmill.transfer.large_files import FileLayout, LargeFiles, layouts
from gridmill.transfer.paths import LARGEST_CHUNK_BYTES, check_hash, check_path
from gridmill.transfer.stream import Chunk, ChunkStream, Content, damaged, matches

HELD_BYTES = 8 << 20
"""The number of bytes that are collected in memory before they are written together."""


class ChunkStore:
    """The chunks of one tenant in a folder of this machine. It implements ChunkEndpoint.

    The folder contains `chunks/LOT/HASH`, `pins/OWNER` and `drafts/`, and large files, which consist of
    several chunks (see LargeFiles). A lot is a group of chunks that were stored together. A lot needs one
    rename instead of one rename for each chunk. Only one process opens a store at a time, but several
    threads of this process may use it. If the process is killed at any moment, the store contains only
    complete chunks.
    """

    def __init__(
        self, folder: Path, quota_bytes: int, *, name: str = "", disk: DiskRoom | None = None
    ) -> None:
        """Opens the store and deletes incomplete files that a killed process left. `disk` keeps a reserve of
        space free, and identifies this store by `name`. Raises StorageError."""
        self.folder = folder
        self.name, self.disk = name, disk
        self.quota_bytes = quota_bytes
        self.drafts = folder / "drafts"
        self._chunks, self._pins = folder / "chunks", folder / "pins"
        self._lock = threading.Lock()
        self._lots: dict[str, str] = {}  # the lot of each chunk that has a file of its own
        self._turns = FairScheduler()
        self._early = EarlyPins()
        try:
            shutil.rmtree(self.drafts, ignore_errors=True)
            for made in (folder, self._chunks, self._pins, self.drafts):
                made.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._large = LargeFiles(folder)
            self._sizes = self._listed()
            self._pinned = {path.name: _pins(path) for path in self._pins.iterdir()}
        except OSError as error:
            raise not_kept(error, folder) from error
        self._size_bytes, self._coming_bytes = sum(self._sizes.values()), 0
        if disk is not None:
            disk.add(name, self)

    def close(self) -> None:
        """Removes the store from the object `disk`, which shares the space among stores. May be repeated."""
        if self.disk is not None:
            self.disk.remove(self.name)

    @property
    def size_bytes(self) -> int:
        """Returns the size of all chunks in bytes."""
        return self._size_bytes

    def _listed(self) -> OrderedDict[str, int]:
        """Returns the sizes in bytes of chunks and large files. The least recently used chunks and files
        come first."""
        entries = [
            (os.stat(self._path(name)).st_atime_ns, name, size) for name, size in self._large.sizes().items()
        ]
        for lot in os.scandir(self._chunks):
            for entry in os.scandir(lot):
                status = entry.stat()
                entries.append((status.st_atime_ns, entry.name, status.st_size))
                self._lots[entry.name] = lot.name
            with suppress(OSError):
                os.rmdir(lot)  # succeeds only for an empty lot, which a killed process may have left
        return OrderedDict((name, size) for _, name, size in sorted(entries))

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """Returns the given chunks that the store does not have, each chunk once. For the other chunks, the
        time of the last use is set to now."""
        presence: dict[str, bool] = {}
        with self._lock:
            return tuple(chunk for chunk in dict.fromkeys(chunks) if not self._has(chunk, presence))

    def _has(self, chunk: str, presence: dict[str, bool]) -> bool:
        for name in (chunk, *self._large.holders(chunk)):
            if name not in presence:
                presence[name] = self._touch(name)
            if presence[name]:
                return True
        return False

    def _touch(self, name: str) -> bool:
        """Returns whether the chunk exists unchanged. A chunk that was deleted or changed is removed from
        the index."""
        if name not in self._sizes:
            return False
        exists = touch(self._file(name)) if name in self._lots else self._large.touch(name)
        if not exists:
            self._drop(name)
            return False
        self._sizes.move_to_end(name)
        return True

    def _drop(self, name: str) -> int:
        """Deletes the content with this name and returns its size in bytes."""
        self._large.remove(name)
        lot = self._lots.pop(name, None)
        if lot is not None:
            _remove(f"{self._chunks}/{lot}", name)
        size_bytes = self._sizes.pop(name)
        self._size_bytes -= size_bytes
        return size_bytes

    def path(self, chunk: str) -> Path:
        """Returns the path of the file with this chunk. Raises InputError if the name is not a hash, and
        NotFoundError if the chunk does not exist."""
        check_hash(chunk)
        return Path(self._file(chunk))

    def _file(self, chunk: str) -> str:
        """Returns the path as text, because making a Path for each of many small files takes too long."""
        lot = self._lots.get(chunk)
        if lot is None:
            raise NotFoundError("is not stored here", place=f"chunk {chunk}")
        return f"{self._chunks}/{lot}/{chunk}"

    def _path(self, name: str) -> str:
        large = self._large.path(name)
        return str(large) if large else self._file(name)

    def content(self, name: str) -> str:
        """Returns the path of the read-only file that has the content with this name (see `kept_as`). Raises
        NotFoundError."""
        if name in self._lots:
            return self._file(name)
        if self._large.is_coming(name):
            raise NotFoundError("is not complete", place=f"file {name}")
        return self._path(name)

    def size_of(self, name: str) -> int:
        """Returns the size in bytes of the content with this name. Raises NotFoundError."""
        size_bytes = self._sizes.get(name)
        if size_bytes is None:
            raise NotFoundError("is not stored here", place=f"file {name}")
        return size_bytes

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """Yields the contents of the chunks, in this order. Raises NotFoundError, StorageError."""
        for chunk in chunks:
            try:
                yield Chunk(hash=chunk, data=self._read(chunk))
            except FileNotFoundError as error:
                raise NotFoundError("is not stored here", place=f"chunk {chunk}") from error
            except OSError as error:
                raise not_kept(error, self.folder) from error

    def _read(self, chunk: str) -> bytes:
        inside = self._large.read(chunk)
        if inside is not None:
            return inside
        with open(self._file(chunk), "rb", buffering=0) as file:
            return file.read()

    def expect(self, manifest: Manifest) -> tuple[str, ...]:
        """Prepares the files of a manifest: it creates the large files and fills in the chunks that exist.

        Returns the missing chunks, each of them once. If no chunk is missing, `content` returns all files.
        Raises InputError if chunks do not have the announced sizes, and StorageError in the same cases as
        `send`.
        """
        large = layouts(manifest)
        small = [entry.chunks[0] for entry in manifest.files if len(entry.chunks) == 1]
        try:
            self._begin(large)
            lacking = [chunk for name in large for chunk in self._filled(name)]
            lacking += self._not_alone(small)
        except OSError as error:
            raise self.why_not_kept(error, self.folder) from error
        return tuple(dict.fromkeys(lacking))

    def _begin(self, large: Mapping[str, FileLayout]) -> None:
        if large:
            self.take_room(0)
        with self._lock:
            new = {name: layout for name, layout in large.items() if not self._touch(name)}
            size_bytes = sum(layout.size_bytes for layout in new.values())
            self._make_room(size_bytes)
            self._coming_bytes -= size_bytes
            for name, layout in new.items():
                self._large.begin(layout)
                self._sizes[name] = layout.size_bytes
                self._size_bytes += layout.size_bytes

    def _filled(self, name: str) -> list[str]:
        """Returns the missing chunks of a large file that are in no other file of the store."""
        lacking = [chunk for chunk in self._large.lacking(name) if not self._copied(chunk)]
        if set(self._large.lacking(name)) - set(lacking):
            raise InputError("its chunks do not have the announced sizes", place=f"file {name}")
        return lacking

    def _copied(self, chunk: str) -> bool:
        """Writes an existing chunk to all large files that expect it. Returns whether the chunk does not
        need a separate file any more."""
        with suppress(NotFoundError, DataError):
            (content_chunk,) = self.fetch((chunk,))
            content_chunk.check()
            self._large.take(content_chunk)
            with self._lock:
                if chunk in self._sizes and chunk not in self._all_pinned():
                    self._drop(chunk)
            return True
        return False

    def _not_alone(self, chunks: Sequence[str]) -> list[str]:
        """Returns the chunks that do not exist anywhere in the store. If a chunk exists only in large files,
        it gets a separate file."""
        with self._lock:
            wanted = [chunk for chunk in dict.fromkeys(chunks) if not self._touch(chunk)]
        return [chunk for chunk in wanted if not self._is_in_large_file(chunk)]

    def _is_in_large_file(self, chunk: str) -> bool:
        """Copies the chunk from a large file to a separate file. Returns whether a large file contains the
        chunk. If the content of the large file has changed, the large file is deleted."""
        while holders := self._large.holders(chunk):
            with suppress(NotFoundError, DataError):
                (content_chunk,) = self.fetch((chunk,))
                content_chunk.check()
                self._keep((content_chunk,))
                return True
            with self._lock:
                if holders[0] in self._sizes:
                    self._drop(holders[0])
        return False

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Stores these chunks, and evicts the least recently used chunks if the quota requires it.

        Raises DataError if a content does not match its hash, InputError if a chunk is too large, and
        StorageError if the disk is full or if pinned chunks fill the quota. After an error, no incomplete
        file remains in the store.
        """
        with self._turns.turn(len(chunks)):
            for chunk in chunks:
                _check(chunk)
        self.take_room(sum(len(chunk.data) for chunk in chunks), len(chunks))
        try:
            self._keep([chunk for chunk in chunks if not self._large.take(chunk)])
        except OSError as error:
            raise self.why_not_kept(error, self.folder) from error

    def take_room(self, wanted_bytes: int, files: int = 0) -> None:
        """Makes space on the disk for this number of bytes in this number of new files. Raises
        UnavailableError while the disk has too little space, and StorageError."""
        if self.disk is not None:
            try:
                self.disk.take(self.name, wanted_bytes, files)
            except OSError as error:
                raise not_kept(error, self.folder) from error

    def why_not_kept(self, error: OSError, place: Path) -> StorageError | UnavailableError:
        """Returns the error for a failed write. If the disk is full, the error shows which tenants use it.
        The function also evicts chunks, so that a retry can succeed."""
        if error.errno not in FULL or self.disk is None:
            return not_kept(error, place)
        self.disk.relieve()
        return UnavailableError(f"data waits for room: {self.disk.explain(self.name)}")

    def receive(self, flows: Iterable[ChunkStream]) -> None:
        """Stores these chunks while they arrive. A chunk that is expected in a large file is written to this
        file piece by piece. Smaller chunks are stored together. Raises the same errors as `send`, and the
        errors of the streams."""
        held, held_bytes = list[Chunk](), 0
        for flow in flows:
            check_hash(flow.hash)
            _check_size(flow.size_bytes)
            if not self._received(flow):
                held.append(flow.gathered())
                held_bytes += flow.size_bytes
            if held_bytes >= HELD_BYTES:
                self.send(held)
                held, held_bytes = [], 0
        self.send(held)

    def _received(self, flow: ChunkStream) -> bool:
        self.take_room(flow.size_bytes)
        try:
            return self._large.receive(flow)
        except OSError as error:
            raise self.why_not_kept(error, self.folder) from error

    def _keep(self, chunks: Sequence[Chunk]) -> None:
        """Writes each chunk as a separate file. The files of these chunks are all in one lot. The folder of
        the lot gets its final name after the files are on the disk."""
        with self._lock:
            new = {chunk.hash: chunk for chunk in chunks if chunk.hash not in self._sizes}
            room_bytes = sum(len(chunk.data) for chunk in new.values())
            self._make_room(room_bytes)
        draft = f"{self.drafts}/{uuid4().hex}"
        try:
            if new:
                self._write(draft, new.values())
            with self._lock:
                self._name(draft, new)
                self._coming_bytes -= room_bytes
        except BaseException:
            with self._lock:
                self._coming_bytes -= room_bytes
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _write(self, folder: str, chunks: Collection[Chunk]) -> None:
        """Writes the files into a new folder and syncs them to the disk. If a power failure removes the
        folder later, its chunks are only missing, and can be sent again."""
        os.mkdir(folder, 0o700)
        with self._turns.turn(len(chunks)):
            paths = [_write(f"{folder}/{chunk.hash}", chunk.data) for chunk in chunks]
        sync([*paths, folder])

    def _name(self, draft: str, new: Mapping[str, Chunk]) -> None:
        """Adds the chunks to the index and ends the reservation of their space."""
        lot = draft.rpartition("/")[2]
        # removed, because another thread has stored these chunks meanwhile
        for chunk in new.keys() & self._sizes.keys():
            _remove(draft, chunk)
        if mine := {name: len(chunk.data) for name, chunk in new.items() if name not in self._sizes}:
            os.rename(draft, f"{self._chunks}/{lot}")
        self._sizes.update(mine)
        self._size_bytes += sum(mine.values())
        self._lots.update(dict.fromkeys(mine, lot))

    def _make_room(self, room_bytes: int) -> None:
        """Makes space for the bytes that will arrive, and reserves this space."""
        over_bytes = self._size_bytes + self._coming_bytes + room_bytes - self.quota_bytes
        if over_bytes > 0:
            over_bytes -= self._evict(over_bytes)
        if over_bytes > 0 and self._early:
            self._early.clear()
            over_bytes -= self._evict(over_bytes)
        if over_bytes > 0:
            raise StorageError(
                f"the quota of {show_bytes(self.quota_bytes)} is full, and all its data is in use",
                hint="Wait until an attempt that uses the data ends, or raise the quota.",
                place=str(self.folder),
            )
        self._coming_bytes += room_bytes

    def outstanding(self, sizes: Mapping[str, int]) -> int:
        """See EvictingStore. The function takes no lock, because an estimate of the bytes that other threads
        are writing now is sufficient."""
        return sum(
            self._large.absent_bytes(name) if name in self._sizes else size for name, size in sizes.items()
        )

    def count_outstanding(self, sizes: Mapping[str, int]) -> int:
        """See EvictingStore."""
        return sum(name not in self._sizes for name in sizes)

    def oldest_unused(self) -> int | None:
        """See EvictingStore."""
        with self._lock:
            pinned = self._all_pinned()
            name = next((name for name in self._sizes if name not in pinned), None)
            if name is None:
                return None
            try:
                return os.stat(self._path(name)).st_atime_ns
            except OSError:
                return 1  # the oldest time, because another program has deleted the file

    def evict(self, wanted_bytes: int) -> int:
        """See EvictingStore."""
        with self._lock:
            return self._evict(wanted_bytes)

    def _evict(self, wanted_bytes: int) -> int:
        """Deletes unused content, starting with the least recently used, and returns the number of deleted
        bytes."""
        pinned, gone_bytes = self._all_pinned(), 0
        for name in [name for name in self._sizes if name not in pinned]:
            if gone_bytes >= wanted_bytes:
                break
            gone_bytes += self._drop(name)
        return gone_bytes

    def _all_pinned(self) -> set[str]:
        return set[str]().union(*self._pinned.values(), self._early.sizes())

    def pin_early(self, owner: str, tree: str, sizes: Mapping[str, int], seconds: float) -> None:
        """Pins the content of a folder for an attempt that has not started yet; see EarlyPins. The pins end
        when other content needs the space."""
        with self._lock:
            self._early.pin(owner, tree, sizes, seconds)

    def early_sizes(self) -> Mapping[str, int]:
        """Returns the sizes in bytes of the content that is pinned early."""
        with self._lock:
            return self._early.sizes()

    def is_early(self, owner: str) -> bool:
        """Returns whether the owner has early pins."""
        with self._lock:
            return owner in self._early

    def expired_early(self) -> tuple[str, ...]:
        """Returns the owners whose early pins were not renewed in time."""
        with self._lock:
            return self._early.expired()

    def unpin_early(self, owner: str, tree: str | None = None) -> None:
        """Ends the early pins of an owner, or those for one folder. May be repeated."""
        with self._lock:
            if tree is None:
                self._early.end(owner)
            else:
                self._early.end_tree(owner, tree)

    def end_early(self) -> None:
        """See EvictingStore."""
        with self._lock:
            self._early.clear()

    def pin(self, owner: str, names: Iterable[str], *, instead_of: Iterable[str] = ()) -> None:
        """Pins the content with these names (see `kept_as`), whether it exists or not, for an owner (an
        attempt). The pins last until the owner calls `unpin`.

        The new pins are added to the owner's pins, and replace the pins in `instead_of`. Raises InputError,
        StorageError.
        """
        path = self._pin(owner)
        with self._lock:
            pinned = (self._pinned.get(owner, frozenset()) - set(instead_of)) | set(names)
            if pinned == self._pinned.get(owner):
                return
            self._pinned[owner] = pinned
            draft = self.drafts / uuid4().hex
            try:
                draft.write_bytes(codec.encode(ChunkHashes(chunks=tuple(sorted(pinned)))))
                sync([draft])
                draft.rename(path)
            except OSError as error:
                raise not_kept(error, path) from error

    def pinned(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the sizes in bytes of the pinned content that exists, by owner."""
        with self._lock:
            return {
                owner: {name: self._sizes[name] for name in names if name in self._sizes}
                for owner, names in self._pinned.items()
            }

    def unpin(self, owner: str) -> None:
        """Ends all pins of the owner, so that its chunks may be evicted. May be repeated. Raises InputError,
        StorageError."""
        path = self._pin(owner)
        with self._lock:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise not_kept(error, path) from error
            self._pinned.pop(owner, None)

    def _pin(self, owner: str) -> Path:
        check_path(owner)
        if "/" in owner:
            raise UnsafePathError(f"{owner!r} is not a valid name of an owner")
        return self._pins / owner


def _check(chunk: Chunk) -> None:
    _check_size(len(chunk.data))
    if not matches(chunk.data, chunk.hash):
        check_hash(chunk.hash)
        raise damaged(chunk.hash)


def _check_size(size_bytes: int) -> None:
    if size_bytes > LARGEST_CHUNK_BYTES:
        raise InputError(f"a chunk has {size_bytes} bytes; at most {LARGEST_CHUNK_BYTES} are possible")


def _remove(lot: str, chunk: str) -> None:
    """Deletes the file of the chunk. If this was the last file of its folder, the folder is deleted too."""
    with suppress(FileNotFoundError):
        os.unlink(f"{lot}/{chunk}")
    with suppress(OSError):
        os.rmdir(lot)


def _write(path: str, data: Content) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_at(descriptor, data)
        seal_open(descriptor)
    finally:
        os.close(descriptor)
    return path


def _pins(path: Path) -> frozenset[str]:
    return frozenset(codec.decode(path.read_bytes(), ChunkHashes).chunks)
