"""The jobs of a run in a report: each job has a table row, a box in the graph and a row in the timeline, and
its declaration is shown.

The declaration of a job is shown as its settings that differ from the defaults, with durations and sizes in
the form of pipeline files. All parts of the report show the same time for a job: the time from the start of
its first attempt to its end, as in the terminal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from html import escape

from gridmill.domain.amounts import show_bytes, show_period, show_seconds
from gridmill.domain.artifact import Artifact
from gridmill.domain.environment_build import build_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import REMARKS as WHEN
from gridmill.domain.job import Job
from gridmill.domain.job_log import LogLine, last_lines
from gridmill.domain.metrics import headline
from gridmill.domain.pod_protocol import Event
from gridmill.domain.remarks import RowFlow, row_flow
from gridmill.domain.run import Attempt
from gridmill.domain.run_failures import at_fault, reason
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView, PartView, RunView
from gridmill.report.svg import DagBox, TimelineBar, TimelineRow, dag, timeline
from gridmill.report.transfers import in_fact

MOST_LINES = 60
_UNITS = {"_seconds": lambda value: show_period(float(value)), "_bytes": show_bytes}
_SECRET = ("env",)
"""The fields of a declaration whose values may be secret. The report shows only the names of these
fields."""


def declared(job: Job) -> str:
    """Return the settings of a job in the form of a pipeline file, without settings that have their
    default."""
    lines = list(_fields(job, 0, skip=("name",)))
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"... and {more} more lines"] if more > 0 else [])])


def _fields(noun: object, depth: int, skip: tuple[str, ...] = ()) -> Iterator[str]:
    for one in fields(noun):  # type: ignore[arg-type]
        value = getattr(noun, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if one.name not in skip and value is not None and value != default:
            yield from _entry(one.name, value, depth)


def _entry(name: str, value: object, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for end, show in _UNITS.items():
        if name.endswith(end) and isinstance(value, int | float):
            name, value = name.removesuffix(end), show(value)
    if name in _SECRET and isinstance(value, Mapping):
        yield f"{indent}{name}: {', '.join(map(str, value))} (values are not shown)"
    elif is_dataclass(value):
        yield f"{indent}{name}:"
        yield from _fields(value, depth + 1)
    elif isinstance(value, Mapping):
        yield f"{indent}{name}:"
        for key, part in value.items():
            yield from _entry(str(key), part, depth + 1)
    elif isinstance(value, tuple | list) and any(is_dataclass(part) for part in value):
        yield f"{indent}{name}:"
        for part in value:
            lines = list(_fields(part, depth + 2))
            yield from (f"{indent}  - {line.strip()}" if at == 0 else line for at, line in enumerate(lines))
    else:
        yield from _leaf(name, value, indent)


def _leaf(name: str, value: object, indent: str) -> Iterator[str]:
    text = _text(value)
    if "\n" not in text:
        yield f"{indent}{name}: {text}"
        return
    yield f"{indent}{name}: |"
    yield from (f"{indent}  {line}" for line in text.splitlines())


def _text(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


LOG_LINES = 20
"""The number of last lines of the log of a failed job that the report shows."""
LONGEST_LINE, LONGEST_MESSAGE = 600, 2000
ROWS_OF_TIMELINE, DETAILED_JOBS, SHOWN_PARTS = 60, 60, 40
"""Three limits: the largest number of jobs for which the timeline is complete, the largest number of jobs
whose settings are shown, and the largest number of parts of a job that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A row of the table of jobs, as texts. `details` are sentences in a section that the reader can
    unfold."""

    name: str
    anchor: str
    kind: str
    state: str
    why: str
    needs: tuple[tuple[str, str], ...]
    time: str
    memory: str
    given: str
    flow: RowFlow | None
    metrics: str
    attempts: int
    message: str
    details: tuple[str, ...] = ()
    settings: str = ""
    parts: tuple[tuple[str, str, str, str, str], ...] = ()
    more_parts: int = 0


def anchor(name: str) -> str:
    """Return the HTML anchor of a job, which is its name in characters that are valid in addresses."""
    return "job-" + re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):x}", name)


def job_lines(view: RunView, events: Sequence[Event]) -> list[JobLine]:
    """Return the table rows of all jobs, in the order of the run."""
    names = {job.job.id: job.job.job.name for job in view.jobs}
    detailed = len(view.jobs) <= DETAILED_JOBS
    building = build_seconds(events)
    return [_line(job, names, building.get(job.job.job.name, 0.0), detailed=detailed) for job in view.jobs]


def _line(job: JobView, names: Mapping[str, str], building: float, *, detailed: bool) -> JobLine:
    attempt = job.attempts[-1] if job.attempts else None
    use = attempt.use if attempt else None
    given = attempt.given if attempt else job.job.sizing.amounts
    version = job.artifacts[0] if job.artifacts else None
    return JobLine(
        name=job.job.job.name,
        anchor=anchor(job.job.job.name),
        kind=job.job.job.kind.value,
        state=job.job.state.value,
        why=shortened(job.job.reason, 300),
        needs=tuple((names[need], anchor(names[need])) for need in job.job.needs if need in names)[:20],
        time=time_of(job),
        memory=show_bytes(use.peak_memory_bytes) if use else "",
        given=show_bytes(given.memory_bytes),
        flow=row_flow(version) if version else None,
        metrics=headline_of(version),
        attempts=len(job.attempts),
        message=shortened(message_of(job), 300),
        details=tuple(_details(job, building)) if detailed or job.job.state == JobState.FAILED else (),
        settings=declared(job.job.job) if detailed else "",
        parts=tuple(map(_part, _worst_first(job.parts)[:SHOWN_PARTS])),
        more_parts=max(0, len(job.parts) - SHOWN_PARTS),
    )


def time_of(job: JobView) -> str:
    """Return the duration of the job as text. The text is empty if the job did not run."""
    seconds = seconds_of(job)
    return "" if seconds is None else show_seconds(seconds)


def seconds_of(job: JobView) -> float | None:
    """Return the duration of the job in seconds."""
    job_run = job.job
    restored = job_run.state == JobState.UNCHANGED and not job.attempts
    if job_run.started is None or job_run.ended is None or restored:
        return None
    return max(0.0, job_run.ended - job_run.started)


def headline_of(version: Artifact | None) -> str:
    """Return the most important metrics of a model or a prediction, without numbers of rows."""
    if version is None:
        return ""
    return headline({name: value for name, value in version.output.metrics.items() if "rows" not in name})


def message_of(job: JobView) -> str:
    """Return the text that the table shows beside the state of the job."""
    if job.job.state == JobState.FAILED:
        return reason(job, at_fault(job))
    return job.why or job.job.message or WHEN[job.job.job.when]


def _details(job: JobView, building: float) -> Iterable[str]:
    attempt = job.attempts[-1] if job.attempts else None
    given = attempt.given if attempt else job.job.sizing.amounts
    if given.memory_bytes:
        place = f" on {attempt.pod_id}" if attempt else ""
        gpus = f", {given.gpus} GPU" if given.gpus else ""
        yield f"size: {show_bytes(given.memory_bytes)}, {given.cpus:g} CPU{gpus}{place}"
    yield from job.job.sizing.why
    yield from in_fact(job)
    if building:
        yield f"environment built in {show_seconds(building)}"
    if attempt is not None and attempt.use is not None:
        yield f"CPU time {show_seconds(attempt.use.cpu_seconds)}"
    for one in job.attempts:
        if one.interrupted is not None:
            yield one.interrupted.why
    if len(job.attempts) > 1:
        yield from (f"{one.id}: {one.state} {one.message}".strip() for one in job.attempts[-5:])


def _worst_first(parts: Sequence[PartView]) -> list[PartView]:
    return sorted(parts, key=lambda part: part.job.state != JobState.FAILED)


def _part(part: PartView) -> tuple[str, str, str, str, str]:
    """Return the table cells of a part of a job: node, state, exit code, time, and the last line of its log
    or the reason of its failure."""
    took = "" if part.seconds is None else show_seconds(part.seconds)
    code = "" if part.exit_code is None else str(part.exit_code)
    return part.node, part.job.state.value, code, took, shortened(part.job.message, 300)


def shortened(text: str, most: int) -> str:
    """Return the text. If the text is long, return its beginning and its end, with the number of omitted
    characters between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} more characters) … {text[-half:]}"


