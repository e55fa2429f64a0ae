"""The error of a run that did not succeed: the job that failed, its exit code, its last lines, what to do."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gridmill.errors import InterruptedRunError, JobError, MemoryExceededError, TimeLimitError
from gridmill.model.failures import at_fault, failed_jobs, next_step, reason, telling
from gridmill.model.run import Run
from gridmill.model.state import Cause, RunState
from gridmill.model.view import JobView, RunView

LINES = 15
"""How many of the last lines of its log are in the error."""
_ERRORS: Mapping[Cause, type[JobError]] = {Cause.MEMORY: MemoryExceededError, Cause.TIMEOUT: TimeLimitError}


def run_error(view: RunView, logs: Callable[[str], Iterable[str]]) -> JobError:
    """The error of a run that ended without success; `logs` gives the lines of a job."""
    failed = failed_jobs(view)
    if not failed:
        return _of_run(view)
    job, others = failed[0], [one.job.job.name for one in failed[1:]]
    name, attempt = job.job.job.name, at_fault(job)
    lines = tuple(deque(telling(job, logs(name)), maxlen=LINES))
    also = f" (and {', '.join(others)})" if others else ""
    kind = _ERRORS.get(attempt.cause, JobError) if attempt is not None and attempt.cause else JobError
    code = attempt.exit_code if attempt is not None else None
    return kind(
        "\n".join((f"run {view.run.id} failed: job {name}{also}: {_why(job, code)}", *_indented(lines))),
        hint=" ".join(
            filter(None, [attempt.hint if attempt else "", _more(view.run, name), next_step(view)])
        ),
        run=view.run.id,
        job=name,
        exit_code=code,
        log=lines,
    )


def _why(job: JobView, exit_code: int | None) -> str:
    said = reason(job, at_fault(job))
    known = exit_code is None or f"exit code {exit_code}" in said
    return said if known else f"{said} (exit code {exit_code})"


def _indented(lines: Iterable[str]) -> Iterable[str]:
    return (f"  | {line}" for line in lines)


def _more(run: Run, job: str) -> str:
    return f"`gridmill logs {run.id} {job}` shows its log."


def _of_run(view: RunView) -> JobError:
    """No job has failed: it was stopped, or could not begin."""
    run = view.run
    said = f"run {run.id} {run.state}" + (f": {run.message}" if run.message else "")
    if run.state == RunState.STOPPED:
        return InterruptedRunError(said, hint=next_step(view), run=run.id)
    return JobError(said, hint=f"`gridmill show run {run.id}` shows its jobs.", run=run.id)
