"""Reads from /proc which processes are alive, and their start times, parents and environments.

Without /proc (on macOS), process trees are unknown, and only process groups can be signalled.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from gridmill.domain.frozen import dataclass

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """The state of a process. `started` is the start time of the process in clock ticks since boot. The
    start time and the process id together identify a process."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


def stat(pid: int) -> ProcessStat | None:
    """Returns the process, or None if it does not exist or is a zombie (it has ended and waits to be
    reaped)."""
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
    """Returns the start time of the process in ticks since boot, or 0 if the process does not exist or its
    start time is unknown."""
    status = stat(pid)
    return status.started if status else 0


def is_alive(pid: int, start: int) -> bool:
    """Returns whether the process with this id is alive and started at `start`. If `start` is 0, any start
    time is accepted."""
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
    """Returns the direct children of the process, including zombies, or [] if the process does not exist."""
    result: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                result += map(int, file.read().split())
    except OSError:
        pass
    return result


def tree(roots: Iterable[int]) -> list[int]:
    """Returns these processes and all their descendants. Parents come before their children."""
    pids: dict[int, None] = {}
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in pids:
            pids[pid] = None
            waiting += children(pid)
    return list(pids)


def environ_has(pid: int, entry: str) -> bool:
    """Returns True if the process was started with `NAME=value` in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry.encode() in file.read().split(b"\0")
    except OSError:
        return False


def marked(entry: str) -> list[int]:
    """Returns every living process that has this entry in its environment. The function reads all of /proc,
    so it must not be called often."""
    try:
        pids = [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return []
    return [pid for pid in pids if environ_has(pid, entry) and stat(pid) is not None]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each process. Processes that do not exist are ignored."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def send_group(group: int, number: signal.Signals) -> None:
    """Sends a signal to a process group. A process group that does not exist is ignored."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
