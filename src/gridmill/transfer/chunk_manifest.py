"""Makes manifests, which list the chunks of files and folders. A cache of hashes saves reading unchanged
files.

With the cache, the files of an unchanged folder are examined but not read. Several threads compute the
hashes of many small files. Only one of these threads runs at a time, except while threads wait for a disk.
"""

import os
import stat
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from blake3 import blake3

from gridmill import codec
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError, InputError, NotFoundError, StorageError, UnsafePathError
from gridmill.transfer.paths import FilesBelow, check_path, file_below, folder_below

SETTLED_NS = 2_000_000_000
"""If a file changed more recently than this number of nanoseconds, its hash is not cached, because it may
change again within the same tick of the file system's clock."""

HASH = "blake3"
"""The name of the hash function. Hashes that were cached with another hash function are ignored."""


class FileStatus(Protocol):
    """The fields of `os.stat` that show whether a file has changed."""

    @property
    def st_size(self) -> int:
        """Its size in bytes."""

    @property
    def st_mtime_ns(self) -> int:
        """The time in nanoseconds at which the content of the file last changed."""

    @property
    def st_ctime_ns(self) -> int:
        """The time in nanoseconds at which the content or the inode of the file last changed."""

    @property
    def st_ino(self) -> int:
        """Its inode number."""


Seen = tuple[int, int, int, int]
"""The size of a file in bytes, the times of the last changes of its content and of its inode (ns), and its
inode number."""


def seen(stat: FileStatus) -> Seen:
    """Returns the fields that are equal in two observations of a file if the file did not change."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class HashCacheFile:
    """The content of the file that stores a HashCache."""

    hash: str = ""
    chunk_bytes: int = 0
    files: Mapping[str, tuple[Seen, tuple[str, ...]]] = field(default_factory=dict)


class HashCache:
    """The hashes of the files of one folder. The hashes are stored in a cache file, or only in memory if
    there is no cache file.

    Only one scan may use a HashCache at a time. If entries of the cache are lost or damaged, their files are
    hashed again.
    """

    def __init__(self, path: Path | None, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._now_ns = now_ns
        self._new: dict[str, tuple[Seen, tuple[str, ...]]] = {}
        self._old: Mapping[str, tuple[Seen, tuple[str, ...]]] = {}
        self._chunk_bytes = 0

    def open(self, chunk_bytes: int) -> None:
        """Reads the stored hashes that were computed for chunks of this size."""
        self._chunk_bytes, self._new, self._old = chunk_bytes, {}, {}
        if self._path is None:
            return
        with suppress(OSError, InputError):
            kept = codec.decode(self._path.read_bytes(), HashCacheFile)
            self._old = kept.files if (kept.hash, kept.chunk_bytes) == (HASH, chunk_bytes) else {}

    def again(self) -> None:
        """Prepares another scan with the result of the previous scan, without reading the cache file
        again."""
        self._old, self._new = self._new, {}

    def keep_all(self) -> None:
        """Takes the stored entries as the result of a scan, for a later call of `again`."""
        self._new = dict(self._old)

    def look(self, path: str, stat: FileStatus) -> tuple[str, ...] | None:
        """Returns the chunks of the file, or None if the file must be read."""
        cached = self._old.get(path)
        if cached is None or cached[0] != seen(stat):
            return None
        self._new[path] = cached
        return cached[1]

    def keep(self, path: str, stat: FileStatus, chunks: tuple[str, ...]) -> None:
        """Records the chunks of the file, with the status that the file had before it was read."""
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < self._now_ns() - SETTLED_NS:
            self._new[path] = (seen(stat), chunks)

    def save(self) -> None:
        """Stores exactly the entries of this scan. Raises StorageError."""
        if self._path is None or self._new == self._old:
            return
        draft = self._path.with_name(f".{self._path.name}.{uuid4().hex}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(
                codec.encode(HashCacheFile(hash=HASH, chunk_bytes=self._chunk_bytes, files=self._new))
            )
            draft.rename(self._path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._path)) from error


_ALONE = threading.RLock()
_WAITING_SECONDS = 3e-4
PATIENCE_SECONDS = 0.25


class FairScheduler:
    """A lock for threads that do many small operations on the files of one folder.

    If several such threads run, the interpreter switches between them at each operation. Switching costs
    more than the operations: for files of 10 kB in memory, the work takes twice as long. Therefore only one
    of these threads runs at a time in this process. While the running thread waits for files (on a disk or a
    network), other threads may run. No thread waits for its turn longer than `patience_seconds`.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds, self._wait = patience_seconds, False

    @contextmanager
    def turn(self, files: int) -> Iterator[None]:
        """Takes the lock for a thread that processes this number of files."""
        if self._wait or not _ALONE.acquire(timeout=self._patience_seconds):
            yield
            return
        try:
            began, used = time.monotonic(), time.thread_time()
            yield
            waited_seconds = (time.monotonic() - began) - (time.thread_time() - used)
            self._wait = waited_seconds > _WAITING_SECONDS * files
        finally:
            _ALONE.release()


