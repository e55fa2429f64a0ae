"""Processes that wait to become simple commands, forked ahead by a small process (`forker.py`).

Such a process is a child of the pod and in its own cgroup, like those of `prefork`, and costs a third of
them. It only executes: what a simple command needs on disk the pod has made before. One is kept, and in a
burst as many as came at once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.pod import forker
from gridmill.pod.cgroups import AttemptGroup
from gridmill.pod.launch import Pipes
from gridmill.pod.limits import Limits

_FAILURES = 3
"""After this many processes that could not be made no more are."""
_MOST = 8
_CALM_SECONDS = 5.0
"""So long after the last burst one process is kept again."""
_PATIENCE_SECONDS = 2.0
"""A process that is not ready after this time is given up."""
_PID_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What such a process becomes. Into `trouble` it writes the error number if it cannot be executed."""

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    affinity: tuple[int, ...]
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallSpare:
    """The waiting process and the cgroup it is in (None where there are none)."""

    pid: int
    group: AttemptGroup | None
    link: socket.socket

    def launch(self, program: Program, pipes: Pipes) -> None:
        """Let it become the command. Raises OSError when it is no longer there, or cannot be told."""
        told = {
            "argv": program.argv,
            "folder": program.folder,
            "environment": dict(program.environment),
            "affinity": program.affinity,
            "trouble": program.trouble,
        }
        with self.link:
            socket.send_fds(self.link, [json.dumps(told).encode()], [pipes.out, pipes.err, pipes.events])

    def discard(self) -> None:
        """Let it end; the pod's loop reaps it as any child."""
        self.link.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    """`pid` is 0 while it has not said it."""

    group: AttemptGroup | None
    link: socket.socket
    pid: int = 0


def can_fork_small() -> bool:
    """Whether this machine has the system call that the small process needs."""
    return sys.platform == "linux" and os.uname().machine in forker.CLONE_NUMBERS


class SmallSpares:
    """Owned by the pod's loop: it calls `expect` before it starts commands, `refill` when nothing else waits,
    and `died` when it reaped the small process."""

    def __init__(self, limits: Limits) -> None:
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
        """Whether that is the small process or a waiting one that has said its number."""
        return pid in (self.pid, *(coming.pid for coming in self._coming))

    def _bring_up(self) -> bool:
        """Start the small process where there is none. False where none would live."""
        if self._link is not None:
            return True
        if self._failures >= _FAILURES:
            return False
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
        """The small process was reaped; those that it forked live on."""
        self._failures += 1
        self.pid = 0
        if self._child is not None:
            self._child.returncode = 0
        if self._link is not None:
            self._link.close()
            self._link = None

    def expect(self, commands: int) -> None:
        """So many simple commands are about to be started: have their processes made side by side."""
        if commands > len(self._coming):
            self._aim = max(self._aim, min(commands, _MOST))
            self._fill(min(commands, _MOST))
        if commands > 1:
            self._calm_at = time.monotonic() + _CALM_SECONDS

    def refill(self) -> None:
        """Have as many as there may soon be commands."""
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
        for group in groups:  # after all were made: entering one keeps others from being made
            self._ask(group)

    def _ask(self, group: AttemptGroup | None) -> None:
        """Have one made, in that group."""
        joins = group.joins if group is not None else ()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE_SECONDS)
        with theirs:
            try:
                if self._link is None:
                    raise BrokenPipeError
                socket.send_fds(self._link, [json.dumps(joins).encode()], [theirs.fileno()])
            except OSError:
                ours.close()
                self._release(group)
                return
        pid = _pid_said(ours) if group is None else 0  # else it may be taken for what a job left
        self._coming.append(_Coming(group=group, link=ours, pid=pid))

    def take(self) -> SmallSpare | None:
        """One that is the caller's from now on; None when there is none to be had."""
        while self._coming:
            coming = self._coming.popleft()
            pid = coming.pid or _pid_said(coming.link)
            if pid:
                return SmallSpare(pid=pid, group=coming.group, link=coming.link)
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
        """End the waiting processes and the small one. They are reaped here."""
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


def _pid_said(link: socket.socket) -> int:
    """The number that a new process says when it is ready; 0 when it has died, or takes too long."""
    try:
        return int(link.recv(_PID_BYTES) or b"0")
    except OSError:
        return 0


def read_trouble(file: Path) -> int | None:
    """The error number that such a process left; None where it left none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
