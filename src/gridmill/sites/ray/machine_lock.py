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
"""An abstract socket: one per network namespace, so one per host, for all users; it disappears with the
process that has it. (unix(7))"""
_PID = "pid"
_END_SECONDS = 3.0
_POLL_SECONDS = 0.05


def claim_machine(folder: Path) -> socket.socket:
    """What says, as long as it is open here or in a node that inherited it, that this machine is a node.

    What an earlier `join` of this folder left when it was killed is ended first. Raises InputError where
    this machine is a node already.
    """
    ended = _end_left(folder)
    claim = try_claim()
    until = time.monotonic() + _END_SECONDS
    while (
        claim is None and ended and time.monotonic() < until
    ):  # a process lets go of it a moment after its end
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
    """None where this machine is a node already."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(_NAME)
    except OSError:
        claim.close()
        return None
    return claim


def noting(folder: Path, command: Sequence[str]) -> list[str]:
    """The command of a node's Ray, which first notes which process it is, and whose: there is no moment at
    which it runs and nobody knows it."""
    return ["sh", "-c", 'echo "$$ $PPID" > "$0" && exec "$@"', str(folder / _PID), *command]


def runs(folder: Path) -> int | None:
    """The process of the node's Ray that was noted, if it runs."""
    try:
        pid = int((folder / _PID).read_text().split()[0])
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return None
    return pid if b"ray.scripts" in words else None


def _end_left(folder: Path) -> bool:
    """Whether there was one to end."""
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
    """Whether who started it is gone."""
    try:
        parent = int((folder / _PID).read_text().split()[1])
        status_text = Path(f"/proc/{pid}/status").read_text()
    except (OSError, ValueError, IndexError):
        return False
    return f"PPid:\t{parent}\n" not in status_text
