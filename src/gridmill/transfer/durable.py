"""Syncs files to the disk before other code relies on them, and seals files that are complete."""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gridmill.errors import StorageError

_EACH = 16
"""Up to this number of files are synced one by one, and each sync waits for the disk. For more files, the
complete file system is synced once."""
_C = ctypes.CDLL(None, use_errno=True)
_SYNC_FILE_RANGE: Callable[..., int] | None = getattr(_C, "sync_file_range", None)
_WRITE = 2  # SYNC_FILE_RANGE_WRITE starts to write the data and does not wait
READ_ONLY = 0o444  # placed files are hard links to stored files, which a job must not change
SEALED_NS = 1_000_000_000_000_000_000
"""The modification time that sealed files get. A file with any other modification time was changed, and is
not used any more."""
_PIECE_BYTES = 1 << 18
_JUST_NS = 60_000_000_000
_RENAMEAT2: Callable[..., int] | None = getattr(_C, "renameat2", None)
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD, which Python does not define
_SYNCFS: Callable[[int], int] | None = getattr(_C, "syncfs", None)  # None on macOS, which has no such call


def sync(paths: Sequence[str | Path]) -> None:
    """Syncs the contents of files and the entries of folders to the disk. All files and folders must be on
    one file system. Raises OSError."""
    if len(paths) > _EACH and _SYNCFS is not None:
        _with(paths[0], _sync_all)
        return
    for path in paths:
        _with(path, os.fsync)


def put(draft: Path, folder: int, name: str) -> None:
    """Renames the draft file to `name` in the folder (a file descriptor), in one atomic step if the system
    supports it.

    If another file had this name before, the other file gets the name of the draft. Raises OSError.
    """
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(draft, name, dst_dir_fd=folder)
        return
    if _RENAMEAT2 is None or _RENAMEAT2(_HERE, os.fsencode(draft), folder, os.fsencode(name), _EXCHANGE):
        replaced = draft.with_name(f"{draft.name}.old")
        os.rename(name, replaced, src_dir_fd=folder)
        try:
            os.rename(draft, name, dst_dir_fd=folder)
        except OSError:
            os.rename(replaced, name, dst_dir_fd=folder)
            raise
        os.rename(replaced, draft)


def begin_sync(descriptor: int, offset: int, size: int) -> None:
    """Starts to write new bytes of a file to the disk, so that the sync at the end of the file waits
    less."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(descriptor, ctypes.c_int64(offset), ctypes.c_int64(size), _WRITE)


def seal(path: Path) -> None:
    """Seals a complete file: makes it read-only, sets the modification time of sealed files, and syncs it to
    the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        seal_open(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal_open(descriptor: int) -> None:
    """Seals an open file in the same way as `seal`, but does not sync it to the disk. Raises OSError."""
    os.fchmod(descriptor, READ_ONLY)
    os.utime(descriptor, ns=(time.time_ns(), SEALED_NS))


def touch(path: str | Path, *, sealed: bool = True) -> bool:
    """Returns whether the file exists and was not changed since it was sealed. If the file is unchanged, its
    time of use is set to the present minute.

    Raises OSError.
    """
    try:
        status, now_ns = os.stat(path), time.time_ns()
        if sealed and status.st_mtime_ns != SEALED_NS:
            return False
        if not sealed or not now_ns - _JUST_NS < status.st_atime_ns <= now_ns:
            os.utime(path, ns=(now_ns, SEALED_NS))
    except FileNotFoundError:
        return False
    return True


def _with(path: str | Path, act: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


def _sync_all(descriptor: int) -> None:
    if _SYNCFS is not None and _SYNCFS(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def not_kept(error: OSError, place: Path) -> StorageError:
    """Returns the error for a file that could not be read or written."""
    return StorageError(f"cannot be read or stored: {error.strerror}", place=str(error.filename or place))


def write_at(descriptor: int, data: bytes | memoryview, offset: int = 0) -> None:
    """Writes all the data in pieces. For a write of several megabytes, Linux searches for contiguous memory
    of the same size. Such writes took four times as long as small writes (ext4, Linux 6.18). Raises
    OSError."""
    rest = memoryview(data)
    while rest:
        wrote = os.pwrite(descriptor, rest[:_PIECE_BYTES], offset)
        rest, offset = rest[wrote:], offset + wrote
