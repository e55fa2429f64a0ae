"""The queue of one resource: waiting jobs, grouped into classes that request the same amounts."""

from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice, repeat
from typing import Final, NamedTuple, TypeAlias

from gridmill.domain.job import JobKind
from gridmill.domain.ordering import UNKNOWN_SECONDS, due, work
from gridmill.domain.project import DEFAULT
from gridmill.domain.run import JobRun, Run
from gridmill.scheduler.sorted_tuples import SortedTuples

Rank: TypeAlias = tuple[int, float, int, int, str]
"""(-priority, due time, run order, job order, JobRun id): the smallest is first; see
gridmill.domain.ordering. All in one tuple, because two ranks are often equal up to the run."""

Ticket: TypeAlias = tuple[int, float, int, int, str, "JobClass", float, float]
"""A waiting job: its rank, its class, since when it has waited (all its waits together), and its expected
work (gridmill.domain.ordering). Ranks differ, so classes are never compared. It is made once, when the job
enters the queue, and every plan uses it unchanged. It is no named tuple because plans compare and read
tickets in their inner loops: with named tuples they take 3 % to 15 % longer."""

DelayedEntry: TypeAlias = tuple[int, float, str, Ticket]
"""(-priority, since when it has waited, JobRun id, ticket): the most delayed is first."""

NEGATIVE_PRIORITY: Final = 0
DUE: Final = 1
JOB_RUN_ID: Final = 4
JOB_CLASS: Final = 5
SINCE: Final = 6
WORK: Final = 7
"""Elements of a ticket; the first five are those of a rank."""


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
    """The place of a job in the queue: by priority, then by due time (a job that is expected to be short
    goes before one that came somewhat earlier), then by its run's order and its own."""
    return (-job_run.priority, due(run.created, work_of(job_run)), run.order, job_run.order, job_run.id)


def work_of(job_run: JobRun) -> float:
    """What the job is expected to take, in seconds of a place."""
    sizing, workers = job_run.sizing, job_run.job.gang or 1
    left = UNKNOWN_SECONDS if sizing.left_seconds is None else sizing.left_seconds
    return work(left, job_run.served_seconds, max(1, sizing.amounts.gpus) * workers)


def since_of(job_run: JobRun, run: Run) -> float:
    """Since when it would have waited, had it waited without a break: so long as it was ready and did not
    run."""
    ready = run.created if job_run.ready is None else job_run.ready
    return ready - job_run.waited_seconds


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
    """Classes of jobs; the classes by memory; by project, the first job of each of its classes, in order, and
    all its jobs, those first that have waited longest (`delayed`). `work`: what all are expected to take."""

    __slots__ = ("_count", "_resource", "by_memory", "classes", "delayed", "heads", "work")

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._count = 0
        self.classes: dict[Demand, JobClass] = {}
        self.heads: dict[str, SortedTuples[Ticket]] = {}
        self.delayed: dict[str, SortedTuples[DelayedEntry]] = {}
        self.work = 0  # whole seconds: does not depend on the order in which they came
        self.by_memory: SortedTuples[Demand] = SortedTuples()

    def __len__(self) -> int:
        return self._count

    def add(self, rank: Rank, demand: Demand, since: float = 0.0, expected_work: float = 0.0) -> Ticket:
        """Add a job that is not there."""
        group = self.classes.get(demand)
        if group is None:
            group = self.classes[demand] = JobClass(self._resource, demand)
            self.by_memory.add(demand)
        ticket = (*rank, group, since, expected_work)
        head = group.members.first()
        group.members.add(ticket)
        if head is None or ticket < head:
            heads = self.heads.get(demand.project)
            if heads is None:
                heads = self.heads[demand.project] = SortedTuples()
            if head is not None:
                heads.discard(head)
            heads.add(ticket)
        delayed = self.delayed.get(demand.project)
        if delayed is None:
            delayed = self.delayed[demand.project] = SortedTuples()
        delayed.add(_delayed_entry(ticket))
        self.work += int(expected_work)
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
        delayed = self.delayed[group.project]
        delayed.discard(_delayed_entry(ticket))
        if not len(delayed):
            del self.delayed[group.project]
        self.work -= int(ticket[WORK])
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


def _delayed_entry(ticket: Ticket) -> DelayedEntry:
    return (ticket[NEGATIVE_PRIORITY], ticket[SINCE], ticket[JOB_RUN_ID], ticket)
