"""A lock on the machine, because a machine can be a node of only one grid, and only once."""

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
"""The name of an abstract Unix socket. An abstract socket name exists once per network namespace, and
therefore once per host for all users. The kernel removes the socket when the process that has it open ends
(unix(7))."""
_PID = "pid"
_END_SECONDS = 3.0
_POLL_SECONDS = 0.05


def claim_machine(folder: Path) -> socket.socket:
    """Claims this machine as a node of a grid. The claim lasts while the socket is open in this process or
    in a node that inherited it.

    If a killed `join` of this folder left processes, they are ended before the claim. Raises InputError if
    this machine is already a node of a grid.
    """
    ended = _end_left(folder)
    claim = try_claim()
    until = time.monotonic() + _END_SECONDS
    # repeated, because the kernel releases the socket only a moment after its process ended
    while claim is None and ended and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        claim = try_claim()
    if claim is None:
        raise InputError(
            "this machine is already a node of a grid",
            hint="A machine can belong to only one grid. Stop the other `gridmill join`, or the head that "
            "runs here.",
        )
    return claim


def try_claim() -> socket.socket | None:
    """Returns the claim on this machine, or None if the machine is already a node of a grid."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(_NAME)
    except OSError:
        claim.close()
        return None
    return claim


def noting(folder: Path, command: Sequence[str]) -> list[str]:
    """Returns the command that starts Ray on this node. The command records its process id and its parent
    before it starts Ray, so that Ray never runs without a record."""
    return ["sh", "-c", 'echo "$$ $PPID" > "$0" && exec "$@"', str(folder / _PID), *command]


def runs(folder: Path) -> int | None:
    """Returns the id of the recorded Ray process of this node, if the process runs."""
    try:
        pid = int((folder / _PID).read_text().split()[0])
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return None
    return pid if b"ray.scripts" in words else None


def _end_left(folder: Path) -> bool:
    """Ends a recorded node whose starting process has ended. Returns whether a recorded node was ended."""
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
    """Returns whether the process that started this node has ended."""
    try:
        parent = int((folder / _PID).read_text().split()[1])
        status_text = Path(f"/proc/{pid}/status").read_text()
    except (OSError, ValueError, IndexError):
        return False
    return f"PPid:\t{parent}\n" not in status_text
