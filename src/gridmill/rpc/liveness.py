"""Distinguishes a hung control node from a busy control node, and makes the error that explains what the
user can do.

A process is hung if it is stopped (by SIGSTOP or a debugger), or if it neither answers nor uses processor
time. A process that computes, or that answers other calls in the meantime, is busy. The client waits for a
busy process.
"""

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.errors import HungNodeError
from gridmill.rpc.protocol import readable

CHECK_SECONDS = 1.9
"""The time in seconds between two checks of a process. A process is treated as hung after two checks without
progress."""
PATIENCE_SECONDS = 7.5
"""A process that cannot be observed is treated as hung if it does not answer any request for this number of
seconds. Even a busy process answers the shortest request much faster, because its server needs no thread and
no lock for this answer."""
_CHECKS = 2
_STOPPED = "Tt"
_LOOPBACK = ("127.", "::1")
_LISTENS = "0A"  # /proc/net/tcp shows this state for a listening socket


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The state of a process (a letter, as `ps` shows it), and the processor time that the process has
    used."""

    state: str
    ticks: int

    @property
    def stopped(self) -> bool:
        """Returns True if the process is stopped, so that it does not run until it gets SIGCONT."""
        return self.state in _STOPPED


def observe_process(pid: int) -> ProcessState | None:
    """Returns the current state of the process, or None if there is no process or if the system does not
    show its state."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return ProcessState(state=fields[0], ticks=int(fields[11]) + int(fields[12]))
    except (OSError, ValueError, IndexError):
        return None


def wait_for_answer(
    sock: socket.socket, pid: int, where: str, *, answers: Callable[[bool], bool] = lambda patient: False
) -> None:
    """Waits until the socket can be read.

    `pid` is the id of the control node's process, or 0 if it is unknown. `answers` returns whether the
    control node answers another request. `answers(True)` waits PATIENCE_SECONDS for this answer. If the
    process is unknown, this function searches for the process on this machine that listens at the other end.
    Raises HungNodeError about 4 s after a control node was stopped. If the process of the control node is
    not found (it runs on another machine or behind a tunnel), HungNodeError is raised after about 10 s,
    because only answers can show whether such a control node is busy. Raises TimeoutError after the socket's
    timeout.
    """
    seconds = sock.gettimeout()
    until = None if seconds is None else time.monotonic() + seconds
    if not pid:
        if sock.fileno() in readable(sock, milliseconds=int(1000 * CHECK_SECONDS / 5)):
            return
        pid = listener_of(sock)
    before, still, silent_since = observe_process(pid), 0, time.monotonic()
    while sock.fileno() not in readable(sock, milliseconds=int(1000 * CHECK_SECONDS)):
        now = observe_process(pid)
        if now is None and pid:
            return  # not hung: the process has ended, and the socket reports that
        if now is not None:
            still = still + 1 if _is_idle(before, now) else 0
            is_hung = still >= _CHECKS and (now.stopped or not answers(False))
        else:  # without a look at the process, which may be busy, only an answer shows that it lives
            if answers(True):
                silent_since = time.monotonic()
            is_hung = time.monotonic() - silent_since >= PATIENCE_SECONDS
        if is_hung:
            raise hung(pid, where, now)
        if until is not None and time.monotonic() > until:
            raise TimeoutError
        before = now


def listener_of(sock: socket.socket) -> int:
    """Returns the process id of the control node of this user on this machine that listens at the address to
    which a TCP socket is connected. The result is 0 if there is no such process, because the other end is
    another machine, a tunnel, or a process of another user."""
    try:
        peer = sock.getpeername() if sock.family in (socket.AF_INET, socket.AF_INET6) else None
        if peer is None or not peer[0].removeprefix("::ffff:").startswith(_LOOPBACK):
            return 0
        sockets = {f"socket:[{inode}]" for inode in _listening(peer[1])}
        return next((pid for pid in _own_processes() if _has_one_of(pid, sockets)), 0) if sockets else 0
    except OSError:
        return 0


def _listening(port: int) -> Iterator[str]:
    """Yields the inodes of the sockets on this machine that listen at a port."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _own_processes() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            is_python = folder.name.isdigit() and "python" in (folder / "exe").readlink().name
            if is_python and b"gridmill" in (folder / "cmdline").read_bytes():
                yield int(folder.name)


def _has_one_of(pid: int, sockets: Collection[str]) -> bool:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(descriptor) in sockets:
                    return True
    return False


def _is_idle(before: ProcessState | None, now: ProcessState) -> bool:
    return now.stopped or (before is not None and now.ticks == before.ticks and now.state != "R")


def hung(pid: int, where: str, state: ProcessState | None = None) -> HungNodeError:
    """Returns the error for a hung control node."""
    who = f"the control node at {where}" + (f" (process {pid})" if pid else "")
    if state is not None and state.stopped:
        message, first = f"{who} is hung: it is stopped", f"To continue it, run `kill -CONT {pid}`. "
    else:
        message, first = f"{who} is hung: it is running and does not answer", ""
    replace = f"run `kill -KILL {pid}`" if pid else "kill its process"
    hint = (
        f"{first}To replace it, {replace}, then repeat this command or run `gridmill up`; its jobs continue."
    )
    return HungNodeError(message, hint=hint)


def owner_of(home: Path) -> int:
    """Returns the process id that the owner of a home has recorded, or 0 if it is unknown or the owner has
    ended."""
    try:
        pid = int((home / "control.lock").read_text().strip() or 0)
        os.kill(pid, 0) if pid else None
    except (OSError, ValueError):
        return 0
    return pid
