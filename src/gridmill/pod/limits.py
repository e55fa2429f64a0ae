"""The memory and CPU limits of attempts. Cgroups enforce the limits if the machine permits cgroups.
Otherwise, a guard samples the memory use.

The guard adds up the memory of the attempt's processes (see `memory_use`) and reports when the sum exceeds
the limit. If any process of an attempt was killed because of memory, the whole attempt is ended. Without
this rule, a pipe or a pool of processes that lost one process could end successfully, or hang. A service
replaces the killed process itself. Memory peaks
are sampled every 50 ms. Without a cgroup, the samples become rarer after a while, because each sample must
read every process. `ru_maxrss` is not used, because a forked child inherits its value. If a cgroup measures
the memory, the peak that the cgroup records also covers the time between two samples.
"""

import contextlib
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gridmill.domain.amounts import MIB, Amounts
from gridmill.pod.cgroups import AttemptGroup, PodGroups
from gridmill.pod.memory_use import MemoryUse
from gridmill.pod.outcome import (
    MemoryShortage,
    OuterGroup,
    machine_oom_kills,
    outer_group,
    outer_oom_kills,
    was_killed,
)
from gridmill.pod.processes import stat

FIRST_SECONDS = 0.01
QUICK_SECONDS = 0.05
SLOW_SECONDS = 0.5
_QUICK_FOR_SECONDS = 3.0
_FEW_SAMPLES = 3
_UNSEEN, _UNSEEN_BYTES = 0.25, 8 * MIB
"""The peak between two samples is at most the highest sample, plus this share of the sample, plus this
number of bytes. A larger difference would come from files that were written and removed between the
samples."""
_NEARLY_ALL, _HALF = 0.8, 0.5
_DYING_SECONDS = 10.0
"""The kernel counts a killed process before the process ends. A process with much memory takes long to end,
so a sample can see the count while the process still exists."""


