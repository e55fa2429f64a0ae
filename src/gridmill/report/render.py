"""A run as one self-contained HTML page: DAG, timeline, metrics, forecast, sizes chosen and used."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import (
    BytecodeCache,
    Environment,
    FileSystemBytecodeCache,
    PackageLoader,
    Template,
    select_autoescape,
)
from markupsafe import Markup

from gridmill.model.advice import Advice
from gridmill.model.amounts import show_bytes, show_factor, show_number, show_seconds
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.breakdown import breakdown_of
from gridmill.model.calibration import judge
from gridmill.model.comparison import rows_measured_on
from gridmill.model.critical import Critical
from gridmill.model.distribution import column_lines, columns_left_out
from gridmill.model.event import Event, EventType
from gridmill.model.loaded import rejects_of, shifted_of
from gridmill.model.metric import HIGHER_IS_BETTER, is_ranked, marked, read_metric
from gridmill.model.noun import dataclass
from gridmill.model.project import DEFAULT
from gridmill.model.remarks import remarks_of
from gridmill.model.run import Attempt
from gridmill.model.state import AttemptState, JobState
from gridmill.model.view import JobView, PartView, RunView
from gridmill.model.when import REMARKS as WHEN
from gridmill.report.advice import advice_chart
from gridmill.report.carried import carried_lines, in_fact
from gridmill.report.charts import Bar, Series, line_chart, timeline
from gridmill.report.graph import Box, dag

SHOWN_TRIALS = 12
LOG_LINES = 20
"""How much of a failed job's log the report shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One row of the table of jobs, as text."""

    name: str
    kind: str
    state: str
    place: str
    attempts: int
    chosen: str
    why: tuple[str, ...]
    wall: str
    cpu: str
    peak: str
    share: str
    message: str
    reason: str
    interrupted: tuple[str, ...]
    log: str
    parts: tuple[tuple[str, str, str, str, str], ...] = ()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gridmill.report"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        bytecode_cache=_compiled(),
    )


def _compiled() -> BytecodeCache | None:
    """Compiled templates are kept where Python keeps compiled modules; nowhere, where that is read-only."""
    folder = Path(__file__).parent / "__pycache__"
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


def compile_template() -> Template:
    """That of the page; compiled once in a process."""
    return _environment().get_template("report.html.j2")


def render(view: RunView, events: Sequence[Event], advice: Sequence[Advice] = ()) -> str:
    """The page. `events` are the run's kept events, for curves and the logs of failed jobs; `advice` is on
    those of its jobs that have workers."""
    page = compile_template()
    models = [a for a in _artifacts(view) if a.kind == ArtifactKind.MODEL]
    predictions = [a for a in _artifacts(view) if a.kind == ArtifactKind.PREDICTION]
    return page.render(
        run=view.run,
        wall=_wall(view),
        when=_time(view.run.started or view.run.created),
        project="" if view.run.project == DEFAULT else view.run.project,
        dag=Markup(dag(_boxes(view))),
        critical=_critical_lines(view),
        timeline=Markup(timeline(*_bars(view))),
        jobs=[_line(job, events) for job in view.jobs],
        models=_metric_table(models),
        curves=[(name, Markup(chart)) for name, chart in _curves(view, events)],
        breakdowns=[(model.name.rpartition("/")[2], one) for model in models for one in breakdown_of(model)],
        waits=_waits(models),
        searches=[_search(model) for model in models if model.output.details.get("search")],
        calibrations=[
            (model.name.rpartition("/")[2], Markup(_calibration_chart(curve)), judge(curve).text)
            for model in models
            if (curve := model.output.details.get("calibration"))
        ],
        advice=[(one.job.rpartition("/")[2], one, Markup(advice_chart(one))) for one in advice],
        forecasts=[_forecast(artifact) for artifact in predictions],
        tables=[a for a in _artifacts(view) if a.kind in (ArtifactKind.SINK, ArtifactKind.DATASET)],
        carried=carried_lines(view),
        rejects_of=rejects_of,
        remarks=sorted(
            (remark for artifact in _artifacts(view) for remark in remarks_of(artifact)),
            key=lambda remark: not remark.warning,
        ),
        columns_of=column_lines,
        columns_left_out=columns_left_out,
        shifted_of=shifted_of,
        show_bytes=show_bytes,
        show_number=show_number,
        show_factor=show_factor,
        show_seconds=show_seconds,
    )


def _artifacts(view: RunView) -> list[Artifact]:
    return [artifact for job in view.jobs for artifact in job.artifacts]


def _wall(view: RunView) -> str:
    run = view.run
    return show_seconds((run.ended or _last(view)) - (run.started or run.created))


def _last(view: RunView) -> float:
    ends = [attempt.ended or attempt.placed for job in view.jobs for attempt in job.attempts]
    return max(ends, default=view.run.created)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _boxes(view: RunView) -> list[Box]:
    found = _critical(view)
    critical = found.path if found is not None else ()
    return [
        Box(
            name=job.job.job.name,
            kind=job.job.job.kind.value,
            state=job.job.state.value,
            needs=tuple(need.rpartition("/")[2] for need in job.job.needs),
            note=_note(job),
            critical=job.job.id in critical,
        )
        for job in view.jobs
    ]


