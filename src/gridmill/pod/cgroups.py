"""Control groups: one folder per pod and one below it per attempt, for limits, accounting and kills.

Version 2 is used if it is delegated to this user, version 1 if this user may write to it. The hierarchy for
each purpose is chosen once. Memory limits use the memory controller of v2 or v1. Finding and killing the
members of an attempt uses v2 (also a v2 mount without controllers) or the freezer of v1. CPU seconds come
from cpu.stat of v2 or cpuacct of v1. The pod's share of CPUs uses cpu.max of v2 or the quota of v1.
"""

import os
import signal
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from gridmill.domain.amounts import KIB, Amounts
from gridmill.domain.frozen import dataclass
from gridmill.pod.limit_events import LimitEvents
from gridmill.pod.processes import send

RECORD = "cgroups"
"""The file in the pod's folder that lists its cgroup folders, for the cleanup after it."""

_READ_BYTES = 16 * KIB
_PERIOD_US = 100_000
_SMALLEST_QUOTA_US = 10_000
_REACHED = 0.98
"""When the kernel refuses a page, a group has used at least this share of its limit, because the kernel
charges pages in batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The folder of this process in each hierarchy that is used, by controller; `unified` is the one of
    v2."""

    unified: Path | None = None
    v1: dict[str, Path]


def read_hierarchies(mountinfo: str, membership: str) -> Hierarchies:
    """Reads the folders from the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    own = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    unified, v1 = None, {}
    for root, point, kind, options in _mounts(mountinfo):
        if kind == "cgroup2" and "" in own:
            unified = _inside(point, root, own[""])
        elif kind == "cgroup":
            v1.update({name: _inside(point, root, own[name]) for name in options if name in own})
    return Hierarchies(unified=unified, v1=v1)


def _mounts(mountinfo: str) -> Iterator[tuple[str, Path, str, list[str]]]:
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(maxsplit=2)
        yield fields[3], Path(fields[4]), kind, options.split(",")


def _inside(point: Path, root: str, own: str) -> Path:
    """A process's folder below a mount that may show only part of the hierarchy."""
    relative = os.path.relpath(own, root) if own.startswith(root) else own.lstrip("/")
    return point / relative


