"""The models of a run in a report: their metrics and the metrics of the previous run, feature importance,
and residuals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridmill.domain.amounts import show_number, show_seconds
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.comparison import rows_measured_on, settings_of
from gridmill.domain.frozen import dataclass
from gridmill.domain.metric_tables import breakdown_of
from gridmill.domain.metrics import HIGHER_IS_BETTER, is_ranked, judge, marked, read_metric
from gridmill.domain.pod_protocol import Event, EventType
from gridmill.domain.states import AttemptState
from gridmill.domain.views import JobView, RunView
from gridmill.report.jobs import anchor
from gridmill.report.svg import (
    Axes,
    Point,
    Scale,
    Series,
    bars,
    dot,
    figure,
    histogram,
    line_chart,
    tick_texts,
    ticks,
)

SHOWN_TRIALS, SHOWN_FEATURES, SHOWN_MODELS, SHOWN_METRICS = 12, 15, 12, 40
_LOSS = "loss"


def name_of(version: Artifact) -> str:
    """Return the name of the job that made the given version."""
    return version.name.rpartition("/")[2]


def versions_of(view: RunView, kind: ArtifactKind) -> list[Artifact]:
    """Return the versions of a kind that the run made or left unchanged."""
    return [artifact for job in view.jobs for artifact in job.artifacts if artifact.kind == kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCell:
    """A metric of a model: its text, whether it is the best among the models of the run, and its change
    since the previous run, as text and as a CSS class (`better`, `worse` or empty)."""

    text: str = ""
    best: bool = False
    moved: str = ""
    way: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTable:
    """A table with a row for each metric and a column for each model (name, anchor, id). `notes` are remarks
    on the comparison of the models."""

    models: tuple[tuple[str, str, str], ...] = ()
    rows: tuple[tuple[str, tuple[MetricCell, ...]], ...] = ()
    before: str = ""
    notes: tuple[str, ...] = ()


def metric_table(models: Sequence[Artifact], before: RunView | None) -> MetricTable:
    """Return a table with the metrics of the models, and the metrics of their versions in the previous
    run."""
    shown = models[:SHOWN_MODELS]
    earlier = _earlier(before)
    names = list(dict.fromkeys(name for model in shown for name in model.output.metrics))
    rows = [(marked(name), tuple(_cell(model, name, models, earlier) for model in shown)) for name in names]
    notes = [f"{len(models) - len(shown)} more models are not shown: gridmill list models"] * (
        len(models) > len(shown)
    )
    notes += [f"{len(rows) - SHOWN_METRICS} more metrics: gridmill show model"] * (len(rows) > SHOWN_METRICS)
    return MetricTable(
        models=tuple((name_of(model), anchor(name_of(model)), model.id) for model in shown),
        rows=tuple(rows[:SHOWN_METRICS]),
        before=before.run.id if before is not None and earlier else "",
        notes=(*notes, *_since(shown, earlier)),
    )


def _earlier(before: RunView | None) -> Mapping[str, Artifact]:
    """Return the models of the previous run by name."""
    return (
        {}
        if before is None
        else {version.name: version for version in versions_of(before, ArtifactKind.MODEL)}
    )


def _since(models: Sequence[Artifact], earlier: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield notes on models that cannot be compared with the previous run, and on models that have the same
    version."""
    if not earlier:
        return
    for model in models:
        old = earlier.get(model.name)
        if old is None:
            yield f"{name_of(model)}: the previous run has no model of this name"
        elif old.id == model.id:
            yield f"{name_of(model)}: the same version as in the previous run"
        elif rows_measured_on(old) != rows_measured_on(model):
            why = (
                "the previous run was evaluated on other rows, so the changes are not caused by the "
                "models alone"
            )
            yield f"{name_of(model)}: {why}"


