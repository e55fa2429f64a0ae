"""This module has the queue of one resource: waiting jobs, grouped into classes that request the same CPUs,
memory and GPUs."""

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
"""The rank of a job in the queue is (-priority, due time, run order, job order, JobRun id). The job with the
smallest rank is first; see gridmill.domain.ordering. All values of a rank are in one tuple, because two
ranks are often equal up to the run."""

Ticket: TypeAlias = tuple[int, float, int, int, str, "JobClass", float, float]
"""A waiting job: its rank, its class, the time at which its wait began (with all earlier waits included),
and its expected work (gridmill.domain.ordering). The ranks of two jobs differ, so classes are never
compared. A `Ticket` is made once, when the job enters the queue, and every plan uses it unchanged. A
`Ticket` is not a named tuple, because plans compare and read tuples of this type in their inner loops: with
named tuples, plans take 3 % to 15 % longer."""

DelayedEntry: TypeAlias = tuple[int, float, str, Ticket]
"""An entry in the order of delayed jobs is (-priority, time since which the job has waited, JobRun id, the
`Ticket` of the job). The entry of the most delayed job is first."""

NEGATIVE_PRIORITY: Final = 0
DUE: Final = 1
JOB_RUN_ID: Final = 4
JOB_CLASS: Final = 5
SINCE: Final = 6
WORK: Final = 7
"""The positions of the elements in a `Ticket`. The first five elements of a `Ticket` are the elements of the
rank."""


class Demand(NamedTuple):
    """The CPUs, memory and GPUs that the jobs of a class request. `workers` is the number of ranks. Either
    each rank gets these CPUs, memory and GPUs, or no rank does. If `cpus` is 0, the job gets an equal share
    of the CPUs of the pod. `alone` requests a pod without other jobs, so that the parts of a job use
    different machines. `node` is the only node on which the job may run. `project` is the project whose
    quota the job uses."""

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
    """Return the demand of a job, which determines the class of the job."""
    amounts, job = job_run.sizing.amounts, job_run.job
    part, service = job_run.part, job.service
    return Demand(
        amounts.memory_bytes,
        amounts.gpus,
        job.cpus or 0.0,
        job_run.priority,
        job.kind,
        alone=part is not None and not part.node,
        node=part.node if part is not None else service.node if service is not None else "",
        workers=job.gang or 1,
        project=job_run.project,
    )


def rank_of(job_run: JobRun, run: Run) -> Rank:
    """Return the rank of a job in the queue: by priority, then by due time, then by the order of its run and
    its own order. A job that is expected to be short can have an earlier due time than a longer job that
    arrived shortly before it."""
    return (-job_run.priority, due(run.created, work_of(job_run)), run.order, job_run.order, job_run.id)


def work_of(job_run: JobRun) -> float:
    """Return the expected work of the job, in seconds of one place."""
    sizing, workers = job_run.sizing, job_run.job.gang or 1
    left = UNKNOWN_SECONDS if sizing.left_seconds is None else sizing.left_seconds
    return work(left, job_run.served_seconds, max(1, sizing.amounts.gpus) * workers)


def since_of(job_run: JobRun, run: Run) -> float:
    """Return the time at which all waits of the job together would have begun if it had waited without a
    break until now. A wait from this time has the same length as all past waits of the job together."""
    ready = run.created if job_run.ready is None else job_run.ready
    return ready - job_run.waited_seconds


def turn_rank_of(job_run: JobRun, run: Run) -> Rank:
    """Return the rank of a job among the jobs that make the same artifact: in the order of the runs, because
    versions are numbered in this order."""
    return (-job_run.priority, 0.0, run.order, job_run.order, job_run.id)


class QuotaClaim:
    """The CPUs, memory and GPUs that a job takes from the quota of its project, with all ranks of a gang. A
    job that requests no CPUs is counted as one CPU. A job holds one place for each GPU, or one place if it
    has no GPUs. The amounts are computed once for a class, because plans need them for every job."""

    __slots__ = ("cpus", "gpus", "memory_bytes", "places", "project")

    def __init__(self, demand: Demand) -> None:
        workers = demand.workers
        self.project = demand.project
        self.cpus = (demand.cpus or 1.0) * workers
        self.memory_bytes = demand.memory_bytes * workers
        self.gpus = demand.gpus * workers
        self.places = self.gpus or workers


class JobClass(QuotaClaim):
    """The jobs of a resource that request the same CPUs, memory and GPUs, in order."""

    __slots__ = ("demand", "members", "resource")

    def __init__(self, resource: str, demand: Demand) -> None:
        super().__init__(demand)
        self.resource = resource
        self.demand = demand
        self.members: SortedTuples[Ticket] = SortedTuples()


class JobQueue:
    """The waiting jobs of a resource, grouped in classes. `by_memory` has the classes, ordered by memory.
    `heads` has the first job of each class in order, by project. `delayed` has all jobs, the longest-waiting
    job first, by project. `work` is the expected work of all jobs together."""

    __slots__ = ("_count", "_resource", "by_memory", "classes", "delayed", "heads", "work")

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._count = 0
        self.classes: dict[Demand, JobClass] = {}
        self.heads: dict[str, SortedTuples[Ticket]] = {}
        self.delayed: dict[str, SortedTuples[DelayedEntry]] = {}
        self.work = 0  # whole seconds, so that the sum does not depend on the order of the additions
        self.by_memory: SortedTuples[Demand] = SortedTuples()

    def __len__(self) -> int:
        return self._count

    def add(self, rank: Rank, demand: Demand, since: float = 0.0, expected_work: float = 0.0) -> Ticket:
        """Add a job that is not in the queue."""
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
        """Remove a job that is in the queue."""
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
        """Return the job of the queue that comes first among all classes."""
        return next(self.in_order(), None)

    def in_order(self) -> Iterator[Ticket]:
        """Return the first job of each class, of all projects, in order."""
        return merge(*self.heads.values()) if len(self.heads) > 1 else chain(*self.heads.values())

    @property
    def smallest_memory(self) -> int:
        """Return the smallest memory that a waiting job requests, in bytes. The result is 0 if the queue is
        empty."""
        first = self.by_memory.first()
        return first.memory_bytes if first else 0

    def largest_memories(self, count: int) -> Iterator[int]:
        """Return the memory that each of the largest jobs requests, largest first, for at most `count` jobs.
        Each rank of a gang is counted separately."""
        each = (
            repeat(demand.memory_bytes, len(self.classes[demand].members) * demand.workers)
            for demand in reversed(self.by_memory)
        )
        return islice(chain.from_iterable(each), count)

    def largest_first(self) -> Iterator[JobClass]:
        """Return the classes of the queue, ordered by the amounts that they request, the largest first."""
        return (self.classes[demand] for demand in reversed(self.by_memory))


def _delayed_entry(ticket: Ticket) -> DelayedEntry:
    return (ticket[NEGATIVE_PRIORITY], ticket[SINCE], ticket[JOB_RUN_ID], ticket)
