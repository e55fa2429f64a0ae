"""Nouns as cells, tables and lines: pure functions of a noun and the time."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gridmill.model.amounts import Amounts, show_bytes, show_count, show_number, show_seconds
from gridmill.model.run import Attempt
from gridmill.model.state import DONE_JOBS, FINISHED_JOBS, JobState, RunState
from gridmill.model.view import JobView, RunView
from gridmill.planning.critical import critical_path

COLOURS: Mapping[str, str] = {
    "running": "cyan",
    "active": "cyan",
    "succeeded": "green",
    "unchanged": "green",
    "up": "green",
    "failed": "red",
    "lost": "red",
    "stopped": "yellow",
    "stopping": "yellow",
    "skipped": "yellow",
}
_BAR = 12
_URGENCY = (
    JobState.RUNNING,
    JobState.FAILED,
    JobState.WAITING,
    JobState.BLOCKED,
    JobState.STOPPED,
    JobState.SKIPPED,
    JobState.SUCCEEDED,
    JobState.UNCHANGED,
)


def table(*columns: str, rows: Iterable[Sequence[object]] = (), title: str | None = None) -> Table:
    """A plain table; cells are text, states are coloured."""
    made = Table(*columns, box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> Text:
    text = "" if value is None else str(value)
    return Text(text, style=COLOURS.get(text, ""))


def amounts(given: Amounts) -> str:
    """`2 CPUs, 1.5 GiB, 1 GPU`."""
    parts = [f"{given.cpus:g} CPU{'' if given.cpus == 1 else 's'}", show_bytes(given.memory_bytes)]
    if given.gpus:
        parts.append(show_count(given.gpus, "GPU"))
    return ", ".join(parts)


def moment(at: float | None) -> str:
    """Local date and time."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def metrics(values: Mapping[str, float]) -> str:
    """`rmse 1.73, r2 0.91`."""
    return ", ".join(f"{name} {show_number(value)}" for name, value in values.items())


_TELLING = ("auc", "accuracy", "rmse", "skill", "log_loss", "r2")
"""Of a model's metrics those that say most, best first; `show job` and the report have all of them."""
_FEW = 2


def headline(values: Mapping[str, float]) -> str:
    """The few metrics that say most: how much there is, and how good it is on the best split there is."""
    split = next((name for name in ("test", "validation", "train") if any(_of(name, values))), None)
    if split is None:
        return metrics(dict(list(values.items())[: 2 * _FEW]))
    amounts = [name for name in values if name in ("rows", "rows_added")][:1]
    good = [name for end in _TELLING if (name := f"{split}_{end}") in values] or list(_of(split, values))
    return metrics({name: values[name] for name in [*amounts, *good[:_FEW]]})


def _of(split: str, values: Mapping[str, float]) -> Iterator[str]:
    return (name for name in values if name.startswith(f"{split}_"))


def progress(view: JobView) -> str:
    """A bar with percent, or how much was done, and the job's own note."""
    if view.job.state != JobState.RUNNING:
        return ""
    done, total = view.progress.get("done"), view.progress.get("total")
    note = str(view.progress.get("note") or "")
    if not isinstance(done, int | float):
        return note
    if not isinstance(total, int | float) or total <= 0:
        return f"{done:g} {view.progress.get('unit') or ''} {note}".strip()
    share = min(1.0, max(0.0, done / total))
    full = round(share * _BAR)
    return f"{'━' * full}{'╌' * (_BAR - full)} {share:4.0%} {note}".rstrip()


def elapsed(view: JobView, now: float) -> str:
    """How long the job has run or ran."""
    started = view.job.started
    if started is None or view.job.state in (JobState.WAITING, JobState.BLOCKED):
        return ""
    return show_seconds(max(0.0, (view.job.ended or now) - started))


def memory(view: JobView) -> str:
    """`peak of size`; while it runs, the size."""
    attempt = newest(view)
    if attempt is None:
        return ""
    size = show_bytes(attempt.given.memory_bytes)
    if attempt.use is None:
        return f"≤ {size}"
    return f"{show_bytes(attempt.use.peak_memory_bytes)} of {size}"


def newest(view: JobView) -> Attempt | None:
    """The newest attempt."""
    return view.attempts[-1] if view.attempts else None


