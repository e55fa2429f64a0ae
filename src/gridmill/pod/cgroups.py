"""Control groups (cgroups): one folder per pod, and one folder below it per attempt. Cgroups limit, measure
and kill processes.

Cgroup version 2 is used if it is delegated to this user, and cgroup version 1 is used if this user may write
to its folders. For each purpose, the cgroup hierarchy is selected once. Memory limits use the memory
controller of cgroup version 2 or 1. The processes of an attempt are found and killed through cgroup version
2 (also if it is mounted without controllers), or through the freezer of cgroup version 1. CPU seconds are
read from cpu.stat of cgroup version 2 or from cpuacct of cgroup version 1. The pod's share of the CPUs is
set through cpu.max of cgroup version 2 or through the quota of cgroup version 1.
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
"""The file in the pod's folder that lists the folders of its cgroups, so that they can be cleaned up after
the pod ended."""

_READ_BYTES = 16 * KIB
_PERIOD_US = 100_000
_SMALLEST_QUOTA_US = 10_000
_REACHED = 0.98
"""When the kernel refuses memory to a group, the group has used at least this share of its limit, because
the kernel counts memory pages in batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The cgroup folders of this process: `v1` contains the folder for each controller of cgroup version 1.
    `unified` is the folder in the hierarchy of cgroup version 2."""

    unified: Path | None = None
    v1: dict[str, Path]


def read_hierarchies(mountinfo: str, membership: str) -> Hierarchies:
    """Reads the cgroup folders from the texts of /proc/self/mountinfo and /proc/self/cgroup."""
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
    """Returns the folder of a process below a mount point. The mount may show only a part of the
    hierarchy."""
    relative = os.path.relpath(own, root) if own.startswith(root) else own.lstrip("/")
    return point / relative


def own_hierarchies() -> Hierarchies:
    """Returns the cgroups of this process, or none if the machine has no cgroups."""
    try:
        return read_hierarchies(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    except (OSError, ValueError):
        return Hierarchies(v1={})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """The memory of a cgroup in bytes. One field is the memory that the processes of the cgroup need
    (anonymous memory, shared memory and swap). Another field is the page cache of files, which the kernel
    frees when memory is short."""

    used_bytes: int
    cached_bytes: int
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGroup:
    """The cgroup folders of an attempt. The group `memory` limits and measures memory, and the group
    `tracker` lists the processes of the attempt. The processes of the attempt also join the pod's cgroups in
    `also`, which limit the CPUs. `events` counts how often the memory groups of the attempt and of the pod
    reached their limits. `pod` is the memory group of the pod."""

    memory: Path | None
    tracker: Path | None
    cpuacct: Path | None
    also: tuple[Path, ...] = ()
    events: LimitEvents | None = None
    pod: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Returns the attempt's own cgroup folders, each of them once."""
        candidates = (self.memory, self.tracker, self.cpuacct)
        return tuple(dict.fromkeys(folder for folder in candidates if folder is not None))

    @property
    def joins(self) -> tuple[str, ...]:
        """Returns the files to which a process writes `0` to join the cgroups of the attempt."""
        return tuple(f"{folder}/cgroup.procs" for folder in (*self.folders, *self.also))

    @property
    def limits_memory(self) -> bool:
        """Returns whether the kernel enforces the memory limit of the attempt."""
        return self.memory is not None

    def limit(self, memory_bytes: int) -> bool:
        """Sets the memory limit in bytes, or removes the limit if `memory_bytes` is 0. Returns False if the
        kernel refuses the limit."""
        try:
            if self.memory is not None:
                _limit_memory(self.memory, memory_bytes, ends_together=True)
        except OSError:
            return False
        return True

    def end_alone(self) -> None:
        """Lets the kernel kill one process because of memory without the other processes of the group. With
        cgroup version 1, it always does so."""
        if self.memory is not None and is_version_2(self.memory):
            _write(f"{self.memory}/memory.oom.group", "0")

    def pids(self) -> list[int]:
        """Its living processes."""
        return _pids(self.folders[0])

    def kill(self) -> bool:
        """Sends SIGKILL to all processes of the attempt. Returns True if there were no processes."""
        if not self.pids():
            return True
        kill_all(self.tracker or self.folders[0])
        return False

    def use(self) -> GroupUse | None:
        """Returns the present memory use of the attempt, or None if no cgroup measures this use."""
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
        """Returns the memory peak that the kernel recorded, including the page cache. Unlike sampled values,
        this peak also covers the time between two samples."""
        return 0 if self.memory is None else _peak(self.memory)

    def oom_kills(self) -> int:
        """Returns how many processes of the attempt the kernel killed because of memory."""
        if self.memory is None:
            return 0
        events = _figures(f"{self.memory}/memory.events") or _figures(f"{self.memory}/memory.oom_control")
        return events.get("oom_kill", 0)

    def watch(self) -> None:
        """Starts to count how often the attempt reaches its memory limit."""
        if self.events is not None:
            self.events.watch()

    def reached_limit(self) -> bool:
        """Returns whether the attempt ran out of memory at its own limit, and not at the limit of a group
        above it or of the machine.

        If cgroup version 1 sends no events, the highest memory use is compared with the limit. The highest
        memory use includes cached files that the kernel could have dropped.
        """
        if self.memory is None:
            return False
        own = self.events.own() if self.events is not None else None
        return was_full(self.memory) if own is None else own > 0

    def pod_reached_limit(self) -> bool:
        """Returns whether the pod ran out of memory at its own limit since `watch` was called."""
        if self.pod is None or self.events is None or not self.events.above():
            return False
        return is_version_2(self.pod) or was_full(self.pod)

    def cpu_seconds(self) -> float | None:
        """Returns the CPU seconds of all processes of the attempt, including ended processes, or None if no
        cgroup counts them."""
        return self._counted("cpuacct.usage", "usage_usec")

    def system_seconds(self) -> float | None:
        """Returns the CPU seconds that the attempt spent in the kernel, or None if no cgroup counts them."""
        return self._counted("cpuacct.usage_sys", "system_usec")

    def _counted(self, v1: str, v2: str) -> float | None:
        if self.cpuacct is not None:
            text = _read(f"{self.cpuacct}/{v1}")
            return int(text) / 1e9 if text else None
        counts = (_figures(f"{folder}/cpu.stat") for folder in reversed(self.folders))
        return next((figures[v2] / 1e6 for figures in counts if v2 in figures), None)

    def remove(self) -> bool:
        """Removes the cgroup folders of the attempt. Returns False while the kernel still uses a folder."""
        if self.events is not None:
            self.events.close()
        return _remove_all(self.folders)


