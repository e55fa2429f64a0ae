"""This module estimates how long waiting jobs still wait, by simulating the queue of a resource in order.

The simulation uses the durations of measured jobs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, merge
from itertools import count, islice
from math import inf
from typing import NamedTuple

from gridmill.domain.amounts import show_seconds
from gridmill.domain.job import JobSize
from gridmill.domain.ordering import remaining
from gridmill.domain.project import Project
from gridmill.domain.run import Attempt, JobRun
from gridmill.scheduler.capacity import Pods
from gridmill.scheduler.capacity_index import ProjectTotals
from gridmill.scheduler.fair_share import ProjectStanding
from gridmill.scheduler.forecast import lasted
from gridmill.scheduler.lane import find_pod
from gridmill.scheduler.queue import (
    JOB_CLASS,
    JOB_RUN_ID,
    NEGATIVE_PRIORITY,
    Demand,
    JobClass,
    JobQueue,
    QuotaClaim,
    Ticket,
    demand_of,
)
from gridmill.scheduler.sizing import subject_of
from gridmill.scheduler.snapshot import Snapshot


class OccupiedPlace(NamedTuple):
    """A place that an attempt holds until a time, in seconds from now. The time is infinite if the end of
    the attempt is unknown."""

    ends: float
    claim: QuotaClaim


class WaitSimulation:
    """A simulation of the queue of one resource. `places` is the number of jobs that run at the same time.
    `here` has the attempts that run on the resource now, with their expected ends. `elsewhere` has the
    attempts on other resources, which also count as use of their projects. `standings` has the use and the
    limits of each project at the start of the simulation, which then changes them.

    If several projects wait, the project with the lowest use is first, as in a plan
    (gridmill.scheduler.fair_share). If a project has reached its quota, jobs of other projects start before
    its jobs until enough of its jobs have ended.
    """

    def __init__(
        self,
        places: int,
        here: Sequence[OccupiedPlace],
        elsewhere: Sequence[OccupiedPlace],
        standings: Mapping[str, ProjectStanding],
    ) -> None:
        self._now = 0.0
        self._free = [0.0] * max(0, places - len(here))
        """The time at which each place is free."""
        self._free += (stay.ends for stay in here)
        self._numbers = count()
        self._ends = [(ends, next(self._numbers), claim) for ends, claim in (*here, *elsewhere)]
        self._standings = standings
        heapify(self._free)
        heapify(self._ends)

    def starts(
        self, lines: Mapping[str, Iterator[Ticket]], lasts: Callable[[Ticket], float | None]
    ) -> Iterator[tuple[Ticket, float]]:
        """Return the jobs in the order in which they are expected to start, each with its start time in
        seconds from now. `lines` has the waiting jobs, by project. `lasts` returns the duration of a job in
        seconds. The iteration stops after the first job whose duration is unknown."""
        heads = {name: head for name, line in lines.items() if (head := next(line, None)) is not None}
        while (first := self._first(heads.values())) is not None:
            demand = first[JOB_CLASS].demand
            freed = [heappop(self._free) for _ in range(min(demand.workers, len(self._free)))]
            began, seconds = max(self._now, *freed), lasts(first)
            yield first, began
            if seconds is None:
                return
            self._hold(first[JOB_CLASS], len(freed), began + seconds)
            following = next(lines[demand.project], None)
            if following is None:
                del heads[demand.project]
            else:
                heads[demand.project] = following

    def _first(self, heads: Iterable[Ticket]) -> Ticket | None:
        """Return the next job that starts when a place becomes free and the quota of its project allows it.
        The result is None if there is no such job."""
        self._go_on(self._free[0])
        while heads:
            ready = [head for head in heads if not self._standing(head).is_over(head[JOB_CLASS])]
            if ready:
                return min(
                    ready, key=lambda head: (head[NEGATIVE_PRIORITY], self._standing(head).score, head)
                )
            if not self._ends or self._ends[0][0] == inf:
                break
            self._go_on(self._ends[0][0])
        return None

    def _standing(self, head: Ticket) -> ProjectStanding:
        return self._standings[head[JOB_CLASS].demand.project]

    def _go_on(self, until: float) -> None:
        """Advance the simulation to that time. All jobs that end by that time release the CPUs, memory and
        GPUs that they hold."""
        while self._ends and self._ends[0][0] <= until:
            ended, _, claim = heappop(self._ends)
            self._lapse(ended)
            self._standings[claim.project].end(claim)
        self._lapse(until)

    def _lapse(self, until: float) -> None:
        for standing in self._standings.values():
            standing.lapse(max(0.0, until - self._now))
        self._now = max(self._now, until)

    def _hold(self, claim: QuotaClaim, places: int, ends: float) -> None:
        self._standings[claim.project].start(claim)
        heappush(self._ends, (ends, next(self._numbers), claim))
        for _ in range(places):
            heappush(self._free, ends)


LOW, LIKELY, HIGH = 0.2, 0.5, 0.8
"""The quantiles of measured durations from which the low, likely and high estimates are computed."""
_LAST = ""
"""The id of a simulated job that is not in the queue yet."""
MOST_BEFORE = 500
"""If more jobs than this wait before a job, the wait of the job is not estimated, because errors would add
up."""


class WaitForecast(NamedTuple):
    """An estimated wait in seconds from now: the most likely value, and the range that contains most
    waits."""

    likely: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the estimate as text, such as `about 12 min (8 min - 20 min)`."""
        around = f" ({show_seconds(self.low)} - {show_seconds(self.high)})" if self.high > self.low else ""
        return f"about {show_seconds(self.likely)}{around}"