def own_hierarchies() -> Hierarchies:
    """The groups of this process, or none on a machine without cgroups."""
    try:
        return read_hierarchies(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    except (OSError, ValueError):
        return Hierarchies(v1={})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """The memory of a group in bytes: what its processes need (anonymous and shared memory and swap), and
    files in the page cache, which the kernel takes back when memory is short."""

    used_bytes: int
    cached_bytes: int
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGroup:
    """The folders of an attempt. `memory` limits and measures; `tracker` knows its processes. Its processes
    also join the folders `also` of the pod (CPU quota). `events` counts how often the memory group and the
    pod's group reached their limit; `pod` is the pod's memory group."""

    memory: Path | None
    tracker: Path | None
    cpuacct: Path | None
    also: tuple[Path, ...] = ()
    events: LimitEvents | None = None
    pod: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its own folders, without repetition."""
        candidates = (self.memory, self.tracker, self.cpuacct)
        return tuple(dict.fromkeys(folder for folder in candidates if folder is not None))

    @property
    def joins(self) -> tuple[str, ...]:
        """The files that a process writes `0` to in order to join."""
        return tuple(f"{folder}/cgroup.procs" for folder in (*self.folders, *self.also))

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel enforces the memory limit."""
        return self.memory is not None

    def limit(self, memory_bytes: int) -> bool:
        """Sets the memory limit in bytes (0: none). Returns False if the kernel refuses it."""
        try:
            if self.memory is not None:
                _limit_memory(self.memory, memory_bytes, ends_together=True)
        except OSError:
            return False
        return True

    def pids(self) -> list[int]:
        """Its living processes."""
        return _pids(self.folders[0])

    def kill(self) -> bool:
        """Sends SIGKILL to all its processes. Returns True when there were none."""
        if not self.pids():
            return True
        kill_all(self.tracker or self.folders[0])
        return False

    def use(self) -> GroupUse | None:
        """Its present memory; None if no cgroup measures it."""
        if self.memory is None:
            return None
        figures = _figures(f"{self.memory}/memory.stat")
        if "anon" in figures:
            shared = figures.get("shmem", 0)
            cached = figures.get("file", 0) - shared
            return GroupUse(used_bytes=figures["anon"] + shared, cached_bytes=cached, shared_bytes=shared)
        shared = figures.get("total_shmem", 0)
        used = figures.get("total_rss", 0) + shared + figures.get("total_swap", 0)
        cached = max(0, figures.get("total_cache", 0) - shared)
        return GroupUse(used_bytes=used, cached_bytes=cached, shared_bytes=shared)

    def highest_bytes(self) -> int:
        """The kernel's own peak, page cache included. It also covers the time between samples."""
        return 0 if self.memory is None else _peak(self.memory)

    def oom_kills(self) -> int:
        """The number of its processes that the kernel killed because of memory."""
        if self.memory is None:
            return 0
        events = _figures(f"{self.memory}/memory.events") or _figures(f"{self.memory}/memory.oom_control")
        return events.get("oom_kill", 0)

    def watch(self) -> None:
        """Starts to count how often it reaches its memory limit."""
        if self.events is not None:
            self.events.watch()

    def reached_limit(self) -> bool:
        """Whether it ran out of memory at its own limit, not at the limit of a group above or of the machine.

        If version 1 sends no events, the highest use decides. It includes files that the kernel could have
        dropped.
        """
        if self.memory is None:
            return False
        own = self.events.own() if self.events is not None else None
        return was_full(self.memory) if own is None else own > 0

    def pod_reached_limit(self) -> bool:
        """Whether its pod ran out of memory at the pod's own limit since `watch`."""
        if self.pod is None or self.events is None or not self.events.above():
            return False
        return is_version_2(self.pod) or was_full(self.pod)

    def cpu_seconds(self) -> float | None:
        """CPU seconds of all its processes, also of ended ones; None if no cgroup counts them."""
        return self._counted("cpuacct.usage", "usage_usec")

    def system_seconds(self) -> float | None:
        """The CPU seconds spent in the kernel; None if no cgroup counts them."""
        return self._counted("cpuacct.usage_sys", "system_usec")

    def _counted(self, v1: str, v2: str) -> float | None:
        if self.cpuacct is not None:
            text = _read(f"{self.cpuacct}/{v1}")
            return int(text) / 1e9 if text else None
        counts = (_figures(f"{folder}/cpu.stat") for folder in reversed(self.folders))
        return next((figures[v2] / 1e6 for figures in counts if v2 in figures), None)

    def remove(self) -> bool:
        """Removes its folders. Returns False while the kernel still holds one."""
        if self.events is not None:
            self.events.close()
        return _remove_all(self.folders)


def was_full(folder: Path) -> bool:
    """Whether a version 1 group ever reached its limit, files included."""
    limit = _read(f"{folder}/memory.limit_in_bytes").strip()
    return bool(limit) and _peak(folder) >= int(limit) * _REACHED


def is_version_2(folder: Path) -> bool:
    """Whether it is a group of version 2."""
    return os.access(f"{folder}/memory.events", os.F_OK)


def _peak(folder: Path) -> int:
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        text = _read(f"{folder}/{name}")
        if text:
            return int(text)
    return 0


class PodGroups:
    """A pod's folders, with its capacity as their limit."""

    def __init__(
        self, *, memory: Path | None, tracker: Path | None, cpuacct: Path | None, cpu: Path | None
    ) -> None:
        self._memory, self._tracker, self._cpuacct, self._cpu = memory, tracker, cpuacct, cpu
        self._waiting: list[AttemptGroup] = []
        self._events = LimitEvents(memory)
        self._events.watch()

    @classmethod
    def make(cls, pod_folder: Path, capacity: Amounts) -> "PodGroups | None":
        """Makes the groups that this machine permits and records them in the pod's folder. Returns None if it
        permits none."""
        name = f"gridmill-{pod_folder.name}-{zlib.crc32(str(pod_folder).encode()):08x}"
        hierarchies = own_hierarchies()
        made = _make_v2(hierarchies, name, capacity, pod_folder) or _make_v1(
            hierarchies, name, capacity, pod_folder
        )
        if made is None or not made._folders:
            return None
        if not _can_join(made):
            made.remove()
            return None
        return made

    @property
    def _folders(self) -> tuple[Path, ...]:
        candidates = (self._memory, self._tracker, self._cpuacct, self._cpu)
        return tuple(dict.fromkeys(folder for folder in candidates if folder is not None))

    def attempt(self, attempt_id: str, memory_bytes: int) -> AttemptGroup | None:
        """Makes a group for an attempt (0 bytes: no limit). Returns None if it cannot be made."""
        self.sweep()
        memory = self._memory and self._memory / attempt_id
        group = AttemptGroup(
            memory=memory,
            tracker=self._tracker and self._tracker / attempt_id,
            cpuacct=self._cpuacct and self._cpuacct / attempt_id,
            also=(self._cpu,) if self._cpu is not None and self._cpu != self._memory else (),
            events=LimitEvents(memory, self._events),
            pod=self._memory,
        )
        try:
            for folder in group.folders:
                folder.mkdir()
            if group.memory is not None and memory_bytes:
                _limit_memory(group.memory, memory_bytes, ends_together=True)
        except OSError:
            group.remove()
            return None
        return group

    def release(self, group: AttemptGroup) -> None:
        """Removes an attempt's folders, now or as soon as the kernel releases them."""
        if not group.remove():
            self._waiting.append(group)

    def sweep(self) -> None:
        """Removes the folders that `release` could not remove yet."""
        if self._waiting:
            self._waiting = [group for group in self._waiting if not group.remove()]

    def remove(self) -> None:
        """Removes all groups and kills all processes in them."""
        self._events.close()
        for folder in self._folders:
            destroy(folder)


def _make_v2(hierarchies: Hierarchies, name: str, capacity: Amounts, record: Path) -> PodGroups | None:
    """Makes a group with the memory controller below the nearest folder that delegates it."""
    if hierarchies.unified is None:
        return None
    for parent in (hierarchies.unified, *hierarchies.unified.parents):
        if "memory" in _read(parent / "cgroup.subtree_control").split():
            folder = _create(parent / name, record)
            if folder is not None and _hand_down(folder):
                _limit_memory(folder, capacity.memory_bytes)
                _limit_cpus(folder, capacity.cpus)
                return PodGroups(memory=folder, tracker=folder, cpuacct=None, cpu=None)
            if folder is not None:
                _remove(folder)
    return None


def _hand_down(folder: Path) -> bool:
    """Enables the controllers for the folders below. Returns False if memory is not among them."""
    for controller in ("memory", "cpu"):
        _write(f"{folder}/cgroup.subtree_control", f"+{controller}")
    return "memory" in _read(f"{folder}/cgroup.subtree_control").split()


def _make_v1(hierarchies: Hierarchies, name: str, capacity: Amounts, record: Path) -> PodGroups | None:
    memory = _create_in(hierarchies.v1.get("memory"), name, record)
    if memory is not None:
        _limit_memory(memory, capacity.memory_bytes)
    tracker = _create_in(hierarchies.unified, name, record) or _create_in(
        hierarchies.v1.get("freezer"), name, record
    )
    counts_cpu = tracker is not None and bool(_figures(tracker / "cpu.stat"))
    cpuacct = None if counts_cpu else _create_in(hierarchies.v1.get("cpuacct"), name, record)
    cpu = _create_in(hierarchies.v1.get("cpu"), name, record) if _needs_quota(capacity.cpus) else None
    if cpu is not None:
        _limit_cpus(cpu, capacity.cpus)
    if memory is None and tracker is None:
        for folder in (cpuacct, cpu):
            if folder is not None:
                _remove(folder)
        return None
    return PodGroups(memory=memory, tracker=tracker, cpuacct=cpuacct, cpu=cpu)


def _create_in(parent: Path | None, name: str, record: Path) -> Path | None:
    return None if parent is None else _create(parent / name, record)


def _create(folder: Path, pod_folder: Path) -> Path | None:
    """Makes a cgroup folder. Its path is recorded first, so that the cleanup after a kill finds it."""
    with (pod_folder / RECORD).open("a") as file:
        file.write(f"{folder}\n")
    try:
        folder.mkdir()
    except OSError:
        return None
    return folder


def _can_join(groups: PodGroups) -> bool:
    """Tests the group with a child process: joining can be forbidden where making folders is allowed."""
    probe = groups.attempt("probe", 0)
    if probe is None:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(0 if all(_write(Path(procs), "0") for procs in probe.joins) else 1)
    joined = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    groups.release(probe)
    return joined


def _limit_memory(folder: Path, memory_bytes: int, *, ends_together: bool = False) -> None:
    """Prepares a memory group. With `ends_together` the kernel kills all processes of the group when it kills
    one because of memory. Version 1 cannot do this: there the pod sees the kill in the group's counter and
    kills the others."""
    if not memory_bytes:
        return
    if _write(f"{folder}/memory.max", str(memory_bytes)):
        _write(f"{folder}/memory.swap.max", "0")
        _write(f"{folder}/memory.oom.group", "1" if ends_together else "0")
    else:
        _write_or_raise(f"{folder}/memory.limit_in_bytes", str(memory_bytes))
        _write(f"{folder}/memory.memsw.limit_in_bytes", str(memory_bytes))


def _needs_quota(cpus: float) -> bool:
    """Sets the pod's share of CPUs. Returns False if the pod may use all CPUs anyway."""
    return 0 < cpus < (os.cpu_count() or 1)


def _limit_cpus(folder: Path, cpus: float) -> None:
    """The pod's share of the CPUs."""
    if not _needs_quota(cpus):
        return
    quota = max(_SMALLEST_QUOTA_US, round(cpus * _PERIOD_US))
    if not _write(f"{folder}/cpu.max", f"{quota} {_PERIOD_US}"):
        _write(f"{folder}/cpu.cfs_period_us", str(_PERIOD_US))
        _write(f"{folder}/cpu.cfs_quota_us", str(quota))


def kill_all(folder: Path) -> None:
    """Sends SIGKILL to every process in it. If the kernel cannot kill the group at once, the group is frozen
    first so that no process forks."""
    if _write(f"{folder}/cgroup.kill", "1"):
        return
    frozen = _write(f"{folder}/freezer.state", "FROZEN")
    send(_pids(folder), signal.SIGKILL)
    if frozen:
        _write(f"{folder}/freezer.state", "THAWED")


def destroy(folder: Path, patience_seconds: float = 2.0) -> bool:
    """Kills the processes in it and below and removes it. Returns False if it still exists. A group that does
    not exist is fine."""
    until = time.monotonic() + patience_seconds
    while folder.is_dir():
        below = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
        for path in (*below, folder):
            if _pids(path):
                kill_all(path)
        if _remove_all((*below, folder)):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def _remove_all(folders: Iterable[Path]) -> bool:
    """Tries all of them, even after a failure."""
    results = [_remove(folder) for folder in folders]
    return all(results)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _pids(folder: Path) -> list[int]:
    return [int(pid) for pid in _read(f"{folder}/cgroup.procs").split()]


def _figures(path: str | Path) -> dict[str, int]:
    """A file of lines `name number`."""
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: str | Path) -> str:
    """The text of the file; empty if it does not exist. Each job needs several, so it avoids the layers of
    `open`."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        text = b""
        while more := os.read(descriptor, _READ_BYTES):
            text += more
        return text.decode()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _write(path: str | Path, text: str) -> bool:
    """Writes to an existing file. Returns False if the kernel refuses it."""
    try:
        _write_or_raise(path, text)
    except OSError:
        return False
    return True


def _write_or_raise(path: str | Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
