"""This module finds the reasons why jobs of a run failed and the next steps; its functions are pure
functions of a view, for the terminal and the report."""

from gridmill.domain.run import Attempt
from gridmill.domain.states import Cause, JobState, RunState
from gridmill.domain.views import JobView, PartView, RunView


def failed_jobs(view: RunView) -> list[JobView]:
    """Return the failed jobs, in the order of the run."""
    return [job for job in view.jobs if job.job.state == JobState.FAILED]


def failed_parts(view: JobView) -> list[PartView]:
    """Return the failed parts of a job that runs in parts."""
    return [part for part in view.parts if part.job.state == JobState.FAILED]


def at_fault(view: JobView) -> Attempt | None:
    """Return the attempt that shows why a job failed: its last attempt, or the attempt of its first failed
    part."""
    tried = [part.attempts[-1] for part in failed_parts(view) if part.attempts]
    return tried[0] if tried else view.attempts[-1] if view.attempts else None


def reason(failed: JobView, attempt: Attempt | None) -> str:
    """Return the most precise known reason why the job failed."""
    if attempt is not None and attempt.message and not failed_parts(failed):
        return attempt.message
    if failed.job.message:
        return failed.job.message
    if attempt is not None and attempt.cause is not None:
        return f"{attempt.cause} (exit code {attempt.exit_code})"
    return "no reason was given"


BY_EDIT = frozenset({Cause.INPUT, Cause.OUTPUT})
"""The causes of failures that can be fixed only by an edit of the pipeline, its code or its data."""


def next_step(view: RunView) -> str:
    """Return the next step of the user after a run that did not succeed; empty for a run that succeeded or
    is still running.

    A run that is resumed uses the declarations and the code with which it began, so that an edit of the
    pipeline does not change it.
    """
    if view.run.state not in (RunState.FAILED, RunState.STOPPED):
        return ""
    causes = {attempt.cause for job in view.jobs if (attempt := at_fault(job)) and attempt.cause is not None}
    if causes & BY_EDIT:
        return "Fix the problem and run the pipeline again; completed jobs are not repeated."
    if Cause.EXIT in causes or any(at_fault(job) is None for job in failed_jobs(view)):
        return (
            "If you edit the pipeline or its code, run it again; completed jobs are not repeated. "
            f"Otherwise: gridmill resume {view.run.id}"
        )
    return f"Continue with: gridmill resume {view.run.id}"