class _RunningAttempt(NamedTuple):
    """A running attempt, with the time for which it has run, and the times that similar jobs took."""

    claim: QuotaClaim
    attained: float
    measured_seconds: Sequence[float]

    def occupied_place(self, share: float) -> OccupiedPlace:
        """Return the place that the attempt holds. The place is assumed to become free when the attempt has
        run as long as the quantile `share` of similar jobs."""
        return OccupiedPlace(
            remaining(self.measured_seconds, self.attained, share) if self.measured_seconds else inf,
            self.claim,
        )


class WaitForecasts:
    """Forecasts of the waits of the waiting jobs of a snapshot. The forecasts of all jobs of a resource are
    computed together.

    The estimate assumes that jobs start in order, each as soon as a place is free. The number of places is
    the number of jobs of the same size that the pods can run at the same time.
    """

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self._snapshot = snapshot
        self._now = now
        self._cached: dict[tuple[str, int], Mapping[str, WaitForecast]] = {}
        self._behind: dict[tuple[str, int, Demand], float | None] = {}
        self._places_by_share: dict[float, Mapping[str, Sequence[OccupiedPlace]]] = {}
        self._lasted: dict[str, Sequence[float]] = {}

    def of(self, job_run_id: str) -> WaitForecast | None:
        """Return the forecast of the wait of a job. The result is None if no forecast is possible: no pod is
        up, a pod ends at a fixed time, the job could start now, or a running job or a job before it was
        never measured."""
        job_run = self._snapshot.job_runs[job_run_id]
        demand = demand_of(job_run)
        key = (job_run.resource, self._places(job_run.resource, demand))
        if key not in self._cached:
            self._cached[key] = self._forecast(*key)
        wait = self._cached[key].get(job_run_id)
        return wait if wait is not None and wait.likely and not self._could_start(job_run, demand) else None

    def behind(self, resource: str, demand: Demand) -> float | None:
        """Return the seconds from now until one more job would start behind all waiting jobs. The result is
        None if these seconds cannot be estimated."""
        most = self._places(resource, demand) + self._places(resource, demand, coming=True)
        key = (resource, most, demand._replace(memory_bytes=1 << demand.memory_bytes.bit_length()))
        # part of the key, because memory decides the number of places and counts against a quota
        if key not in self._behind:
            self._behind[key] = self._simulate_behind(resource, most, demand)
        return self._behind[key]

    def _simulate_behind(self, resource: str, most: int, demand: Demand) -> float | None:
        if demand.workers > most or not self._knows_what_runs(resource):
            return None
        last: Ticket = (-demand.priority, inf, 0, 0, _LAST, JobClass(resource, demand), inf, 0.0)
        starts = self._simulated(resource, most, LIKELY, last)
        return next((began for ticket, began in starts if ticket is last), None)

    def _places(self, resource: str, demand: Demand, *, coming: bool = False) -> int:
        """Return the number of such jobs that the resource's pods, up or starting, would run at the same
        time if they were empty."""
        places = self._snapshot.places
        pods = (places.coming if coming else places.open).get(resource, Pods())
        return pods.places(demand.memory_bytes, demand.gpus, empty=True)

    def _queue(self, resource: str) -> JobQueue:
        return self._snapshot.lines.waiting.get(resource) or JobQueue(resource)

    def _could_start(self, job_run: JobRun, demand: Demand) -> bool:
        pods = self._snapshot.places.open[job_run.resource]
        there_is_room = demand.workers == 1 and find_pod(pods, demand) is not None
        return there_is_room and not self._standing(job_run.project).is_over(QuotaClaim(demand))

    def _forecast(self, resource: str, most: int) -> Mapping[str, WaitForecast]:
        places = self._snapshot.places
        pods, queue = places.open.get(resource, Pods()), self._snapshot.lines.waiting.get(resource)
        lasting = not any(pod_id in places.terms for pod_id, _ in pods.items())
        if queue is None or not most or not lasting or not self._knows_what_runs(resource):
            return {}
        low, likely, high = (self._starts(resource, most, share) for share in (LOW, LIKELY, HIGH))
        return {
            key: WaitForecast(likely=at, low=min(low[key], at), high=max(high[key], at))
            for key, at in likely.items()
            if key in low and key in high
        }

    def _starts(self, resource: str, places: int, share: float) -> Mapping[str, float]:
        """Return the expected start time of each waiting job, in seconds from now, if every job takes as
        long as the quantile `share` of similar jobs."""
        return {
            ticket[JOB_RUN_ID]: began
            for ticket, began in self._simulated(resource, places, share)
            if ticket[JOB_CLASS].demand.workers <= places
        }

    def _simulated(
        self, resource: str, places: int, share: float, last: Ticket | None = None
    ) -> Iterator[tuple[Ticket, float]]:
        """Return the expected start time of each waiting job. If `last` names a job, the result also has the
        expected start time of this job. The job `last` waits behind all other jobs."""
        lines = dict(_lines(self._queue(resource)))
        if last is not None:
            project = last[JOB_CLASS].project
            lines[project] = merge(lines.get(project, iter(())), iter((last,)))
        stays = self._occupied_places(share)
        here, elsewhere = stays.get(resource, ()), list(self._elsewhere(resource, lines, stays))
        names = {*lines, *(stay.claim.project for stay in here)}
        rehearsal = WaitSimulation(places, here, elsewhere, {name: self._standing(name) for name in names})
        starts = rehearsal.starts(lines, lambda ticket: self._lasts(ticket, share))
        return islice(starts, MOST_BEFORE + 1)

    def _elsewhere(
        self, resource: str, projects: Collection[str], stays: Mapping[str, Sequence[OccupiedPlace]]
    ) -> Iterator[OccupiedPlace]:
        """Return the running attempts at other resources that belong to projects with waiting jobs on this
        resource. If several projects wait, these attempts affect which project is next. If only one project
        waits, these attempts are counted only against its quota."""
        counted = {name for name in projects if len(projects) > 1 or self._standing(name).bounded}
        for other, some in stays.items() if counted else ():
            if other != resource:
                yield from (stay for stay in some if stay.claim.project in counted)

    def _standing(self, project: str) -> ProjectStanding:
        project_record = self._snapshot.projects.get(project) or Project(name=project)
        return ProjectStanding(
            project_record, self._snapshot.places.tallies.get(project, ProjectTotals()), self._now
        )

    def _lasts(self, ticket: Ticket, share: float) -> float | None:
        if ticket[JOB_RUN_ID] == _LAST:
            return 0.0
        durations = self._lasted_of(ticket[JOB_RUN_ID])
        return remaining(durations, 0.0, share) if durations else None

    def _knows_what_runs(self, resource: str) -> bool:
        return all(one.measured_seconds for one in self._held.get(resource, ()))

    def _occupied_places(self, share: float) -> Mapping[str, Sequence[OccupiedPlace]]:
        if share not in self._places_by_share:
            self._places_by_share[share] = {
                name: [one.occupied_place(share) for one in held] for name, held in self._held.items()
            }
        return self._places_by_share[share]

    @cached_property
    def _held(self) -> Mapping[str, Sequence[_RunningAttempt]]:
        """Return the running attempts, by resource. Each rank of a gang has its own attempt."""
        held: dict[str, list[_RunningAttempt]] = {}
        for attempt in self._snapshot.attempts.values():
            job_run = self._snapshot.job_runs.get(attempt.job_run_id)
            if job_run is not None:
                attained = job_run.served_seconds + max(0.0, self._now - (attempt.started or attempt.placed))
                one = _RunningAttempt(_claim(attempt, job_run), attained, self._lasted_of(job_run.id))
                held.setdefault(job_run.resource, []).append(one)
        return held

    def _lasted_of(self, job_run_id: str) -> Sequence[float]:
        if job_run_id not in self._lasted:
            self._lasted[job_run_id] = _lasted(self._snapshot, self._snapshot.job_runs[job_run_id])
        return self._lasted[job_run_id]


def _lines(queue: JobQueue) -> Mapping[str, Iterator[Ticket]]:
    """Return the waiting jobs in order, by project."""
    groups: dict[str, list[Iterator[Ticket]]] = {}
    for group in queue.classes.values():
        groups.setdefault(group.demand.project, []).append(iter(group.members))
    return {project: merge(*some) for project, some in groups.items()}


def _claim(attempt: Attempt, job_run: JobRun) -> QuotaClaim:
    """Return the CPUs, memory and GPUs of the attempt that are counted against a quota."""
    given, cpus = attempt.given, attempt.asked_cpus
    kind, project = job_run.job.kind, attempt.project
    return QuotaClaim(Demand(given.memory_bytes, given.gpus, cpus, 0, kind, project=project))


def _lasted(snapshot: Snapshot, job_run: JobRun) -> Sequence[float]:
    subject, size = subject_of(job_run.job, job_run.pipeline), job_run.size or JobSize()
    return lasted(job_run.name, subject, size, snapshot.history)
