"""Predictions in a report: which model was chosen and why, and a sample of true and predicted values."""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.amounts import show_seconds
from gridmill.domain.artifact import Artifact
from gridmill.domain.metric_tables import breakdown_of
from gridmill.report.jobs import anchor
from gridmill.report.models import name_of
from gridmill.report.svg import Axes, Series, line_chart

SHOWN_SAMPLES = 6


def forecast(artifact: Artifact) -> dict[str, Any]:
    """Facts and charts. The job keeps a sample of [[time, truth, prediction], ...] per entity."""
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
    """The models that were compared, with the metrics of each on the same validation rows."""
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
