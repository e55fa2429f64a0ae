"""The beginning of a report: what failed, why and what to do, or what the run made."""

from collections.abc import Iterator, Sequence

from gridmill.domain.amounts import show_count, show_number, show_seconds
from gridmill.domain.artifact import ArtifactKind
from gridmill.domain.comparison import best_models
from gridmill.domain.environment_build import is_building
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import Event
from gridmill.domain.run import Attempt
from gridmill.domain.run_failures import at_fault, failed_jobs, failed_parts, next_step, reason
from gridmill.domain.states import FINISHED_RUNS, JobState, RunState
from gridmill.domain.views import JobView, RunView
from gridmill.report.jobs import LONGEST_MESSAGE, anchor, headline_of, log_end, shortened
from gridmill.report.models import name_of, versions_of

SHOWN_FAILURES, NAMED_JOBS = 5, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed job: why, the end of its log, what to do, and the command that shows more. `last` is the last
    line of the log where an exit code is all that is known."""

    name: str
    anchor: str
    reason: str
    hint: str
    log: str
    last: str
    where: str
    more: str


def failures(view: RunView, events: Sequence[Event]) -> list[Failure]:
    """The first failed jobs of a run."""
    return [_failure(view, job, events) for job in failed_jobs(view)[:SHOWN_FAILURES]]


def _failure(view: RunView, job: JobView, events: Sequence[Event]) -> Failure:
    attempt, name = at_fault(job), job.job.job.name
    why, log = reason(job, attempt), log_end(events, attempt) if attempt else ""
    lines = [line for line in log.splitlines() if line.strip()]
    return Failure(
        name=name,
        anchor=anchor(name),
        reason=shortened(why, LONGEST_MESSAGE),
        hint=shortened(attempt.hint, LONGEST_MESSAGE) if attempt else "",
        log=log,
        last=lines[-1] if lines and why.startswith("exit code") else "",
        where=_where(job, attempt),
        more=f"gridmill logs {view.run.id} {name}",
    )


def _where(job: JobView, attempt: Attempt | None) -> str:
    """Which try it was, and where."""
    if attempt is None:
        return ""
    tries = f"attempt {len(job.attempts)} of {len(job.attempts)}, " if len(job.attempts) > 1 else ""
    took = "" if attempt.ended is None else f" after {show_seconds(max(0.0, attempt.ended - attempt.placed))}"
    parts = f"{show_count(len(failed_parts(job)), 'part')} of {len(job.parts)} failed, " if job.parts else ""
    return f"{parts}{tries}on {attempt.pod_id}{took}"


def consequences(view: RunView) -> str:
    """Which jobs did not run as others failed or were stopped."""
    told = []
    for state in (JobState.SKIPPED, JobState.STOPPED):
        names = [job.job.job.name for job in view.jobs if job.job.state == state]
        if names:
            more = f" and {len(names) - NAMED_JOBS} more" if len(names) > NAMED_JOBS else ""
            told.append(f"{show_count(len(names), 'job')} {state}: {', '.join(names[:NAMED_JOBS])}{more}")
    return "; ".join(told)


def results(view: RunView) -> list[str]:
    """Sentences about what a run made, or what it does now."""
    return list(_results(view))


def _results(view: RunView) -> Iterator[str]:
    if view.run.state not in FINISHED_RUNS:
        yield from _now(view)
        return
    unchanged = [job for job in view.jobs if job.job.state == JobState.UNCHANGED]
    if view.jobs and len(unchanged) == len(view.jobs):
        makers = dict.fromkeys(one.run_id for job in unchanged for one in job.artifacts if one.run_id)
        of = f" Their results are those of {', '.join(list(makers)[:5])}." if makers else ""
        yield f"Nothing ran: {show_count(len(unchanged), 'job')} unchanged.{of}"
    yield from _models(view)
    for one in versions_of(view, ArtifactKind.PREDICTION)[:5]:
        model = one.output.details.get("model")
        by = f" by {model}" if model else ""
        good = f": {told}" if (told := headline_of(one)) else ""
        yield f"{name_of(one)} predicted {one.output.rows or 0:,} rows{by}{good}"
    if view.run.state == RunState.STOPPED and not failed_jobs(view):
        yield f"The run was stopped. {next_step(view)}"


def _models(view: RunView) -> Iterator[str]:
    models = versions_of(view, ArtifactKind.MODEL)
    best = list(best_models(models))
    for model, name, of in best:
        yield f"Best model{of}: {model.id} ({name} {show_number(model.output.metrics[name])})"
    if not best:
        for one in models[:3]:
            yield f"Model {one.id}: {headline_of(one) or 'not measured'}"


def _now(view: RunView) -> Iterator[str]:
    running = [job for job in view.jobs if job.job.state == JobState.RUNNING]
    yield f"The run goes on: {show_count(len(running), 'job')} running."
    for job in running[:NAMED_JOBS]:
        note = str(job.progress.get("note") or "")
        if is_building(job) or note:
            yield f"{job.job.job.name}: {note}"