class AttemptMeter:
    """Measures the memory, CPU and disk use of one attempt.

    `group` is the cgroup of the attempt, if there is one. `disk_seconds` is the time for which the processes
    of the attempt waited for a disk (process state D). `shortage` is set if a process of the attempt was
    killed because of memory, or must be killed.
    """

    def __init__(
        self,
        limit_bytes: int,
        group: AttemptGroup | None,
        now: float,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`alone` returns whether the attempt is the only attempt of its pod."""
        self.peak_bytes = 0
        self.due = now + FIRST_SECONDS
        self.limit_bytes = limit_bytes
        self._group = group
        self._began = now
        self._samples = 0
        self._seen = now
        self.disk_seconds = 0.0
        self.shortage: MemoryShortage | None = None
        self._alone = alone
        self._pids: frozenset[int] = frozenset()
        self._memory = MemoryUse()
        self._used = self._cached = 0
        self._outer_kills, self._machine_kills = (0, 0) if self._counts else _kills_outside()
        self._kill_seen = -math.inf
        self._was_new = self._replaces_killed = False

    def replace_killed(self) -> None:
        """Leaves it to the first process of the attempt, which must be a service, to replace the processes
        that are killed because of memory."""
        self._replaces_killed = True
        if self._group is not None:
            self._group.end_alone()

    def give(self, limit_bytes: int) -> None:
        """Takes another limit, which the cgroup of the attempt has already."""
        self.limit_bytes = limit_bytes
        if self._replaces_killed:
            self.replace_killed()

    @property
    def _counts(self) -> bool:
        """True if the cgroup of the attempt counts the processes that were killed because of memory."""
        return self._group is not None and self._group.limits_memory

    @property
    def guards(self) -> bool:
        """True if only this meter enforces the memory limit."""
        return self.limit_bytes > 0 and not self._counts

    def sample(self, pids: Iterable[int], now: float) -> bool:
        """Takes a sample. Returns True if the attempt must be killed, because it exceeds its limit or has
        lost a process because of memory.

        The memory of the processes `pids` is read only if no cgroup measures it.
        """
        pids = tuple(pids)
        self.disk_seconds += sum(map(waits_for_disk, pids)) * (now - self._seen)
        self._seen = now
        before, used = self._used, self._measure(pids)
        self._samples += 1
        pause = _pause(now - self._began)
        self.due = now + (pause if self._group is None else min(pause, QUICK_SECONDS))
        if self.guards and used > self.limit_bytes // 2:
            # another growth as large as since the last sample would exceed the limit
            soon = used + (used - before) > self.limit_bytes
            self.due = now + (FIRST_SECONDS if soon else QUICK_SECONDS)
        if self.guards and used > self.limit_bytes:
            self.shortage = self.shortage or MemoryShortage.ATTEMPT
        if not self._replaces_killed:
            self._look_for_kills(pids)
        if self._samples == 1 and self.shortage is None and self._group is not None:
            self._group.watch()  # only now: the highest use explains a kill that the counters do not show
        return self.shortage is not None

    def _measure(self, pids: Iterable[int]) -> int:
        """Measures the present use of memory and updates the peak."""
        measured = self._group.use() if self._group else None
        if measured is None:
            self._used = self._memory.bytes_of(pids)
        else:
            self._used = measured.used_bytes
            self._cached = max(self._cached, measured.cached_bytes)
            if measured.shared_bytes >= MIB:
                self._memory.look(pids)
        self.peak_bytes = max(self.peak_bytes, self._used)
        return self._used

    def ended(self, pid: int, status: int | None) -> None:
        """The caller must call this method after the first process of the attempt ended with this status.
        The function checks a last time whether a process of the attempt was killed because of memory."""
        self._pids -= {pid}
        if not self._replaces_killed or was_killed(status):
            self._look_for_kills((), killed=was_killed(status))
        if self.shortage is None and not self._counts and was_killed(status):
            self.shortage = MemoryShortage.MACHINE if machine_oom_kills() > self._machine_kills else None

    def _look_for_kills(self, pids: tuple[int, ...], *, killed: bool = False) -> None:
        if self.shortage is not None:
            return
        if self._counts and self._group is not None:
            self.shortage = _shortage_of(self._group)
            return
        kills, before = outer_oom_kills(), self._pids
        self._pids = frozenset(pids)
        was_new, self._was_new = self._was_new, kills > self._outer_kills
        if self._was_new:
            self._outer_kills, self._kill_seen = kills, self._seen
        lost = (self._was_new or was_new) and bool(before - self._pids)
        if lost or (killed and self._seen - self._kill_seen <= _DYING_SECONDS):
            self.shortage = shortage_in(outer_group(), self.limit_bytes, self._used, alone=self._alone())

    def knows(self, key: tuple[int, int]) -> bool:
        """Returns whether processes of the attempt used this file in memory."""
        return self._memory.knows(key)

    def left_behind(self) -> Mapping[tuple[int, int], str]:
        """Returns files in /dev/shm that the attempt made and that still exist."""
        return self._memory.left_behind()

    def finish(self) -> None:
        """Takes the last measurements of the attempt before its cgroup is removed."""
        if self._group is None or not self._counts:
            return
        if self.shortage is MemoryShortage.ATTEMPT:
            self.peak_bytes = max(self.peak_bytes, self.limit_bytes)
        elif self._samples < _FEW_SAMPLES:
            self.peak_bytes = self._group.highest_bytes()
        else:
            self._measure(())
            most = int(self.peak_bytes * (1 + _UNSEEN)) + _UNSEEN_BYTES
            self.peak_bytes = max(self.peak_bytes, min(most, self._group.highest_bytes() - self._cached))

    def cpu_seconds(self, fallback: float) -> float:
        """Returns the CPU seconds of the attempt that the cgroup counted. If no cgroup counted them, the
        function returns the seconds that wait() reported for the attempt's process and its children."""
        counted = self._group.cpu_seconds() if self._group else None
        return fallback if counted is None else counted

    def system_seconds(self, fallback: float) -> float:
        """Returns the CPU seconds that the kernel worked for the attempt. The seconds come from the cgroup,
        or else from wait()."""
        counted = self._group.system_seconds() if self._group else None
        return fallback if counted is None else counted


def _shortage_of(group: AttemptGroup) -> MemoryShortage | None:
    if not group.oom_kills():
        return None
    if group.reached_limit():
        return MemoryShortage.ATTEMPT
    return MemoryShortage.POD if group.pod_reached_limit() else MemoryShortage.MACHINE


def shortage_in(outer: OuterGroup | None, limit: int, used: int, *, alone: bool) -> MemoryShortage:
    """Returns which memory limit was exceeded when the kernel killed a process in the group that contains
    the pod.

    `limit` is the memory limit of the attempt, and `used` is the memory that the attempt used at the last
    sample. The guard of the attempt may have missed the last growth of this memory use.
    """
    if outer is None or outer.was_full is False:
        return MemoryShortage.MACHINE
    alone = alone or not limit or limit >= outer.limit_bytes * _NEARLY_ALL
    return MemoryShortage.ATTEMPT if alone or used > limit * _HALF else MemoryShortage.POD


def _kills_outside() -> tuple[int, int]:
    return outer_oom_kills(), machine_oom_kills()


def _pause(age: float) -> float:
    """Returns the seconds until the next sample. Short attempts are sampled often, and long attempts
    rarely."""
    if age > _QUICK_FOR_SECONDS:
        return SLOW_SECONDS
    return min(max(FIRST_SECONDS, age * 0.3), QUICK_SECONDS)


def waits_for_disk(pid: int) -> bool:
    """Returns whether the process is waiting for a disk at this moment."""
    status = stat(pid)
    return status is not None and status.state == "D"


class PodLimits:
    """Enforces the limits of a pod's attempts. If there are no cgroups, CPUs are shared by CPU affinity."""

    def __init__(self, groups: PodGroups | None, salt: str) -> None:
        self._groups = groups
        self._cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._next_cpu = zlib.crc32(salt.encode())

    def group(self, attempt_id: str, given: Amounts) -> AttemptGroup | None:
        """Returns a cgroup for the attempt, or None if the machine permits no cgroups."""
        return self._groups.attempt(attempt_id, given.memory_bytes) if self._groups else None

    def hold(self, group: AttemptGroup | None, given: Amounts) -> bool:
        """Sets the memory limit of a group that was made in advance. Returns False if the kernel refuses the
        limit."""
        return group is None or group.limit(given.memory_bytes)

    def affinity(
        self, given: Amounts, group: AttemptGroup | None, *, declared: bool = False
    ) -> tuple[int, ...]:
        """Returns the CPUs of the attempt. The result is empty if the attempt may use all CPUs, or if the
        pod's cgroup shares the CPUs among jobs without a `declared` number of CPUs."""
        count = max(1, round(given.cpus + 0.499))
        if (group is not None and not declared) or count >= len(self._cpus) or not given.cpus:
            return ()
        first, self._next_cpu = self._next_cpu, self._next_cpu + count
        return tuple(self._cpus[(first + index) % len(self._cpus)] for index in range(count))

    def spread(self, pids: Iterable[int], given: Amounts, group: AttemptGroup | None) -> None:
        """Lets the running processes of an attempt with a declared number of CPUs use this number."""
        cpus = self.affinity(given, group, declared=True) or self._cpus
        for pid in pids if cpus else ():
            with contextlib.suppress(OSError):  # the process has ended
                os.sched_setaffinity(pid, cpus)

    def release(self, group: AttemptGroup) -> None:
        """Removes the cgroup of an attempt now, or as soon as the kernel releases it."""
        if self._groups is not None:
            self._groups.release(group)

    def close(self) -> None:
        """Remove the pod's cgroups."""
        if self._groups is not None:
            self._groups.remove()


def make_limits(pod_folder: Path, capacity: Amounts, *, cgroups: bool) -> PodLimits:
    """Returns the limits for the pod of this folder."""
    groups = PodGroups.make(pod_folder, capacity) if cgroups else None
    return PodLimits(groups, str(pod_folder))