def log_end(lines: Sequence[LogLine]) -> str:
    """Return the last lines of a log as text."""
    return "\n".join(shortened(line.mark + line.text, LONGEST_LINE) for line in last_lines(lines, LOG_LINES))


def graph_of(view: RunView) -> str:
    """Return the jobs and their dependencies as SVG. The result is empty if there are too many jobs."""
    critical = view.critical.path if view.critical is not None and view.critical.branches else ()
    return dag(
        [
            DagBox(
                name=job.job.job.name,
                kind=job.job.job.kind.value,
                state=job.job.state.value,
                needs=tuple(need.rpartition("/")[2] for need in job.job.needs),
                note=time_of(job) if job.job.state == JobState.SUCCEEDED else "",
                critical=job.job.id in critical,
                link=anchor(job.job.job.name),
            )
            for job in view.jobs
        ]
    )


def timeline_of(view: RunView) -> tuple[str, int]:
    """Return an HTML timeline that shows when jobs waited and ran, and the number of the shortest jobs that
    are left out. The timeline is empty if no job ran."""
    begin = view.run.started or view.run.created
    ran = [job for job in view.jobs if seconds_of(job) is not None or job.attempts]
    longest = sorted(ran, key=lambda job: -(seconds_of(job) or 0.0))[:ROWS_OF_TIMELINE]
    kept = {job.job.id for job in longest}
    rows = [
        TimelineRow(
            name=job.job.job.name,
            bars=_bars(job, begin),
            link=anchor(job.job.job.name),
            time=time_of(job),
        )
        for job in ran
        if job.job.id in kept
    ]
    if not rows:
        return "", 0
    ends = [bar.ends for row in rows for bar in row.bars]
    total = max([(view.run.ended or begin) - begin, *ends])
    return timeline(rows, total), len(ran) - len(rows)


