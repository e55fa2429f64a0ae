"""A brute-force dataset: each feature of each row is found by looking at all rows of all tables.

Written from the documentation alone: docs/how-to/data.md ("Build a dataset" and what follows), the sections
Dataset to Encoder of docs/reference/pipeline.md, and the decisions 6, 10 and 16 of docs/adr. Each rule names
the place that it comes from. Splits and encoders are in `dataset_splits` and `dataset_encoders`.

SQL expressions are given in Python beside their text (`Tables.expressions`). A float that is a sum carries
how large the values are that went into it (`Near`), as the last digits of a sum depend on its order.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from gridmill.model.dataset import Aggregate, AsOfJoin, DatasetSpec, Join, Lag, Outcome, Window

Row = dict[str, Any]
Expression = Callable[[Row], Any]
Known = tuple[datetime, tuple[Any, ...], Row]
"""When a row became known, its place among those known at the same time, and the row."""


class Near(float):
    """A computed float, and the sum of the absolute values that went into it."""

    scale: float

    def __new__(cls, value: float, scale: float) -> "Near":
        near = super().__new__(cls, value)
        near.scale = scale
        return near


@dataclass(frozen=True)
class Tables:
    """The rows of each table, and what SQL expressions mean."""

    rows: Mapping[str, Sequence[Row]]
    expressions: Mapping[str, Expression] = field(default_factory=dict)

    def value(self, expression: str, row: Row) -> Any:
        """A column or an SQL expression over a row."""
        return row[expression] if expression in row else self.expressions[expression](row)


@dataclass
class Made:
    """A row of the dataset, or one that was dropped: `reasons` says why."""

    source: Row
    values: Row
    time: datetime
    labels: dict[str, Any]
    label_known: datetime | None
    """When all of its label is known; None if that is never."""
    reasons: set[str] = field(default_factory=set)
    split: str = "train"


def moment(value: Any) -> datetime | None:
    """A date is the time at which it begins."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value


def span_text(seconds: float) -> str:
    """`1d`, `6h`, `30m`: the largest unit of which it is a whole number (Window: `temp_mean_1d`)."""
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    return next(f"{int(seconds // size)}{unit}" for unit, size in units if seconds % size == 0)


def tie_order(row: Row) -> tuple[Any, ...]:
    """Rows at the same time are ordered by their values (ADR 6, "The same rows, the same bytes")."""
    return tuple((value is not None, _comparable(value)) for value in row.values())


def _comparable(value: Any) -> Any:
    """The order of SQL: NaN is the largest number."""
    if isinstance(value, float) and math.isnan(value):
        return (1, 0.0)
    if isinstance(value, int | float):
        return (0, value)
    return value if value is not None else 0


