"""Forks a process in advance and puts it into its own cgroup. The process later becomes the next command.

Entering a cgroup takes about 7 ms, because it waits for a grace period of the kernel. Forking must copy page
tables. Because the process is forked in advance, no job waits for these two steps. The pod keeps one spare
process that waits for the next command. If several commands start at the same time, processes for the other
commands are forked when these commands start.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.pod.cgroups import AttemptGroup
from gridmill.pod.launch import Launch, Pipes, apply_launch, fork, receive, send, settle
from gridmill.pod.limits import PodLimits

_FAILURES = 3
"""If this many spare processes in a row died while they waited, no more spare processes are made."""

Become = Callable[[Launch], NoReturn]
"""A function that turns the waiting process into the job of the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreforkedProcess:
    """A process that was forked in advance and waits for a job, and its cgroup (None if there are no
    cgroups)."""

    pid: int
    group: AttemptGroup | None
    link: socket.socket

    def launch(self, launch: Launch, pipes: Pipes) -> None:
        """Turns the waiting process into the job. Raises OSError if the waiting process does not exist any
        more."""
        with self.link:
            send(self.link, launch, pipes)

    def discard(self) -> None:
        """Ends the waiting process. The loop of the pod reaps the ended process like any other child."""
        self.link.close()


class PreforkPool:
    """The processes that were forked in advance. The loop of the pod calls `refill` when it has nothing else
    to do, and `died` after it reaped a waiting process."""

    def __init__(self, limits: PodLimits, become: Become) -> None:
        self._limits, self._become = limits, become
        self._spare: PreforkedProcess | None = None
        self._made = 0
        self._failures = 0

    @property
    def pid(self) -> int:
        """The process id of the waiting process, or 0 if there is none."""
        return self._spare.pid if self._spare is not None else 0

    @property
    def wanted(self) -> bool:
        """True if a spare process should be made now."""
        return self._spare is None and self._failures < _FAILURES

    def take(self) -> PreforkedProcess | None:
        """Returns the spare process, which then belongs to the caller."""
        spare, self._spare = self._spare, None
        return spare

    def refill(self) -> None:
        """Forks a process."""
        self._made += 1
        group = self._limits.group(f"spare-{self._made}", Amounts())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        joins = group.joins if group is not None else ()
        try:
            with theirs:
                pid = fork(lambda parent: _wait(theirs, joins, parent, self._become))
        except OSError:
            ours.close()
            self._failures += 1
            self._release(group)
            return
        self._spare = PreforkedProcess(pid=pid, group=group, link=ours)

    def died(self) -> None:
        """The caller must call this method after the waiting process was reaped."""
        spare = self.take()
        if spare is not None:
            self._failures += 1
            spare.link.close()
            self._release(spare.group)

    def _release(self, group: AttemptGroup | None) -> None:
        if group is not None:
            self._limits.release(group)

    def close(self) -> None:
        """Ends the waiting process."""
        spare = self.take()
        if spare is not None:
            spare.link.close()
            with suppress(ProcessLookupError):
                os.kill(spare.pid, signal.SIGKILL)
            os.waitpid(spare.pid, 0)
            self._release(spare.group)


def _wait(link: socket.socket, joins: tuple[str, ...], parent: int, become: Become) -> None:
    """The main function of the waiting process. The waiting process first does all steps that do not depend
    on the job."""
    os.setsid()
    _close_others(link.fileno())
    settle(joins, parent)
    received = receive(link)
    if received is None:
        sys.exit(0)
    launch, pipes = received
    apply_launch(launch, pipes)
    become(launch)


def _close_others(keep: int) -> None:
    """Closes the pipes of other attempts and the files of the pod in this process."""
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