def was_full(folder: Path) -> bool:
    """Returns whether a group of cgroup version 1 ever reached its memory limit. The memory use of the group
    includes cached files."""
    limit = _read(f"{folder}/memory.limit_in_bytes").strip()
    return bool(limit) and _peak(folder) >= int(limit) * _REACHED


def is_version_2(folder: Path) -> bool:
    """Returns whether the folder is a cgroup of version 2."""
    return os.access(f"{folder}/memory.events", os.F_OK)


def _peak(folder: Path) -> int:
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        text = _read(f"{folder}/{name}")
        if text:
            return int(text)
    return 0


class PodGroups:
    """The cgroup folders of a pod, which are limited to the pod's capacity."""

    def __init__(
        self, *, memory: Path | None, tracker: Path | None, cpuacct: Path | None, cpu: Path | None
    ) -> None:
        self._memory, self._tracker, self._cpuacct, self._cpu = memory, tracker, cpuacct, cpu
        self._waiting: list[AttemptGroup] = []
        self._events = LimitEvents(memory)
        self._events.watch()

    @classmethod
    def make(cls, pod_folder: Path, capacity: Amounts) -> "PodGroups | None":
        """Makes the cgroups that this machine permits, and records them in the pod's folder. Returns None if
        the machine permits no cgroups."""
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
        """Makes a cgroup for an attempt. If `memory_bytes` is 0, the group has no memory limit. Returns None
        if the cgroup cannot be made."""
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
        """Removes the cgroup folders of an attempt now, or as soon as the kernel releases them."""
        if not group.remove():
            self._waiting.append(group)

    def sweep(self) -> None:
        """Removes the cgroup folders that `release` could not remove before."""
        if self._waiting:
            self._waiting = [group for group in self._waiting if not group.remove()]

    def remove(self) -> None:
        """Removes all cgroups of the pod and kills all processes in them."""
        self._events.close()
        for folder in self._folders:
            destroy(folder)


