"""Nouns put together for readers: live ones from memory, finished ones from the store."""

from collections.abc import Iterable

from gridmill.control.inputs import fetch_artifact
from gridmill.control.ledger import Ledger
from gridmill.control.state import Control
from gridmill.errors import NotFoundError
from gridmill.model.run import Attempt, JobRun, Run
from gridmill.model.state import FINISHED_JOBS, JobState
from gridmill.model.view import JobView, RunView
from gridmill.planning.why import why_waiting


def run_view(control: Control, run_id: str) -> RunView:
    """A run with its jobs. Raises NotFoundError."""
    ledger = control.ledger
    run = ledger.snapshot.runs.get(run_id)
    if run is not None:
        job_runs = tuple(ledger.snapshot.job_runs_of(run_id))
    else:
        run, job_runs = _finished(ledger, run_id)
    by_job: dict[str, list[Attempt]] = {}
    for record in ledger.store.list(Attempt, parent=run_id):
        if isinstance(record.noun, Attempt):
            by_job.setdefault(record.noun.job_run_id, []).append(record.noun)
    views = [
        _job_view(control, job, by_job.get(job.id, ())) for job in sorted(job_runs, key=lambda j: j.order)
    ]
    return RunView(run=run, jobs=tuple(views))


def _finished(ledger: Ledger, run_id: str) -> tuple[Run, tuple[JobRun, ...]]:
    record = ledger.store.get(Run, run_id)
    if record is None or not isinstance(record.noun, Run):
        raise NotFoundError(f"there is no run {run_id!r}", hint="`gridmill list runs` shows them.")
    jobs = (job.noun for job in ledger.store.list(JobRun, parent=run_id))
    return record.noun, tuple(job for job in jobs if isinstance(job, JobRun))


def _job_view(control: Control, job_run: JobRun, attempts: Iterable[Attempt]) -> JobView:
    waits = job_run.state in (JobState.BLOCKED, JobState.WAITING)
    snapshot = control.ledger.snapshot
    known = waits and job_run.id in snapshot.job_runs
    return JobView(
        job=job_run,
        attempts=tuple(attempts),
        artifacts=tuple(fetch_artifact(control, name) for name in job_run.artifacts),
        why=why_waiting(snapshot, job_run.id, control.now()) if known else "",
        progress=control.progress.get(job_run.id, {}),
        metrics=control.metrics.get(job_run.id, {}) or _metrics(control, job_run),
    )


def _metrics(control: Control, job_run: JobRun) -> dict[str, float]:
    if job_run.state not in FINISHED_JOBS or job_run.attempt_id is None:
        return {}
    record = control.ledger.store.get(Attempt, job_run.attempt_id)
    return dict(record.noun.metrics) if record and isinstance(record.noun, Attempt) else {}
