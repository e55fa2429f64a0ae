"""What is said when a run has ended: the table, the best model, the report; and what failed, and why."""

from collections import deque
from collections.abc import Iterable, Iterator

import typer

from gridmill.cli.session import say, show_table
from gridmill.cli.words import NODES, counts, elapsed, headline, newest, node_rows, reason_lines
from gridmill.errors import GridmillError
from gridmill.model.amounts import show_bytes, show_number, show_seconds
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.comparison import rows_measured_on, shared_metric
from gridmill.model.metric import read_metric
from gridmill.model.remarks import remarks_of
from gridmill.model.run import Attempt
from gridmill.model.state import Cause, JobState, RunState
from gridmill.model.view import JobView, PartView, RunView
from gridmill.sdk.client import Client

_TAIL = 15
_FAILED_SHOWN = 3
_BY_EDIT = frozenset({Cause.INPUT, Cause.OUTPUT})
"""Why a job failed that only an edit of the pipeline, its code or its data can cure."""
_REASONS = 20


def summarise(client: Client, view: RunView) -> None:
    """Print it to standard output; the report is written where it can be."""
    head = ("job", "state", "attempts", "wall", "cpu", "peak memory", "of", "metrics")
    show_table(head, [_row(job) for job in view.jobs])
    began = view.run.started or view.run.created
    took = show_seconds(max(0.0, (view.run.ended or began) - began))
    for job in view.jobs:
        if rows := node_rows(job):
            print(f"\n{job.job.job.name} on each node")
            show_table(NODES, rows)
    for line in reason_lines(view, _REASONS):
        print(line)
    print(f"{view.run.id} {view.run.state} in {took}: {counts(view)}")
    for remark in (remark for job in view.jobs for one in job.artifacts for remark in remarks_of(one)):
        print(remark.line)
    for best, name, of in best_models(artifact for job in view.jobs for artifact in job.artifacts):
        print(f"best model{of}: {best.id} ({name} {show_number(best.output.metrics[name])})")
    failed = [job for job in view.jobs if job.job.state == JobState.FAILED]
    for job in failed[:_FAILED_SHOWN]:
        explain(client, view, job)
    if len(failed) > _FAILED_SHOWN:
        print(f"\nand {len(failed) - _FAILED_SHOWN} more: gridmill show run {view.run.id}")
    if view.run.state != RunState.SUCCEEDED:
        print(_next_step(view))
    try:
        print(f"report: {client.report(view.run.id)}", flush=True)
    except GridmillError as error:
        say(f"there is no report: {error}")


def _next_step(view: RunView) -> str:
    """A run that is resumed has the declarations and the code that it began with: no edit can cure it."""
    causes = {attempt.cause for job in view.jobs if (attempt := at_fault(job)) and attempt.cause is not None}
    if causes & _BY_EDIT:
        return "Fix the problem and run again; completed jobs are skipped."
    if Cause.EXIT in causes:
        return (
            "After an edit, run again; completed jobs are skipped. "
            f"Without one: gridmill resume {view.run.id}"
        )
    return f"continue it with: gridmill resume {view.run.id}"


def _row(view: JobView) -> tuple[str, ...]:
    job = view.job
    every = (*view.attempts, *(attempt for part in view.parts for attempt in part.attempts))
    uses = [attempt.use for attempt in every if attempt.use is not None]
    last = newest(view)
    return (
        job.job.name,
        job.state,
        str(len(view.attempts) or ""),
        elapsed(view, job.ended or 0.0),
        show_seconds(sum(use.cpu_seconds for use in uses)) if uses else "",
        show_bytes(max(use.peak_memory_bytes for use in uses)) if uses else "",
        show_bytes(last.given.memory_bytes) if last else "",
        headline(view.metrics),
    )


def best_models(artifacts: Iterable[Artifact]) -> Iterator[tuple[Artifact, str, str]]:
    """The best of several models measured on the same rows with the same labels; for each such set, with the
    metric and (where there are several sets) with the label and the dataset in words."""
    models = [one for one in artifacts if one.kind == ArtifactKind.MODEL and one.output.metrics]
    groups: dict[str, list[Artifact]] = {}
    for one in models:
        groups.setdefault(rows_measured_on(one), []).append(one)
    for group in groups.values():
        name = shared_metric(group)
        if len(group) > 1 and name:
            pick = max if read_metric(name)[1] else min
            of = f" of {_dataset_and_label(group[0])}" if len(groups) > 1 else ""
            yield pick(group, key=lambda one: one.output.metrics[name]), name, of


def _dataset_and_label(model: Artifact) -> str:
    told = model.output.details
    return f"{told.get('predicts') or told.get('label') or 'a label'} on {told.get('dataset') or 'a dataset'}"


def explain(client: Client, view: RunView, failed: JobView) -> None:
    """A failed job: what happened, the end of its log, what to do, and where there is more."""
    name, attempt = failed.job.job.name, at_fault(failed)
    typer.secho(f"\n{name} failed", bold=True, fg=typer.colors.RED, nl=False)
    print(f": {reason(failed, attempt)}")
    for line in deque(telling(failed, client.logs(view.run.id, name)), maxlen=_TAIL):
        print(f"  | {line}")
    if attempt is not None and attempt.hint:
        print(f"  {attempt.hint}")
    print(f"  more: gridmill logs {view.run.id} {name}")


def telling(failed: JobView, lines: Iterable[str]) -> Iterator[str]:
    """Of a command on each node the lines of the nodes where it failed, else all."""
    if failed.job.job.each is None:
        yield from lines
        return
    marks = tuple(f"[{part.node}] " for part in _failed_parts(failed))
    yield from (line for line in lines if line.startswith(marks))


def _failed_parts(view: JobView) -> list[PartView]:
    return [part for part in view.parts if part.job.state == JobState.FAILED]


def at_fault(view: JobView) -> Attempt | None:
    """The attempt that says why a job failed: of a part, where it is done in parts and one failed."""
    tried = [part.attempts[-1] for part in _failed_parts(view) if part.attempts]
    return tried[0] if tried else newest(view)


def reason(failed: JobView, attempt: Attempt | None) -> str:
    """Why, in the words that say most."""
    if attempt is not None and attempt.message and not _failed_parts(failed):
        return attempt.message
    if failed.job.message:
        return failed.job.message
    if attempt is not None and attempt.cause is not None:
        return f"{attempt.cause} (exit code {attempt.exit_code})"
    return "no reason was given"