def place(view: JobView) -> str:
    """The deployment it runs or ran on; before that its resource."""
    attempt = newest(view)
    return attempt.deployment_id if attempt is not None else view.job.resource


def remark(view: JobView) -> str:
    """What it waits for and why, or how it ended."""
    message = "" if view.job.message == view.job.state else view.job.message
    if view.job.state in (JobState.WAITING, JobState.BLOCKED):
        return view.why or message
    return message


def latest_metric(view: JobView) -> str:
    """The newest metrics, two at most."""
    return metrics(dict(list(view.metrics.items())[-2:]))


def counts(view: RunView) -> str:
    """`12 of 20 jobs done, 3 running, 5 waiting`."""
    states = Counter(job.job.state for job in view.jobs)
    done = sum(states[state] for state in DONE_JOBS)
    rest = [f"{states[state]} {state}" for state in _URGENCY if states[state] and state not in DONE_JOBS]
    return ", ".join([f"{done} of {len(view.jobs)} jobs done", *rest])


def run_table(view: RunView, now: float, *, most: int | None = None) -> Group:
    """A run as it stands. With more than `most` jobs the least urgent ones are left out, and counted."""
    shown = view.jobs
    if most is not None and len(shown) > most:
        keep = sorted(shown, key=lambda job: _URGENCY.index(job.job.state))[:most]
        shown = tuple(job for job in view.jobs if job in keep)
    began = view.run.started or view.run.created
    title = Text.assemble(
        (view.run.id, "bold"),
        " ",
        (view.run.state, COLOURS.get(view.run.state, "")),
        f" {show_seconds(max(0.0, (view.run.ended or now) - began))}  {counts(view)}",
    )
    if view.run.message and view.run.state not in (view.run.message, RunState.SUCCEEDED):
        title.append(f"  {view.run.message}")
    jobs = table("job", "state", "on", "progress", "time", "memory", "newest", "")
    if most is not None:  # a row is one line, whatever it has to say
        jobs.columns[-1].no_wrap, jobs.columns[-1].overflow = True, "ellipsis"
    for job in shown:
        cells = (job.job.job.name, job.job.state, place(job), progress(job), elapsed(job, now), memory(job))
        jobs.add_row(*(_cell(cell) for cell in (*cells, latest_metric(job), remark(job))))
    left_out = len(view.jobs) - len(shown)
    more = [Text(f"... and {left_out} more jobs", style="dim")] if left_out else []
    critical = critical_line(view, now) if most is None else ""
    return Group(title, jobs, *more, *([Text(critical)] if critical else []))


def critical_line(view: RunView, now: float) -> str:
    """`critical path: load 3 s, train 40 s; may take longer: plot by 12 s`; empty without branches."""
    found = critical_path([job.job for job in view.jobs], now)
    if not found.branches:
        return ""
    names = {job.job.id: job.job.job.name for job in view.jobs}
    spare = [f"{names[key]} by {show_seconds(slack)}" for key, slack in found.slack.items() if slack > 0]
    steps = [f"{names[key]} {show_seconds(found.seconds[key])}" for key in found.path if found.seconds[key]]
    unsure = "" if found.known else " (as far as times are known)"
    return f"critical path: {', '.join(steps)}{unsure}; may take longer: {', '.join(spare[:5])}"


def job_line(view: JobView, state: str, message: str) -> str:
    """One line for a change of a job's state, for logs and pipes."""
    detail = message = "" if message == state else message
    attempt = newest(view)
    if state == JobState.RUNNING and attempt is not None and not message:
        detail = f"on {attempt.deployment_id} ({amounts(attempt.given)})"
    elif state in (JobState.WAITING, JobState.BLOCKED) and not message:
        detail = view.why
    elif state in FINISHED_JOBS and view.metrics and not message:
        detail = headline(view.metrics)
    return f"{view.job.job.name}: {state}" + (f" {detail}" if detail else "")


_SHOWN = 12
"""Entries of a list shown to people; --json has them all."""


def details(noun: object) -> Table:
    """Any noun as a list of its fields that say something."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in _lines(noun, ""):
        made.add_row(escape(name), escape(value))
    return made


def _lines(value: Any, name: str) -> Iterable[tuple[str, str]]:  # noqa: ANN401  any part of a noun
    """`name.part` and text for each leaf that is not empty."""
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
