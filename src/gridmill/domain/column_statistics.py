"""This module formats the statistics of a dataset's columns as text: histogram, quantiles, correlation with
the label."""

from collections.abc import Mapping
from typing import Any

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass

LISTED = 40
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """The statistics of one column. `shares` are the heights of the bars of the column's histogram, from 0
    to 1. `values` are the 5 %, 50 % and 95 % quantiles of the column, or its most frequent texts.
    `with_label` is the correlation of the column with the label, if both are numbers. `problem` is the
    reason why the statistics of the column are missing."""

    name: str
    missing: float
    shares: tuple[float, ...] = ()
    values: tuple[str | float, ...] = ()
    with_label: float | None = None
    problem: str = ""

    @property
    def bars(self) -> str:
        """Return the histogram as text."""
        return "".join(_BARS[min(7, int(share * 8))] for share in self.shares)


def column_lines(artifact: Artifact) -> list[ColumnStatistics]:
    """Return the statistics of the first columns of a dataset version as lines of text. The result is empty
    for a version without statistics."""
    statistics = artifact.output.details.get("statistics")
    if not isinstance(statistics, Mapping):
        return []
    label = _with_label(statistics.get("correlation") or {}, artifact.output.details.get("label"))
    columns: Mapping[str, Mapping[str, Any]] = statistics["columns"]
    return [_line(name, facts, label.get(name)) for name, facts in list(columns.items())[:LISTED]]


def columns_left_out(artifact: Artifact) -> int:
    """Return the number of columns of a dataset version that `column_lines` does not show."""
    statistics = artifact.output.details.get("statistics")
    columns = (
        int(statistics.get("of") or len(statistics["columns"])) if isinstance(statistics, Mapping) else 0
    )
    return max(0, columns - len(column_lines(artifact)))


def _with_label(correlation: Mapping[str, Any], label: object) -> Mapping[str, float]:
    names = correlation.get("columns") or []
    if label not in names:
        return {}
    row = correlation["values"][names.index(label)]
    pairs = zip(names, row, strict=True)
    return {name: value for name, value in pairs if value is not None and name != label}


def _line(name: str, facts: Mapping[str, Any], with_label: float | None) -> ColumnStatistics:
    counts = facts.get("histogram", {}).get("counts", ())
    highest = max(counts, default=0) or 1
    quantiles = facts.get("quantiles", {})
    texts = tuple(f"{value} {share:.0%}" for value, share in facts.get("top", ())[:3])
    return ColumnStatistics(
        name=name,
        missing=facts["missing"],
        shares=tuple(count / highest for count in counts),
        values=tuple(quantiles[key] for key in ("0.05", "0.5", "0.95") if key in quantiles) or texts,
        with_label=with_label,
        problem=str(facts.get("problem") or ""),
    )
