"""This module decides whether a job can run, from the final states of the jobs that it needs."""

from collections.abc import Callable, Sequence

from gridmill.domain.job import When
from gridmill.domain.run import JobRun
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, JobState
from gridmill.scheduler.snapshot import Snapshot

Find = Callable[[str], JobRun | None]
"""A function that returns a job of the run by its id."""


def failed_before(job_run: JobRun, find: Find) -> tuple[str, ...]:
    """Return the names of the failed jobs among all jobs that this job needs directly or indirectly, in the
    order of their declaration."""
    failed = (need for need in _all_before(job_run, find) if need.state is JobState.FAILED)
    return tuple(need.job.name for need in sorted(failed, key=lambda need: need.order))


def _all_before(job_run: JobRun, find: Find) -> Sequence[JobRun]:
    """Return the jobs that this job needs, directly or indirectly."""
    job_runs: dict[str, JobRun] = {}
    open_ids = list(job_run.needs)
    while open_ids:
        key = open_ids.pop()
        need = find(key)
        if need is not None and key not in job_runs:
            job_runs[key] = need
            open_ids.extend(need.needs)
    return tuple(job_runs.values())


def may_go_on(snapshot: Snapshot, job_run_id: str) -> list[str]:
    """Return the jobs to check after this job has ended: the jobs that need it, and the jobs that need a job
    which was skipped before this job ended."""
    result: list[str] = []
    open_ids, seen = [job_run_id], {job_run_id}
    while open_ids:
        for user in snapshot.dependents_of(open_ids.pop()):
            if user.id not in seen:
                seen.add(user.id)
                (open_ids if user.state in FINISHED_JOBS else result).append(user.id)
    return result


def why_skipped(job_run: JobRun, needs: Sequence[JobRun], find: Find) -> str | None:
    """Return the reason why the job will never run. The result is empty if the job can run now. The result
    is None if the job still waits for a job that it needs."""
    when = job_run.job.when
    if when is When.SUCCESS:
        bad = [need for need in needs if need.state in FINISHED_JOBS - DONE_JOBS]
        if bad:
            return f"needs {', '.join(f'`{need.job.name}` {need.state}' for need in bad)}"
        return "" if all(need.state in DONE_JOBS for need in needs) else None
    if any(need.state not in FINISHED_JOBS for need in _all_before(job_run, find)):
        return None
    if when is When.FAILURE and not failed_before(job_run, find):
        return "none of the jobs that this job needs has failed"
    return ""
