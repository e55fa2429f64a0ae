"""Acting as a source's Unix user: what its jobs may not read or write, its farm does not for it either."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gridmill.errors import UnavailableError
from gridmill.farm.users import FIRST_USER

PASS = 0o711
_TRY_SECONDS = 60.0
_thread = threading.local()


@contextmanager
def acting_as(user: int | None) -> Iterator[None]:
    """In this thread files are opened and made as that user (setfsuid(2)); None: as ourselves.

    A link that a job puts where the farm looks leads nowhere that the job could not go itself. Not for
    coroutines. Raises UnavailableError where that is not possible.
    """
    if user is None:
        yield
        return
    before: int = getattr(_thread, "user", 0)
    _become(user)
    try:
        yield
    finally:
        _become(before)


def _become(user: int) -> None:
    libc = _libc()
    libc.setfsgid(user)
    libc.setfsuid(user)
    if libc.setfsuid(user) != user:  # which tells who it was before, and nothing of errors
        raise UnavailableError(f"files cannot be used as user {user}")
    _thread.user = user


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def why_one_user(folder: Path) -> str:
    """Why jobs cannot have Unix users of their own here, with homes below `folder`; empty: they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it is not run by root"
    there = (path for path in (folder, *folder.parents) if path.exists())
    closed = next((path for path in there if not path.stat().st_mode & 0o001), None)
    if closed is not None:
        return f"others may not pass through {closed}"
    return _why_no_python(FIRST_USER)


def _why_no_python(user: int) -> str:
    words = [sys.executable, "-P", "-c", "import gridmill.pod.place"]
    try:
        tried = subprocess.run(
            words,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"others may not start this Python: {error}"
    told = tried.stderr.strip().splitlines() or [f"it ends with {tried.returncode}"]
    return f"others may not use this Gridmill: {told[-1]}" if tried.returncode else ""