def _critical(view: RunView) -> Critical | None:
    """The critical path, where the run has branches."""
    return view.critical if view.critical is not None and view.critical.branches else None


def _critical_lines(view: RunView) -> Mapping[str, str]:
    """The jobs on the critical path and how long each took, and of the others how much longer each could
    have taken."""
    found, names = _critical(view), {job.job.id: job.job.job.name for job in view.jobs}
    if found is None:
        return {}
    path = " → ".join(f"{names[key]} {show_seconds(found.seconds[key])}" for key in found.path)
    spare = (f"{names[key]} by {show_seconds(slack)}" for key, slack in found.slack.items() if slack > 0)
    return {"path": path, "total": show_seconds(found.total_seconds), "spare": ", ".join(spare)}


def _note(job: JobView) -> str:
    use = job.attempts[-1].use if job.attempts else None
    return show_seconds(use.wall_seconds) if use and job.job.state == JobState.SUCCEEDED else ""


def _bars(view: RunView) -> tuple[list[Bar], float]:
    begin = view.run.started or view.run.created
    bars: list[Bar] = []
    for job in view.jobs:
        bars += _waiting_bar(job, begin)
        bars += [
            _attempt_bar(job.job.job.name, attempt, begin) for part in job.parts for attempt in part.attempts
        ]
        bars += [_attempt_bar(job.job.job.name, attempt, begin) for attempt in job.attempts]
    return bars, max((bar.ends for bar in bars), default=1.0)


def _waiting_bar(job: JobView, begin: float) -> list[Bar]:
    first = job.attempts[0].placed if job.attempts else None
    ready = job.job.ready
    if ready is None or first is None:
        return []
    note = f"waited {show_seconds(first - ready)} for a place"
    return [Bar(name=job.job.job.name, begins=ready - begin, ends=first - begin, state="waiting", note=note)]


def _attempt_bar(name: str, attempt: Attempt, begin: float) -> Bar:
    ended = attempt.ended or attempt.placed
    note = f"{attempt.id} on {attempt.pod_id}: {attempt.state}, {show_seconds(ended - attempt.placed)}"
    return Bar(
        name=name,
        begins=attempt.placed - begin,
        ends=ended - begin,
        state=attempt.state.value,
        note=f"{note} {attempt.interrupted.why if attempt.interrupted else attempt.message}".strip(),
    )


def _line(job: JobView, events: Sequence[Event]) -> JobLine:
    attempt = job.attempts[-1] if job.attempts else None
    use = attempt.use if attempt else None
    given = attempt.given if attempt else job.job.sizing.amounts
    failed = job.job.state == JobState.FAILED
    return JobLine(
        name=job.job.job.name,
        kind=job.job.job.kind.value,
        state=job.job.state.value,
        place=attempt.pod_id if attempt else "",
        attempts=len(job.attempts),
        chosen=f"{show_bytes(given.memory_bytes)}, {given.cpus:g} CPU",
        why=(*job.job.sizing.why, *in_fact(job)),
        wall=show_seconds(use.wall_seconds) if use else "",
        cpu=show_seconds(use.cpu_seconds) if use else "",
        peak=show_bytes(use.peak_memory_bytes) if use else "",
        share=f"{use.peak_memory_bytes / given.memory_bytes:.0%}" if use and given.memory_bytes else "",
        message=job.why or job.job.message or WHEN[job.job.job.when],
        reason=job.job.reason,
        interrupted=tuple(one.interrupted.why for one in job.attempts if one.interrupted is not None),
        log=_log_end(events, attempt) if failed and attempt else "",
        parts=tuple(_part(part) for part in job.parts),
    )


def _part(part: PartView) -> tuple[str, str, str, str, str]:
    """Node, state, exit code, time, and what it said last or why it failed."""
    took = "" if part.seconds is None else show_seconds(part.seconds)
    code = "" if part.exit_code is None else str(part.exit_code)
    return part.node, part.job.state.value, code, took, part.job.message


def _log_end(events: Iterable[Event], attempt: Attempt) -> str:
    mine = (e for e in events if e.type == EventType.LOG and _is_of(e.attempt_id, attempt))
    lines = "".join(str(event.body.get("text", "")) for event in mine).splitlines()
    return "\n".join(lines[-LOG_LINES:])


def _is_of(attempt_id: str, attempt: Attempt) -> bool:
    """Whether it is the attempt's id, or that of another rank of its gang."""
    return attempt_id == attempt.id or (attempt.ranks > 1 and attempt_id.startswith(f"{attempt.id}."))


def _metric_table(models: Sequence[Artifact]) -> dict[str, Any]:
    """A row per model, and of each value whether it is the best of those measured on the same rows."""
    names = list(dict.fromkeys(name for model in models for name in model.output.metrics))
    rows = []
    for model in models:
        values = [model.output.metrics.get(name) for name in names]
        best = [_is_best(model, name, models) for name in names]
        rows.append((model.name.rpartition("/")[2], model.id, list(zip(values, best, strict=True))))
    return {"names": [marked(name) for name in names], "rows": rows}


