"""This module has the fair shares and quotas of projects: which project's jobs are placed first, and which
amounts a project may hold.

The project with the least use relative to its share is first. Slurm's Fair Tree orders the projects of one
level in the same way (use divided by share). Gridmill has no tree of projects. The weight of past use halves
each week, like the decay of Slurm's multifactor priority (PriorityDecayHalfLife, 7 days).
"""

import math
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, NamedTuple, TypeAlias

from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_cpus
from gridmill.domain.frozen import replace
from gridmill.domain.project import Project
from gridmill.scheduler.capacity_index import ProjectTotals
from gridmill.scheduler.feasibility import RefusalReason
from gridmill.scheduler.lane import Lane, LaneQueue
from gridmill.scheduler.queue import JOB_CLASS, JOB_RUN_ID, NEGATIVE_PRIORITY, QuotaClaim, Ticket
from gridmill.scheduler.snapshot import Snapshot

HALF_LIFE_SECONDS = 7 * 86_400.0
AHEAD_SECONDS = 600.0
"""A place in use is counted as if it had been used for this many additional seconds, so that projects also
take turns within one plan."""
NO_BOUND = 2**62
"""The limit of an amount that the quota does not limit. The limit is an integer, because integers are
compared faster than floats."""
_ROUNDING = 1e-6
"""The rounding error of sums of fractional CPUs. Quotas are given in thousandths of a CPU."""


def decayed(used_seconds: float, used_at: float, now: float) -> float:
    """Return the past use in seconds after its decay until now."""
    return used_seconds * math.pow(0.5, max(0.0, now - used_at) / HALF_LIFE_SECONDS)


def charged(project: Project, seconds: float, now: float) -> Project:
    """Return the project with this number of seconds added to its use."""
    used = decayed(project.used_seconds, project.used_at, now) + seconds
    return replace(project, used_seconds=used, used_at=max(now, project.used_at))


def used_now(project: Project, tally: ProjectTotals, now: float) -> float:
    """Return the use of the project in seconds, including the use of its live attempts so far."""
    return decayed(project.used_seconds, project.used_at, now) + tally.held_seconds(now)


class ProjectStanding:
    """The present use and the limits of a project. `score` is the use of the project, including the places
    that the project holds now, divided by the share of the project. The project with the lowest score is
    first. `per_place` is the number by which the score increases for each further place that the project
    holds. `kept_for` is the job for which a part of the quota is reserved."""

    __slots__ = ("_cpus", "_gpus", "_memory_bytes", "_places", "bounded", "kept_for", "per_place", "score")

    def __init__(self, project: Project, tally: ProjectTotals, now: float) -> None:
        self.bounded = project.bounded
        self.kept_for = ""
        self.per_place = AHEAD_SECONDS / project.share
        self.score = used_now(project, tally, now) / project.share + tally.places * self.per_place
        self._places = tally.places
        self._cpus = math.inf if project.cpus is None else project.cpus - tally.cpus + _ROUNDING
        self._memory_bytes = _left(project.memory_bytes, tally.memory_bytes)
        self._gpus = _left(project.gpus, tally.gpus)

    def lapse(self, seconds: float) -> None:
        """Add the use of these seconds, during which the project holds the same amounts, to the use of the
        project."""
        self.score += self._places * seconds * self.per_place / AHEAD_SECONDS

    def start(self, claim: QuotaClaim) -> None:
        """Add the memory, CPUs and GPUs of one more job of this kind to the use of the project."""
        self._places += claim.places
        self.score += claim.places * self.per_place
        if self.bounded:
            self._cpus -= claim.cpus
            self._memory_bytes -= claim.memory_bytes
            if claim.gpus:
                self._gpus -= claim.gpus

    def end(self, claim: QuotaClaim) -> None:
        """Subtract the memory, CPUs and GPUs of one job of this kind from the use of the project."""
        self._places -= claim.places
        self.score -= claim.places * self.per_place
        self.give_back(claim.cpus, claim.memory_bytes, claim.gpus)

    def give_back(self, cpus: float, memory_bytes: int, gpus: int) -> None:
        """Subtract the memory, CPUs and GPUs of one attempt from the use of the project, as if this attempt
        ended."""
        self._cpus += cpus
        self._memory_bytes += memory_bytes
        self._gpus += gpus

    def is_closed_to(self, ticket: Ticket) -> bool:
        """Return whether the job must wait because the free part of the quota is too small for it, or
        because the quota is reserved for another job."""
        claim = ticket[JOB_CLASS]
        return self.bounded and (
            claim.memory_bytes > self._memory_bytes
            or claim.cpus > self._cpus
            or 0 < claim.gpus > self._gpus
            or (self.kept_for != "" and self.kept_for != ticket[JOB_RUN_ID])
        )

    def is_over(self, claim: QuotaClaim) -> bool:
        """Return whether the free part of the quota is too small for a job of this kind."""
        return self.bounded and (
            claim.memory_bytes > self._memory_bytes or claim.cpus > self._cpus or 0 < claim.gpus > self._gpus
        )