class Oracle:
    """The dataset that a declaration makes of tables."""

    def __init__(self, spec: DatasetSpec, tables: Tables) -> None:
        assert spec.basis is not None
        self.spec, self.basis, self.label, self.tables = spec, spec.basis, spec.label, tables
        given = tables.rows[self.basis.table]
        self.rows = [row for row in given if self._has_place(row)]
        self.without_place = len(given) - len(self.rows)
        """Rows without a time or an entity: they are dropped, and counted (Basis)."""

    def _has_place(self, row: Row) -> bool:
        return None not in [row[name] for name in (self.basis.time, *self.basis.entity)]

    # When rows are known

    def basis_clock(self, row: Row) -> datetime | None:
        """Other rows see a row from `basis.known_at` on; by default after its time (Basis)."""
        return moment(self.tables.value(self.basis.known_at or self.basis.time, row))

    def label_clock(self, row: Row) -> datetime | None:
        """The label that is taken from a row (or event) is known with it, unless `known_at` says when, and
        `delay` later than that (Label)."""
        assert self.label is not None
        own = self.label.known_at
        known = moment(self.tables.value(own, row)) if own else self.basis_clock(row)
        return _later(known, self.label.delay_seconds)

    def clock(self, part: Window | Lag | AsOfJoin | Join, column: str, row: Row) -> datetime | None:
        """When a part may see the value of `column` in a row: by its `known_at`, or when the label says that
        it is known, if that is later ("Labels are seen once they are known")."""
        if part.known_at is not None:
            known = moment(self.tables.value(part.known_at, row))
        else:
            known = self.basis_clock(row)
        if part.exempt or not self._is_label(part, column):
            return known
        clocks = (known, self.label_clock(row))
        return None if None in clocks else max(clocks)  # type: ignore[type-var]

    def _is_label(self, part: Window | Lag | AsOfJoin | Join, column: str) -> bool:
        """Whether the label says when a value is known.

        "The events of a label", of which no part sees any column earlier; the column of the label in the
        basis's table; of a later value only if the label has a clock of its own and the column is no feature
        of the row itself.
        """
        label = self.label
        if label is None:
            return False
        if label.table is not None:
            return part.table == label.table
        if part.table not in (None, self.basis.table) or column not in label.sources:
            return False
        has_clock = label.known_at is not None or label.delay_seconds is not None
        is_feature = not self.basis.columns or column in self.basis.columns
        return label.is_own or (has_clock and not is_feature)

    def known_before(self, part: Window | Lag | AsOfJoin, column: str, row: Row) -> list[Known]:
        """The rows with the same `on` that were known strictly before the row's time, in that order (Window).

        A row without a key has the same key as no other; a row without a `known_at` is never known.
        """
        time = moment(row[self.basis.time])
        assert time is not None
        own = part.table is None
        rows = self.rows if own else self.tables.rows[part.table or ""]
        on = part.on or (self.basis.entity if own else ())
        found: list[Known] = []
        for other in rows:
            known = self.clock(part, column, other)
            if known is not None and known < time and _same(row, other, on):
                found.append((known, tie_order(other), other))
        return sorted(found, key=lambda one: one[:2])

    def labels_before(self, part: Window | Lag, row: Row) -> list[Known]:
        """The labels of rows with the same `on` that were known before ("earlier labels")."""
        assert self.label is not None
        time = moment(row[self.basis.time])
        assert time is not None
        found: list[Known] = []
        for other in self.rows:
            known, values = self.label_of(other)
            value = values[self.label.name]
            if known is not None and known < time and _same(row, other, part.on or self.basis.entity):
                found.append((known, tie_order(other), {self.label.name: value}))
        return sorted(found, key=lambda one: one[:2])

    def seen_by(self, part: Window | Lag, row: Row) -> list[Known]:
        label = self.label
        if label is not None and part.column == label.name and part.table is None:
            if label.name not in label.sources:
                return self.labels_before(part, row)
        return self.known_before(part, part.column, row)

    # Parts

    def own(self, row: Row) -> Row:
        """`basis.columns`, by default all; the label's own value is no feature (Basis, Label)."""
        places = (self.basis.time, *self.basis.entity)
        names = [*places, *(name for name in self.basis.columns or row if name not in places)]
        hidden = self.label.sources if self.label is not None and self.label.is_own else ()
        return {name: row[name] for name in names if name not in hidden or name in places}

    def window(self, part: Window, row: Row) -> Row:
        """Aggregates over the rows of a span of time, from its first moment on, or over the last rows."""
        seen = self.seen_by(part, row)
        if part.span_rows is not None:
            seen, span = seen[-part.span_rows :], f"{part.span_rows}rows"
        else:
            assert part.span_seconds is not None
            begin = row[self.basis.time]
            first = moment(begin) - timedelta(seconds=part.span_seconds)  # type: ignore[operator]
            seen, span = [one for one in seen if one[0] >= first], span_text(part.span_seconds)
        values = [other[part.column] for _, _, other in seen]
        return {
            f"{part.prefix}{part.column}_{name}_{span}": aggregate(name, values) for name in part.aggregates
        }

    def lag(self, part: Lag, row: Row) -> Row:
        """Rows back among those known before; or the newest row known by a time (Lag)."""
        seen = self.seen_by(part, row)
        named = f"{part.prefix}{part.column}_lag_"
        found: Row = {}
        for step in part.steps:
            found[f"{named}{step}"] = seen[-step][2][part.column] if step <= len(seen) else None
        for seconds in part.back_seconds:
            until = moment(row[self.basis.time]) - timedelta(seconds=seconds)  # type: ignore[operator]
            known = [other for clock, _, other in seen if clock <= until]
            found[f"{named}{span_text(seconds)}"] = known[-1][part.column] if known else None
        return found

    def asof(self, part: AsOfJoin, row: Row) -> Row:
        """The newest row that was known before the row's time; `within` drops older rows (AsOfJoin)."""
        found: Row = {}
        for column in part.columns:
            seen = self.known_before(part, column, row)
            if part.within_seconds is not None:
                first = moment(row[self.basis.time]) - timedelta(seconds=part.within_seconds)  # type: ignore[operator]
                seen = [one for one in seen if one[0] >= first]
            found[part.prefix + column] = seen[-1][2][column] if seen else None
        return found

    def join(self, part: Join, row: Row) -> Row:
        """Equal columns, unique in the table; what was not known before the row's time is missing (Join)."""
        time = moment(row[self.basis.time])
        found: Row = {part.prefix + column: None for column in part.columns}
        for other in self.tables.rows[part.table]:
            if _same(row, other, part.on):
                for column in part.columns:
                    known = self.clock(part, column, other) if part.known_at is not None else None
                    if part.known_at is None or (known is not None and time is not None and known < time):
                        found[part.prefix + column] = other[column]
        return found

    # Labels

    def label_of(self, row: Row) -> tuple[datetime | None, dict[str, Any]]:
        """When the label of a row is known (None: never), and its columns."""
        label = self.label
        assert label is not None
        if label.table is not None:
            return self._of_events(row)
        if label.is_own:
            return self.label_clock(row), {label.name: row[label.sources[0]]}
        ahead = self._ahead(row)
        clocks = [self.label_clock(other) if other is not None else None for other in ahead]
        known = None if None in clocks else max(clocks)  # type: ignore[type-var]
        if label.next_rows is None:
            (other,) = ahead
            return known, {label.name: other[label.sources[0]] if other is not None else None}
        return known, {
            f"{column}_{label.name}_{step}": other[column] if other is not None else None
            for step, other in enumerate(ahead, 1)
            for column in label.sources
        }

    def _ahead(self, row: Row) -> list[Row | None]:
        """The rows of the same entity that a label is taken from."""
        label = self.label
        assert label is not None
        mine = [other for other in self.rows if _same(row, other, self.basis.entity)]
        time = moment(row[self.basis.time])
        assert time is not None
        if label.horizon_seconds is not None:
            wanted = time + timedelta(seconds=label.horizon_seconds)
            exact = [other for other in mine if moment(other[self.basis.time]) == wanted]
            return [min(exact, key=tie_order) if exact else None]
        mine.sort(key=lambda other: (moment(other[self.basis.time]), tie_order(other)))
        place = next(place for place, other in enumerate(mine) if other is row)
        steps = [label.steps] if label.steps is not None else range(1, (label.next_rows or 0) + 1)
        return [mine[place + step] if place + step < len(mine) else None for step in steps]

    def _of_events(self, row: Row) -> tuple[datetime | None, dict[str, Any]]:
        """The outcome of the events that become known after the row's time, until the horizon ends (Label)."""
        label = self.label
        assert label is not None and label.known_at is not None and label.horizon_seconds is not None
        time = moment(row[self.basis.time])
        assert time is not None and label.table is not None
        end = time + timedelta(seconds=label.horizon_seconds)
        values = []
        for event in self.tables.rows[label.table]:
            known = moment(self.tables.value(label.known_at, event))
            if known is not None and time < known <= end and _same(row, event, label.on):
                values.append(event[label.column] if label.column is not None else 1)
        until = self.events_until()
        is_known = until is not None and end <= until
        known_at = _later(end, label.delay_seconds) if is_known else None
        return known_at, {label.name: outcome(label.outcome, values) if is_known else None}

    def events_until(self) -> datetime | None:
        """ "Labels made of events end with the newest event", or at `known_until`."""
        label = self.label
        assert label is not None and label.table is not None and label.known_at is not None
        if label.known_until is None:
            known = [moment(self.tables.value(label.known_at, one)) for one in self.tables.rows[label.table]]
            return max((one for one in known if one is not None), default=None)
        if label.complete_until is not None:
            return label.complete_until
        times = [moment(row[self.basis.time]) for row in self.rows]
        return max((one for one in times if one is not None), default=None)

    # All of it

    def made(self) -> list[Made]:
        """Every row with a time and an entity, before splits and encoders."""
        return [self._made(row) for row in self.rows]

    def _made(self, row: Row) -> Made:
        values = self.own(row)
        for join in self.spec.joins:
            values |= self.join(join, row)
        for asof in self.spec.asof_joins:
            values |= self.asof(asof, row)
        for lag in self.spec.lags:
            values |= self.lag(lag, row)
        for window in self.spec.windows:
            values |= self.window(window, row)
        for name, text in self.spec.features.items():
            values[name] = self.tables.expressions[text](values)
        time = moment(row[self.basis.time])
        assert time is not None
        known, labels = (time, {}) if self.label is None else self.label_of(row)
        made = Made(source=row, values=values, time=time, labels=labels, label_known=known)
        if None in labels.values():
            made.reasons.add("label")
        if None in [values[name] for name in self.spec.required]:
            made.reasons.add("required")
        return made


