"""Formats records as table cells and lines of text. All functions of this module depend only on a record and
the time."""

import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import floor
from typing import TextIO

from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_number, show_seconds
from gridmill.domain.environment_build import is_building, state_of
from gridmill.domain.graph import critical_path
from gridmill.domain.metrics import headline, metrics
from gridmill.domain.project import DEFAULT, ProjectView
from gridmill.domain.provenance import SAME
from gridmill.domain.rental_estimate import show_money
from gridmill.domain.run import Attempt, Run
from gridmill.domain.site import Site
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, URGENCY, JobState
from gridmill.domain.views import JobView, PartView, RunView

_BAR = 12


def amounts(given: Amounts, most_cpus: float | None = None) -> str:
    """Return amounts as text, such as `2 CPUs, 1.5 GiB, 1 GPU`. The text begins with `1-2 CPUs` if a job
    that is alone in its pod gets more CPUs."""
    cpus, most = f"{given.cpus:g}", max(given.cpus, most_cpus or 0.0)
    if most > given.cpus:
        cpus = f"{cpus}-{most:g}"
    parts = [f"{cpus} CPU{'' if most == 1 else 's'}", show_bytes(given.memory_bytes)]
    if given.gpus:
        parts.append(show_count(given.gpus, "GPU"))
    return ", ".join(parts)


def in_use(view: ProjectView) -> tuple[str, str, str]:
    """Return the CPUs, memory and GPUs that a project uses now. If the project has a quota, the texts have
    the form `2 of 16`."""
    project = view.project
    memory = "" if project.memory_bytes is None else f" of {show_bytes(project.memory_bytes)}"
    cpus = "" if project.cpus is None else f" of {project.cpus:g}"
    gpus = "" if project.gpus is None else f" of {project.gpus}"
    return f"{view.cpus:g}{cpus}", f"{show_bytes(view.memory_bytes)}{memory}", f"{view.gpus}{gpus}"


def budget_use(view: ProjectView) -> str:
    """Return the cost of a project's rented machines in the present month and its budget, such as `1.50 USD
    of 200.00 USD`. The text is empty if the project has no budget."""
    project = view.project
    if project.budget_micros is None:
        return ""
    used, budget = (show_money(one, project.currency) for one in (view.month_micros, project.budget_micros))
    return f"{used} of {budget}"


def scalar(value: object) -> str:
    """Return the text of a value in a table. The text is empty for None."""
    return "" if value is None else show_number(value) if isinstance(value, float) else str(value)


def whose(run: Run) -> str:
    """Return the project of a run as text, such as `project vision`. The text is empty for the default
    project."""
    return "" if run.project == DEFAULT else f"project {run.project}"


