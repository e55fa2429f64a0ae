"""This module makes tables of the detailed metrics of a model or prediction, which `show` and the report
print."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridmill.domain.amounts import show_number
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass

SHOWN = 24
"""The largest number of labels or classes that are listed; the record has all of them."""
MATRIX = 12
"""The largest number of classes for which a confusion matrix is printed."""
_OF_LABEL = ("rmse", "mae", "r2", "skill")
_OF_CLASS = ("rows", "predicted", "precision", "recall", "f1", "average_precision", "auc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A table of detailed metrics: its first column is text, and its other columns are numbers as text.
    `note` describes the rows that the table does not list."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def breakdown_of(version: Artifact) -> tuple[Breakdown, ...]:
    """Return the tables of detailed metrics of a version: of the test split, or else of the first measured
    split."""
    details: Mapping[str, Any] = version.output.details.get("breakdown") or {}
    measured = {split: table for split, table in details.items() if table}
    split = "test" if "test" in measured else next(iter(measured), None)
    if split is None:
        return ()
    table = measured[split]
    return tuple(_of_classes(split, table) if isinstance(table, Mapping) else _of_labels(split, table))


def _of_labels(split: str, rows_by_label: Sequence[Mapping[str, Any]]) -> Iterator[Breakdown]:
    rows = [(str(one["label"]), *_numbers(one, _OF_LABEL)) for one in rows_by_label]
    yield _table(f"each label ({split}, in its own unit)", ("label", *_OF_LABEL), rows)


def _of_classes(split: str, details: Mapping[str, Any]) -> Iterator[Breakdown]:
    rows = [(str(one["class"]), *_numbers(one, _OF_CLASS)) for one in details["classes"]]
    if macro := details.get("macro"):
        rows.append(("mean of the classes", *_numbers(macro, _OF_CLASS)))
    yield _table(f"each class ({split})", ("class", *_OF_CLASS), rows)
    matrix = details["confusion"]
    if len(matrix["predicted"]) <= MATRIX:
        counts = zip(matrix["truth"], matrix["counts"], strict=True)
        cells = [(str(name), *(f"{count:,}" for count in line)) for name, line in counts]
        head = ("truth \\ predicted", *map(str, matrix["predicted"]))
        yield _table(f"confusion matrix ({split}, rows)", head, cells)


def _numbers(details: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if details.get(name) is None else show_number(float(details[name])) for name in names)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Breakdown:
    more = len(rows) - SHOWN
    note = f"and {more} more, in `--json`" if more > 0 else ""
    return Breakdown(title=title, head=head, rows=tuple(rows[:SHOWN]), note=note)
