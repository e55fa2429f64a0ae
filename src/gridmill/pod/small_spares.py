"""Processes that wait to become simple commands. A small process (`forker.py`) forks these waiting processes
in advance.

A waiting process is a child of the pod in its own cgroup, like the processes of `prefork`, but it costs only
a third as much. A waiting process can only execute a program, so the pod makes everything on disk that a
simple command needs. The pod usually keeps one waiting process. After several commands have started at the
same time, the pod keeps as many waiting processes as these commands needed.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.pod import forker
from gridmill.pod.cgroups import AttemptGroup
from gridmill.pod.forker import HEADER, HELLO, PROGRAMS, REGION_BYTES
from gridmill.pod.launch import Pipes
from gridmill.pod.limits import PodLimits

_POINTER = 8
_FAILURES = 3
"""If this many processes in a row could not be made, no more processes are made."""
_MOST = 8
_CALM_SECONDS = 5.0
"""If no commands have started together for this many seconds, only one waiting process is kept again."""
_PATIENCE_SECONDS = 2.0
"""A process that is not ready after this number of seconds is abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The command that a waiting process executes. The waiting process executes the first of `paths` that
    can be executed. If none of the paths can be executed, the process writes the error number to the file
    `trouble`."""

    argv: tuple[str, ...]
    paths: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    affinity: tuple[int, ...]
    trouble: str

    def packed(self, address: int) -> bytes:
        """Returns the bytes that the waiting process reads to this address. Raises ValueError if the bytes
        are too large."""
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        words = [self.trouble, self.folder, *self.paths, *self.argv, *environment]
        texts = [os.fsencode(word) + b"\0" for word in words]
        lists = HEADER.size + _POINTER * (len(self.argv) + len(environment) + 2)
        begin = lists + _POINTER * len(self.affinity)
        ends = list(accumulate(map(len, texts), initial=address + begin))
        if ends[-1] - address > REGION_BYTES or any(text.count(b"\0") > 1 for text in texts):
            raise ValueError("the command is too large, or contains a NUL character")
        tried, first = len(self.paths), 2 + len(self.paths)
        arguments, variables = ends[first : first + len(self.argv)], ends[first + len(self.argv) : -1]
        argv, envp = address + HEADER.size, address + HEADER.size + _POINTER * (len(arguments) + 1)
        told = (ends[0], ends[1], argv, envp, lists, len(self.affinity), tried, *ends[2:first])
        header = HEADER.pack(*told, *[0] * (PROGRAMS - tried))
        pointers = (*arguments, 0, *variables, 0, *self.affinity)
        return header + struct.pack(f"<{len(pointers)}q", *pointers) + b"".join(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallSpare:
    """A process that waits for a simple command, and its cgroup (None if there are no cgroups)."""

    pid: int
    address: int
    group: AttemptGroup | None
    link: socket.socket

    def launch(self, program: Program, pipes: Pipes) -> None:
        """Turns the waiting process into the command. Raises OSError if the waiting process does not exist
        any more, and ValueError if the command cannot be encoded."""
        told = program.packed(self.address)
        with self.link:
            socket.send_fds(self.link, [told], [pipes.out, pipes.err, pipes.events])

    def discard(self) -> None:
        """Ends the waiting process. The loop of the pod reaps the ended process like any other child."""
        self.link.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    """A process that is not ready yet. `hello` is None until the process has sent its first message."""

    group: AttemptGroup | None
    link: socket.socket
    hello: tuple[int, int] | None = None


def can_fork_small() -> bool:
    """Returns whether this machine has the system call that the small process needs."""
    return sys.platform == "linux" and os.uname().machine in forker.CLONE_NUMBERS


class SmallSpares:
    """The processes that wait to become simple commands. The loop of the pod calls `expect` before it starts
    commands, `refill` when it has nothing else to do, and `died` after it reaped the small process."""

    def __init__(self, limits: PodLimits) -> None:
        self.pid = 0
        self._limits = limits
        self._link: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._coming: deque[_Coming] = deque()
        self._made = 0
        self._aim = 1
        self._calm_at = 0.0
        self._failures = 0

    def is_one(self, pid: int) -> bool:
        """Returns whether this process id belongs to the small process or to a waiting process."""
        return pid in (self.pid, *(coming.hello[0] for coming in self._coming if coming.hello is not None))

    def _bring_up(self) -> bool:
        """Starts the small process if it is not running. Returns False if the small process cannot run."""
        if self._failures >= _FAILURES:
            return False
        if self._link is not None:
            return True
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-I", "-S", forker.__file__, str(theirs.fileno()), str(os.getpid())]
            try:
                self._child = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
                )
            except OSError:
                ours.close()
                self._failures += 1
                return False
        ours.settimeout(_PATIENCE_SECONDS)
        self.pid, self._link = self._child.pid, ours
        return True

    def died(self) -> None:
        """The caller must call this method after the small process was reaped. The waiting processes that it
        forked continue to run."""
        self._failures += 1
        self.pid = 0
        if self._child is not None:
            self._child.returncode = 0
        if self._link is not None:
            self._link.close()
            self._link = None

    def expect(self, commands: int) -> None:
        """Makes processes for this number of simple commands in parallel. The method must be called before
        these commands start."""
        if commands > len(self._coming):
            self._aim = max(self._aim, min(commands, _MOST))
            self._fill(min(commands, _MOST))
        if commands > 1:
            self._calm_at = time.monotonic() + _CALM_SECONDS

    def refill(self) -> None:
        """Makes as many waiting processes as the next commands may need."""
        if self._aim > 1 and time.monotonic() >= self._calm_at:
            self._aim = 1
            while len(self._coming) > 1:
                self._drop(self._coming.pop())
        self._fill(self._aim)

    def _fill(self, count: int) -> None:
        missing = count - len(self._coming)
        if missing <= 0 or not self._bring_up():
            return
        groups = []
        for _ in range(missing):
            self._made += 1
            groups.append(self._limits.group(f"small-{self._made}", Amounts()))
        for group in groups:  # after all were made, because entering a cgroup blocks the making of others
            self._ask(group)

    def _ask(self, group: AttemptGroup | None) -> None:
        """Asks the small process to fork one process in this cgroup."""
        joins = group.joins if group is not None else ()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE_SECONDS)
        with theirs:
            try:
                if self._link is None:
                    raise BrokenPipeError
                socket.send_fds(self._link, ["\0".join(joins).encode() or b"\0"], [theirs.fileno()])
            except OSError:
                ours.close()
                self._release(group)
                return
        # otherwise it could be mistaken for an orphan of a job
        hello = _hello(ours) if group is None else None
        self._coming.append(_Coming(group=group, link=ours, hello=hello))

    def take(self) -> SmallSpare | None:
        """Returns a waiting process, which then belongs to the caller, or None if there is none."""
        while self._coming:
            coming = self._coming.popleft()
            hello = coming.hello or _hello(coming.link)
            if hello is not None:
                pid, address = hello
                self._failures = 0
                return SmallSpare(pid=pid, address=address, group=coming.group, link=coming.link)
            self._failures += 1
            self._drop(coming)
        return None

    def _drop(self, coming: _Coming) -> None:
        coming.link.close()
        if coming.group is not None:
            coming.group.kill()
            self._release(coming.group)

    def _release(self, group: AttemptGroup | None) -> None:
        if group is not None:
            self._limits.release(group)

    def close(self) -> None:
        """Ends the waiting processes and the small process, and reaps all of them."""
        while self._coming:
            self._drop(self._coming.pop())
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._child is not None and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self._child.returncode = 0


def _hello(link: socket.socket) -> tuple[int, int] | None:
    """Returns the first message of a process that is ready: its process id, and the memory address to which
    it reads its command. Returns None if the process died or takes too long."""
    try:
        pid, address = HELLO.unpack(link.recv(HELLO.size))
    except (OSError, struct.error):
        return None
    return pid, address


def read_trouble(file: Path) -> int | None:
    """Returns the error number that a waiting process wrote, or None if it wrote no error."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
