"""This module describes how a farm confines the processes of a tenant's pod: control groups, limits, and
visible files.

A farm makes the record of the confinement. A program that runs as root (`pod/confined.py`) applies the
record, and starts the pod as the user of the tenant. The control groups have three levels: all tenants of
the farm, one tenant, and one pod.
"""

from pathlib import PurePath

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.frozen import dataclass

POD_OVERHEAD_BYTES = 512 * MIB
"""The memory that a pod may use in addition to its jobs: for its agent, and for the preloaded process with
its libraries."""
_TENANTS_PART = 0.75
"""The fraction of the machine's processes that all tenants together may have. The farm needs the remaining
processes of the machine for itself."""
_LEAST_PROCESSES = 64
_MOST_PROCESSES = 16_384
_AGENT_CPUS = 0.05
_MOST_OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The settings with which one pod of a tenant is started. `user` is the Unix user (and group) of the
    processes of the pod. `farm` and `pod` are the names of the control groups of the farm and of the pod.
    `node` has the capacity of the machine. `command` is the command that starts the pod in `folder`.

    `record` is the file that lists what must be removed after the pod has ended. `scratch` is the folder
    that contains the private /tmp and /var/tmp of the pod. The pod may write only the files of the machine
    that are listed in `writable`. The pod sees the folders in `visible` even if they are inside a folder
    that is replaced by a private folder of the pod.
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
        """The name of the control group of the tenant to which the pod belongs."""
        return f"user-{self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedPod:
    """The record of a pod that was started with a Confinement: the process that started the pod, with its
    start time in ticks since boot, the folders of its control groups, and its scratch folder."""

    pid: int
    started: int
    groups: tuple[str, ...] = ()
    scratch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The features of a machine with which the processes of a tenant can be confined. `groups` is the
    version of the control groups of the machine, or empty if control groups cannot be used. `namespaces` is
    true if processes, mounts and shared memory can be separated. `read_only` is true if all files except the
    folders of the tenant can be read-only. `problem` is the reason why some part of the confinement is not
    supported."""

    groups: str = ""
    namespaces: bool = False
    read_only: bool = False
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the confinement prevents a tenant from exhausting the machine and from ending processes of
        other tenants."""
        return bool(self.groups) and self.namespaces


def pod_memory_bytes(confinement: Confinement) -> int:
    """Return the memory limit of all processes of a pod, including the agent of the pod."""
    return confinement.capacity.memory_bytes + POD_OVERHEAD_BYTES


def tenants_memory_bytes(node: Amounts, machine_bytes: int) -> int:
    """Return the memory limit of all tenants together. If the capacity of the node leaves some memory of the
    machine free, half of this free memory is reserved for the farm and the system."""
    return max(node.memory_bytes, (node.memory_bytes + machine_bytes) // 2)


def tenants_processes(machine_processes: int) -> int:
    """Return the number of processes and threads that all tenants together may have."""
    return max(_LEAST_PROCESSES, int(machine_processes * _TENANTS_PART))


def pod_processes(machine_processes: int, confinement: Confinement) -> int:
    """Return the number of processes and threads that a pod may have. The number is proportional to the
    fraction of the machine's CPUs that the pod has."""
    part = min(1.0, confinement.capacity.cpus / confinement.node.cpus) if confinement.node.cpus else 1.0
    processes = int(tenants_processes(machine_processes) * part)
    return min(max(processes, _LEAST_PROCESSES), _MOST_PROCESSES)


def open_files(hard_limit: int, machine_files: int, machine_processes: int) -> int:
    """Return the number of files that one process may have open, between 1,024 and 65,536. The limit is
    chosen so that the machine does not run out of open files even if a twentieth of the tenants' processes
    reach this limit."""
    fair = machine_files // max(1, tenants_processes(machine_processes) // 20)
    return min(hard_limit, max(1024, min(fair, _MOST_OPEN_FILES)))


def quota_cpus(capacity: Amounts) -> float:
    """Return the CPU limit of all processes of a pod, including the agent of the pod. The limit is above the
    capacity of the pod, so that the work of its agent does not take CPU time from the jobs."""
    return capacity.cpus * (1 + _AGENT_CPUS) + _AGENT_CPUS


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is that folder or is in that folder."""
    return PurePath(path).is_relative_to(folder)