def _is_best(model: Artifact, name: str, models: Sequence[Artifact]) -> bool:
    same = [one for one in models if rows_measured_on(one, name) == rows_measured_on(model, name)]
    known = [one.output.metrics[name] for one in same if name in one.output.metrics]
    if len(known) < 2 or not is_ranked(name):
        return False
    return model.output.metrics.get(name) == (max(known) if read_metric(name)[1] else min(known))


def _curves(view: RunView, events: Sequence[Event]) -> list[tuple[str, str]]:
    """One chart per job that told metrics by step, from its last attempt."""
    charts: list[tuple[str, str]] = []
    for job in view.jobs:
        last = next((a.id for a in reversed(job.attempts) if a.state == AttemptState.SUCCEEDED), None)
        points: dict[str, list[tuple[float, float]]] = {}
        for event in events:
            if event.type == EventType.METRIC and event.attempt_id == last:
                _collect(points, event.body)
        if points:
            series = [Series(name=name, points=sorted(of)) for name, of in points.items()]
            charts.append((job.job.job.name, line_chart(series)))
    return charts


def _collect(points: dict[str, list[tuple[float, float]]], body: Mapping[str, Any]) -> None:
    step, value = body.get("step"), body.get("value")
    if isinstance(step, int | float) and isinstance(value, int | float):
        points.setdefault(str(body.get("name")), []).append((float(step), float(value)))


def _waits(models: Sequence[Artifact]) -> dict[str, str]:
    """By training: the share of its time for which learning waited for data."""
    shares = {
        model.name.rpartition("/")[2]: model.output.details.get("options", {}).get("data_wait_share")
        for model in models
    }
    return {name: f"{share:.1%}" for name, share in shares.items() if share is not None}


def _search(model: Artifact) -> dict[str, Any]:
    """The trials of a search, the best first, and a chart of what each came to."""
    search = model.output.details["search"]
    trials = search["trials"]
    ended = [trial for trial in trials if trial["value"] is not None]
    higher = search["metric"] in HIGHER_IS_BETTER
    ranked = sorted(ended, key=lambda trial: -trial["value"] if higher else trial["value"])
    best_so_far, best = [], None
    for trial in ended:
        value = trial["value"]
        best = value if best is None else max(best, value) if higher else min(best, value)
        best_so_far.append((float(trial["number"]), best))
    points = [(float(trial["number"]), float(trial["value"])) for trial in ended]
    series = (Series(name=search["metric"], points=points), Series(name="best so far", points=best_so_far))
    return {
        "name": model.name.rpartition("/")[2],
        "metric": search["metric"],
        "best": search["best"],
        "names": list(ranked[0]["parameters"]) if ranked else [],
        "trials": ranked[:SHOWN_TRIALS],
        "left": len(trials) - len(ranked[:SHOWN_TRIALS]),
        "chart": Markup(line_chart(series)),
    }


def _calibration_chart(curve: Sequence[Sequence[float]]) -> str:
    points = [(float(said), float(came)) for said, came, _ in curve]
    diagonal = Series(name="as said", points=[(0.0, 0.0), (1.0, 1.0)], dashed=True)
    return line_chart((Series(name="came true", points=points), diagonal))


def _forecast(artifact: Artifact) -> dict[str, Any]:
    """The chart of truth and prediction from the sample the job kept: [[time, truth, prediction], ...]."""
    details = artifact.output.details
    samples = details.get("sample") or {}
    if not isinstance(samples, Mapping):
        samples = {"": samples}
    charts = [(name, Markup(_sample_chart(points))) for name, points in samples.items()]
    return {
        "name": artifact.name,
        "model": details.get("model", ""),
        "why": details.get("why", ""),
        "candidates": _candidates(details),
        "ahead": show_seconds(ahead) if (ahead := float(details.get("ahead_seconds") or 0.0)) else "",
        "rows": artifact.output.rows,
        "metrics": artifact.output.metrics,
        "charts": [chart for chart in charts if chart[1]],
    }


def _candidates(details: Mapping[str, Any]) -> dict[str, Any]:
    """The models that were compared, with what each came to on the same validation rows."""
    compared = [one for one in details.get("candidates") or () if one.get("measured")]
    names = list(dict.fromkeys(name for one in compared for name in one["measured"]))
    rows = [(one["name"], one["model_id"], [one["measured"].get(name) for name in names]) for one in compared]
    return {"names": names, "rows": rows, "of": (details.get("comparison") or {}).get("rows", 0)}


def _sample_chart(points: Sequence[Sequence[Any]]) -> str:
    truth = [(float(i), float(p[1])) for i, p in enumerate(points) if p[1] is not None]
    guess = [(float(i), float(p[2])) for i, p in enumerate(points) if p[2] is not None]
    every = max(1, len(points) // 7)
    labels = [(float(i), str(points[i][0])[:10]) for i in range(0, len(points), every)]
    series = (Series(name="truth", points=truth), Series(name="prediction", points=guess, dashed=True))
    return line_chart(series, x_labels=labels)
