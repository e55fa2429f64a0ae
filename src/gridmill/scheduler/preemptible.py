"""The running jobs that may be preempted: their expected remaining time, and how long each is protected."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from gridmill.domain.job import JobSize
from gridmill.domain.ordering import alone_seconds, due, expected_left, next_look, work
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.states import AttemptState
from gridmill.scheduler.forecast import lasted
from gridmill.scheduler.outcomes import delay_of
from gridmill.scheduler.sizing import subject_of
from gridmill.scheduler.snapshot import Snapshot

MOST_LOOKED_AT = 200
"""Running jobs of a resource that are examined, those that have run longest first: they are preempted first,
and a plan stays fast with any number of running jobs."""


class PreemptibleJob(NamedTuple):
    """A job that may be interrupted: when its turn would be (`due`), what it is expected to take in all
    (`work`), for how long it has waited (`delay`), what is expected to be left of it (`loses_seconds`: as an
    interruption counts it), for how long it is left alone (`alone_until`; `urgent_from`: for a job of a
    higher priority), when it is worth looking again, and its attempts, one per rank."""

    due: float
    work: float
    delay: float
    left_seconds: float
    loses_seconds: float
    priority: int
    project: str
    places: int
    urgent_from: float
    alone_until: float
    look_at: float
    attempts: tuple[Attempt, ...]

    @property
    def id(self) -> str:
        """That of the attempt, of rank 0 for a gang."""
        return self.attempts[0].id

    @property
    def job_run_id(self) -> str:
        """Whose attempts these are."""
        return self.attempts[0].job_run_id


def running_on(snapshot: Snapshot, resource: str, now: float) -> Iterator[PreemptibleJob]:
    """Those of a resource that can resume. Not those in pods that a batch system ends: what starts again
    there waits in its queue."""
    for _, key in islice(snapshot.places.resumable.get(resource, ()), MOST_LOOKED_AT):
        attempt = snapshot.attempts[key]
        job_run, attempts = (
            snapshot.job_runs.get(attempt.job_run_id),
            snapshot.attempts_on(attempt.job_run_id),
        )
        if job_run is not None and len(attempts) == (attempt.ranks or 1) and _all_run(snapshot, attempts):
            yield _running(snapshot, job_run, sorted(attempts, key=lambda one: one.rank), now)


def _all_run(snapshot: Snapshot, attempts: Sequence[Attempt]) -> bool:
    return all(
        attempt.state is AttemptState.RUNNING
        and attempt.outcome is None
        and not attempt.stop_requested
        and attempt.pod_id not in snapshot.places.terms
        for attempt in attempts
    )


def _running(snapshot: Snapshot, job_run: JobRun, attempts: Sequence[Attempt], now: float) -> PreemptibleJob:
    begun = max(attempt.started or attempt.placed for attempt in attempts)
    attained = job_run.served_seconds + now - begun
    subject, size = subject_of(job_run.job, job_run.pipeline), job_run.size or JobSize()
    left = expected_left(lasted(job_run.name, subject, size, snapshot.history), attained)
    places = max(1, job_run.sizing.amounts.gpus) * len(attempts)
    expected = work(left, attained, places)
    return PreemptibleJob(
        due=due(snapshot.runs[job_run.run_id].created, expected),
        work=expected,
        delay=delay_of(job_run, attempts[0]),
        left_seconds=left,
        loses_seconds=left,
        priority=job_run.priority,
        project=job_run.project,
        places=places,
        urgent_from=begun + alone_seconds(job_run.interruptions, urgent=True),
        alone_until=begun + alone_seconds(job_run.interruptions),
        look_at=now + next_look(attained) - attained,
        attempts=tuple(attempts),
    )
