"""Who is the control node of a home next: `gridmill up` asks, and one that is embedded gives way to it."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILE = "control.next"
_LOOK_SECONDS = 0.05
_START_SECONDS = 60.0
"""How long somebody who asks may take to start, before others go on without."""


@contextmanager
def asking(home: Path) -> Iterator[None]:
    """For the time of the block others see that somebody wants to be the home's control node. It ends with
    the process, for it is a lock."""
    with (home / _FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_asked(home: Path) -> bool:
    """Whether somebody asks now."""
    try:
        file = (home / _FILE).open("r+")
    except OSError:  # nobody ever did
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def wait_for_who_asks(home: Path) -> None:
    """Until it is the control node, or has given up; at most as long as one takes to start."""
    until = time.monotonic() + _START_SECONDS
    while is_asked(home) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
