"""Finds all processes of an attempt, however they were started, and kills them.

If the attempt has a cgroup, the cgroup lists the processes. Without a cgroup, the processes are the tree
below the attempt's process, its process group, and orphans. The pod adopts processes that lose their parent,
and assigns them to an attempt by their session and environment.
"""

import os
import signal
from collections.abc import Callable

from gridmill.pod import processes
from gridmill.pod.attempt import Attempt


class OrphanKiller:
    """Finds and kills the processes of attempts. `is_ours` returns which children of the pod are not
    orphans: the processes of attempts and the zygotes."""

    def __init__(self, is_ours: Callable[[int], bool], is_alone: Callable[[], bool]) -> None:
        self._is_ours, self._is_alone = is_ours, is_alone

    def started(self, pid: int) -> int:
        """Returns the start time of the process in ticks since boot. The start time and the process id
        together identify a process."""
        return processes.started(pid)

    def terminate(self, attempt: Attempt) -> None:
        """Sends SIGTERM to all processes of the attempt. Processes that were stopped with SIGSTOP are
        continued, so that they receive the signal."""
        if not attempt.pid:
            return
        pids = attempt.group.pids() if attempt.group else self.tree(attempt)
        processes.send(pids or [attempt.pid], signal.SIGTERM)
        processes.send(pids or [attempt.pid], signal.SIGCONT)

    def kill(self, attempt: Attempt, now: float) -> bool:
        """Sends SIGKILL to all processes of the attempt. Returns True if no process was left, except
        zombies."""
        if attempt.group is not None:
            return attempt.group.kill()
        if attempt.pid == 0:
            return True
        pids = self._living(attempt)
        processes.send(pids, signal.SIGKILL)
        return not pids

    def _living(self, attempt: Attempt) -> list[int]:
        pids = self.tree(attempt) if attempt.exit is None else processes.tree(self._orphans(attempt))
        return [pid for pid in pids if processes.stat(pid) is not None]

    def tree(self, attempt: Attempt) -> list[int]:
        """Returns the attempt's process, all processes that it started, and its orphans."""
        return processes.tree([attempt.pid, *self._orphans(attempt)])

    def _orphans(self, attempt: Attempt) -> list[int]:
        """Returns the children of the pod that processes of the attempt left behind. If the origin of a
        child is unknown, the child is assigned to the attempt only if the pod has no other attempt."""
        marker = f"GRIDMILL_ATTEMPT={attempt.order.attempt_id}"
        mine = []
        for pid in processes.children(os.getpid()):
            if self._is_ours(pid):
                continue
            status = processes.stat(pid)
            if status is None:
                continue
            if status.session == attempt.pid or processes.environ_has(pid, marker) or self._is_alone():
                mine.append(pid)
        return mine


def kill_group_before_reaping(pid: int) -> None:
    """Sends SIGKILL to the process group of a zombie. While the process is a zombie, no other process can
    get its process id."""
    processes.send_group(pid, signal.SIGKILL)
