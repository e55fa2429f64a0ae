"""The detailed metrics of a model or prediction as tables, which `show` and the report print."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridmill.domain.amounts import show_number
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass

SHOWN = 24
"""Labels or classes that are listed; the record has all."""
MATRIX = 12
"""The most classes for which a confusion matrix is printed."""
_OF_LABEL = ("rmse", "mae", "r2", "skill")
_OF_CLASS = ("rows", "predicted", "precision", "recall", "f1", "average_precision", "auc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A table: the first column is text, the others are numbers as text. `note` says what is not listed."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def breakdown_of(version: Artifact) -> tuple[Breakdown, ...]:
    """The tables of a version: of the test split, else of the first that was measured."""
    known: Mapping[str, Any] = version.output.details.get("breakdown") or {}
    measured = {split: found for split, found in known.items() if found}
    split = "test" if "test" in measured else next(iter(measured), None)
    if split is None:
        return ()
    found = measured[split]
    return tuple(_of_classes(split, found) if isinstance(found, Mapping) else _of_labels(split, found))


def _of_labels(split: str, found: Sequence[Mapping[str, Any]]) -> Iterator[Breakdown]:
    rows = [(str(one["label"]), *_numbers(one, _OF_LABEL)) for one in found]
    yield _table(f"each label ({split}, in its own unit)", ("label", *_OF_LABEL), rows)


def _of_classes(split: str, found: Mapping[str, Any]) -> Iterator[Breakdown]:
    rows = [(str(one["class"]), *_numbers(one, _OF_CLASS)) for one in found["classes"]]
    if macro := found.get("macro"):
        rows.append(("mean of the classes", *_numbers(macro, _OF_CLASS)))
    yield _table(f"each class ({split})", ("class", *_OF_CLASS), rows)
    matrix = found["confusion"]
    if len(matrix["predicted"]) <= MATRIX:
        counts = zip(matrix["truth"], matrix["counts"], strict=True)
        cells = [(str(name), *(f"{count:,}" for count in line)) for name, line in counts]
        head = ("truth \\ predicted", *map(str, matrix["predicted"]))
        yield _table(f"confusion matrix ({split}, rows)", head, cells)


def _numbers(one: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if one.get(name) is None else show_number(float(one[name])) for name in names)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Breakdown:
    more = len(rows) - SHOWN
    note = f"and {more} more, in `--json`" if more > 0 else ""
    return Breakdown(title=title, head=head, rows=tuple(rows[:SHOWN]), note=note)
