"""Control groups: one folder per pod and one below it per attempt, for limits, accounting and kills.

Version 2 is used if it is delegated to this user, version 1 if this user may write to it. Which hierarchy
serves which purpose is determined once: memory limits by v2's memory controller or v1's; the members of an
attempt, and killing them all at once, by v2 (also a v2 mount without controllers) or v1's freezer; CPU
seconds by v2's cpu.stat or v1's cpuacct; the pod's share of CPUs by v2's cpu.max or v1's quota.
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
"""The smallest share of its limit that a group has used when a page was refused: pages are charged in
batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The folder of this process in each hierarchy that matters, by controller; `unified` is v2's."""

    unified: Path | None = None
    v1: dict[str, Path]


def read_hierarchies(mountinfo: str, membership: str) -> Hierarchies:
    """From the texts of /proc/self/mountinfo and /proc/self/cgroup."""
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
    """Where this process is. Without cgroups: nowhere."""
    try:
        return read_hierarchies(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
    except (OSError, ValueError):
        return Hierarchies(v1={})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """What the processes of a group need: anonymous and shared memory and swap; and files in the page cache,
    which the kernel takes back when memory is short."""

    used_bytes: int
    cached_bytes: int
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGroup:
    """An attempt's folders: `memory` limits and measures, `tracker` knows its processes.

    `also` are folders of the pod that its processes join (CPU quota). `events` tell of its memory group, and
    of its pod's, that they had no more; `pod` is the pod's memory group.
    """

    memory: Path | None
    tracker: Path | None
    cpuacct: Path | None
    also: tuple[Path, ...] = ()
    events: LimitEvents | None = None
    pod: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its own folders, each once."""
        candidates = (self.memory, self.tracker, self.cpuacct)
        return tuple(dict.fromkeys(folder for folder in candidates if folder is not None))

    @property
    def joins(self) -> tuple[str, ...]:
        """The files that a process writes `0` to in order to join."""
        return tuple(f"{folder}/cgroup.procs" for folder in (*self.folders, *self.also))

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel holds the memory limit."""
        return self.memory is not None

    def limit(self, memory_bytes: int) -> bool:
        """Hold it to so much memory (0: no limit); False where the kernel refuses."""
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
        """SIGKILL to all its processes; True when there was none."""
        if not self.pids():
            return True
        kill_all(self.tracker or self.folders[0])
        return False

    def use(self) -> GroupUse | None:
        """Its memory now; None when no cgroup measures it."""
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
        """The kernel's own peak, page cache included: it misses nothing between samples."""
        return 0 if self.memory is None else _peak(self.memory)

    def oom_kills(self) -> int:
        """How many of its processes the kernel killed for memory."""
        if self.memory is None:
            return 0
        events = _figures(f"{self.memory}/memory.events") or _figures(f"{self.memory}/memory.oom_control")
        return events.get("oom_kill", 0)

    def watch(self) -> None:
        """Count from now on how often it has no more memory."""
        if self.events is not None:
            self.events.watch()

    def reached_limit(self) -> bool:
        """Whether it had no more memory at its own limit, not at that of a group above or of the machine.
        Where version 1 sends no events, by its highest use, which counts files that could be let go."""
        if self.memory is None:
            return False
        own = self.events.own() if self.events is not None else None
        return was_full(self.memory) if own is None else own > 0

    def pod_reached_limit(self) -> bool:
        """Whether its pod had no more memory meanwhile, at the pod's own limit."""
        if self.pod is None or self.events is None or not self.events.above():
            return False
        return is_version_2(self.pod) or was_full(self.pod)

    def cpu_seconds(self) -> float | None:
        """CPU seconds of all its processes, those gone included; None when no cgroup counts them."""
        return self._counted("cpuacct.usage", "usage_usec")

    def system_seconds(self) -> float | None:
        """Those of them that the kernel worked; None when no cgroup tells."""
        return self._counted("cpuacct.usage_sys", "system_usec")

    def _counted(self, v1: str, v2: str) -> float | None:
        if self.cpuacct is not None:
            text = _read(f"{self.cpuacct}/{v1}")
            return int(text) / 1e9 if text else None
        counts = (_figures(f"{folder}/cpu.stat") for folder in reversed(self.folders))
        return next((figures[v2] / 1e6 for figures in counts if v2 in figures), None)

    def remove(self) -> bool:
        """Remove its folders; False while the kernel still holds one."""
        if self.events is not None:
            self.events.close()
        return _remove_all(self.folders)


def was_full(folder: Path) -> bool:
    """Whether a version 1 group ever used all of its limit, files included."""
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
        """The groups this machine permits, recorded in the pod's folder; None when there are none."""
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
        """A group for an attempt (0 bytes: no limit); None when it cannot be made."""
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
        """Remove an attempt's folders, now or as soon as the kernel lets go of them."""
        if not group.remove():
            self._waiting.append(group)

    def sweep(self) -> None:
        """Remove what `release` could not yet."""
        if self._waiting:
            self._waiting = [group for group in self._waiting if not group.remove()]

    def remove(self) -> None:
        """Remove everything; whatever still runs inside is killed."""
        self._events.close()
        for folder in self._folders:
            destroy(folder)


def _make_v2(hierarchies: Hierarchies, name: str, capacity: Amounts, record: Path) -> PodGroups | None:
    """A group with the memory controller below the nearest folder that hands it down."""
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
    """Let folders below have the controllers; False when memory is not among them."""
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
    """Make a cgroup folder, after recording that it may be there."""
    with (pod_folder / RECORD).open("a") as file:
        file.write(f"{folder}\n")
    try:
        folder.mkdir()
    except OSError:
        return None
    return folder


def _can_join(groups: PodGroups) -> bool:
    """Try it with a child: joining can be forbidden where making folders is not."""
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
    """With `ends_together` the kernel kills all processes of the group when it kills one for memory. Version
    1 cannot: there the pod sees it in the group's counter, and kills the others."""
    if not memory_bytes:
        return
    if _write(f"{folder}/memory.max", str(memory_bytes)):
        _write(f"{folder}/memory.swap.max", "0")
        _write(f"{folder}/memory.oom.group", "1" if ends_together else "0")
    else:
        _write_or_raise(f"{folder}/memory.limit_in_bytes", str(memory_bytes))
        _write(f"{folder}/memory.memsw.limit_in_bytes", str(memory_bytes))


def _needs_quota(cpus: float) -> bool:
    """False where the pod may have all CPUs anyway."""
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
    """SIGKILL to every process in it: at once where the kernel can, else frozen first so that none forks."""
    if _write(f"{folder}/cgroup.kill", "1"):
        return
    frozen = _write(f"{folder}/freezer.state", "FROZEN")
    send(_pids(folder), signal.SIGKILL)
    if frozen:
        _write(f"{folder}/freezer.state", "THAWED")


def destroy(folder: Path, patience_seconds: float = 2.0) -> bool:
    """Kill what is in it and below, and remove it; False when it is still there. Gone is fine."""
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
    """Try every one of them."""
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
    """Its text; empty where it is not there. Each job needs several: no layers of an open file."""
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
    """False where the kernel does not take it; never makes a file."""
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
