"""Reads the processes of this machine, and separates the processes of the grid from the processes of the
machine's owner.

The processes of the grid are Gridmill's commands, its pods, the processes of a Ray node, and all their
descendants. Orphans stay descendants because their pods adopt them. Kernel threads belong neither to the
grid nor to the owner, because reads and writes of the grid also keep them busy.
"""

import os
import re
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from gridmill.domain.frozen import dataclass

PROC = Path("/proc")
_PROGRAMS = ("raylet", "gcs_server")
_RAY_MODULES = (b"ray.scripts",)
_ADOPT = ("systemd", "init")
_SSH_SERVERS = ("sshd", "sshd-session", "sshd-auth")
_PF_KTHREAD = 0x00200000
"""The process flag of a kernel thread (include/linux/sched.h)."""
_POD_WORDS = 6
_KILL_ROUNDS = 50
_KILL_PAUSE_SECONDS = 0.02
_TUNNEL_OPTION = re.compile(rb"-[A-Za-z]*N[A-Za-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of /proc/PID/stat. `ticks` is the CPU time of the process, `children_ticks` is the CPU time
    of the ended children for which it waited, `start` is the start time of the process in ticks after boot,
    and `terminal` is the device number of its controlling terminal."""

    name: str
    parent: int
    ticks: int
    children_ticks: int
    runs: bool
    has_ended: bool
    start: int
    terminal: int
    is_kernel: bool


Table = Mapping[int, Process]
"""Processes by their pid."""


def read_table() -> Table:
    """Returns all processes that this user can see."""
    return dict(_processes())


def _processes() -> Iterator[tuple[int, Process]]:
    for entry in os.scandir(PROC):
        if entry.name.isdigit() and (process := read_one(int(entry.name))) is not None:
            yield int(entry.name), process


def read_one(pid: int) -> Process | None:
    """Returns the process with this id, or None if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        return read_process(pid, (PROC / str(pid) / "stat").read_text())
    return None


def read_process(pid: int, stat: str) -> Process:
    """Parses the line in /proc/PID/stat (see proc(5)).

    The CPU time of orphans is not added to the process that adopted them, because the orphans may have been
    processes of Gridmill.
    """
    head, _, rest = stat.rpartition(")")
    name, words = head.partition("(")[2], rest.split()
    adopts = pid == 1 or name in _ADOPT
    return Process(
        name=name,
        parent=int(words[1]),
        ticks=int(words[11]) + int(words[12]),
        children_ticks=0 if adopts else int(words[13]) + int(words[14]),
        runs=words[0] == "R",
        has_ended=words[0] in ("Z", "X"),
        start=int(words[19]),
        terminal=int(words[4]),
        is_kernel=bool(int(words[6]) & _PF_KTHREAD),
    )


def grid_processes(table: Table, *, rays: bool) -> frozenset[int]:
    """Returns the processes of the grid: this process, other processes of Gridmill, and all their
    descendants. With `rays`, the processes of every Ray node are included.

    (On a lent machine, the grid's Ray node is a descendant of this process. (On a lent machine, a Ray node
    that is not a descendant of this process belongs to the owner.)
    """
    known = {pid: True for pid in table if pid == os.getpid() or is_grid_command(_words(pid), rays=rays)}
    return frozenset(pid for pid in table if _descends(pid, table, known))


def owner_processes(table: Table, grid: Collection[int]) -> frozenset[int]:
    """Returns the processes of the machine's owner. Processes of the grid, kernel threads, and SSH
    connections that only forward ports are left out."""
    kernel = {pid for pid, process in table.items() if process.is_kernel}
    return frozenset(table.keys() - kernel - set(grid) - _tunnels(table))


def is_grid_command(words: list[bytes], *, rays: bool) -> bool:
    """Returns whether this command line starts a pod, a command of Gridmill, or a process of a Ray node."""
    if not words:
        return False
    program = os.path.basename(words[0]).decode(errors="replace")
    if program == "gridmill" or (rays and program in _PROGRAMS):
        return True
    if not program.startswith("python"):
        return False
    return _is_grid_module(words[1:], rays=rays)


def _is_grid_module(words: list[bytes], *, rays: bool) -> bool:
    """Returns whether the words after `python` start a module or script of Gridmill or Ray. The words may
    contain options before `-m MODULE` or the script."""
    for word, following in zip(words, [*words[1:], b""], strict=True):
        if word == b"-m":
            ours = following == b"gridmill" or following.startswith(b"gridmill.")
            return ours or (rays and following.startswith(_RAY_MODULES))
        if not word.startswith(b"-"):
            return word.endswith(b"/gridmill")
    return False


def _words(pid: int) -> list[bytes]:
    """Its command line."""
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]
    return []


def _descends(pid: int, table: Table, known: dict[int, bool]) -> bool:
    if pid not in known:
        parent = table[pid].parent
        known[pid] = parent in table and _descends(parent, table, known)
    return known[pid]


def below(pid: int, table: Table) -> tuple[int, ...]:
    """Returns the process and its descendants."""
    known = {pid: True}
    return tuple(one for one in table if _descends(one, table, known))


def _pods(table: Table) -> Iterator[int]:
    return (pid for pid in table if _is_pod(_words(pid)[:_POD_WORDS]))


