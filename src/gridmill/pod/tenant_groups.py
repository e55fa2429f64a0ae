"""The control groups (cgroups) of a farm's tenants: limits for all tenants together, for one tenant, and for
each of its pods.

Root makes the groups before a pod starts, and the pod starts inside them. The limits of the groups belong to
root, so the tenant cannot change them. The folder of the pod belongs to the user of the tenant, so that the
pod can make the groups of its attempts below it (`pod/cgroups.py`). All writes are planned as values before
they are made. The function `plan_groups` is pure and can plan for any machine.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gridmill.domain.confinement import (
    Confinement,
    pod_memory_bytes,
    pod_processes,
    quota_cpus,
    tenants_memory_bytes,
    tenants_processes,
)
from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError
from gridmill.pod.cgroups import Hierarchies, destroy

_LIMITED = ("memory", "pids", "cpu")
"""The cgroup controllers that must be available, because without these controllers a tenant could exhaust a
machine."""
_PERIOD_US = 100_000
_SHARES_PER_CPU, _WEIGHT_PER_CPU = 1024, 100
_MOST_WEIGHT = 10_000
_TRIES = 50
_HANDED_OVER = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks")
"""The files in the cgroup folder of a pod to which the user of the pod may write, to make folders and to
move its own processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """A cgroup folder, and the values to write into its files in this order. A file whose name ends with `?`
    may be missing. `handed_over` is true if the folder is given to the tenant's user. `joined` is true if
    the process of the pod enters this group."""

    folder: Path
    writes: tuple[tuple[str, str], ...] = ()
    handed_over: bool = False
    joined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The totals of a machine: its memory in bytes, and its number of processes and threads. Limits in
    percent refer to these totals."""

    memory_bytes: int
    processes: int
    cpus: int


def read_machine(hierarchies: Hierarchies) -> Machine:
    """Returns the totals of this machine, or the smaller totals that the groups above this process
    permit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = [Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/kernel/threads-max")]
    pids = hierarchies.v1.get("pids") or hierarchies.unified
    if pids is not None:
        files += [folder / "pids.max" for folder in (pids, *pids.parents)]
    limits = [number for number in map(_number, files) if number]
    memory_folder = hierarchies.v1.get("memory")
    above = [_number(one / "memory.limit_in_bytes") for one in _with_parents(memory_folder)]
    above += [_number(one / "memory.max") for one in _with_parents(hierarchies.unified)]
    return Machine(
        memory_bytes=min([memory, *(number for number in above if number)]),
        processes=min(limits, default=32_768),
        cpus=os.cpu_count() or 1,
    )


def _with_parents(folder: Path | None) -> tuple[Path, ...]:
    return () if folder is None else (folder, *folder.parents)


def _number(file: Path) -> int:
    """Returns the number in the file, or 0 if the file is missing or does not contain a number."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def plan_groups(
    hierarchies: Hierarchies, confinement: Confinement, machine: Machine
) -> tuple[PlannedGroup, ...]:
    """Returns the groups in the order in which they must be made, or none if a cgroup controller is
    missing."""
    base = _v2_base(hierarchies)
    if base is not None:
        return tuple(_plan_v2(base, confinement, machine))
    if all(name in hierarchies.v1 for name in _LIMITED):
        return tuple(_plan_v1(hierarchies, confinement, machine))
    return ()


def _v2_base(hierarchies: Hierarchies) -> Path | None:
    """Returns the nearest cgroup folder of version 2 that delegates all three controllers."""
    for folder in _with_parents(hierarchies.unified):
        with suppress(OSError):
            if set(_LIMITED) <= set((folder / "cgroup.subtree_control").read_text().split()):
                return folder
    return None


def _plan_v2(base: Path, confinement: Confinement, machine: Machine) -> Iterator[PlannedGroup]:
    """Yields the planned groups of cgroup version 2. In version 2, a process may only be in a group that
    delegates no controller, so the pod itself runs in the group `agent`."""
    down = ("cgroup.subtree_control", "+memory +pids +cpu")
    farm = base / confinement.farm
    tenant = farm / confinement.tenant
    pod = tenant / confinement.pod
    yield PlannedGroup(
        folder=farm,
        writes=(
            down,
            ("memory.max", str(tenants_memory_bytes(confinement.node, machine.memory_bytes))),
            ("pids.max", str(tenants_processes(machine.processes))),
            ("cpu.weight", _weight(confinement.node.cpus)),
        ),
    )
    yield PlannedGroup(folder=tenant, writes=(down,))
    quota = _quota(confinement, machine)
    yield PlannedGroup(
        folder=pod,
        writes=(
            down,
            ("memory.max", str(pod_memory_bytes(confinement))),
            ("memory.swap.max?", "0"),
            ("pids.max", str(pod_processes(machine.processes, confinement))),
            ("cpu.weight", _weight(confinement.capacity.cpus)),
            *((("cpu.max", f"{quota} {_PERIOD_US}"),) if quota else ()),
        ),
        handed_over=True,
    )
    yield PlannedGroup(folder=pod / "agent", handed_over=True, joined=True)


def _weight(cpus: float) -> str:
    return str(min(_MOST_WEIGHT, max(1, round(cpus * _WEIGHT_PER_CPU))))


def _quota(confinement: Confinement, machine: Machine) -> int:
    """Returns the microseconds of CPU time in each period, or 0 if there is no limit because the pod has all
    CPUs."""
    if not 0 < confinement.capacity.cpus < machine.cpus:
        return 0
    return max(_PERIOD_US // 10, round(quota_cpus(confinement.capacity) * _PERIOD_US))


def _plan_v1(hierarchies: Hierarchies, confinement: Confinement, machine: Machine) -> Iterator[PlannedGroup]:
    """Yields the planned groups of cgroup version 1. In version 1, each controller has its own tree, and the
    processes are in the folder of the pod in each tree."""
    quota, cpus = _quota(confinement, machine), confinement.capacity.cpus
    all_memory = str(tenants_memory_bytes(confinement.node, machine.memory_bytes))
    memory = str(pod_memory_bytes(confinement))
    farm_writes = {
        "memory": (("memory.limit_in_bytes", all_memory),),
        "pids": (("pids.max", str(tenants_processes(machine.processes))),),
        "cpu": (("cpu.shares", _shares(confinement.node.cpus)),),
    }
    pod_writes = {
        "memory": (("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes?", memory)),
        "pids": (("pids.max", str(pod_processes(machine.processes, confinement))),),
        "cpu": (
            ("cpu.shares", _shares(cpus)),
            *((("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))) if quota else ()),
        ),
    }
    for base, controllers in _trees(hierarchies).items():
        farm = base / confinement.farm
        tenant = farm / confinement.tenant
        yield PlannedGroup(folder=farm, writes=_chosen(farm_writes, controllers))
        yield PlannedGroup(folder=tenant)
        yield PlannedGroup(
            folder=tenant / confinement.pod,
            writes=_chosen(pod_writes, controllers),
            handed_over=True,
            joined=True,
        )


def _trees(hierarchies: Hierarchies) -> dict[Path, list[str]]:
    """Returns the folder of this process in each cgroup tree that is used, with the controllers of the tree.
    Several controllers may share a tree.

    The processes of a pod are found through cgroup version 2 if it is mounted without controllers, or else
    through the freezer of cgroup version 1.
    """
    trees: dict[Path, list[str]] = {}
    for name in (*_LIMITED, "cpuacct"):
        if name in hierarchies.v1:
            trees.setdefault(hierarchies.v1[name], []).append(name)
    tracker = hierarchies.unified or hierarchies.v1.get("freezer")
    if tracker is not None:
        trees.setdefault(tracker, [])
    return trees


def _chosen(
    writes: Mapping[str, tuple[tuple[str, str], ...]], controllers: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    return tuple(write for name in controllers for write in writes.get(name, ()))


def _shares(cpus: float) -> str:
    return str(max(2, round(cpus * _SHARES_PER_CPU)))


class TenantGroups:
    """The cgroups of one pod, after they were made."""

    def __init__(self, planned: Sequence[PlannedGroup]) -> None:
        self._planned = planned
        self.folders = tuple(str(one.folder) for one in planned if one.handed_over)

    @property
    def joins(self) -> tuple[str, ...]:
        """Returns the files to which a process writes `0` to enter the groups."""
        return tuple(f"{one.folder}/cgroup.procs" for one in self._planned if one.joined)

    def make(self, user: int) -> None:
        """Makes the groups of the pod. Raises UnavailableError if the kernel refuses a group."""
        for tries in range(_TRIES):
            try:
                for one in self._planned:
                    _make(one, user)
                _weigh_tenants(self._planned)
            # another pod of the tenant has ended and removed the folder, because it was empty
            except FileNotFoundError:
                if tries == _TRIES - 1:
                    raise
            except OSError as error:
                raise UnavailableError(f"control groups cannot be created: {error}") from error
            else:
                return

    def enter(self) -> None:
        """Moves this process into the groups of the pod. Raises OSError."""
        for file in self.joins:
            _write(file, "0")


def remove_groups(folders: Iterable[str]) -> bool:
    """Ends the processes in the groups of a pod, and removes these groups and the groups above them that are
    empty. Returns whether all groups of the pod were removed."""
    gone = [destroy(Path(folder)) for folder in sorted(folders, key=len, reverse=True)]
    for folder in folders:
        for above in list(Path(folder).parents)[:3]:
            if above.name.startswith(("gridmill-farm-", "user-")):
                with suppress(OSError):  # fails if another pod still uses the folder
                    above.rmdir()
    return all(gone)


def _make(planned: PlannedGroup, user: int) -> None:
    planned.folder.mkdir(exist_ok=True)
    for name, text in planned.writes:
        file = planned.folder / name.removesuffix("?")
        if name.endswith("?"):
            with suppress(OSError):
                _write(str(file), text)
        else:
            _write(str(file), text)
    for name in _HANDED_OVER if planned.handed_over else ():
        with suppress(FileNotFoundError):
            os.chown(planned.folder / name, user, user)


def _weigh_tenants(planned: Sequence[PlannedGroup]) -> None:
    """Sets the CPU weight of a tenant to the sum of the weights of its pods."""
    for one in planned:
        for name in ("cpu.shares", "cpu.weight"):
            if one.handed_over and name in dict(one.writes):
                pods = one.folder.parent.glob(f"*/{name}")
                _write(f"{one.folder.parent}/{name}", str(min(_MOST_SHARES[name], sum(map(_number, pods)))))


_MOST_SHARES = {"cpu.shares": 262_144, "cpu.weight": _MOST_WEIGHT}


def _write(path: str, text: str) -> None:
    """Writes text to an existing file."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
