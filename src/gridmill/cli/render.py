"""Renders records as tables for the terminal. All functions of this module depend only on a record and the
time."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gridmill.cli.format import (
    JOBS,
    NODES,
    counts,
    critical_line,
    job_row,
    left_out_line,
    moment,
    node_rows,
    visible,
    whose,
)
from gridmill.cli.tables import COLOURS, FittedTable, table
from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.states import URGENCY, RunState
from gridmill.domain.views import RunView

_LEFT_OUT = ("memory", "on", "time", "progress")
"""The columns of JOBS that are hidden on a narrow screen, the least important column first."""


def run_table(view: RunView, now: float, *, most: int | None = None) -> Group:
    """Return the current state of a run for printing. If the run has more than `most` jobs, the result shows
    the most urgent jobs and the number of the others."""
    shown = view.jobs
    if most is not None and len(shown) > most:
        keep = sorted(shown, key=lambda job: URGENCY.index(job.job.state))[:most]
        shown = tuple(job for job in view.jobs if job in keep)
    began = view.run.started or view.run.created
    title = Text.assemble(
        (view.run.id, "bold"),
        " ",
        (view.run.state, COLOURS.get(view.run.state, "")),
        f" {show_seconds(max(0.0, (view.run.ended or now) - began))}  {counts(view)}",
    )
    if whose(view.run):
        title.append(f"  {whose(view.run)}")
    if view.run.message and view.run.state not in (view.run.message, RunState.SUCCEEDED):
        title.append(f"  {visible(view.run.message)}")
    rows = [job_row(job, now) for job in shown]
    jobs = FittedTable(JOBS, rows, folded=JOBS[-1:], left_out=_LEFT_OUT, one_line=most is not None)
    left_out = left_out_line(view, len(shown))
    more = [Text(left_out, style="dim")] if left_out else []
    critical = critical_line(view, now) if most is None else ""
    nodes = node_tables(view) if most is None else []
    return Group(title, jobs, *more, *nodes, *([Text(critical)] if critical else []))


def node_tables(view: RunView) -> list[Table]:
    """For each command that runs on every node, return a table of its state on each node."""
    return [
        table(*NODES, rows=rows, title=f"{job.job.job.name} on each node")
        for job in view.jobs
        if (rows := node_rows(job))
    ]


_SHOWN = 12
"""The number of entries of a list that the terminal shows. The option `--json` prints all entries."""


def details(noun: object) -> Table:
    """Return any record as a list of its fields that are not empty."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in _lines(noun, ""):
        made.add_row(escape(visible(name)), escape(visible(value)))
    return made


def _lines(value: Any, name: str) -> Iterable[tuple[str, str]]:  # noqa: ANN401  any part of a noun
    """Yield the name `name.part` and the text of each nested value that is not empty."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _lines(getattr(value, field.name), f"{name}.{field.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _lines(part, f"{name}.{key}")
    elif isinstance(value, tuple | list) and any(is_dataclass(part) for part in value):
        for index, part in enumerate(value):
            label = getattr(part, "name", None) or getattr(part, "id", None) or str(index + 1)
            yield from _lines(part, f"{name}[{label}]")
    elif value not in (None, "", (), []) and not name.endswith("token"):
        yield name, _leaf(value, name)


def _leaf(value: Any, name: str) -> str:  # noqa: ANN401  as _lines
    last = name.rpartition(".")[2]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        more = f", ... {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
        return ", ".join(str(part) for part in value[:_SHOWN]) + more
    if isinstance(value, int | float) and last.endswith("_bytes"):
        return show_bytes(value)
    if isinstance(value, int | float) and last.endswith("_seconds"):
        return show_seconds(value)
    if isinstance(value, float) and last in ("created", "started", "ended", "ready", "placed", "idle_since"):
        return moment(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