def _is_pod(words: list[bytes]) -> bool:
    return (b"-m", b"gridmill.pod") in pairwise(words)


def ray_processes(pid: int) -> tuple[int, ...]:
    """Returns the processes of a Ray node: the descendants of its first process, without pods and their
    jobs."""
    table = read_table()
    known = dict.fromkeys(_pods(table), True)
    return tuple(one for one in below(pid, table) if not _descends(one, table, known))


def pods_below(pid: int) -> Mapping[int, int]:
    """Returns the pods among the descendants of this process, with their start times as in Process.start."""
    table = read_table()
    pods = set(_pods(table))
    return {one: table[one].start for one in below(pid, table) if one in pods}


def is_alive(pid: int, start: int) -> bool:
    """Returns whether the process with this id and this start time still runs; see Process.start."""
    process = read_one(pid)
    return process is not None and process.start == start and not process.has_ended


def kill_trees(pids: Collection[int]) -> None:
    """Kills the processes and their descendants. The descendants are killed first, until no new descendants
    appear. (A pod adopts its orphans, so no process of a job escapes.)"""
    for _ in range(_KILL_ROUNDS):
        table = read_table()
        trees = {one for pid in pids for one in below(pid, table) if not table[one].has_ended}
        if not trees:
            return
        for pid in trees - set(pids) or trees:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_SECONDS)


# --- CPU time


def used_ticks(before: Table, after: Table, owners: Collection[int]) -> int:
    """Returns the CPU time of the processes `owners` between two readings of the process table, including
    children that ended in between.

    If a child process that is not in `owners` ended in between, the CPU time of the ended children of its
    parent is not counted, because the part that belongs to that child is unknown.
    """
    ended: dict[int, list[int]] = {}
    for pid, process in before.items():
        if not _is_same(before, after, pid):
            ended.setdefault(process.parent, []).append(pid)
    return sum(_ticks_of(pid, before, after, ended.get(pid, []), owners) for pid in owners if pid in after)


def _is_same(before: Table, after: Table, pid: int) -> bool:
    return pid in before and pid in after and before[pid].start == after[pid].start


def _ticks_of(pid: int, before: Table, after: Table, ended: list[int], owners: Collection[int]) -> int:
    now = after[pid]
    if not _is_same(before, after, pid):
        return now.ticks + now.children_ticks
    then = before[pid]
    own = now.ticks - then.ticks
    counted = sum(before[one].ticks + before[one].children_ticks for one in ended)
    of_children = now.children_ticks - then.children_ticks - counted
    return own + (0 if any(one not in owners for one in ended) else max(0, of_children))


# --- SSH


def _tunnels(table: Table) -> set[int]:
    """Returns the processes of SSH connections that run no command: they only forward ports, as the
    connections of the grid do."""
    busy = {process.parent for process in table.values() if process.name not in _SSH_SERVERS}
    servers = {pid for pid, process in table.items() if process.name in _SSH_SERVERS}
    idle = {pid for pid in servers if pid not in busy and not _is_sftp(pid)}
    return idle | {pid for pid, process in table.items() if process.name == "ssh" and _forwards_only(pid)}


def _is_sftp(pid: int) -> bool:
    """Returns whether the SSH server process itself transfers files (the subsystem internal-sftp)."""
    return any(b"internal-sftp" in word for word in _words(pid)[:1])


def _forwards_only(pid: int) -> bool:
    """Returns whether the process is `ssh -N`, which runs no command."""
    return any(_TUNNEL_OPTION.fullmatch(word) for word in _words(pid)[1:])


def ssh_sessions(table: Table, grid: Collection[int]) -> Mapping[int, int]:
    """Returns the processes that were started over SSH without a terminal, with their start times. Commands
    of the grid are left out. (An SSH session with a terminal is detected by its terminal.)"""
    return {
        pid: process.start
        for pid, process in table.items()
        if pid not in grid and not process.terminal and _is_session(pid, process, table)
    }


def _is_session(pid: int, process: Process, table: Table) -> bool:
    if process.name in _SSH_SERVERS:
        return _is_sftp(pid)
    parent = table.get(process.parent)
    return parent is not None and parent.name in _SSH_SERVERS


# --- terminals


def is_grid_terminal(device: int, table: Table, grid: Collection[int]) -> bool:
    """Returns whether only jobs of the grid use the terminal with this device number (st_rdev). For the
    device ptmx, through which all terminals type, it returns whether a job has the device open.

    Gridmill's commands do not count as jobs, because people run them at their own terminals.
    """
    users = {pid for pid, process in table.items() if _device(process.terminal) == device}
    known = dict.fromkeys(_pods(table), True)
    jobs = {pid for pid in grid if _descends(pid, table, known)}
    return users <= jobs if users else any(_has_open(pid, device) for pid in jobs)


def _device(number: int) -> int:
    """Returns the device number that /proc/PID/stat encodes in the field `tty_nr` (proc(5)), or 0 if there
    is no terminal."""
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)) if number else 0


def _has_open(pid: int, device: int) -> bool:
    with suppress(OSError):
        for name in os.listdir(PROC / str(pid) / "fd"):
            with suppress(OSError):
                if os.stat(PROC / str(pid) / "fd" / name).st_rdev == device:
                    return True
    return False
