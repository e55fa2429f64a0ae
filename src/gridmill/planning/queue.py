"""Jobs of one resource that want a place, grouped into classes that ask for the same."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias

from gridmill.model.job import JobKind
from gridmill.model.run import JobRun
from gridmill.planning.ordered import Ordered

Rank: TypeAlias = tuple[int, int, int, str]
"""(-priority, run order, job order, JobRun id): smaller goes first."""


class Demand(NamedTuple):
    """What the jobs of a class ask for. `cpus` is None for a fair share of the pod's."""

    memory_bytes: int
    gpus: int
    cpus: float | None
    priority: int
    kind: JobKind


def demand_of(job_run: JobRun) -> Demand:
    """The class a job belongs to."""
    asked, job = job_run.sizing.amounts, job_run.job
    return Demand(asked.memory_bytes, asked.gpus, job.cpus, job_run.priority, job.kind)


def rank_of(job_run: JobRun, run_order: int) -> Rank:
    """The job's place in line: by priority, then its run's order, then its own."""
    return (-job_run.priority, run_order, job_run.order, job_run.id)


class JobClass:
    """Jobs that ask for the same, in order."""

    __slots__ = ("demand", "members")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.members: Ordered[Rank] = Ordered()


class Queue:
    """Classes of jobs; the first job of each class in order; all jobs by memory."""

    __slots__ = ("by_memory", "classes", "heads")

    def __init__(self) -> None:
        self.classes: dict[Demand, JobClass] = {}
        self.heads: Ordered[tuple[Rank, JobClass]] = Ordered()  # ranks differ: classes are never compared
        self.by_memory: Ordered[tuple[int, str]] = Ordered()

    def __len__(self) -> int:
        return len(self.by_memory)

    def add(self, rank: Rank, demand: Demand) -> None:
        """Add a job that is not there."""
        self.by_memory.add((demand.memory_bytes, rank[3]))
        group = self.classes.get(demand)
        if group is None:
            group = self.classes[demand] = JobClass(demand)
        head = group.members.first()
        group.members.add(rank)
        if head is None or rank < head:
            if head is not None:
                self.heads.discard((head, group))
            self.heads.add((rank, group))

    def discard(self, rank: Rank, demand: Demand) -> None:
        """Remove a job that is there."""
        self.by_memory.discard((demand.memory_bytes, rank[3]))
        group = self.classes[demand]
        group.members.discard(rank)
        head = group.members.first()
        if head is None or rank < head:
            self.heads.discard((rank, group))
            if head is not None:
                self.heads.add((head, group))
            else:
                del self.classes[demand]

    @property
    def smallest_memory(self) -> int:
        """The least memory any job asks for; 0 when empty."""
        first = self.by_memory.first()
        return first[0] if first else 0

    def largest_memories(self, count: int) -> Iterator[int]:
        """What the `count` largest jobs ask for, largest first."""
        return (memory for memory, _ in islice(reversed(self.by_memory), count))
