"""A pod's own folder: the lock that says it lives, the marks that it was started and that it has ended."""

import fcntl
import os
import time
from pathlib import Path

LOCK_FD = "GRIDMILL_POD_LOCK_FD"
"""Names the descriptor by which a site hands the lock, already taken, to the pod it starts."""


def acquire_lock(path: Path, *, patience_seconds: float) -> int | None:
    """The lock's descriptor; None when the pod lives. Who only looks holds it for moments: hence patience."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(descriptor)
                return None
            time.sleep(0.01)


LIFELINE_FD = "GRIDMILL_POD_LIFELINE_FD"
"""Names the reading end of a pipe: when nobody has its other end any more, the pod ends."""


def inherited_lock() -> int | None:
    """The descriptor a site handed over; None when there is none."""
    return _inherited(LOCK_FD)


def inherited_lifeline() -> int | None:
    """The pipe of a site whose pods end with it; None when there is none."""
    return _inherited(LIFELINE_FD)


def _inherited(name: str) -> int | None:
    text = os.environ.pop(name, "")
    if not text.isdigit():
        return None
    os.set_inheritable(int(text), False)
    return int(text)


def was_started(path: Path) -> bool:
    """Whether the pod ever ran: then it never runs again."""
    return (path / "pid").exists()


def mark_started(path: Path, start: int) -> None:
    """Write `pid`: the pod's process and its start time."""
    (path / "pid").write_text(f"{os.getpid()} {start}\n")


def has_ended(path: Path) -> bool:
    """Whether the pod has ended and nothing of it is left."""
    return (path / "ended").exists()


def mark_ended(path: Path) -> None:
    """Write `ended`: nothing of the pod is left, and it never comes back."""
    (path / "ended").touch()