def _later(time: datetime | None, seconds: float | None) -> datetime | None:
    return time if time is None or seconds is None else time + timedelta(seconds=seconds)


def _same(one: Row, other: Row, on: Iterable[str]) -> bool:
    """A missing key equals no other."""
    return all(one[name] is not None and one[name] == other[name] for name in on)


def aggregate(name: Aggregate, given: Sequence[Any]) -> Any:
    """Missing values are passed over; without any, count and distinct are 0, the others missing (Window)."""
    values = [value for value in given if value is not None]
    if name is Aggregate.COUNT:
        return len(values)
    if name is Aggregate.DISTINCT:
        return len({_comparable(value) for value in values})
    if not values:
        return None
    if name is Aggregate.LAST:
        return values[-1]
    if name in (Aggregate.MIN, Aggregate.MAX):
        return (min if name is Aggregate.MIN else max)(values, key=_comparable)
    return _of_numbers(name, values)


def _of_numbers(name: str, values: Sequence[Any]) -> Any:
    if name == "sum" and all(isinstance(value, int) for value in values):
        return sum(values)
    scale = math.fsum(abs(value) for value in values)
    if not math.isfinite(scale):
        return _not_finite(name, values)
    if name == "std":  # of a sample: missing of a single value (Window)
        return Near(statistics.stdev(values), scale) if len(values) > 1 else None
    if name == "sum":
        return Near(math.fsum(values), scale)
    return Near(math.fsum(values) / len(values), scale / len(values))


def _not_finite(name: str, values: Sequence[Any]) -> Any:
    if name == "std":
        return math.nan if len(values) > 1 else None
    return sum(float(value) for value in values)


def outcome(name: Outcome | None, given: Sequence[Any]) -> Any:
    """Whether there is any event, how many, or an aggregate of the column (Label)."""
    if name is Outcome.ANY:
        return bool(given)
    if name is Outcome.COUNT:
        return len(given)
    return aggregate(Aggregate(str(name)), given)
