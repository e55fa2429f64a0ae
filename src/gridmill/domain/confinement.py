"""The confinement of the processes of a tenant's pod on a farm: control groups, limits, and visible files.

A farm makes the record. A program that runs as root (`pod/confined.py`) applies it, and starts the pod as the
tenant's user. The control groups have three levels: all tenants of the farm, one tenant, one pod.
"""

from pathlib import PurePath

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.frozen import dataclass

POD_OVERHEAD_BYTES = 512 * MIB
"""The memory that a pod may use in addition to its jobs: for its agent, and for the warm process with its
libraries."""
_TENANTS_PART = 0.75
"""The part of the machine's processes that all tenants together may have. The farm needs the
remaining share."""
_LEAST_PROCESSES = 64
_MOST_PROCESSES = 16_384
_AGENT_CPUS = 0.05
_MOST_OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The settings for the start of one pod. `user` is the Unix user (and group) of its processes. `farm` and
    `pod` are the names of control groups. `node` is the capacity of the machine. `command` is executed in
    `folder`.

    `record` is the file that lists the things to remove after the pod has ended. `scratch` is the folder of
    the pod's private /tmp and /var/tmp. The pod may write only the machine's files in `writable`. `visible`
    are folders that the pod must see even if they are in a folder that is private to the pod.
    """

    user: int
    farm: str
    pod: str
    capacity: Amounts
    node: Amounts
    command: tuple[str, ...]
    folder: str
    record: str
    scratch: str
    writable: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    groups: bool = True
    namespaces: bool = True

    @property
    def tenant(self) -> str:
        """The name of the control group of the pod's tenant."""
        return f"user-{self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedPod:
    """The record of a pod that was started with a Confinement: the process that started it, with its start
    time in ticks since boot, the folders of its control groups, and its scratch folder."""

    pid: int
    started: int
    groups: tuple[str, ...] = ()
    scratch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The confinement that a machine supports. `groups` is the version of its control groups (empty: they
    cannot be used). `namespaces` is whether processes, mounts and shared memory can be separate. `read_only`
    is whether all files except the tenant's folders can be read-only. `problem` is the reason why a part is
    not supported."""

    groups: str = ""
    namespaces: bool = False
    read_only: bool = False
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether tenants can neither exhaust the machine nor end processes of other tenants."""
        return bool(self.groups) and self.namespaces


def pod_memory_bytes(confinement: Confinement) -> int:
    """The memory limit of a pod with its agent."""
    return confinement.capacity.memory_bytes + POD_OVERHEAD_BYTES


def tenants_memory_bytes(node: Amounts, machine_bytes: int) -> int:
    """The memory limit of all tenants. Half of the machine's memory that is not part of the node's capacity
    is reserved for the farm and the system."""
    return max(node.memory_bytes, (node.memory_bytes + machine_bytes) // 2)


def tenants_processes(machine_processes: int) -> int:
    """The number of processes and threads that all tenants together may have."""
    return max(_LEAST_PROCESSES, int(machine_processes * _TENANTS_PART))


def pod_processes(machine_processes: int, confinement: Confinement) -> int:
    """The number of processes and threads that a pod may have, in proportion to its part of the machine's
    CPUs."""
    part = min(1.0, confinement.capacity.cpus / confinement.node.cpus) if confinement.node.cpus else 1.0
    processes = int(tenants_processes(machine_processes) * part)
    return min(max(processes, _LEAST_PROCESSES), _MOST_PROCESSES)


def open_files(hard_limit: int, machine_files: int, machine_processes: int) -> int:
    """The number of files that one process may have open, between 1,024 and 65,536. If a twentieth of the
    tenants' processes reach this limit, they do not use up the open files of the machine."""
    fair = machine_files // max(1, tenants_processes(machine_processes) // 20)
    return min(hard_limit, max(1024, min(fair, _MOST_OPEN_FILES)))


def quota_cpus(capacity: Amounts) -> float:
    """The CPU limit of a pod with its agent. It is above the capacity, so that the work of the agent does not
    take CPU time from the jobs."""
    return capacity.cpus * (1 + _AGENT_CPUS) + _AGENT_CPUS


def is_below(path: str, folder: str) -> bool:
    """Whether a path is that folder or is in it."""
    return PurePath(path).is_relative_to(folder)
