"""About how long a waiting job still waits: told from how long the jobs took that were measured before."""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from gridmill.model.amounts import show_seconds
from gridmill.model.job import JobSize
from gridmill.model.project import Project
from gridmill.model.run import Attempt, JobRun
from gridmill.planning.fair import over
from gridmill.planning.forecast import lasted
from gridmill.planning.lane import find_pod
from gridmill.planning.places import Tally
from gridmill.planning.queue import Demand, demand_of, rank_of
from gridmill.planning.service import remaining
from gridmill.planning.sizing import subject_of
from gridmill.planning.snapshot import Snapshot

LOW, LIKELY, HIGH = 0.2, 0.5, 0.8
"""The shares of measured jobs that were as quick, from which the range is told."""
MOST_BEFORE = 500
"""Behind more jobs than these nothing is told: errors would add up."""


class Wait(NamedTuple):
    """Seconds from now: most likely, and where most waits will lie."""

    likely: float
    low: float
    high: float

    def __str__(self) -> str:
        """`about 12 min (8 min - 20 min)`."""
        around = f" ({show_seconds(self.low)} - {show_seconds(self.high)})" if self.high > self.low else ""
        return f"about {show_seconds(self.likely)}{around}"


def forecast_quota(snapshot: Snapshot, job_run: JobRun, now: float) -> Wait | None:
    """Until enough of its project's jobs have ended that the quota has room for it; None where it cannot be
    told. Others of its project may take it first."""
    project, demand = snapshot.projects[job_run.project], demand_of(job_run)
    known = [one for one in snapshot.attempts.values() if one.project == job_run.project]
    holds = [(one, _hold(snapshot, snapshot.job_runs[one.job_run_id], one, now)) for one in known]
    if not all(hold.lasted for _, hold in holds):
        return None
    low, likely, high = (_freed(project, demand, holds, share) for share in (LOW, LIKELY, HIGH))
    return Wait(likely=likely, low=min(low, likely), high=max(high, likely))


def _freed(project: Project, demand: Demand, holds: Sequence[tuple[Attempt, "_Hold"]], share: float) -> float:
    tally, freed = Tally(), 0.0
    for attempt, _ in holds:
        tally.count(attempt, 1)
    for attempt, hold in sorted(holds, key=lambda held: held[1].left(share)):
        tally.count(attempt, -1)
        freed = hold.left(share)
        if not over(project, tally, demand):
            break
    return freed


class _Hold(NamedTuple):
    """Places that one job holds: `workers` of them, after having run for `attained` seconds."""

    workers: int
    attained: float
    lasted: Sequence[float]

    def left(self, share: float) -> float:
        return remaining(self.lasted, self.attained, share)


def forecast_wait(snapshot: Snapshot, job_run_id: str, now: float) -> Wait | None:
    """None where it cannot be told: no pod is up, it could start now, several projects wait, or of
    a job that runs or goes before it nothing was measured.

    Those before it are taken to go in order, each as soon as places come free; places are the pods' for jobs
    of its size.
    """
    job_run = snapshot.job_runs[job_run_id]
    demand, pods = demand_of(job_run), snapshot.places.open.get(job_run.resource)
    queue = snapshot.lines.waiting.get(job_run.resource)
    if queue is not None and len(queue.projects) > 1:
        return None  # who goes first changes with what each project uses meanwhile
    if pods is None or (demand.workers == 1 and find_pod(pods, demand) is not None):
        return None
    running, before = list(_running(snapshot, job_run, now)), list(_before(snapshot, job_run))
    places = pods.places(demand.memory_bytes, demand.gpus, empty=True)
    unknown = not all(hold.lasted for hold in (*running, *before))
    if unknown or not running or len(before) > MOST_BEFORE or places < demand.workers:
        return None
    low, likely, high = (
        _start(places, demand.workers, running, before, share) for share in (LOW, LIKELY, HIGH)
    )
    if not likely:
        return None
    return Wait(likely=likely, low=min(low, likely), high=max(high, likely))


def _running(snapshot: Snapshot, job_run: JobRun, now: float) -> Iterator[_Hold]:
    """What runs on its resource; each rank of a gang has an attempt of its own."""
    for attempt in snapshot.attempts.values():
        other = snapshot.job_runs.get(attempt.job_run_id)
        if other is not None and other.resource == job_run.resource:
            yield _hold(snapshot, other, attempt, now)


def _hold(snapshot: Snapshot, job_run: JobRun, attempt: Attempt, now: float) -> _Hold:
    attained = job_run.served_seconds + max(0.0, now - (attempt.started or attempt.placed))
    return _Hold(1, attained, _lasted(snapshot, job_run))


def _before(snapshot: Snapshot, job_run: JobRun) -> Iterator[_Hold]:
    queue, run = snapshot.lines.waiting.get(job_run.resource), snapshot.runs.get(job_run.run_id)
    if queue is None or run is None:
        return
    rank = rank_of(job_run, run)
    for group in queue.classes.values():
        for ticket in islice(group.members, min(group.members.count_before(rank), MOST_BEFORE + 1)):
            yield _Hold(group.demand.workers, 0.0, _lasted(snapshot, snapshot.job_runs[ticket[3]]))


def _lasted(snapshot: Snapshot, job_run: JobRun) -> Sequence[float]:
    subject, size = subject_of(job_run.job, job_run.pipeline), job_run.size or JobSize()
    return lasted(job_run.name, subject, size, snapshot.history)


def _start(
    places: int, workers: int, running: Sequence[_Hold], before: Sequence[_Hold], share: float
) -> float:
    """When so many places are free, if all take as long as that share of the jobs like them at the most."""
    free = [0.0] * max(0, places - len(running)) + [hold.left(share) for hold in running]
    heapify(free)
    for hold in before:
        began = _taken(free, hold.workers)
        for _ in range(min(hold.workers, places)):
            heappush(free, began + hold.left(share))
    return _taken(free, workers)


def _taken(free: list[float], workers: int) -> float:
    """The time at which the first so many places are all free."""
    return max(heappop(free) for _ in range(min(workers, len(free))))
