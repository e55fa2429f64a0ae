"""Onto the disk, before anything relies on it."""

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gridmill.errors import StorageError

_EACH = 16
"""So many are synced one by one; of more the whole file system is, in one go: each waits for the disk."""
_C = ctypes.CDLL(None, use_errno=True)
_SYNCFS: Callable[[int], int] | None = getattr(_C, "syncfs", None)  # macOS has none


def sync(paths: Sequence[Path]) -> None:
    """Files' contents, and folders' entries, on one file system. Raises OSError."""
    if len(paths) > _EACH and _SYNCFS is not None:
        _with(paths[0], _sync_all)
        return
    for path in paths:
        _with(path, os.fsync)


def _with(path: Path, act: Callable[[int], None]) -> None:
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
    """What a caller is told when something could not be read or written."""
    return StorageError(f"cannot be kept: {error.strerror}", place=str(error.filename or place))


def write_private(path: Path, content: bytes) -> None:
    """Whole or not at all, readable by this user alone. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