CHUNK_BYTES = 4 << 20
"""The size of a chunk in bytes. Only the last chunk of a file can be smaller.

Smaller chunks need more requests and disk syncs, and larger chunks transfer more data. If 1 % is appended to
a file of 256 MB, on average 2 % is transferred with chunks of 4 MiB, and 3 % with chunks of 8 MiB.
"""
# small, so that the bytes stay in the processor's cache until they are hashed
_READ_BYTES = _SMALL_BYTES = 1 << 18
_TOGETHER = 256
"""The number of small files that a thread reads in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScannedFile:
    """A file of the scanned folder, with its status at the moment when the scan found the file."""

    path: str
    stat: os.stat_result


def scan(path: Path, *, cache: HashCache | None = None, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
    """Returns the manifest of a folder, or of a single file (one entry with an empty path). Empty folders
    are not part of the manifest.

    Raises NotFoundError. Raises UnsafePathError or InputError for links, for devices, and for names that
    cannot be transferred. Raises ConflictError if a file changes during the scan. Raises StorageError.
    """
    return _manifest(path, lambda: _list_files(path), cache, chunk_bytes)


def scan_files(
    root: Path, paths: Iterable[str], *, cache: HashCache | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Manifest:
    """Returns the manifest of these files below `root` only, for example of the files of a table at one
    version. Raises as `scan`."""
    return _manifest(root, lambda: [_looked(root, path) for path in sorted(set(paths))], cache, chunk_bytes)


def _manifest(
    root: Path, find: Callable[[], list[_ScannedFile]], cache: HashCache | None, chunk_bytes: int
) -> Manifest:
    cache = cache or HashCache(None)
    try:
        files = find()
        cache.open(chunk_bytes)
        cached = {file.path: cache.look(file.path, file.stat) for file in files}
        unknown = [file for file in files if cached[file.path] is None]
        cached.update(_hashed(root, unknown, chunk_bytes))
    except PermissionError as error:
        place = str(error.filename or root)
        hint = "Allow the user of this process to read the file."
        raise InputError(f"cannot be read: {error.strerror}", place=place, hint=hint) from error
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(error.filename or root)) from error
    for file in unknown:
        cache.keep(file.path, file.stat, cached[file.path] or ())
    # no error, because files whose hashes cannot be stored are only hashed again
    with suppress(StorageError):
        cache.save()
    entries = (
        FileEntry(path=file.path, size_bytes=file.stat.st_size, chunks=cached[file.path] or ())
        for file in files
    )
    return Manifest(files=tuple(entries), chunk_bytes=chunk_bytes)


def _list_files(root: Path) -> list[_ScannedFile]:
    try:
        status = os.lstat(root)
    except FileNotFoundError as error:
        raise NotFoundError("this file or folder does not exist", place=str(root)) from error
    if stat.S_ISDIR(status.st_mode):
        return sorted(_walk(root), key=lambda file: file.path)
    _check_kind(status, root, "")
    return [_ScannedFile(path="", stat=status)]


def _walk(root: Path) -> Iterator[_ScannedFile]:
    """Yields all files. The folders are opened by file descriptors, so that a program that writes there
    cannot redirect the scan with a link."""
    with folder_below(root, "") as top:
        for above, folders, names, folder in os.fwalk(dir_fd=top, onerror=_raise):
            below = os.path.normpath(above)
            before = "" if below == "." else f"{below}/"
            for name in folders:  # checked here, because os.fwalk lists a link to a folder among the folders
                _check_no_link(os.stat(name, dir_fd=folder, follow_symlinks=False), root, before + name)
            for name in names:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                _check_kind(status, root, before + name)
                check_path(before + name)
                yield _ScannedFile(path=before + name, stat=status)


def _raise(error: OSError) -> None:
    raise error


def _looked(root: Path, path: str) -> _ScannedFile:
    check_path(path)
    with file_below(root, path) as descriptor:
        status = os.fstat(descriptor)
    _check_kind(status, root, path)
    return _ScannedFile(path=path, stat=status)


def _check_no_link(status: os.stat_result, root: Path, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UnsafePathError(
            "links are not transferred", place=str(root / path), hint="Replace the link with the file itself."
        )


def _check_kind(status: os.stat_result, root: Path, path: str) -> None:
    _check_no_link(status, root, path)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            "only files and folders are transferred",
            place=str(root / path),
            hint="Delete the file, or move it to another folder.",
        )


def _hashed(root: Path, files: list[_ScannedFile], chunk_bytes: int) -> dict[str, tuple[str, ...]]:
    """Returns the chunks of each file by its path. Several threads read the files, because hashing releases
    the interpreter lock."""
    small, medium, large = _by_size(files, (min(_SMALL_BYTES, chunk_bytes), chunk_bytes))
    hashes: dict[str, tuple[str, ...]] = {}
    turns = FairScheduler()

    def in_turn(some: Sequence[_ScannedFile]) -> dict[str, tuple[str, ...]]:
        with turns.turn(len(some)):
            return _whole(root, some)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for done in threads.map(in_turn, _groups(small, _TOGETHER)):
            hashes.update(done)
        for done in threads.map(lambda some: _whole(root, some), _groups(medium, 1)):
            hashes.update(done)
        for file in large:
            offsets = range(0, file.stat.st_size, chunk_bytes)
            hashes[file.path] = tuple(
                threads.map(lambda offset, file=file: _part(root, file, offset, chunk_bytes), offsets)
            )
    return hashes


def _by_size(files: Iterable[_ScannedFile], limits_bytes: Sequence[int]) -> tuple[list[_ScannedFile], ...]:
    """Splits the files into groups by size: files up to the first limit, files up to the second limit, and
    larger files."""
    result = tuple(list[_ScannedFile]() for _ in (*limits_bytes, 0))
    for file in files:
        result[bisect_left(limits_bytes, file.stat.st_size)].append(file)
    return result


def _groups(files: Sequence[_ScannedFile], size: int) -> list[Sequence[_ScannedFile]]:
    return [files[at : at + size] for at in range(0, len(files), size)]


def _whole(root: Path, files: Iterable[_ScannedFile]) -> dict[str, tuple[str, ...]]:
    with FilesBelow(root) as below:
        return {
            file.path: (_hash(root, below, file, 0, file.stat.st_size),) if file.stat.st_size else ()
            for file in files
        }


def _part(root: Path, file: _ScannedFile, offset: int, most_bytes: int) -> str:
    with FilesBelow(root) as below:
        return _hash(root, below, file, offset, most_bytes)


def _hash(root: Path, below: FilesBelow, file: _ScannedFile, offset: int, most_bytes: int) -> str:
    hashed, left = blake3(), min(most_bytes, file.stat.st_size - offset)
    piece = memoryview(bytearray(min(left, _READ_BYTES)))
    descriptor = below.open(file.path)
    try:
        while left and (read := os.preadv(descriptor, [piece[:left]], offset)):
            hashed.update(piece[:read])
            offset, left = offset + read, left - read
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if left or seen(status) != seen(file.stat):
        raise ConflictError(
            "the file changed while it was read",
            place=str(root / file.path),
            hint="Try again when no program writes to it.",
        )
    return hashed.hexdigest()
