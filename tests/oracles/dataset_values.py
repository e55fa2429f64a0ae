"""Values of the brute-force dataset: how they are ordered, aggregated, and how exact they are."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import combinations
from typing import Any

from gridmill.domain.dataset import Aggregate, LabelRule

Row = dict[str, Any]
Group = tuple[datetime, list[Row]]
"""Rows that became known at the same time: one row, where it is documented which one comes first."""


@dataclass(frozen=True)
class OneOf:
    """Any of these values: they are of rows known at the same time, in an order that is not documented."""

    options: tuple[Any, ...]


class Near(float):
    """A computed float, and the sum of the absolute values that went into it."""

    scale: float

    def __new__(cls, value: float, scale: float) -> "Near":
        near = super().__new__(cls, value)
        near.scale = scale
        return near


def moment(value: Any) -> datetime | None:
    """A date is the time at which it begins."""
    assert value is None or isinstance(value, date)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value


def span_text(seconds: float) -> str:
    """`1d`, `6h`, `30m`: the largest unit of which it is a whole number (Window: `temp_mean_1d`)."""
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    return next(f"{int(seconds // size)}{unit}" for unit, size in units if seconds % size == 0)


def order_of(values: Iterable[Any]) -> tuple[Any, ...]:
    """By value; missing ones are last."""
    return tuple((value is None, comparable(value)) for value in values)


def comparable(value: Any) -> Any:
    """The order of SQL: NaN is the largest number."""
    if isinstance(value, float) and math.isnan(value):
        return (1, 0.0)
    if isinstance(value, int | float):
        return (0, value)
    return value if value is not None else 0


def is_missing(value: Any) -> bool:
    """What is not a number is no label, and is missing where it is required."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def one_of(values: Iterable[Any]) -> Any:
    """One value, or several that are equally right."""
    found: list[Any] = []
    for value in values:
        if all(
            comparable(value) != comparable(other) or (value is None) != (other is None) for other in found
        ):
            found.append(value)
    return found[0] if len(found) == 1 else OneOf(tuple(found))


def last_rows(groups: Sequence[Group], count: int) -> Iterator[list[Group]]:
    """The last rows, in every way in which those known at the same time can be ordered."""
    chosen: list[Group] = []
    for time, rows in reversed(groups):
        if len(rows) > count:
            yield from ([(time, list(some)), *chosen] for some in combinations(rows, count))
            return
        chosen.insert(0, (time, rows))
        count -= len(rows)
    yield chosen


def value_back(groups: Sequence[Group], step: int, column: str) -> Any:
    for _, rows in reversed(groups):
        if step <= len(rows):
            return one_of(row[column] for row in rows)
        step -= len(rows)
    return None


def aggregates(name: Aggregate, column: str, groups: Sequence[Group]) -> Iterator[Any]:
    """The aggregate; of `last` those of all rows that can be the last one."""
    if name is not Aggregate.LAST:
        yield aggregate(name, [row[column] for _, rows in groups for row in rows])
        return
    for _, rows in reversed(groups):
        values = [row[column] for row in rows if row[column] is not None]
        if values:
            yield from values
            return
    yield None


def aggregate(name: Aggregate, given: Sequence[Any]) -> Any:
    """Missing values are passed over; without any, count and distinct are 0, the others missing (Window)."""
    values = [value for value in given if value is not None]
    if name is Aggregate.COUNT:
        return len(values)
    if name is Aggregate.DISTINCT:
        return len({comparable(value) for value in values})
    if not values:
        return None
    if name in (Aggregate.MIN, Aggregate.MAX):
        return (min if name is Aggregate.MIN else max)(values, key=comparable)
    return _of_numbers(name, [float(value) for value in values])


def total(values: Iterable[float]) -> float:
    """The exact sum; NaN of infinities of both signs, infinite where it is too large."""
    known = list(values)
    try:
        return math.fsum(known)
    except (ValueError, OverflowError):
        return sum(known)


def _of_numbers(name: str, values: Sequence[float]) -> Any:
    scale = math.fsum(abs(value) for value in values)
    if not math.isfinite(scale):
        return _not_finite(name, values)
    if name == "std":  # of a sample: missing of a single value (Window)
        return _deviation(values, scale) if len(values) > 1 else None
    if name == "sum":
        return Near(math.fsum(values), scale)
    return Near(math.fsum(values) / len(values), scale / len(values))


def _deviation(values: Sequence[float], scale: float) -> Near:
    """It is held to its own size, not to that of the values (ADR 16)."""
    found = statistics.stdev(values)
    return Near(found, found + 1e-6 * scale)


def _not_finite(name: str, values: Sequence[float]) -> float | None:
    if name == "std":
        return math.nan if len(values) > 1 else None
    return sum(values)


def outcome(name: LabelRule | None, given: Sequence[Any]) -> Any:
    """Whether there is any event, how many, or an aggregate of the column; the sum of none is 0 (Label)."""
    if name is LabelRule.ANY:
        return bool(given)
    if name is LabelRule.COUNT:
        return len(given)
    if name is LabelRule.SUM and not [value for value in given if value is not None]:
        return 0.0
    return aggregate(Aggregate(str(name)), given)
