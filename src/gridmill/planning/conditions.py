"""Whether a job can run, by how the jobs before it have ended."""

from collections.abc import Callable, Sequence

from gridmill.model.run import JobRun
from gridmill.model.state import DONE_JOBS, FINISHED_JOBS, JobState
from gridmill.model.when import When

Find = Callable[[str], JobRun | None]
"""A job of the run, by its id."""


def failed_before(job_run: JobRun, find: Find) -> tuple[str, ...]:
    """The names of the jobs that failed, of all that it needs and that these need, as they were declared."""
    found: dict[str, JobRun] = {}
    open_ids = list(job_run.needs)
    while open_ids:
        key = open_ids.pop()
        need = find(key)
        if need is not None and key not in found:
            found[key] = need
            open_ids.extend(need.needs)
    failed = (need for need in found.values() if need.state is JobState.FAILED)
    return tuple(need.job.name for need in sorted(failed, key=lambda need: need.order))


def why_skipped(job_run: JobRun, needs: Sequence[JobRun], find: Find) -> str | None:
    """Empty: it can run. None: it has to wait for a need. Else why it never will."""
    when = job_run.job.when
    if when is When.SUCCESS:
        bad = [need for need in needs if need.state in FINISHED_JOBS - DONE_JOBS]
        if bad:
            return f"needs {', '.join(f'`{need.job.name}` {need.state}' for need in bad)}"
        return "" if all(need.state in DONE_JOBS for need in needs) else None
    if any(need.state not in FINISHED_JOBS for need in needs):
        return None
    if when is When.FAILURE and not failed_before(job_run, find):
        return "nothing that it needs has failed"
    return ""
