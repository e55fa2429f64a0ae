"""A brute-force dataset: each feature of each row is found by looking at all rows of all tables.

Written from the documentation alone: docs/how-to/data.md ("Build a dataset" and what follows), the sections
Dataset to Encoder of docs/reference/pipeline.md, and the decisions 6, 10 and 16 of docs/adr. Each rule names
the place that it comes from. Splits and encoders are in `dataset_splits` and `dataset_encoders`.

SQL expressions are given in Python beside their text (`Tables.expressions`). A float that is a sum carries
how large the values are that went into it (`Near`), as the last digits of a sum depend on its order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gridmill.domain.dataset import AsOfJoin, DatasetSpec, Join, Lag, Window
from tests.oracles.dataset_values import (
    Group,
    Row,
    aggregates,
    comparable,
    is_missing,
    last_rows,
    moment,
    one_of,
    order_of,
    outcome,
    span_text,
    value_back,
)

Expression = Callable[[Row], Any]


@dataclass(frozen=True)
class Tables:
    """The rows of each table, and what SQL expressions mean."""

    rows: Mapping[str, Sequence[Row]]
    expressions: Mapping[str, Expression] = field(default_factory=dict)

    def columns(self, table: str) -> list[str]:
        """The columns of a table that has rows."""
        return list(self.rows[table][0])

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


class Oracle:
    """The dataset that a declaration makes of tables."""

    def __init__(self, spec: DatasetSpec, tables: Tables) -> None:
        assert spec.basis is not None
        self.spec, self.basis, self.label, self.tables = spec, spec.basis, spec.label, tables
        given = tables.rows[self.basis.table]
        self.rows = [row for row in given if self._has_place(row)]
        self.named = self._named()
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

    def history(self, part: Window | Lag, row: Row) -> list[Group]:
        """The rows with the same `on` that were known strictly before the row's time (Window).

        A row without an entity has no label that is known late, but windows by another key include it
        ("Missing keys").
        """
        label = self.label
        if label is not None and part.table is None and part.column == label.name not in label.sources:
            seen = [(self.label_of(one)[0], one, self.label_of(one)[1]) for one in self.rows]
        else:
            late = label is not None and part.known_at is None and self._is_label(part, part.column)
            has_clock = label is not None and (label.known_at or label.delay_seconds)
            rows = self.rows if late and has_clock else self.tables.rows[part.table or self.basis.table]
            seen = [(self.clock(part, part.column, one), one, one) for one in rows]
        on, time = part.on or self.basis.entity, self.time(row)
        known = [
            (clock, other, values)
            for clock, other, values in seen
            if clock is not None and clock < time and _same(row, other, on)
        ]
        if self.is_in_place(part):
            known.sort(key=lambda one: (one[0], self.tie_order(one[1])))
            return [(clock, [values]) for clock, _, values in known]
        times = sorted({clock for clock, _, _ in known})
        return [(time, [values for clock, _, values in known if clock == time]) for time in times]

    def is_in_place(self, part: Window | Lag) -> bool:
        """Whether the part looks at rows of the same entity that are known with their time: their order is
        that of the dataset."""
        own_clock = part.known_at is None and self.basis.known_at is None
        label = self.label
        of_label = label is not None and (part.column == label.name or self._is_label(part, part.column))
        by_time = isinstance(part, Lag) and part.back_seconds
        return part.table is None and not part.on and own_clock and not of_label and not by_time

    def tie_order(self, row: Row) -> tuple[Any, ...]:
        """Rows of an entity at the same time are in the order of their values, column by column (ADR 6, "The
        same rows, the same bytes"): of the columns that the declaration names."""
        return order_of(row[name] for name in self.named)

    def _named(self) -> list[str]:
        """The columns of the basis's table that the declaration names, less time and entity."""
        spec, basis = self.spec, self.basis
        columns = self.tables.columns(basis.table)
        named = {*(basis.columns or columns), *spec.required}
        parts: list[Window | Lag] = [*spec.windows, *spec.lags]
        named |= {part.column for part in parts if self.is_in_place(part)}
        keyed: list[Any] = [*spec.joins, *spec.asof_joins, *spec.windows, *spec.lags]
        named |= {name for part in keyed for name in part.on}
        named |= {name for text in spec.features.values() for name in columns if name in text.split()}
        if self.label is not None:
            named |= {*self.label.on, *(self.label.sources if self.label.table is None else ())}
        if self.label is not None and self.label.known_at and self.label.table is None:
            named |= {name for name in columns if name in self.label.known_at.split()}
        named |= set(spec.split.on) if spec.split is not None else set()
        return [name for name in columns if name in named - {basis.time, *basis.entity}]

    def time(self, row: Row) -> datetime:
        """The row's time."""
        found = moment(row[self.basis.time])
        assert found is not None
        return found

    # Parts

    def own(self, row: Row) -> Row:
        """`basis.columns`, by default all; the label's own value is no feature (Basis, Label)."""
        places = (self.basis.time, *self.basis.entity)
        names = [*places, *(name for name in self.basis.columns or row if name not in places)]
        hidden = self.label.sources if self.label is not None and self.label.is_own else ()
        return {name: row[name] for name in names if name not in hidden or name in places}

    def window(self, part: Window, row: Row) -> Row:
        """Aggregates over the rows of a span of time, from its first moment on, or over the last rows."""
        groups = self.history(part, row)
        if part.span_rows is not None:
            chosen, span = list(last_rows(groups, part.span_rows)), f"{part.span_rows}rows"
        else:
            assert part.span_seconds is not None
            first = self.time(row) - timedelta(seconds=part.span_seconds)
            chosen, span = [[one for one in groups if one[0] >= first]], span_text(part.span_seconds)
        return {
            f"{part.prefix}{part.column}_{name}_{span}": one_of(
                value for groups in chosen for value in aggregates(name, part.column, groups)
            )
            for name in part.aggregates
        }

    def lag(self, part: Lag, row: Row) -> Row:
        """Rows back among those known before; or the newest row known by a time (Lag)."""
        groups = self.history(part, row)
        named = f"{part.prefix}{part.column}_lag_"
        found: Row = {}
        for step in part.steps:
            found[f"{named}{step}"] = value_back(groups, step, part.column)
        for seconds in part.back_seconds:
            until = self.time(row) - timedelta(seconds=seconds)
            known = [one for one in groups if one[0] <= until]
            found[f"{named}{span_text(seconds)}"] = value_back(known, 1, part.column)
        return found

    def asof(self, part: AsOfJoin, row: Row) -> Row:
        """The newest row that was known before the row's time; `within` drops older rows (AsOfJoin).

        What it brings of the label is of the newest row whose label was known. Of rows known at the same time
        it is the one with the largest values, column by column, where a missing one is the smallest.
        """
        clocks = {column: self._is_label(part, column) and not part.exempt for column in part.columns}
        found: Row = {}
        for is_label in (False, True):
            columns = [column for column in part.columns if clocks[column] == is_label]
            newest = self._newest(part, columns, row) if columns else None
            found |= {part.prefix + one: newest[one] if newest is not None else None for one in columns}
        return {part.prefix + column: found[part.prefix + column] for column in part.columns}

    def _newest(self, part: AsOfJoin, columns: Sequence[str], row: Row) -> Row | None:
        known = []
        for other in self.tables.rows[part.table]:
            clock = self.clock(part, columns[0], other)
            if clock is not None and clock < self.time(row) and _same(row, other, part.on):
                values = tuple((other[one] is not None, comparable(other[one])) for one in columns)
                known.append(((clock, values), other))
        if not known:
            return None
        (clock, _), newest = max(known, key=lambda one: one[0])
        oldest = part.within_seconds and self.time(row) - timedelta(seconds=part.within_seconds)
        return None if oldest and clock < oldest else newest

    def join(self, part: Join, row: Row) -> Row:
        """Equal columns, unique in the table; what was not known before the row's time is missing (Join)."""
        time = self.time(row)
        found: Row = {part.prefix + column: None for column in part.columns}
        for other in self.tables.rows[part.table]:
            if _same(row, other, part.on):
                for column in part.columns:
                    known = self.clock(part, column, other) if part.known_at is not None else None
                    if part.known_at is None or (known is not None and known < time):
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
        if label.horizon_seconds is not None and label.known_at is None and self.basis.known_at is None:
            seconds = label.horizon_seconds + (label.delay_seconds or 0.0)
            known = _later(self.time(row), seconds)  # also of a label that is missing
        if label.next_rows is None:
            (other,) = ahead
            return known, {label.name: other[label.sources[0]] if other is not None else None}
        return known, {
            f"{column}_{label.name}_{step}": other[column] if other is not None else None
            for step, other in enumerate(ahead, 1)
            for column in label.sources
        }

    def _ahead(self, row: Row) -> list[Row | None]:
        """The rows of the same entity that a label is taken from: at exactly that time (of several the last
        one that has a value); or so many rows after those at the row's time."""
        label = self.label
        assert label is not None
        mine = [other for other in self.rows if _same(row, other, self.basis.entity)]
        if label.horizon_seconds is not None:
            wanted = self.time(row) + timedelta(seconds=label.horizon_seconds)
            exact = [other for other in mine if self.time(other) == wanted]
            with_value = [other for other in exact if other[label.sources[0]] is not None]
            return [max(with_value or exact, key=self.tie_order, default=None)]
        later = [other for other in mine if self.time(other) > self.time(row)]
        later.sort(key=lambda other: (self.time(other), self.tie_order(other)))
        steps = [label.steps] if label.steps is not None else range(1, (label.next_rows or 0) + 1)
        return [later[step - 1] if step <= len(later) else None for step in steps]

    def _of_events(self, row: Row) -> tuple[datetime | None, dict[str, Any]]:
        """The outcome of the events that become known after the row's time, within the horizon (Label)."""
        label = self.label
        assert label is not None
        assert label.table is not None
        assert label.known_at is not None
        assert label.horizon_seconds is not None
        time, end = self.time(row), self.time(row) + timedelta(seconds=label.horizon_seconds)
        values = []
        for event in self.tables.rows[label.table]:
            known = moment(self.tables.value(label.known_at, event))
            on = label.on or self.basis.entity
            if known is not None and time < known <= end and _same(row, event, on):
                values.append(event[label.column] if label.column is not None else 1)
        until = self.events_until()
        is_known = until is not None and end <= until
        return _later(end, label.delay_seconds), {
            label.name: outcome(label.outcome, values) if is_known else None
        }

    def events_until(self) -> datetime | None:
        """ "Labels made of events end with the newest event", or at `known_until`.

        With `basis` the events were loaded together with the basis: those that are known by then.
        """
        label = self.label
        assert label is not None
        assert label.table is not None
        assert label.known_at is not None
        if label.complete_until is not None:
            return label.complete_until
        events = [moment(self.tables.value(label.known_at, one)) for one in self.tables.rows[label.table]]
        newest = [one for one in events if one is not None]
        if label.known_until is not None:
            times = [moment(row[self.basis.time]) for row in self.tables.rows[self.basis.table]]
            last = max(one for one in times if one is not None)
            newest.append(last - timedelta(seconds=label.delay_seconds or 0.0))
        return max(newest, default=None)

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
            values[name] = self.tables.expressions[text]({**row, **values})
        time = self.time(row)
        known, labels = (time, {}) if self.label is None else self.label_of(row)
        made = Made(source=row, values=values, time=time, labels=labels, label_known=known)
        never = known is None and self.label is not None and self.label.known_at is not None
        if never or any(is_missing(value) for value in labels.values()):
            made.reasons.add("label")
        if any(is_missing({**row, **values}[name]) for name in self.spec.required):
            made.reasons.add("required")
        return made


def _later(time: datetime | None, seconds: float | None) -> datetime | None:
    return time if time is None or seconds is None else time + timedelta(seconds=seconds)


def _same(one: Row, other: Row, on: Iterable[str]) -> bool:
    """A missing key equals no other."""
    return all(one[name] is not None and one[name] == other[name] for name in on)
