"""Output in notebooks: shows records as HTML tables, and shows the progress of a run in the cell."""

import html
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from gridmill.domain.amounts import show_bytes, show_number, show_seconds
from gridmill.domain.states import JobState
from gridmill.domain.views import DryRun, JobView, RunView


class RunDisplay(Protocol):
    """The interface of an object that contains the current state of a run, for example a Tick."""

    @property
    def view(self) -> RunView:
        """The state of the run and its jobs."""


def register(shell: Any | None = None) -> None:  # noqa: ANN401  IPython's class
    """Register formatters for the records of Gridmill in the running IPython (or in `shell`). Without
    IPython, this function does nothing."""
    shell = shell or _shell()
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(RunView, run_html)
    formatter.for_type(DryRun, plan_html)


def progress() -> Callable[[RunDisplay], None] | None:
    """Return a display of ticks in the current cell, or None outside of notebooks."""
    shell = _shell()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display = import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda tick: handle.update(display.HTML(run_html(tick.view)))


def _shell() -> Any | None:  # noqa: ANN401  IPython's class
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def run_html(view: RunView) -> str:
    """Return a run as an HTML table of its jobs."""
    title = f"<b>{html.escape(view.run.id)}</b> {view.run.state} {html.escape(view.run.message)}"
    head = ("job", "kind", "state", "resource", "progress", "metrics", "")
    return title + _table(head, [_job_row(job) for job in view.jobs])


def _job_row(view: JobView) -> tuple[str, ...]:
    metrics = ", ".join(f"{name} {show_number(value)}" for name, value in view.metrics.items())
    done, total = view.progress.get("done"), view.progress.get("total")
    share = f"{_percent(view, done / total)} %" if isinstance(done, int | float) and total else ""
    job = view.job
    return (job.job.name, job.job.kind, job.state, job.resource, share, metrics, job.message or view.why)


def _percent(view: JobView, share: float) -> int:
    """Return the progress in whole percent, at most 99 for a running job."""
    most = 99 if view.job.state == JobState.RUNNING else 100
    return max(0, min(most, int(100 * share)))


def plan_html(plan: DryRun) -> str:
    """Return a dry run as an HTML table of its jobs."""
    head = ("wave", "job", "kind", "resource", "memory", "cpus", "workers", "expected", "why")
    rows = [
        (
            str(job.wave),
            job.job,
            job.kind,
            job.resource,
            show_bytes(job.sizing.amounts.memory_bytes),
            f"{job.sizing.amounts.cpus:g}",
            str(job.sizing.workers),
            "" if job.sizing.expected_seconds is None else show_seconds(job.sizing.expected_seconds),
            "; ".join(job.sizing.why),
        )
        for job in plan.jobs
    ]
    return f"<b>{html.escape(plan.pipeline)}</b>" + _table(head, rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