def _cell(
    model: Artifact, name: str, models: Sequence[Artifact], earlier: Mapping[str, Artifact]
) -> MetricCell:
    value = model.output.metrics.get(name)
    if value is None:
        return MetricCell()
    old = earlier.get(model.name)
    was = None if old is None or old.id == model.id else old.output.metrics.get(name)
    moved, way = ("", "") if was is None else _moved(name, was, value)
    if old is not None and rows_measured_on(old, name) != rows_measured_on(model, name):
        way = ""
    return MetricCell(text=show_number(value), best=_is_best(model, name, models), moved=moved, way=way)


def _moved(name: str, was: float, value: float) -> tuple[str, str]:
    if was == value:
        return "no change", ""
    sign = "+" if value > was else "−"
    text = f"{sign}{show_number(abs(value - was))} (was {show_number(was)})"
    if not is_ranked(name):
        return text, ""
    return text, "better" if (value > was) == read_metric(name)[1] else "worse"


def _is_best(model: Artifact, name: str, models: Sequence[Artifact]) -> bool:
    same = [one for one in models if rows_measured_on(one, name) == rows_measured_on(model, name)]
    values = [one.output.metrics[name] for one in same if name in one.output.metrics]
    if len(values) < 2 or not is_ranked(name):
        return False
    return model.output.metrics.get(name) == (max(values) if read_metric(name)[1] else min(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """The section of a model in the report.

    Charts are HTML, and `facts` are pairs of a name and a text. `tables` are breakdowns.
    """

    name: str
    id: str
    anchor: str
    facts: tuple[tuple[str, str], ...] = ()
    charts: tuple[tuple[str, str, str], ...] = ()
    importance: str = ""
    importance_note: str = ""
    residuals: tuple[tuple[str, str, str], ...] = ()
    tables: tuple[Any, ...] = ()
    calibration: str = ""
    calibration_note: str = ""
    search: Mapping[str, Any] | None = None


def model_pages(view: RunView, events: Sequence[Event]) -> list[ModelPage]:
    """Return the sections of the first models of the run."""
    steps = _steps(view, events)
    models = [
        (job, artifact)
        for job in view.jobs
        for artifact in job.artifacts
        if artifact.kind == ArtifactKind.MODEL
    ]
    return [_page(job, model, steps) for job, model in models[:SHOWN_MODELS]]


def _page(job: JobView, model: Artifact, steps: Mapping[str, Mapping[str, Sequence[Point]]]) -> ModelPage:
    details, name = model.output.details, name_of(model)
    last = next((one.id for one in reversed(job.attempts) if one.state == AttemptState.SUCCEEDED), "")
    note, importance = _importance(details)
    curve = details.get("calibration") or ()
    return ModelPage(
        name=name,
        id=model.id,
        anchor=f"model-{anchor(name)[4:]}",
        facts=tuple(_facts(model)),
        charts=tuple(_learning(details, steps.get(last) or _stored_curve(details))),
        importance=importance,
        importance_note=note,
        residuals=tuple(_residuals(details)),
        tables=breakdown_of(model),
        calibration=_calibration_chart(curve) if curve else "",
        calibration_note=judge(curve).text if curve else "",
        search=_search(details["search"]) if details.get("search") else None,
    )


def _facts(model: Artifact) -> Iterator[tuple[str, str]]:
    details = model.output.details
    rows = details.get("rows") or {}
    yield "predicts", str(details.get("predicts") or details.get("label") or "")
    yield "learned from", str(details.get("dataset") or "")
    yield "rows", ", ".join(f"{count:,} {split}" for split, count in rows.items() if count)
    yield "features", f"{len(details.get('features') or ()):,} ({details.get('inputs') or 0:,} inputs)"
    options = details.get("options") or {}
    wait = options.get("data_wait_share")
    if wait is not None:
        yield "data-loading wait", f"{wait:.1%} of the time"
    skip = ("features", "labels", "split", "label", "data_wait_share")
    settings = {
        k: v
        for k, v in settings_of(model).items()
        if k not in skip and v is not None and not k.startswith("package ")
    }
    yield "settings", ", ".join(f"{name} {_value(value)}" for name, value in list(settings.items())[:40])
    packages = details.get("packages") or {}
    yield "packages", ", ".join(f"{name} {one}" for name, one in list(packages.items())[:30])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value[:12])) + (", …" if len(value) > 12 else "")
    return show_number(value) if isinstance(value, int | float) else str(value)


