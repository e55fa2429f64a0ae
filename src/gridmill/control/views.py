"""Nouns put together for readers: live ones from memory, finished ones from the store."""

from collections.abc import Mapping, Sequence
from itertools import islice

from gridmill.control.ledger import Ledger
from gridmill.control.references import fetch_artifact
from gridmill.control.state import Control
from gridmill.errors import NotFoundError
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.state import LIVE_ATTEMPTS, JobState
from gridmill.model.view import JobView, RunView
from gridmill.planning.critical import critical_path
from gridmill.planning.why import why_waiting
from gridmill.ports.store import Store

WHYS_PER_VIEW = 100
"""Reasons are worked out for the first waiting jobs only: nobody reads thousands."""

Attempts = Mapping[str, Sequence[Attempt]]


def attempts_of(store: Store, run_id: str) -> Attempts:
    """The attempts of each JobRun of a run, oldest first. Needs no lock."""
    by_job: dict[str, list[Attempt]] = {}
    for record in store.list(Attempt, parent=run_id):
        if isinstance(record.noun, Attempt):
            by_job.setdefault(record.noun.job_run_id, []).append(record.noun)
    return by_job


def run_view(control: Control, run_id: str, attempts: Attempts) -> RunView:
    """A run with its jobs; `attempts` may have been read a moment before. Raises NotFoundError."""
    ledger = control.ledger
    run = ledger.snapshot.runs.get(run_id)
    if run is not None:
        job_runs = tuple(ledger.snapshot.job_runs_of(run_id))
    else:
        run, job_runs = _finished(ledger, run_id)
    ordered = sorted(job_runs, key=lambda job: job.order)
    if any(_is_behind(job, attempts.get(job.id, ())) for job in ordered):
        attempts = attempts_of(ledger.store, run_id)
    explained = {job.id for job in islice(filter(_waits, ordered), WHYS_PER_VIEW)}
    jobs = tuple(_job_view(control, job, attempts.get(job.id, ()), job.id in explained) for job in ordered)
    return RunView(run=run, jobs=jobs, critical=critical_path(ordered, control.now()))


def _is_behind(job_run: JobRun, attempts: Sequence[Attempt]) -> bool:
    """The attempts were read before a commit that the job's state has seen."""
    return len(attempts) < job_run.attempts or any(
        attempt.state in LIVE_ATTEMPTS and job_run.state != JobState.RUNNING for attempt in attempts
    )


def _waits(job_run: JobRun) -> bool:
    return job_run.state in (JobState.BLOCKED, JobState.WAITING)


def _finished(ledger: Ledger, run_id: str) -> tuple[Run, tuple[JobRun, ...]]:
    record = ledger.store.get(Run, run_id)
    if record is None or not isinstance(record.noun, Run):
        raise NotFoundError(f"there is no run {run_id!r}", hint="`gridmill list runs` shows them.")
    jobs = (job.noun for job in ledger.store.list(JobRun, parent=run_id))
    return record.noun, tuple(job for job in jobs if isinstance(job, JobRun))


def _job_view(control: Control, job_run: JobRun, attempts: Sequence[Attempt], explained: bool) -> JobView:
    snapshot = control.ledger.snapshot
    known = explained and job_run.id in snapshot.job_runs
    final = dict(attempts[-1].metrics) if attempts and not _waits(job_run) else {}
    return JobView(
        job=job_run,
        attempts=tuple(attempts),
        artifacts=tuple(fetch_artifact(control, name) for name in job_run.artifacts),
        why=why_waiting(snapshot, job_run.id, control.now()) if known else "",
        progress=control.progress.get(job_run.id, {}),
        metrics=final or control.metrics.get(job_run.id, {}),
    )
