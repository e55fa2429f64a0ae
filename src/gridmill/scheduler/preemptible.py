"""This module has the running jobs that may be preempted: their expected remaining time, and the time until
which each job is protected."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from gridmill.domain.job import JobSize
from gridmill.domain.ordering import alone_seconds, due, expected_left, next_check_seconds, work
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.states import AttemptState
from gridmill.scheduler.forecast import lasted
from gridmill.scheduler.outcomes import delay_of
from gridmill.scheduler.sizing import subject_of
from gridmill.scheduler.snapshot import Snapshot

MOST_LOOKED_AT = 200
"""The number of running jobs of a resource that are examined, the longest-running job first. The
longest-running jobs are preempted first, and the limit keeps a plan fast with any number of running jobs."""


class PreemptibleJob(NamedTuple):
    """A running job that may be preempted, with its attempts, one for each rank. `due` is the due time of
    the job, which determines its position in the queue. `work` is the expected total work of the job.
    `delay` is the time for which the job has waited. `left_seconds` is the expected remaining time of the
    job, and `loses_seconds` is the remaining time with which the loss by a preemption is computed. The job
    is protected from preemption until `alone_until`. After the earlier time `urgent_from`, a job of higher
    priority may already preempt it. `look_at` is the next time at which it is useful to check the job
    again."""

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
        """The id of the attempt; for a gang, the id of the attempt of rank 0."""
        return self.attempts[0].id

    @property
    def job_run_id(self) -> str:
        """The id of the JobRun to which the attempts belong."""
        return self.attempts[0].job_run_id


def running_on(snapshot: Snapshot, resource: str, now: float) -> Iterator[PreemptibleJob]:
    """Return the running jobs of a resource that can resume. Jobs in pods that a batch system ends are left
    out, because a preempted job would have to wait in the queue of the batch system again."""
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
        look_at=now + next_check_seconds(attained) - attained,
        attempts=tuple(attempts),
    )
