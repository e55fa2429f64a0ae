"""Reads the processes of this machine, and separates those of the grid from those of the machine's owner.

The grid's processes are Gridmill's commands, pods, a Ray node's own processes, and their descendants (pods
adopt orphans). Kernel threads belong to neither, because reads and writes of the grid also keep them busy.
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
"""Flag of a kernel thread (include/linux/sched.h)."""
_POD_WORDS = 6
_KILL_ROUNDS = 50
_KILL_PAUSE_SECONDS = 0.02
_TUNNEL_OPTION = re.compile(rb"-[A-Za-z]*N[A-Za-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of /proc/PID/stat. `ticks` is its CPU time, `children_ticks` the CPU time of ended children
    for which it waited, `start` is in ticks after boot, `terminal` is the device number of its controlling
    terminal."""

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
    """All processes that this user sees."""
    return dict(_processes())


def _processes() -> Iterator[tuple[int, Process]]:
    for entry in os.scandir(PROC):
        if entry.name.isdigit() and (process := read_one(int(entry.name))) is not None:
            yield int(entry.name), process


def read_one(pid: int) -> Process | None:
    """The process; None if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        return read_process(pid, (PROC / str(pid) / "stat").read_text())
    return None


def read_process(pid: int, stat: str) -> Process:
    """Parses a line of /proc/PID/stat (proc(5)).

    The time of orphans does not count for the process that adopted them, because they may have been
    Gridmill's.
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
    """This process, Gridmill's processes and their descendants; with `rays` also every Ray node.

    (A lent machine is a Ray node below this process; another Ray on it belongs to its owner.)
    """
    known = {pid: True for pid in table if pid == os.getpid() or is_grid_command(_words(pid), rays=rays)}
    return frozenset(pid for pid in table if _descends(pid, table, known))


def owner_processes(table: Table, grid: Collection[int]) -> frozenset[int]:
    """The owner's processes: not the grid's, not the kernel's, and not SSH connections that only forward
    ports."""
    kernel = {pid for pid, process in table.items() if process.is_kernel}
    return frozenset(table.keys() - kernel - set(grid) - _tunnels(table))


def is_grid_command(words: list[bytes], *, rays: bool) -> bool:
    """Whether its command line is that of a pod or command of Gridmill, or of a Ray node's own process."""
    if not words:
        return False
    program = os.path.basename(words[0]).decode(errors="replace")
    if program == "gridmill" or (rays and program in _PROGRAMS):
        return True
    if not program.startswith("python"):
        return False
    return _is_grid_module(words[1:], rays=rays)


def _is_grid_module(words: list[bytes], *, rays: bool) -> bool:
    """Whether the words after `python` start a module or script of Gridmill or Ray: options, then `-m MODULE`
    or a script."""
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
    """The process and its descendants."""
    known = {pid: True}
    return tuple(one for one in table if _descends(one, table, known))


def _pods(table: Table) -> Iterator[int]:
    return (pid for pid in table if _is_pod(_words(pid)[:_POD_WORDS]))


def _is_pod(words: list[bytes]) -> bool:
    return (b"-m", b"gridmill.pod") in pairwise(words)


def ray_processes(pid: int) -> tuple[int, ...]:
    """A Ray node's processes: the descendants of its first process, without pods and their jobs."""
    table = read_table()
    known = dict.fromkeys(_pods(table), True)
    return tuple(one for one in below(pid, table) if not _descends(one, table, known))


def pods_below(pid: int) -> Mapping[int, int]:
    """The pods among the descendants of that process, with their starts, see Process.start."""
    table = read_table()
    pods = set(_pods(table))
    return {one: table[one].start for one in below(pid, table) if one in pods}


def is_alive(pid: int, start: int) -> bool:
    """Whether that process still runs, see Process.start."""
    process = read_one(pid)
    return process is not None and process.start == start and not process.has_ended


def kill_trees(pids: Collection[int]) -> None:
    """Kills the processes and their descendants: first the descendants, until no new ones appear. (A pod
    adopts its orphans, so none escapes.)"""
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
    """CPU time of the processes `owners` between two looks, including children that ended meanwhile.

    If a child that was not the owner's ended, the children's time of its parent is left out, because the
    child's share is unknown.
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
    """Processes of SSH connections that run no command: they only forward ports, like the grid's."""
    busy = {process.parent for process in table.values() if process.name not in _SSH_SERVERS}
    servers = {pid for pid, process in table.items() if process.name in _SSH_SERVERS}
    idle = {pid for pid in servers if pid not in busy and not _is_sftp(pid)}
    return idle | {pid for pid, process in table.items() if process.name == "ssh" and _forwards_only(pid)}


def _is_sftp(pid: int) -> bool:
    """Whether the server process itself transfers files (the subsystem internal-sftp)."""
    return any(b"internal-sftp" in word for word in _words(pid)[:1])


def _forwards_only(pid: int) -> bool:
    """Whether it is `ssh -N`, which runs no command."""
    return any(_TUNNEL_OPTION.fullmatch(word) for word in _words(pid)[1:])


def ssh_sessions(table: Table, grid: Collection[int]) -> Mapping[int, int]:
    """The processes that were started over SSH without a terminal, except the grid's own commands, with their
    starts. (A session with a terminal is visible by its terminal.)"""
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
    """Whether only jobs of the grid use a terminal (its st_rdev); for ptmx, through which all terminals type,
    whether a job has it open.

    Gridmill's commands do not count, because people run them at their own terminals.
    """
    users = {pid for pid, process in table.items() if _device(process.terminal) == device}
    known = dict.fromkeys(_pods(table), True)
    jobs = {pid for pid in grid if _descends(pid, table, known)}
    return users <= jobs if users else any(_has_open(pid, device) for pid in jobs)


def _device(number: int) -> int:
    """The device number that /proc/PID/stat encodes in `tty_nr` (proc(5)); 0 for none."""
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)) if number else 0


def _has_open(pid: int, device: int) -> bool:
    with suppress(OSError):
        for name in os.listdir(PROC / str(pid) / "fd"):
            with suppress(OSError):
                if os.stat(PROC / str(pid) / "fd" / name).st_rdev == device:
                    return True
    return False
