"""A lock on the machine, since one machine can be one node of one grid only."""

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gridmill.errors import InputError
from gridmill.sites.process_table import ray_processes

_NAME = "\0gridmill-node"
"""An abstract socket: one per network namespace, so one per host, for all users. The kernel removes it with
the process that holds it (unix(7))."""
_PID = "pid"
_END_SECONDS = 3.0
_POLL_SECONDS = 0.05


def claim_machine(folder: Path) -> socket.socket:
    """Claims this machine as a node. The claim lasts while the socket is open here or in a node that
    inherited it.

    Processes that a killed `join` of this folder left are ended first. Raises InputError if this machine is
    already a node.
    """
    ended = _end_left(folder)
    claim = try_claim()
    until = time.monotonic() + _END_SECONDS
    while (
        claim is None and ended and time.monotonic() < until
    ):  # the kernel releases the socket a moment after its process ended
        time.sleep(_POLL_SECONDS)
        claim = try_claim()
    if claim is None:
        raise InputError(
            "this machine is already a node of a grid",
            hint="A machine can belong to one grid. Stop the other `gridmill join`, or the head that runs "
            "here.",
        )
    return claim


def try_claim() -> socket.socket | None:
    """The claim; None if this machine is already a node."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(_NAME)
    except OSError:
        claim.close()
        return None
    return claim


def noting(folder: Path, command: Sequence[str]) -> list[str]:
    """The command of a node's Ray. It first records its process and its parent, so that it never runs
    unrecorded."""
    return ["sh", "-c", 'echo "$$ $PPID" > "$0" && exec "$@"', str(folder / _PID), *command]


def runs(folder: Path) -> int | None:
    """The recorded process of the node's Ray, if it runs."""
    try:
        pid = int((folder / _PID).read_text().split()[0])
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return None
    return pid if b"ray.scripts" in words else None


def _end_left(folder: Path) -> bool:
    """Ends a recorded node that its starter left. Returns whether there was one."""
    pid = runs(folder)
    if pid is None or not _is_orphan(folder, pid):
        return False
    left = [pid, *ray_processes(pid)]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    _wait_for_end(folder)
    for one in left:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    _wait_for_end(folder)
    return True


def _wait_for_end(folder: Path) -> None:
    until = time.monotonic() + _END_SECONDS
    while runs(folder) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _is_orphan(folder: Path, pid: int) -> bool:
    """Whether the process that started it has ended."""
    try:
        parent = int((folder / _PID).read_text().split()[1])
        status_text = Path(f"/proc/{pid}/status").read_text()
    except (OSError, ValueError, IndexError):
        return False
    return f"PPid:\t{parent}\n" not in status_text
