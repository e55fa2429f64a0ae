"""The lock for starting a control node of a home. Only one command or `gridmill up` can hold the lock at a
time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gridmill.errors import StorageError

_FILE = "control.next"


@contextmanager
def asking(home: Path) -> Iterator[None]:
    """Return a context in which no other process starts a control node of the home. If another process holds
    the lock, this function waits. The lock is released when its process ends. Raises StorageError."""
    with _open(home) as file:
        _lock(file, home, fcntl.LOCK_EX)
        yield


@contextmanager
def asking_if_free(home: Path) -> Iterator[bool]:
    """Try to take the lock without waiting. The value of the context is True if this process holds the lock.
    Raises StorageError."""
    with _open(home) as file:
        yield _lock(file, home, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open(home: Path) -> IO[str]:
    try:
        return (home / _FILE).open("a")
    except OSError as error:
        raise _no_lock(home, error) from error


def _lock(file: IO[str], home: Path, how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _no_lock(home, error) from error
    return True


def _no_lock(home: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{home / _FILE} cannot be locked: {error.strerror}",
        hint="Use a writable folder on a file system with locks: export GRIDMILL_HOME=FOLDER",
    )