def _left(most: int | None, used: int) -> int:
    return NO_BOUND if most is None else most - used


class ProjectShares(dict[str, ProjectStanding]):
    """The use and the limits of each project, by name, while a plan is made. Each start of a job changes the
    use of its project. The values of a project are computed when they are first used."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        super().__init__()
        self._projects: Mapping[str, Project] = snapshot.projects
        self._tallies = snapshot.places.tallies
        self._now = now
        self._wholes: dict[str, ProjectStanding] = {}

    def __missing__(self, name: str) -> ProjectStanding:
        standing = ProjectStanding(self._project(name), self._tallies.get(name, ProjectTotals()), self._now)
        self[name] = standing
        return standing

    def problem(self, group: QuotaClaim) -> RefusalReason | None:
        """Return the reason why the whole quota of the project is too small for jobs with this demand. The
        result is None if the quota is large enough."""
        name = group.project
        whole = self._wholes.get(name)
        if whole is None:
            whole = self._wholes[name] = ProjectStanding(self._project(name), ProjectTotals(), self._now)
        if not whole.is_over(group):
            return None
        asks = next(bound.asks for bound in bounds(self._project(name), ProjectTotals(), group))
        return RefusalReason(
            f"needs more than the whole quota of project {name}: {asks}",
            f"Lower the amount in the job, or raise the quota with `gridmill configure project {name}`.",
        )

    def goes_first(self, name: str, other: str, places: int) -> bool:
        """Return whether the project `name` would come before the project `other` if `other` released that
        many places."""
        given_up = places * self[other].per_place
        return name == other or self[name].score < self[other].score - given_up

    def _project(self, name: str) -> Project:
        return self._projects.get(name) or Project(name=name)


class QuotaLimit(NamedTuple):
    """A limit of a quota that a job exceeds, as text."""

    used: str
    wanted: str
    most: str

    @property
    def in_use(self) -> str:
        """The used and the total amount as text, such as `4 of 4 GPUs in use`."""
        return f"{self.used} of {self.most} in use"

    @property
    def asks(self) -> str:
        """The requested and the total amount as text, such as `8 of 4 GPUs`."""
        return f"{self.wanted} of {self.most}"


def bounds(project: Project, tally: ProjectTotals, claim: QuotaClaim | Amounts) -> Iterator[QuotaLimit]:
    """Return the limits of the quota that a job with these amounts would exceed."""
    cpus, memory_bytes, gpus = claim.cpus, claim.memory_bytes, claim.gpus
    if project.cpus is not None and tally.cpus + cpus > project.cpus + _ROUNDING:
        yield QuotaLimit(f"{tally.cpus:g}", f"{cpus:g}", show_cpus(project.cpus))
    if project.memory_bytes is not None and tally.memory_bytes + memory_bytes > project.memory_bytes:
        yield QuotaLimit(
            show_bytes(tally.memory_bytes), show_bytes(memory_bytes), show_bytes(project.memory_bytes)
        )
    if project.gpus is not None and 0 < gpus > project.gpus - tally.gpus:
        yield QuotaLimit(str(tally.gpus), str(gpus), show_count(project.gpus, "GPU"))


_Place: TypeAlias = list[Any]
"""The entry of a project in the queue: [-priority, score, first job, all jobs, `Standing` of the project].
First jobs differ, so the elements of the entry after the first job are never compared."""


class FairQueue(LaneQueue):
    """A queue of the jobs of several projects. The jobs of each project stay in their own order. The
    priority of a job is compared before the shares of projects."""

    __slots__ = ("_heaps", "_shares")

    def __init__(self, lanes: dict[str, Lane], shares: ProjectShares) -> None:
        super().__init__(lanes)
        self._shares = shares
        self._heaps: dict[str, list[Ticket]] = {}

    def join(self, lane: Lane) -> None:
        """Add the waiting jobs of one resource to the queue."""
        lane.fair = True
        for project in lane.queue.heads:
            head = lane.first_of(project)
            if head is not None:
                self.add(head)

    def add(self, ticket: Ticket) -> None:
        """Add a job to the queue."""
        heappush(self._heaps.setdefault(ticket[JOB_CLASS].project, []), ticket)

    def in_order(self) -> Iterator[tuple[Ticket, Lane]]:
        """Return the first job and the state of its resource (a `Lane`), repeatedly until the queue is
        empty. While the caller processes the returned job, it may change only the use of this job's
        project."""
        order, lanes = [self._place(*one) for one in self._heaps.items()], self._lanes
        heapify(order)
        while order:
            place = order[0]
            _, _, ticket, heap, standing = place
            self._heap = heap
            yield ticket, lanes[ticket[JOB_CLASS].resource]
            if heap:
                first = heap[0]
                place[0], place[1], place[2] = first[NEGATIVE_PRIORITY], standing.score, first
                heapreplace(order, place)
            else:
                heappop(order)

    def _place(self, project: str, heap: list[Ticket]) -> _Place:
        standing = self._shares[project]
        return [heap[0][NEGATIVE_PRIORITY], standing.score, heap[0], heap, standing]
