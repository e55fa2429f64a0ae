"""Reads /proc: which processes live, their start times, parents and environments.

Without /proc (macOS) process trees are unknown and only process groups can be signalled.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from gridmill.domain.frozen import dataclass

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """A process. `started` is in clock ticks since boot. Together with the pid it is unique."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


def stat(pid: int) -> ProcessStat | None:
    """The process; None if it does not exist or is a zombie (dead, waiting to be reaped)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    if state in "ZX":
        return None
    return ProcessStat(
        pid=pid,
        state=state,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


def started(pid: int) -> int:
    """The start of the process in ticks since boot; 0 if it does not exist or the start is unknown."""
    status = stat(pid)
    return status.started if status else 0


def is_alive(pid: int, start: int) -> bool:
    """Whether the process of that pid lives and started then (0: any start)."""
    if PROC.is_dir():
        status = stat(pid)
        return status is not None and start in (0, status.started)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def children(pid: int) -> list[int]:
    """Its direct children, zombies included; [] if the process does not exist."""
    result: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                result += map(int, file.read().split())
    except OSError:
        pass
    return result


def tree(roots: Iterable[int]) -> list[int]:
    """The processes and all their descendants, parents first."""
    pids: dict[int, None] = {}
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in pids:
            pids[pid] = None
            waiting += children(pid)
    return list(pids)


def environ_has(pid: int, entry: str) -> bool:
    """True when the process was started with `NAME=value` in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry.encode() in file.read().split(b"\0")
    except OSError:
        return False


def marked(entry: str) -> list[int]:
    """Every living process with that entry in its environment. Reads all of /proc: not for hot paths."""
    try:
        pids = [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return []
    return [pid for pid in pids if environ_has(pid, entry) and stat(pid) is not None]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signals each process. A process that does not exist is fine."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def send_group(group: int, number: signal.Signals) -> None:
    """Signals a process group. A group that does not exist is fine."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
