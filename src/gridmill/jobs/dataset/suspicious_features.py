"""Finds label leakage (features that reveal the label), and SQL functions that can return another value in
each call.

Examples are functions that return random numbers, new identifiers or the current time.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.codec import to_builtins
from gridmill.domain.job import Job
from gridmill.jobs.features import Floats, is_number, is_text, numbers
from gridmill.jobs.metrics import area_under_curve

CORRELATION, AREA = 0.95, 0.98
LEAST_ROWS, LEAST_OF_CLASS = 30, 10
"""The smallest number of rows in total, and the smallest number of rows of each class, for which label
leakage is reported. With fewer rows, a feature can exceed the limits by chance."""
MOST_ROWS = 20_000
_NAMED = 5


def suspects(sample: pa.Table, label: str | None) -> list[dict[str, Any]]:
    """Return the features that correlate suspiciously with the label, as [{column, correlation or auc}], the
    highest first. The correlation with the label must be at least CORRELATION (either sign). If the label
    has two values, the area under the ROC curve must be at least AREA (either direction). Constant features
    are not considered, and neither are text labels with more than two values."""
    if label is None or label not in sample.column_names or sample.num_rows < LEAST_ROWS:
        return []
    every = -(-sample.num_rows // MOST_ROWS)
    sample = sample.take(np.arange(0, sample.num_rows, every)) if every > 1 else sample
    truth = _label_numbers(sample[label])
    if truth is None:
        return []
    names = [name for name in sample.column_names if name != label and is_number(sample[name].type)]
    suspected = [one for name in names for one in _held_against(name, numbers(sample[name]), truth)]
    return sorted(suspected, key=lambda one: -abs(one.get("correlation", one.get("auc", 0.0))))


def _label_numbers(label: pa.ChunkedArray) -> Floats | None:
    """Return the label as numbers. If the label has two different texts as its values, they become the
    numbers 0 and 1."""
    if is_number(label.type):
        return numbers(label)
    if not is_text(label.type):
        return None
    values = sorted(value for value in pc.unique(label).to_pylist() if value is not None)
    if len(values) != 2:
        return None
    codes = pc.index_in(label.cast(pa.string()), value_set=pa.array(values, pa.string()))
    result: Floats = pc.cast(codes, pa.float64()).to_numpy().astype(np.float64)
    return result


def _held_against(name: str, values: Floats, truth: Floats) -> Iterator[dict[str, Any]]:
    both = ~(np.isnan(values) | np.isnan(truth))
    x, y = values[both], truth[both]
    if len(x) < LEAST_ROWS or x.min() == x.max() or y.min() == y.max():
        return
    area = _area(x, y)
    if area is not None:
        if area >= AREA:
            yield {"column": name, "auc": round(area, 4)}
        return
    correlation = _correlation(x, y)
    if abs(correlation) >= CORRELATION:
        yield {"column": name, "correlation": round(correlation, 4)}


def _area(x: Floats, y: Floats) -> float | None:
    """Return the area under the ROC curve for a label with two values, at least 0.5. Return None if the
    label does not have exactly two values."""
    positive = y == y.max()
    ones = int(np.count_nonzero(positive))
    if not (positive | (y == y.min())).all():
        return None
    if min(ones, len(y) - ones) < LEAST_OF_CLASS:
        return 0.5
    area = area_under_curve(positive, x)
    return max(area, 1 - area)


def _correlation(x: Floats, y: Floats) -> float:
    """Return Pearson's correlation. The values are scaled to about 1, so that no square overflows."""
    with np.errstate(all="ignore"):
        one, other = (values / np.abs(values).max() for values in (x, y))
        one, other = one - one.mean(), other - other.mean()
        correlation = float(one @ other / np.sqrt((one @ one) * (other @ other)))
    return max(-1.0, min(1.0, correlation)) if np.isfinite(correlation) else 0.0


def suspect_lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each of the first suspicious features, and one sentence for all further
    features."""
    for one in found[:_NAMED]:
        measure = (
            f"separates the two labels with an area under the ROC curve of {one['auc']:.3f}"
            if "auc" in one
            else f"has a correlation of {one['correlation']:.3f} with the label"
        )
        yield f"{one['column']} alone {measure}: check that it is known before the label"
    if len(found) > _NAMED:
        yield (
            f"{len(found) - _NAMED} more features are as closely related to the label; `--json` lists them "
            "as `suspects`"
        )


_FUNCTIONS = (
    *("random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval"),
    *("now", "today", "transaction_timestamp", "get_current_time", "get_current_timestamp"),
    *("current_localtime", "current_localtimestamp"),
)
_WORDS = ("current_timestamp", "current_date", "current_time", "localtimestamp", "localtime")
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CALL = re.compile(
    rf"(?<![\w.])(?:(?P<function>{'|'.join(_FUNCTIONS)})\s*\(|(?P<word>{'|'.join(_WORDS)})\b)", re.IGNORECASE
)


def volatile_remarks(job: Job) -> list[Any]:
    """Return a warning if the SQL of the job could return other values in a new run, although the stored
    version stays valid."""
    calls = volatile_calls(_texts(to_builtins(job.spec))) if job.cache is not False else ()
    if not calls:
        return []
    changes = (
        f"{', '.join(calls)} in SQL gives different values each time, but an unchanged job does not run again"
    )
    return [[f"{changes}: declare `cache: false` to compute it in each run", True]]


def _texts(value: object, field: str = "") -> Iterator[str]:
    """Yield the texts of a declaration, except the reasons of exemptions."""
    if isinstance(value, str) and field != "exempt":
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, field)


def volatile_calls(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the function calls in these SQL texts, such as `random()` and `current_timestamp`, each once,
    in order. Strings, quoted names and comments in the SQL are ignored."""
    matches = (match for text in texts for match in _CALL.finditer(_SKIPPED.sub(" ", text)))
    named = (f"{one['function']}()" if one["function"] else one["word"] for one in matches)
    return tuple(dict.fromkeys(name.lower() for name in named))