def _steps(view: RunView, events: Sequence[Event]) -> Mapping[str, Mapping[str, list[Point]]]:
    """Return the metrics that were reported by step, by attempt and name."""
    points: dict[str, dict[str, list[Point]]] = {}
    for event in events:
        step, value = event.body.get("step"), event.body.get("value")
        if (
            event.type == EventType.METRIC
            and isinstance(step, int | float)
            and isinstance(value, int | float)
        ):
            of = points.setdefault(event.attempt_id, {})
            of.setdefault(str(event.body.get("name")), []).append((float(step), float(value)))
    return points


def _stored_curve(details: Mapping[str, Any]) -> Mapping[str, Sequence[Point]]:
    """Return the losses by step that the record of a model contains. These losses are used if this run did
    not train the model."""
    curve = details.get("curve") or ()
    pairs = {"train_loss": 1, "validation_loss": 2}
    return (
        {name: [(float(one[0]), float(one[at])) for one in curve] for name, at in pairs.items()}
        if curve
        else {}
    )


def _learning(
    details: Mapping[str, Any], steps: Mapping[str, Sequence[Point]]
) -> Iterator[tuple[str, str, str]]:
    """Return the title, chart and note of each quantity. Metrics with the same unit are in the same chart.
    The trials of a search have a chart of their own."""
    groups: dict[str, dict[str, Sequence[Point]]] = {}
    for name, points in steps.items():
        if not name.startswith("trial_"):
            groups.setdefault(_quantity(name), {})[name] = sorted(points)
    options = details.get("options") or {}
    for quantity, series in groups.items():
        x = "trees" if "max_iter" in options else "epoch" if "epochs" in options else "step"
        kept = options.get("best_epoch")
        at = (float(kept), f"epoch {kept:,}") if kept else None
        whole = all(step.is_integer() for points in series.values() for step, _ in points)
        axes = Axes(x=x, y=quantity, whole=whole, mark=at if quantity == _LOSS else None)
        lines = [Series(name=_shown(name), points=points) for name, points in series.items()]
        chart = line_chart(lines, axes)
        if chart:
            yield quantity, chart, at[1] if at and quantity == _LOSS else ""


def _quantity(name: str) -> str:
    """Return the name of a metric without the split, such as `loss` for `train_loss`."""
    for split in ("train_", "validation_", "test_"):
        name = name.removeprefix(split)
    return name


def _shown(name: str) -> str:
    split = name.partition("_")[0]
    return split if split in ("train", "validation", "test") else name


def _importance(details: Mapping[str, Any]) -> tuple[str, str]:
    """Return a note and a bar chart of permutation importance. If permutation importance was not measured,
    the note and the chart show the importance that the model itself computed."""
    measured = details.get("permutation") or {}
    if features := measured.get("features"):
        largest = max(map(abs, features.values())) or 1.0
        ranked = sorted(features.items(), key=lambda item: -item[1])
        rows = [(name, value / largest, f"{value:+.3g}") for name, value in ranked[:SHOWN_FEATURES]]
        title = f"increase of the {measured['metric']} if the values of the feature are shuffled"
        return _measured_note(measured, len(ranked)), bars(rows, title)
    own = details.get("importance") or {}
    if not own:
        return "", ""
    ranked = sorted(own.items(), key=lambda item: -item[1])
    rows = [(name, value, f"{value:.1%}") for name, value in ranked[:SHOWN_FEATURES]]
    largest = max(abs(value) for _, value, _ in rows) or 1.0
    shares = [(name, value / largest, text) for name, value, text in rows]
    members = "combine" in (details.get("options") or {})
    title = (
        "weight of each member"
        if members
        else "share of the loss reduction that comes from splits by an input"
    )
    more = len(ranked) - len(rows)
    note = f"The {len(rows)} largest of {len(ranked):,}." if more > 0 else ""
    if why := measured.get("skipped"):
        note = f"{note} Permutation importance was not measured: {why}.".strip()
    return note, bars(shares, title)