def _make_v2(hierarchies: Hierarchies, name: str, capacity: Amounts, record: Path) -> PodGroups | None:
    """Makes a cgroup with the memory controller, below the nearest folder that delegates this controller."""
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
    """Enables the cgroup controllers for the folders below this folder. Returns False if the memory
    controller cannot be enabled."""
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
    """Makes a cgroup folder. The path of the cgroup folder is recorded before it is made, so that the
    cleanup after a kill finds the folder."""
    with (pod_folder / RECORD).open("a") as file:
        file.write(f"{folder}\n")
    try:
        folder.mkdir()
    except OSError:
        return None
    return folder


def _can_join(groups: PodGroups) -> bool:
    """Tests with a child process whether processes can join the cgroup, because joining can be forbidden
    where making folders is allowed."""
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
    """Sets the memory limit of a cgroup. With `ends_together`, the kernel kills all processes of the group
    when it kills one of them because of memory. Cgroup version 1 cannot kill all processes of a group
    together. With cgroup version 1, the pod notices the kill by the group's counter and kills the other
    processes."""
    if not memory_bytes:
        return
    if _write(f"{folder}/memory.max", str(memory_bytes)):
        _write(f"{folder}/memory.swap.max", "0")
        _write(f"{folder}/memory.oom.group", "1" if ends_together else "0")
    else:
        _write_or_raise(f"{folder}/memory.limit_in_bytes", str(memory_bytes))
        _write(f"{folder}/memory.memsw.limit_in_bytes", str(memory_bytes))


def _needs_quota(cpus: float) -> bool:
    """Returns whether the CPUs of the pod must be limited. Returns False if the pod may use all CPUs of the
    machine."""
    return 0 < cpus < (os.cpu_count() or 1)


def _limit_cpus(folder: Path, cpus: float) -> None:
    """Limits the CPU time of the pod to its share of the CPUs."""
    if not _needs_quota(cpus):
        return
    quota = max(_SMALLEST_QUOTA_US, round(cpus * _PERIOD_US))
    if not _write(f"{folder}/cpu.max", f"{quota} {_PERIOD_US}"):
        _write(f"{folder}/cpu.cfs_period_us", str(_PERIOD_US))
        _write(f"{folder}/cpu.cfs_quota_us", str(quota))


def kill_all(folder: Path) -> None:
    """Sends SIGKILL to every process in the cgroup. If the kernel cannot kill all processes of the cgroup in
    one step, the group is frozen first, so that no process can fork."""
    if _write(f"{folder}/cgroup.kill", "1"):
        return
    frozen = _write(f"{folder}/freezer.state", "FROZEN")
    send(_pids(folder), signal.SIGKILL)
    if frozen:
        _write(f"{folder}/freezer.state", "THAWED")


def destroy(folder: Path, patience_seconds: float = 2.0) -> bool:
    """Kills the processes in the cgroup and in the groups below it, and removes these groups. Returns False
    if the cgroup still exists. If the cgroup does not exist, the function succeeds."""
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
    """Removes all these cgroups. If a cgroup cannot be removed, the function continues with the next
    cgroup."""
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
    """Reads a file with lines of the form `name number`."""
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: str | Path) -> str:
    """Returns the text of the file, or an empty text if it does not exist. The function avoids the slow
    layers of `open`, because several files are read for each job."""
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
    """Writes to an existing file. Returns False if the kernel refuses the text."""
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
