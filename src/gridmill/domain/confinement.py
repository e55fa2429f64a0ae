"""How the processes of a pod of a farm's tenant are confined: control groups, limits, and visible files.

A farm makes the record; a program that root runs (`pod/confined.py`) applies it, and starts the pod as the
tenant's user. The control groups are three levels deep: all tenants of the farm, one tenant, one pod.
"""

from pathlib import PurePath

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.frozen import dataclass

POD_OVERHEAD_BYTES = 512 * MIB
"""The memory that a pod may use beside its jobs: its agent, and the warm process with its libraries."""
_TENANTS_PART = 0.75
"""The part of the machine's processes that all tenants together may have; the farm needs the rest."""
_LEAST_PROCESSES = 64
_MOST_PROCESSES = 16_384
_AGENT_CPUS = 0.05
_MOST_OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How one pod is started. `user` is the Unix user of its processes (and group); `farm` and `pod` are the
    names of control groups; `node` is the capacity of the machine. `command` is executed in `folder`.

    `record` is the file that names what has to be removed when the pod has ended; `scratch` the folder of its
    private /tmp and /var/tmp. Of the machine's files the pod may write those in `writable`; `visible` are
    folders that it has to see even if they are in a folder that is private to it.
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
        """The name of the control group of its tenant."""
        return f"user-{self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinedPod:
    """The record of a pod that was started so: the process that started it, with its start time in ticks
    since boot, the folders of its control groups, and its scratch folder."""

    pid: int
    started: int
    groups: tuple[str, ...] = ()
    scratch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What a machine permits: `groups` is the version of its control groups (empty: they cannot be used),
    `namespaces` whether processes, mounts and shared memory can be separate, `read_only` whether all but the
    tenant's folders can be read-only. `problem` says why something is missing."""

    groups: str = ""
    namespaces: bool = False
    read_only: bool = False
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether tenants can neither exhaust the machine nor end processes of others."""
        return bool(self.groups) and self.namespaces


def pod_memory_bytes(confinement: Confinement) -> int:
    """The memory limit of a pod with its agent."""
    return confinement.capacity.memory_bytes + POD_OVERHEAD_BYTES


def tenants_memory_bytes(node: Amounts, machine_bytes: int) -> int:
    """The memory limit of all tenants: half of what the machine has beside the capacity of the node is kept
    for the farm and the system."""
    return max(node.memory_bytes, (node.memory_bytes + machine_bytes) // 2)


def tenants_processes(machine_processes: int) -> int:
    """How many processes and threads all tenants together may have."""
    return max(_LEAST_PROCESSES, int(machine_processes * _TENANTS_PART))


def pod_processes(machine_processes: int, confinement: Confinement) -> int:
    """How many processes and threads a pod may have: its part of the machine's CPUs."""
    part = min(1.0, confinement.capacity.cpus / confinement.node.cpus) if confinement.node.cpus else 1.0
    processes = int(tenants_processes(machine_processes) * part)
    return min(max(processes, _LEAST_PROCESSES), _MOST_PROCESSES)


def open_files(hard_limit: int, machine_files: int, machine_processes: int) -> int:
    """How many files one process may have open: so many that a twentieth of the machine's processes at that
    limit does not use up what the machine has, between 1,024 and 65,536."""
    fair = machine_files // max(1, tenants_processes(machine_processes) // 20)
    return min(hard_limit, max(1024, min(fair, _MOST_OPEN_FILES)))


def quota_cpus(capacity: Amounts) -> float:
    """The CPUs of a pod with its agent: the agent's work is not taken from its jobs."""
    return capacity.cpus * (1 + _AGENT_CPUS) + _AGENT_CPUS


def is_below(path: str, folder: str) -> bool:
    """Whether a path is that folder or in it."""
    return PurePath(path).is_relative_to(folder)
