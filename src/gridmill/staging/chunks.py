"""Chunks kept in a folder: checked before they are kept, up to a quota, those that are in use for sure."""

import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from gridmill import codec
from gridmill.errors import InputError, NotFoundError, StorageError, UnsafePathError
from gridmill.model.farm import Hashes
from gridmill.staging.durable import not_kept, sync
from gridmill.staging.frames import Chunk
from gridmill.staging.paths import LARGEST_CHUNK_BYTES, check_hash, check_path

_READ_ONLY = 0o444  # placed files are links to them


class ChunkStore:
    """Chunks of one source; a Carrier (see `carry`) that is a folder of this machine.

    Below the folder lie `chunks/ab/HASH`, `pins/OWNER` and `drafts/`. One process has a store open at a time;
    several of its threads may use it. Killed at any moment it holds whole chunks only.
    """

    def __init__(self, folder: Path, quota_bytes: int) -> None:
        """Opens it; what a killed process left half-written goes. Raises StorageError."""
        self.folder = folder
        self.quota_bytes = quota_bytes
        self.drafts = folder / "drafts"
        self._chunks, self._pins = folder / "chunks", folder / "pins"
        self._lock = threading.Lock()
        try:
            shutil.rmtree(self.drafts, ignore_errors=True)
            for made in (folder, self._chunks, self._pins, self.drafts):
                made.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sizes = _listed(self._chunks)
            self._pinned = {path.name: _pins(path) for path in self._pins.iterdir()}
        except OSError as error:
            raise not_kept(error, folder) from error
        self._size_bytes, self._coming_bytes = sum(self._sizes.values()), 0

    @property
    def size_bytes(self) -> int:
        """Of all chunks."""
        return self._size_bytes

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """Those, once each, that are not there. The others now count as just used."""
        with self._lock:
            return tuple(chunk for chunk in dict.fromkeys(chunks) if not self._touch(chunk))

    def _touch(self, chunk: str) -> bool:
        if chunk not in self._sizes:
            return False
        path = self.path(chunk)
        try:  # the time of access alone: others may go by a placed file's time of change
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
        except OSError:  # somebody took it away
            self._size_bytes -= self._sizes.pop(chunk)
            return False
        self._sizes.move_to_end(chunk)
        return True

    def path(self, chunk: str) -> Path:
        """Where a chunk's file is, or would be. Raises InputError for what is not a hash."""
        check_hash(chunk)
        return self._chunks / f"{chunk[:2]}/{chunk}"

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """Their contents, in this order. Raises NotFoundError, StorageError."""
        for chunk in chunks:
            try:
                yield Chunk(hash=chunk, data=self.path(chunk).read_bytes())
            except FileNotFoundError as error:
                raise NotFoundError("is not here", place=f"chunk {chunk}") from error
            except OSError as error:
                raise not_kept(error, self.folder) from error

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Keep these; the least recently used go where the quota asks for it.

        Raises DataError for content without its hash, InputError for one that is too large, StorageError when
        the disk is full, or the quota used up by what is pinned: then nothing half-written stays.
        """
        for chunk in chunks:
            _check(chunk)
        with self._lock:
            once = {chunk.hash: chunk for chunk in chunks}
            new = [chunk for chunk in once.values() if chunk.hash not in self._sizes]
            self._make_room(sum(len(chunk.data) for chunk in new))
        drafts = [self.drafts / uuid4().hex for _ in new]
        try:
            for chunk, draft in zip(new, drafts, strict=True):
                _write(draft, chunk.data)
            sync(
                drafts
            )  # before they have their names; a name that a power failure takes back is only missing
            for chunk, draft in zip(new, drafts, strict=True):
                self._name(chunk, draft)
        except OSError as error:
            raise not_kept(error, self.folder) from error
        finally:
            with self._lock:
                self._coming_bytes -= sum(len(chunk.data) for chunk in new)
            for draft in drafts:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)

    def _name(self, chunk: Chunk, draft: Path) -> None:
        path = self.path(chunk.hash)
        with self._lock:
            if chunk.hash not in self._sizes:  # another thread may have been quicker
                _rename(draft, path)
                self._sizes[chunk.hash] = len(chunk.data)
                self._size_bytes += len(chunk.data)

    def _make_room(self, room_bytes: int) -> None:
        """For bytes that come; they count from now on."""
        over_bytes = self._size_bytes + self._coming_bytes + room_bytes - self.quota_bytes
        if over_bytes > 0:
            over_bytes -= self._evict(over_bytes)
        if over_bytes > 0:
            raise StorageError(
                f"the quota of {self.quota_bytes} bytes is used up by what is in use",
                hint="Wait for an attempt that uses it to end, or raise the quota.",
                place=str(self.folder),
            )
        self._coming_bytes += room_bytes

    def _evict(self, wanted_bytes: int) -> int:
        """How many bytes went."""
        pinned = set[str]().union(*self._pinned.values())
        gone_bytes = 0
        for chunk in [chunk for chunk in self._sizes if chunk not in pinned]:
            if gone_bytes >= wanted_bytes:
                break
            with suppress(FileNotFoundError):
                self.path(chunk).unlink()
            gone_bytes += self._sizes.pop(chunk)
        self._size_bytes -= gone_bytes
        return gone_bytes

    def pin(self, owner: str, chunks: Iterable[str]) -> None:
        """Keep these, there already or not, for an owner (an attempt), beside what it had, until it unpins.

        Raises InputError, StorageError.
        """
        path = self._pin(owner)
        with self._lock:
            pinned = self._pinned.get(owner, frozenset()) | set(chunks)
            if pinned == self._pinned.get(owner):
                return
            self._pinned[owner] = pinned
            draft = self.drafts / uuid4().hex
            try:
                draft.write_bytes(codec.encode(Hashes(chunks=tuple(sorted(pinned)))))
                sync([draft])
                draft.rename(path)
            except OSError as error:
                raise not_kept(error, path) from error

    def unpin(self, owner: str) -> None:
        """Its chunks may go when room is needed. Repeatable. Raises InputError, StorageError."""
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
            raise UnsafePathError(f"{owner!r} cannot be an owner's name")
        return self._pins / owner


def _check(chunk: Chunk) -> None:
    check_hash(chunk.hash)
    if len(chunk.data) > LARGEST_CHUNK_BYTES:
        raise InputError(f"a chunk of {len(chunk.data)} bytes: {LARGEST_CHUNK_BYTES} is the most")
    chunk.check()


def _rename(draft: Path, path: Path) -> None:
    try:
        os.rename(draft, path)
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        os.rename(draft, path)


def _write(draft: Path, data: bytes) -> None:
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fchmod(descriptor, _READ_ONLY)


def _listed(folder: Path) -> OrderedDict[str, int]:
    """Sizes in bytes by chunk, the least recently used first."""
    found = [
        (entry.stat().st_atime_ns, entry.name, entry.stat().st_size)
        for some in os.scandir(folder)
        for entry in os.scandir(some)
    ]
    return OrderedDict((name, size) for _, name, size in sorted(found))


def _pins(path: Path) -> frozenset[str]:
    return frozenset(codec.decode(path.read_bytes(), Hashes).chunks)
