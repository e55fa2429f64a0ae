"""Who is the control node of a home next: `gridmill up` asks, and one that is embedded gives way to it."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gridmill.errors import StorageError

_FILE = "control.next"
_LOOK_SECONDS = 0.05
_START_SECONDS = 60.0
"""How long somebody who asks may take to start, before others go on without."""


@contextmanager
def asking(home: Path) -> Iterator[None]:
    """For the time of the block others see that somebody wants to be the home's control node. It ends with
    the process, for it is a lock. Who asks second waits here for the first. Raises StorageError."""
    path = home / _FILE
    with ExitStack() as held:
        try:
            file = held.enter_context(path.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be locked: {error.strerror}",
                hint="Set GRIDMILL_HOME to a folder you can write to, on a file system with locks.",
            ) from error
        yield


def is_asked(home: Path) -> bool:
    """Whether somebody asks now. The lock is shared, so that those who look do not see each other."""
    try:
        with (home / _FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody ever did, or can
        return False
    return False


def wait_for_who_asks(home: Path) -> None:
    """Until it is the control node, or has given up; at most as long as one takes to start."""
    until = time.monotonic() + _START_SECONDS
    while is_asked(home) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
