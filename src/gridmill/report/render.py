"""Renders a run as a self-contained HTML page: first the errors or the results, then jobs, data, models and
advice.

The page loads nothing. The only script of the page shows times in the reader's time zone. The policy of the
page allows no other script, because the policy contains the hash of the text of this script. Without the
script, times are in UTC. The size of the page is limited: each list has a maximum number of entries and
shows how many it leaves out. The advice on workers shows the measured points, the fitted scaling law and the
confidence of the fit. The page begins with the errors (the failed jobs, the reasons and the remedies) or
with the results of the run. For a prediction, the page shows the chosen model with the reason, and a sample
of true and predicted values.
"""

import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from math import log2
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import (
    BytecodeCache,
    Environment,
    FileSystemBytecodeCache,
    PackageLoader,
    Template,
    select_autoescape,
)
from markupsafe import Markup

from gridmill.domain.advice import Advice, WorkerForecast
from gridmill.domain.amounts import show_bytes, show_count, show_factor, show_number, show_seconds
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.column_statistics import column_lines, columns_left_out
from gridmill.domain.comparison import best_models
from gridmill.domain.environment_build import is_building
from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogLine
from gridmill.domain.metric_tables import breakdown_of
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import DEFAULT
from gridmill.domain.remarks import Remark, remarks_of
from gridmill.domain.run import Attempt, Run
from gridmill.domain.run_failures import at_fault, failed_jobs, failed_parts, next_step, reason
from gridmill.domain.service import ServiceView
from gridmill.domain.sink_status import rejects_of, shifted_of
from gridmill.domain.sql_statement import Given, worded
from gridmill.domain.states import FINISHED_RUNS, JobState, RunState
from gridmill.domain.views import JobView, RunView
from gridmill.report.jobs import (
    LONGEST_MESSAGE,
    anchor,
    critical_lines,
    graph_of,
    headline_of,
    job_lines,
    log_end,
    shortened,
    timeline_of,
)
from gridmill.report.models import SHOWN_MODELS, metric_table, model_pages, name_of, versions_of
from gridmill.report.services import promotion_lines, service_rows
from gridmill.report.svg import Axes, Point, Scale, Series, dot, figure, line_chart, tick_texts, ticks
from gridmill.report.transfers import transfer_lines
from gridmill.version import __version__

SHOWN_FAILURES, NAMED_JOBS = 5, 20
LogEnds: TypeAlias = Mapping[str, Sequence[LogLine]]
_NO_LOGS: LogEnds = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob:
    """A failed job in the report: the reason, the end of its log, a hint, and the command that prints the
    log. `last` is the last line of the log. The last line is shown if the reason is only an exit code."""

    name: str
    anchor: str
    reason: str
    hint: str
    log: str
    last: str
    where: str
    more: str


def failures(view: RunView, logs: LogEnds) -> list[FailedJob]:
    """Return the first failed jobs of a run."""
    return [_failure(view, job, logs) for job in failed_jobs(view)[:SHOWN_FAILURES]]


