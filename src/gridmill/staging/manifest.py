"""Folders and files as manifests: which chunks they are made of."""

import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from gridmill.errors import ConflictError, InputError, NotFoundError, StorageError, UnsafePathError
from gridmill.model.farm import FileEntry, Manifest
from gridmill.model.noun import dataclass
from gridmill.staging.hashes import HashCache, seen
from gridmill.staging.paths import FilesBelow, check_path, file_below, folder_below
from gridmill.staging.turns import Turns

CHUNK_BYTES = 4 << 20
"""Size of a chunk, but a file's last. Smaller ones cost requests and syncs, larger ones let more travel:
of a file of 256 MB to which 1 % is appended, with 4 MiB on average 2 %, with 8 MiB 3 %."""
_READ_BYTES = _SMALL_BYTES = 1 << 18  # stays in the processor until it is hashed
_TOGETHER = 256  # small files that a thread reads in one go


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file that was found, as it looked."""

    path: str
    stat: os.stat_result


def scan(path: Path, *, cache: HashCache | None = None, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
    """The manifest of a folder, or of a single file (one entry with an empty path). No empty folders.

    Raises NotFoundError; UnsafePathError or InputError for links, devices and names that cannot travel;
    ConflictError for a file that changes meanwhile; StorageError.
    """
    return _manifest(path, lambda: _found(path), cache, chunk_bytes)


def scan_files(
    root: Path, paths: Iterable[str], *, cache: HashCache | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Manifest:
    """The manifest of these files alone below `root`, as of a table at one version. Raises as `scan`."""
    return _manifest(root, lambda: [_looked(root, path) for path in sorted(set(paths))], cache, chunk_bytes)


def _manifest(
    root: Path, find: Callable[[], list[_File]], cache: HashCache | None, chunk_bytes: int
) -> Manifest:
    cache = cache or HashCache(None)
    try:
        files = find()
        cache.open(chunk_bytes)
        known = {file.path: cache.look(file.path, file.stat) for file in files}
        unknown = [file for file in files if known[file.path] is None]
        known.update(_hashed(root, unknown, chunk_bytes))
    except PermissionError as error:
        place = str(error.filename or root)
        hint = "Let whoever carries it read it."
        raise InputError(f"cannot be read: {error.strerror}", place=place, hint=hint) from error
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(error.filename or root)) from error
    for file in unknown:
        cache.keep(file.path, file.stat, known[file.path] or ())
    with suppress(StorageError):  # what is not kept is hashed again
        cache.save()
    entries = (
        FileEntry(path=file.path, size_bytes=file.stat.st_size, chunks=known[file.path] or ())
        for file in files
    )
    return Manifest(files=tuple(entries), chunk_bytes=chunk_bytes)


def _found(root: Path) -> list[_File]:
    try:
        looked = os.lstat(root)
    except FileNotFoundError as error:
        raise NotFoundError("there is no such file or folder", place=str(root)) from error
    if stat.S_ISDIR(looked.st_mode):
        return sorted(_walk(root), key=lambda file: file.path)
    _check_kind(looked, root, "")
    return [_File(path="", stat=looked)]


def _walk(root: Path) -> Iterator[_File]:
    """By descriptors, so that nobody who writes there can lead the way out by a link."""
    with folder_below(root, "") as top:
        for above, folders, names, folder in os.fwalk(dir_fd=top, onerror=_raise):
            below = os.path.normpath(above)
            before = "" if below == "." else f"{below}/"
            for name in folders:  # links to folders are among them
                _check_no_link(os.stat(name, dir_fd=folder, follow_symlinks=False), root, before + name)
            for name in names:
                looked = os.stat(name, dir_fd=folder, follow_symlinks=False)
                _check_kind(looked, root, before + name)
                check_path(before + name)
                yield _File(path=before + name, stat=looked)


def _raise(error: OSError) -> None:
    raise error


def _looked(root: Path, path: str) -> _File:
    check_path(path)
    with file_below(root, path) as descriptor:
        looked = os.fstat(descriptor)
    _check_kind(looked, root, path)
    return _File(path=path, stat=looked)


def _check_no_link(looked: os.stat_result, root: Path, path: str) -> None:
    if stat.S_ISLNK(looked.st_mode):
        raise UnsafePathError(
            "links are not carried", place=str(root / path), hint="Put the file itself there."
        )


def _check_kind(looked: os.stat_result, root: Path, path: str) -> None:
    _check_no_link(looked, root, path)
    if not stat.S_ISREG(looked.st_mode):
        raise InputError("only files and folders are carried", place=str(root / path), hint="Take it away.")


def _hashed(root: Path, files: list[_File], chunk_bytes: int) -> dict[str, tuple[str, ...]]:
    """Chunks by path; several threads read, as hashing lets go of the interpreter."""
    small, medium, large = _by_size(files, (min(_SMALL_BYTES, chunk_bytes), chunk_bytes))
    hashes: dict[str, tuple[str, ...]] = {}
    turns = Turns()

    def in_turn(some: Sequence[_File]) -> dict[str, tuple[str, ...]]:
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


def _by_size(files: Iterable[_File], limits_bytes: Sequence[int]) -> tuple[list[_File], ...]:
    """Up to the first limit, up to the second, larger ones."""
    found = tuple(list[_File]() for _ in (*limits_bytes, 0))
    for file in files:
        found[bisect_left(limits_bytes, file.stat.st_size)].append(file)
    return found


def _groups(files: Sequence[_File], size: int) -> list[Sequence[_File]]:
    return [files[at : at + size] for at in range(0, len(files), size)]


def _whole(root: Path, files: Iterable[_File]) -> dict[str, tuple[str, ...]]:
    with FilesBelow(root) as below:
        return {
            file.path: (_hash(root, below, file, 0, file.stat.st_size),) if file.stat.st_size else ()
            for file in files
        }


def _part(root: Path, file: _File, offset: int, most_bytes: int) -> str:
    with FilesBelow(root) as below:
        return _hash(root, below, file, offset, most_bytes)


def _hash(root: Path, below: FilesBelow, file: _File, offset: int, most_bytes: int) -> str:
    hashed, left = blake3(), min(most_bytes, file.stat.st_size - offset)
    piece = memoryview(bytearray(min(left, _READ_BYTES)))
    descriptor = below.open(file.path)
    try:
        while left and (read := os.preadv(descriptor, [piece[:left]], offset)):
            hashed.update(piece[:read])
            offset, left = offset + read, left - read
        looked = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if left or seen(looked) != seen(file.stat):
        raise ConflictError(
            "it changed while it was read", place=str(root / file.path), hint="Try again once it is written."
        )
    return hashed.hexdigest()
