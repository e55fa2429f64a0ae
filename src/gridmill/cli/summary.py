"""The summary of a finished run: table, best model and report, or the jobs that failed and why."""

from collections import deque

import typer

from gridmill.cli.format import NODES, counts, elapsed, newest, node_rows, reason_lines
from gridmill.cli.session import say, show_table, tell
from gridmill.domain.amounts import show_bytes, show_number, show_seconds
from gridmill.domain.comparison import best_models
from gridmill.domain.metrics import headline
from gridmill.domain.remarks import remarks_of
from gridmill.domain.run_failures import at_fault, failed_jobs, next_step, reason, telling
from gridmill.domain.states import RunState
from gridmill.domain.views import JobView, RunView
from gridmill.errors import GridmillError
from gridmill.sdk.client import Client

HEAD = ("job", "state", "attempts", "time", "cpu", "peak memory", "of", "metrics")
_LEFT_OUT = ("of", "attempts", "cpu", "peak memory")
"""Columns that are hidden on a narrow screen, the least important first."""
_TAIL = 15
_FAILED_SHOWN = 3
_REASONS = 20


def summarise(client: Client, view: RunView) -> None:
    """Print it to standard output; the report is written where it can be."""
    show_table(HEAD, [_row(job) for job in view.jobs], folded=("metrics",), left_out=_LEFT_OUT)
    began = view.run.started or view.run.created
    took = show_seconds(max(0.0, (view.run.ended or began) - began))
    for job in view.jobs:
        if rows := node_rows(job):
            print(f"\n{job.job.job.name} on each node")
            show_table(NODES, rows, folded=NODES[-1:])
    for line in reason_lines(view, _REASONS):
        tell(line)
    tell(f"{view.run.id} {view.run.state} in {took}: {counts(view)}")
    for remark in (remark for job in view.jobs for one in job.artifacts for remark in remarks_of(one)):
        tell(remark.line)
    for best, name, of in best_models(artifact for job in view.jobs for artifact in job.artifacts):
        tell(f"best model{of}: {best.id} ({name} {show_number(best.output.metrics[name])})")
    failed = failed_jobs(view)
    for job in failed[:_FAILED_SHOWN]:
        explain(client, view, job)
    if len(failed) > _FAILED_SHOWN:
        print(f"\nand {len(failed) - _FAILED_SHOWN} more: gridmill show run {view.run.id}")
    if view.run.state != RunState.SUCCEEDED:
        tell(next_step(view))
    try:
        print(f"report: {client.report(view.run.id)}", flush=True)
    except GridmillError as error:
        say(f"there is no report: {error}")


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


def explain(client: Client, view: RunView, failed: JobView) -> None:
    """A failed job: what happened, the end of its log, what to do, and where there is more."""
    name, attempt = failed.job.job.name, at_fault(failed)
    typer.secho(f"\n{name} failed", bold=True, fg=typer.colors.RED, nl=False)
    tell(f": {reason(failed, attempt)}")
    for line in deque(telling(failed, client.logs(view.run.id, name)), maxlen=_TAIL):
        print(f"  | {line}")
    if attempt is not None and attempt.hint:
        tell(attempt.hint, "  ")
    print(f"  more: gridmill logs {view.run.id} {name}")