def _failure(view: RunView, job: JobView, logs: LogEnds) -> FailedJob:
    attempt, name = at_fault(job), job.job.job.name
    why, log = reason(job, attempt), log_end(logs.get(attempt.id, ())) if attempt else ""
    lines = [line for line in log.split("\n") if line.strip()]
    return FailedJob(
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
    """Return a text with the number of the attempt, its pod and its time."""
    if attempt is None:
        return ""
    tries = f"attempt {len(job.attempts)} of {len(job.attempts)}, " if len(job.attempts) > 1 else ""
    took = "" if attempt.ended is None else f" after {show_seconds(max(0.0, attempt.ended - attempt.placed))}"
    parts = f"{show_count(len(failed_parts(job)), 'part')} of {len(job.parts)} failed, " if job.parts else ""
    return f"{parts}{tries}on {attempt.pod_id}{took}"


def consequences(view: RunView) -> str:
    """Return a text with the jobs that did not run because other jobs failed or were stopped."""
    texts = []
    for state in (JobState.SKIPPED, JobState.STOPPED):
        names = [job.job.job.name for job in view.jobs if job.job.state == state][:NAMED_JOBS]
        if count := view.states.get(state, 0):
            more = f" and {count - len(names)} more" if count > len(names) else ""
            texts.append(f"{show_count(count, 'job')} {state}: {', '.join(names)}{more}")
    return "; ".join(texts)


def results(view: RunView) -> list[str]:
    """Return sentences about the results of a run, or about the jobs that are running."""
    return list(_results(view))


def _results(view: RunView) -> Iterator[str]:
    if view.run.state not in FINISHED_RUNS:
        yield from _now(view)
        return
    unchanged = view.states.get(JobState.UNCHANGED, 0)
    if unchanged and unchanged == sum(view.states.values()):
        makers = dict.fromkeys(one.run_id for job in view.jobs for one in job.artifacts if one.run_id)
        of = f" Their results are from {', '.join(list(makers)[:5])}." if makers else ""
        yield f"No job was executed: {show_count(unchanged, 'job')} unchanged.{of}"
    yield from _models(view)
    for one in versions_of(view, ArtifactKind.PREDICTION)[:5]:
        model = one.output.details.get("model")
        by = f" by {model}" if model else ""
        good = f": {headline}" if (headline := headline_of(one)) else ""
        yield f"{name_of(one)} predicted {one.output.rows or 0:,} rows{by}{good}"
    if view.run.state == RunState.STOPPED and not failed_jobs(view):
        yield f"The run was stopped. {next_step(view)}"


def _models(view: RunView) -> Iterator[str]:
    models = versions_of(view, ArtifactKind.MODEL)
    best = [] if view.left_out else list(best_models(models))
    for model, name, of in best:
        yield f"Best model{of}: {model.id} ({name} {show_number(model.output.metrics[name])})"
    if not best:
        for one in models[:3]:
            yield f"Model {one.id}: {headline_of(one) or 'not measured'}"


def _now(view: RunView) -> Iterator[str]:
    running = [job for job in view.jobs if job.job.state == JobState.RUNNING]
    yield f"The run is active: {show_count(view.states.get(JobState.RUNNING, 0), 'job')} running."
    for job in running[:NAMED_JOBS]:
        note = str(job.progress.get("note") or "")
        if is_building(job) or note:
            yield f"{job.job.job.name}: {note}"


SHOWN_SAMPLES = 6


def forecast(artifact: Artifact) -> dict[str, Any]:
    """Return the facts and charts of a prediction. The version of the prediction contains a sample of
    [[time, truth, prediction], ...] for each entity."""
    details = artifact.output.details
    samples = details.get("sample") or {}
    if not isinstance(samples, Mapping):
        samples = {"": samples}
    charts = [(name, _sample_chart(points)) for name, points in list(samples.items())[:SHOWN_SAMPLES]]
    return {
        "name": name_of(artifact),
        "id": artifact.id,
        "anchor": anchor(name_of(artifact)),
        "model": details.get("model", ""),
        "why": details.get("why", ""),
        "candidates": _candidates(details),
        "ahead": show_seconds(ahead) if (ahead := float(details.get("ahead_seconds") or 0.0)) else "",
        "rows": artifact.output.rows,
        "metrics": artifact.output.metrics,
        "charts": [chart for chart in charts if chart[1]],
        "more": max(0, len(samples) - SHOWN_SAMPLES),
        "tables": breakdown_of(artifact),
    }


def _candidates(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models that were compared, with the metrics of each model on the same validation rows."""
    compared = [one for one in details.get("candidates") or () if one.get("measured")]
    names = list(dict.fromkeys(name for one in compared for name in one["measured"]))
    rows = [(one["name"], one["model_id"], [one["measured"].get(name) for name in names]) for one in compared]
    return {"names": names, "rows": rows[:20], "of": (details.get("comparison") or {}).get("rows", 0)}


def _sample_chart(points: Sequence[Sequence[Any]]) -> str:
    truth = [(float(i), float(p[1])) for i, p in enumerate(points) if p[1] is not None]
    guess = [(float(i), float(p[2])) for i, p in enumerate(points) if p[2] is not None]
    every = max(1, len(points) // 4)
    labels = [(float(i), str(points[i][0])[:10]) for i in range(0, len(points), every)]
    series = (Series(name="truth", points=truth), Series(name="prediction", points=guess, dashed=True))
    return line_chart(series, Axes(x="time", x_labels=labels))


LEAST_SECONDS, LEAST_SAVING = 10.0, 0.2
"""Advice is shown only for jobs that take at least this many seconds, and only if another number of workers
saves at least this fraction of the time."""


def is_worth_it(advice: Advice) -> bool:
    """Return True if another number of workers would save enough time for the advice to be shown."""
    if not advice.measured:
        return False
    last, better = advice.measured[-1], advice.forecast(advice.worth)
    if better is None or last.workers == advice.worth:
        return False
    return last.seconds >= LEAST_SECONDS and last.seconds - better.seconds >= LEAST_SAVING * last.seconds


def advice_chart(advice: Advice) -> str:
    """Return a chart of the speed-up by workers: confidence band, scaling law, perfect speed-up, measured
    points. The axis with the number of workers is logarithmic."""
    lines = advice.forecasts
    highest = max([line.high for line in lines] + [one.speedup for one in advice.measured])
    most = max(line.workers for line in lines)
    scale = Scale(low=(0.0, 0.0), high=(max(1.0, log2(most)), highest * 1.08))
    levels = ticks(0.0, highest * 1.08)
    parts = [f'<path class="grid" d="M0,{scale.down(value) * 1000:.0f}H1000"/>' for value in levels]
    parts += [_band(scale, lines), _law(scale, lines), _perfect(scale, most)]
    parts += [
        dot(
            scale,
            (log2(one.workers), one.speedup),
            f"{one.attempt_id}: {one.workers} workers, {one.speedup:.2f} x"
            + (f", a probe of {one.share:.0%}" if one.probe else ""),
            "c2" if one.probe else "c1",
        )
        for one in advice.measured
    ]
    return figure(
        parts,
        x_labels=[(scale.across(log2(line.workers)), f"{line.workers}") for line in lines],
        y_labels=[(scale.down(y), f"{text} x") for y, text in zip(levels, tick_texts(levels), strict=True)],
        axes=Axes(x="workers", y="speed-up"),
        legend=[("forecast", "c1"), ("perfect speed-up", "c2 dashed")],
    )


def _path(scale: Scale, points: Sequence[Point]) -> str:
    return " ".join(map(scale.place, points))


def _band(scale: Scale, lines: Sequence[WorkerForecast]) -> str:
    upper = [(log2(line.workers), line.high) for line in lines]
    back = [(log2(line.workers), line.low) for line in reversed(lines)]
    return f'<polygon class="band" points="{_path(scale, [*upper, *back])}"/>'


def _law(scale: Scale, lines: Sequence[WorkerForecast]) -> str:
    points = [(log2(line.workers), line.speedup) for line in lines]
    return f'<polyline class="line c1" points="{_path(scale, points)}"/>'


def _perfect(scale: Scale, most: int) -> str:
    """Return the points of the line of perfect speed-up inside the chart. On this line, twice the number of
    workers means twice the speed."""
    steps = [step / 4 for step in range(4 * 16) if 2 ** (step / 4) <= min(most, scale.high[1])]
    return f'<polyline class="line c2 dashed" points="{_path(scale, [(step, 2**step) for step in steps])}"/>'


SHOWN_REMARKS, SHOWN_TABLES, SHOWN_COLUMNS, SHOWN_PREDICTIONS = 60, 40, 60, 6
LONGEST_PARAMETER = 200


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("gridmill.report"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_compiled(),
    )
    made.filters |= {
        "bytes": show_bytes,
        "number": show_number,
        "seconds": show_seconds,
        "factor": show_factor,
    }
    made.filters |= {"safe_html": Markup, "short": shortened}
    return made


def _compiled() -> BytecodeCache | None:
    """Return the cache of compiled templates, in the folder of compiled Python modules. Return None if this
    folder is read-only."""
    folder = Path(__file__).parent / "__pycache__"
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


@cache
def _script() -> tuple[Markup, str]:
    """Return the script of the page, and the hash of the script in the form that a Content-Security-Policy
    needs."""
    loader = _environment().loader
    assert loader is not None
    text = loader.get_source(_environment(), "times.js")[0]
    return Markup(text), f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def compile_template() -> Template:
    """Return the template of the page, which is compiled once in a process."""
    return _environment().get_template("report.html.j2")


def render(
    view: RunView,
    events: Sequence[Event],
    advice: Sequence[Advice] = (),
    before: RunView | None = None,
    logs: LogEnds = _NO_LOGS,
    rented: Sequence[str] = (),
    services: Sequence[ServiceView] = (),
) -> str:
    """Return the HTML page of a run. `events` are the stored events of the run, from which learning curves
    are drawn. `advice` is the advice for the jobs of the run that have workers. `before` is an earlier run,
    whose metrics are compared with the metrics of this run. `logs` are the last lines of the logs of failed
    attempts, by attempt id. `rented` are sentences about the cost and the problems of rented machines.
    `services` are the services that the run has changed, or that serve its versions, as they are now."""
    models = versions_of(view, ArtifactKind.MODEL)
    predictions = versions_of(view, ArtifactKind.PREDICTION)
    tables = [one for one in _artifacts(view) if one.kind in (ArtifactKind.SINK, ArtifactKind.DATASET)]
    remarks = _remarks(view)
    line, left_out = timeline_of(view)
    failed = failures(view, logs)
    script, script_hash = _script()
    return compile_template().render(
        run=view.run,
        version=__version__,
        script=script,
        script_hash=script_hash,
        wall=_wall(view),
        when=_time(view.run.started or view.run.created),
        project="" if view.run.project == DEFAULT else view.run.project,
        parameters=[
            (name, shortened(_given(value), LONGEST_PARAMETER)) for name, value in view.run.parameters.items()
        ],
        trigger=_trigger(view.run),
        due=_due(view.run),
        counts=_counts(view),
        failures=failed,
        more_failures=_failed(view) - len(failed) if len(failed) == SHOWN_FAILURES else 0,
        consequences=consequences(view),
        next_step=next_step(view),
        results=results(view),
        promotions=promotion_lines(events),
        services=service_rows(services),
        remarks=remarks[:SHOWN_REMARKS],
        more_remarks=max(0, len(remarks) - SHOWN_REMARKS),
        jobs=job_lines(view, events),
        jobs_left_out=view.left_out,
        graph="" if view.left_out else graph_of(view),
        timeline=line,
        timeline_left_out=left_out,
        critical=critical_lines(view),
        tables=tables[:SHOWN_TABLES],
        more_tables=max(0, len(tables) - SHOWN_TABLES),
        shown_columns=SHOWN_COLUMNS,
        rejects_of=rejects_of,
        columns_of=column_lines,
        columns_left_out=columns_left_out,
        shifted_of=shifted_of,
        forecasts=[forecast(one) for one in predictions[:SHOWN_PREDICTIONS]],
        metrics=metric_table(models, before),
        models=model_pages(view, events),
        more_models=max(0, len(models) - SHOWN_MODELS),
        carried=transfer_lines(view)[:100],
        rented=rented,
        advice=[(one.job.rpartition("/")[2], one, advice_chart(one)) for one in advice if is_worth_it(one)],
    )


def _artifacts(view: RunView) -> list[Artifact]:
    return [artifact for job in view.jobs for artifact in job.artifacts]


def _remarks(view: RunView) -> list[Remark]:
    remarks = [remark for artifact in _artifacts(view) for remark in remarks_of(artifact)]
    return sorted(remarks, key=lambda remark: not remark.warning)


def _failed(view: RunView) -> int:
    return view.states.get(JobState.FAILED, 0)


def _counts(view: RunView) -> str:
    """Return a text with the number of jobs in each state, such as `8 jobs: 6 succeeded, 2 unchanged`."""
    total = sum(view.states.values())
    names = ", ".join(f"{count:,} {state.value}" for state, count in view.states.items())
    return f"{total:,} job{'' if total == 1 else 's'}: {names}" if total else "no jobs"


def _wall(view: RunView) -> str:
    run = view.run
    return show_seconds(max(0.0, (run.ended or _last(view)) - (run.started or run.created)))


def _last(view: RunView) -> float:
    ends = [attempt.ended or attempt.placed for job in view.jobs for attempt in job.attempts]
    return max(ends, default=view.run.created)


def _given(value: Given) -> str:
    return ", ".join(map(worded, value)) if isinstance(value, tuple) else worded(value)


def _trigger(run: Run) -> str:
    """Return a text with the trigger of the run. The text is empty if a user started the run."""
    if run.probe:
        return f"a probe of {run.probe}"
    if run.chunk:
        return f"backfill {run.chunk}"
    return "its schedule, due" if _due(run) else ""


def _due(run: Run) -> tuple[str, str] | None:
    """Return the time at which a schedule had to start the run, or None if no schedule started it."""
    return None if run.due is None or run.probe or run.chunk else _time(run.due)


def _time(seconds: float) -> tuple[str, str]:
    """Return a time in UTC, in ISO 8601 for the script and as text for a reader without scripts."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ"), moment.strftime("%Y-%m-%d %H:%M:%S UTC")