def _bars(job: JobView, begin: float) -> list[TimelineBar]:
    attempts = [*(a for part in job.parts for a in part.attempts), *job.attempts][:200]
    if not attempts:
        return _own_bar(job, begin)
    return [*_waiting(job, begin), *(_attempt_bar(job, attempt, begin) for attempt in attempts)]


def _own_bar(job: JobView, begin: float) -> list[TimelineBar]:
    """Return the bar of a job that runs without attempts of its own, because it starts or updates a
    service."""
    started, took = job.job.started, seconds_of(job)
    if started is None or took is None:
        return []
    note = shortened(f"{job.job.state}, {show_seconds(took)} {job.job.message}".strip(), 300)
    begins = started - begin
    return [TimelineBar(begins=begins, ends=begins + took, state=job.job.state.value, note=note)]


def _waiting(job: JobView, begin: float) -> list[TimelineBar]:
    first = job.attempts[0].placed if job.attempts else None
    ready = job.job.ready
    if ready is None or first is None or first - ready < 0.01:
        return []
    note = f"waited {show_seconds(first - ready)} for free resources"
    return [TimelineBar(begins=ready - begin, ends=first - begin, state="waiting", note=note)]


def _attempt_bar(job: JobView, attempt: Attempt, begin: float) -> TimelineBar:
    ended = attempt.ended or job.job.ended or attempt.placed
    only = len(job.attempts) == 1 and not job.parts
    took = time_of(job) if only and time_of(job) else show_seconds(ended - attempt.placed)
    note = f"{attempt.id} on {attempt.pod_id}: {attempt.state}, {took}"
    why = attempt.interrupted.why if attempt.interrupted else attempt.message
    return TimelineBar(
        begins=attempt.placed - begin,
        ends=ended - begin,
        state=attempt.state.value,
        note=shortened(f"{note} {why}".strip(), 300),
    )


def critical_lines(view: RunView) -> Mapping[str, str]:
    """Return the critical path with the time of each job, and the slack of the other jobs. The result is
    empty if the graph has no branches."""
    critical = view.critical if view.critical is not None and view.critical.branches else None
    if critical is None:
        return {}
    names = {job.job.id: job.job.job.name for job in view.jobs}
    path = [
        f'<a href="#{anchor(names[key])}">{escape(names[key])}</a> {show_seconds(critical.seconds[key])}'
        for key in critical.path
        if critical.seconds[key]
    ]
    timed = ((key, value) for key, value in critical.slack.items() if value > 0 and critical.seconds[key] > 0)
    slack = sorted(timed, key=lambda item: -item[1])
    if not slack:
        return {}
    spare = [f"{escape(names[key])} {show_seconds(value)}" for key, value in slack[:12]]
    more = [f"and {len(slack) - 12} more jobs"] if len(slack) > 12 else []
    shown = path if len(path) <= 30 else [*path[:15], f"… {len(path) - 30} more …", *path[-15:]]
    return {
        "path": " → ".join(shown),
        "total": show_seconds(critical.total_seconds),
        "spare": ", ".join([*spare, *more]),
    }
