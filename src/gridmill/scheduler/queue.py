"""The queue of one resource: waiting jobs, grouped into classes that request the same amounts."""

from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice, repeat
from typing import Final, NamedTuple, TypeAlias

from gridmill.domain.job import JobKind
from gridmill.domain.ordering import UNKNOWN_SECONDS, due
from gridmill.domain.project import DEFAULT
from gridmill.domain.run import JobRun, Run
from gridmill.scheduler.sorted_tuples import SortedTuples

Rank: TypeAlias = tuple[int, float, int, int, str]
"""(-priority, due time, run order, job order, JobRun id): the smallest is first; see
gridmill.domain.ordering. All in one tuple, because two ranks are often equal up to the run."""

Ticket: TypeAlias = tuple[int, float, int, int, str, "JobClass"]
"""A waiting job: its rank, and its class. Ranks differ, so classes are never compared. It is made once, when
the job enters the queue, and every plan uses it unchanged. It is no named tuple because plans compare and
read tickets in their inner loops: with named tuples they take 3 % to 15 % longer."""

NEGATIVE_PRIORITY: Final = 0
DUE: Final = 1
JOB_RUN_ID: Final = 4
JOB_CLASS: Final = 5
"""Elements of a ticket, and those but the last of a rank."""


class Demand(NamedTuple):
    """What the jobs of a class ask for: each of `workers` ranks gets so much, or none does. `cpus` is 0 for a
    fair share of the pod's. `alone`: a pod without any other job, so that the parts of a job go on as many
    machines as there are; `node`: only there. `project`: whose quota it counts against."""

    memory_bytes: int
    gpus: int
    cpus: float
    priority: int
    kind: JobKind
    alone: bool = False
    node: str = ""
    workers: int = 1
    project: str = DEFAULT


def demand_of(job_run: JobRun) -> Demand:
    """The class a job belongs to."""
    amounts, job = job_run.sizing.amounts, job_run.job
    part = job_run.part
    return Demand(
        amounts.memory_bytes,
        amounts.gpus,
        job.cpus or 0.0,
        job_run.priority,
        job.kind,
        alone=part is not None and not part.node,
        node=part.node if part is not None else "",
        workers=job.gang or 1,
        project=job_run.project,
    )


def rank_of(job_run: JobRun, run: Run) -> Rank:
    """The job's place in line: by priority, then by when its turn comes: what is expected to be short goes
    before what came somewhat earlier; then by its run's order and its own."""
    sizing, workers = job_run.sizing, job_run.job.gang or 1
    left = UNKNOWN_SECONDS if sizing.left_seconds is None else sizing.left_seconds
    amount = max(1, sizing.amounts.gpus) * workers
    when = due(run.created, left, amount, started=job_run.interruptions > 0)
    return (-job_run.priority, when, run.order, job_run.order, job_run.id)


def turn_rank_of(job_run: JobRun, run: Run) -> Rank:
    """Its place among jobs that make the same: in the order of the runs, as versions have one order."""
    return (-job_run.priority, 0.0, run.order, job_run.order, job_run.id)


class QuotaClaim:
    """What a job takes of its project's quota, a gang with all its ranks. One that says nothing of CPUs
    counts as one; it holds a place for each GPU, or one. Worked out once for a class: plans ask for every
    job."""

    __slots__ = ("cpus", "gpus", "memory_bytes", "places", "project")

    def __init__(self, demand: Demand) -> None:
        workers = demand.workers
        self.project = demand.project
        self.cpus = (demand.cpus or 1.0) * workers
        self.memory_bytes = demand.memory_bytes * workers
        self.gpus = demand.gpus * workers
        self.places = self.gpus or workers


class JobClass(QuotaClaim):
    """Jobs of a resource that ask for the same, in order."""

    __slots__ = ("demand", "members", "resource")

    def __init__(self, resource: str, demand: Demand) -> None:
        super().__init__(demand)
        self.resource = resource
        self.demand = demand
        self.members: SortedTuples[Ticket] = SortedTuples()


class JobQueue:
    """Classes of jobs; the classes by memory; by project, the first job of each of its classes, in order."""

    __slots__ = ("_count", "_resource", "by_memory", "classes", "heads")

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._count = 0
        self.classes: dict[Demand, JobClass] = {}
        self.heads: dict[str, SortedTuples[Ticket]] = {}
        self.by_memory: SortedTuples[Demand] = SortedTuples()

    def __len__(self) -> int:
        return self._count

    def add(self, rank: Rank, demand: Demand) -> Ticket:
        """Add a job that is not there."""
        group = self.classes.get(demand)
        if group is None:
            group = self.classes[demand] = JobClass(self._resource, demand)
            self.by_memory.add(demand)
        ticket = (*rank, group)
        head = group.members.first()
        group.members.add(ticket)
        if head is None or ticket < head:
            heads = self.heads.get(demand.project)
            if heads is None:
                heads = self.heads[demand.project] = SortedTuples()
            if head is not None:
                heads.discard(head)
            heads.add(ticket)
        self._count += 1
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Remove a job that is there."""
        group = ticket[JOB_CLASS]
        group.members.discard(ticket)
        head = group.members.first()
        if head is None or ticket < head:
            heads = self.heads[group.demand.project]
            heads.discard(ticket)
            if head is not None:
                heads.add(head)
            else:
                del self.classes[group.demand]
                self.by_memory.discard(group.demand)
                if not len(heads):
                    del self.heads[group.demand.project]
        self._count -= 1

    @property
    def first(self) -> Ticket | None:
        """The first job of all."""
        return next(self.in_order(), None)

    def in_order(self) -> Iterator[Ticket]:
        """The first job of each class, of all projects."""
        return merge(*self.heads.values()) if len(self.heads) > 1 else chain(*self.heads.values())

    @property
    def smallest_memory(self) -> int:
        """The least memory any job asks for; 0 when empty."""
        first = self.by_memory.first()
        return first.memory_bytes if first else 0

    def largest_memories(self, count: int) -> Iterator[int]:
        """What the `count` largest jobs ask for, largest first; each rank of a gang by itself."""
        each = (
            repeat(demand.memory_bytes, len(self.classes[demand].members) * demand.workers)
            for demand in reversed(self.by_memory)
        )
        return islice(chain.from_iterable(each), count)

    def largest_first(self) -> Iterator[JobClass]:
        """The classes, by what they ask for."""
        return (self.classes[demand] for demand in reversed(self.by_memory))