def moment(at: float | None) -> str:
    """Return a time as local date and time."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


MOST_SHOWN = 0.99
"""The highest progress that is shown for a running job, because a job that has not ended must not show 100
%."""


def progress(view: JobView) -> str:
    """Return the progress of a job: a bar with percent, or the amount of work done with its unit, and a note
    that the job reports."""
    if view.job.state != JobState.RUNNING:
        return ""
    done, total = view.progress.get("done"), view.progress.get("total")
    note = str(view.progress.get("note") or "")
    if is_building(view):
        return note
    if not isinstance(done, int | float):
        return note
    if not isinstance(total, int | float) or total <= 0:
        return f"{done:g} {view.progress.get('unit') or ''} {note}".strip()
    share = min(MOST_SHOWN, max(0.0, floor(100 * done / total) / 100))
    full = round(share * _BAR)
    return f"{'━' * full}{'╌' * (_BAR - full)} {share:4.0%} {note}".rstrip()


def elapsed(view: JobView, now: float) -> str:
    """Return the time for which the job has run."""
    started = view.job.started
    if started is None or view.job.state in (JobState.WAITING, JobState.BLOCKED):
        return ""
    return show_seconds(max(0.0, (view.job.ended or now) - started))


def memory(view: JobView) -> str:
    """Return the peak memory usage and the memory limit of a job as text, such as `1 GiB of 2 GiB`. While
    the job runs, return only the memory limit."""
    attempt = newest(view)
    if attempt is None:
        return ""
    size = show_bytes(attempt.given.memory_bytes)
    if attempt.use is None:
        return f"≤ {size}"
    return f"{show_bytes(attempt.use.peak_memory_bytes)} of {size}"


def newest(view: JobView) -> Attempt | None:
    """Return the newest attempt of the job, or None if there is no attempt."""
    return view.attempts[-1] if view.attempts else None


def place(view: JobView) -> str:
    """Return the deployment of the newest attempt. Before the first attempt, return the resource of the
    job."""
    attempt = newest(view)
    return attempt.deployment_id if attempt is not None else view.job.resource


def remark(view: JobView) -> str:
    """Return the reason why the job waits, or the message with which the job ended."""
    message = "" if view.job.message == view.job.state else view.job.message
    return message if view.job.state in FINISHED_JOBS else view.why or message


NODES = ("node", "state", "exit code", "time", "said last")
"""The columns of the table that `node_rows` returns."""


def node_rows(view: JobView) -> list[tuple[str, ...]]:
    """Return the state of a command on each node, with a row for each node. Jobs of other kinds have no
    rows."""
    return [] if view.job.job.each is None else [_node_row(part) for part in view.parts]


def _node_row(part: PartView) -> tuple[str, ...]:
    over = part.job.state in FINISHED_JOBS
    code = "" if part.exit_code is None or not over else str(part.exit_code)
    took = "" if part.seconds is None or not over else show_seconds(part.seconds)
    return part.node, part.job.state.value, code, took, part.job.message if over else part.why


def latest_metric(view: JobView) -> str:
    """Return the newest metrics of a running job (at most two), or the most important metrics of a job that
    has ended."""
    if view.job.state in FINISHED_JOBS:
        return headline(view.metrics)
    return metrics(dict(list(view.metrics.items())[-2:]))


JOBS = ("job", "state", "on", "progress", "time", "memory", "")
"""The columns of the table whose rows `job_row` returns."""


def job_row(view: JobView, now: float) -> tuple[str, ...]:
    """Return the table cells of a job: state, deployment, progress, elapsed time, memory, and in the last
    cell the reason and the newest metrics."""
    remarks = "; ".join(filter(None, (remark(view), latest_metric(view))))
    cells = (view.job.job.name, state_of(view), place(view), progress(view))
    return (*cells, elapsed(view, now), memory(view), remarks)


def counts(view: RunView) -> str:
    """Return the number of jobs in each state as text, such as `12 of 20 jobs done, 3 running, 5
    waiting`."""
    states = Counter(view.states)
    done = sum(states[state] for state in DONE_JOBS)
    rest = [f"{states[state]} {state}" for state in URGENCY if states[state] and state not in DONE_JOBS]
    return ", ".join([f"{done} of {sum(states.values())} jobs done", *rest])


def left_out_line(view: RunView, shown: int) -> str:
    """Return the line `... and 4,900 more jobs`, with the command that lists these jobs. The line is empty
    if all jobs are shown."""
    more = sum(view.states.values()) - shown
    listed = f" (`gridmill list jobs {view.run.id}`)" if view.left_out else ""
    return f"... and {more:,} more jobs{listed}" if more else ""


def critical_line(view: RunView, now: float) -> str:
    """Return a line such as `critical path: load 3 s, train 40 s; slack: plot 12 s`. The line is empty if
    the graph has no branches."""
    critical = critical_path([job.job for job in view.jobs], now)
    if view.left_out or not critical.branches:
        return ""
    names = {job.job.id: job.job.job.name for job in view.jobs}
    spare = [f"{names[key]} {show_seconds(slack)}" for key, slack in critical.slack.items() if slack > 0]
    steps = [
        f"{names[key]} {show_seconds(critical.seconds[key])}"
        for key in critical.path
        if critical.seconds[key]
    ]
    unsure = "" if critical.known else " (some times are unknown)"
    return f"critical path: {', '.join(steps)}{unsure}; slack: {', '.join(spare[:5])}"


def job_line(view: JobView, state: str, message: str) -> str:
    """Return a line for a change of the state of a job, for logs and pipes."""
    detail = message = "" if message == state else message
    attempt = newest(view)
    if state == JobState.RUNNING and attempt is not None and not message:
        detail = f"on {attempt.deployment_id} ({amounts(attempt.given)})"
        if view.job.reason and attempt is view.attempts[0]:
            detail += f": {short_reason(view.job.reason)}"
    elif state == JobState.UNCHANGED and view.job.reason and not attempt:
        detail = f"{short_reason(view.job.reason)} ({message})"
    elif state in (JobState.WAITING, JobState.BLOCKED) and not message:
        detail = view.why
    elif state in FINISHED_JOBS and view.metrics and not message:
        detail = headline(view.metrics)
    return f"{view.job.job.name}: {state}" + (f" {detail}" if detail else "")


_REASON = 100
"""The largest number of characters of a reason that are shown in a line. The command `show job` shows the
complete reason."""


def short_reason(reason: str) -> str:
    """Return the reason, which is cut if it is too long for a line."""
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"


def reason_lines(view: RunView, most: int) -> Iterator[str]:
    """Yield lines with the reasons why the jobs of a run were executed or restored. Jobs with the same
    reason are in the same line. If there are more than `most` lines, a last line with the number of the
    remaining jobs replaces the other lines."""
    shared: dict[tuple[str, str], list[str]] = {}
    for job in (one.job for one in view.jobs if one.job.reason):
        unchanged = job.state == JobState.UNCHANGED
        if unchanged and job.reason.startswith(SAME):
            shared.setdefault((f"restored, {SAME} ", ""), []).append(job.reason.removeprefix(SAME).strip())
        else:
            verb, why = "restored" if unchanged else "executed", short_reason(job.reason)
            shared.setdefault(("", f" {verb}: {why}"), []).append(job.job.name)
    for number, ((before, after), names) in enumerate(shared.items()):
        if number == most:
            left = sum(map(len, list(shared.values())[most:]))
            yield f"and {left} more jobs: `gridmill show job {view.run.id}/JOB` shows why"
            return
        more = f" and {len(names) - most} more" if len(names) > most else ""
        yield f"{before}{', '.join(names[:most])}{more}{after}"


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as lines of text, with two spaces between the columns."""
    lines = [head, *rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    padded = (
        (cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _width(text: str) -> int:
    """Return the width of the text in columns of a terminal. A wide character, such as a Chinese character,
    takes two columns."""
    return len(text) + sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, which are C0 and C1 controls except tab and newline, and characters
that change the direction of text."""


def visible(text: str, form: str = "\\x{:02x}") -> str:
    """Return the text with control characters as escapes, so that the output of jobs cannot control the
    terminal. A carriage return at the end of a line is removed."""
    if text.isprintable():
        return text
    return _OBEYED.sub(lambda found: form.format(ord(found[0])), text.replace("\r\n", "\n"))


def for_terminal(text: str, stream: TextIO) -> str:
    """Return the text that is written to the stream: the result of `visible` if the stream is a terminal,
    otherwise the text itself."""
    return visible(text) if stream.isatty() else text


def node_count(site: Site) -> str:
    """Return a text with the number of nodes, or for a cloud site, of machines that can be rented."""
    if site.most_machines is None:
        return show_count(len(site.nodes), "node")
    types = show_count(len(site.kinds_of_nodes), "type")
    return f"up to {show_count(site.most_machines, 'machine')} of {types}"