def _measured_note(measured: Mapping[str, Any], count: int) -> str:
    on = f"{measured['rows']:,} {measured['split']} rows (seed {measured['seed']})"
    note = f"Permutation importance, measured once on {on}."
    if count > SHOWN_FEATURES:
        note += f" The {SHOWN_FEATURES} largest of {count:,}."
    if left := measured.get("not_measured"):
        limit = show_seconds(measured["limit_seconds"])
        note += f" {left:,} features were not measured: the time limit of {limit} was reached."
    return note


def _residuals(details: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Return for each label a note, a histogram of the errors, and a chart of truth against prediction."""
    residuals = details.get("residuals") or {}
    for one in residuals.get("labels") or ():
        low, middle, high = one["quantiles"]
        note = (
            f"{one['label']}: prediction − truth on {one['rows']:,} {residuals['split']} rows; mean "
            f"{show_number(one['mean'])}, median {show_number(middle)}, 90 % of them between "
            f"{show_number(low)} and {show_number(high)}"
        )
        errors = histogram(one["edges"], one["counts"], Axes(x="prediction − truth", y="rows"))
        yield note, errors, _scatter(one)


def _scatter(details: Mapping[str, Any]) -> str:
    points = [(float(x), float(y)) for x, y in details.get("sample") or ()]
    if not points:
        return ""
    values = [value for point in points for value in point]
    pad = (max(values) - min(values)) * 0.04 or 1.0
    low, high = min(values) - pad, max(values) + pad
    scale = Scale(low=(low, low), high=(high, high))
    positions = ticks(low, high, 5)
    texts = tick_texts(positions)
    corners = f"{scale.place((low, low))} {scale.place((high, high))}"
    diagonal = f'<polyline class="line c2 dashed" points="{corners}"/>'
    dots = [dot(scale, point, "") for point in points]
    return figure(
        [diagonal, *dots],
        x_labels=[(scale.across(x), text) for x, text in zip(positions, texts, strict=True)],
        y_labels=[(scale.down(y), text) for y, text in zip(positions, texts, strict=True)],
        axes=Axes(x="truth", y="prediction"),
        legend=[(f"{len(points):,} rows", "c1 dots"), ("prediction = truth", "c2 dashed")],
    )


def _search(search: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trials of a search, the best trial first, and a chart of their values."""
    trials = search["trials"]
    ended = [trial for trial in trials if trial["value"] is not None]
    higher = search["metric"] in HIGHER_IS_BETTER
    ranked = sorted(ended, key=lambda trial: -trial["value"] if higher else trial["value"])
    best_so_far, best = [], None
    for trial in sorted(ended, key=lambda trial: trial["number"]):
        value = trial["value"]
        best = value if best is None else max(best, value) if higher else min(best, value)
        best_so_far.append((float(trial["number"]), float(best)))
    points = [(float(trial["number"]), float(trial["value"])) for trial in ended]
    series = (
        Series(name="trial", points=points, dots=True),
        Series(name="best so far", points=best_so_far),
    )
    return {
        "metric": search["metric"],
        "best": search["best"],
        "names": list(ranked[0]["parameters"])[:12] if ranked else [],
        "trials": ranked[:SHOWN_TRIALS],
        "count": len(trials),
        "left": len(trials) - len(ranked[:SHOWN_TRIALS]),
        "value": _value,
        "chart": line_chart(series, Axes(x="trial", y=f"validation {search['metric']}", whole=True)),
    }


def _calibration_chart(curve: Sequence[Sequence[float]]) -> str:
    points = [(float(predicted), float(came)) for predicted, came, _ in curve]
    low = min(0.0, *(min(point) for point in points))
    diagonal = Series(name="perfectly calibrated", points=[(low, low), (1.0, 1.0)], dashed=True)
    axes = Axes(x="predicted probability", y="observed share")
    return line_chart((Series(name="observed", points=points), diagonal), axes)
