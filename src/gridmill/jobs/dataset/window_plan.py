"""The plan of the computations that read values of other rows, which are made in addition to the query.

This module has no side effects. The query itself reads the rows one by one, and joins tables that need no
time. The plan requests all values of other rows: windows, lags, as-of joins, and labels that are later
values or are computed from events. The module `window_engine` computes these values over rows that it sorts
once. A window is a range of the sorted rows, and an earlier or later row is a position among the sorted
rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime

from gridmill.domain.dataset import Aggregate
from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.columns import refuse_duplicates
from gridmill.jobs.expressions import quote_all, select

CHUNK = "__chunk"
"""The name of the table with the rows that are computed together, and with the values that they request from
other rows."""
LABELS = "__labels"
"""The name of the table with the labels of all rows. The table exists if windows or lags read labels that
are later values."""
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_ALIKE = (*_INTEGERS, "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
"""SQL types whose equal values always have identical bytes. Floating-point types are not in this list,
because 0.0 and -0.0 are equal."""
_TYPES = {Aggregate.COUNT: "BIGINT", Aggregate.DISTINCT: "BIGINT"} | dict.fromkeys(
    (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD), "DOUBLE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate:
    """An aggregate of the column `column` over the rows in the last `seconds` seconds, or over the last
    `rows` rows, before the current row. If `ahead` is true, the aggregate is computed over the rows in the
    next `seconds` seconds."""

    name: str
    aggregate: Aggregate
    column: str
    seconds: float | None = None
    rows: int | None = None
    ahead: bool = False

    def type_of(self, column_type: str) -> str:
        """Return the SQL type of the aggregate."""
        return _TYPES.get(self.aggregate, column_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagValue:
    """The value of `column` in an earlier row, which is the given number of rows before the current row."""

    name: str
    column: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRow:
    """Columns of the newest row that is known before the current row. The keys of the mapping `columns` are
    the names of the features.

    If `back_seconds` is set, the newest row must be known already `back_seconds` before the current row. If
    `within_seconds` is set, the newest row must have become known within this time.
    """

    columns: Mapping[str, str]
    back_seconds: float | None = None
    within_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRow:
    """Columns of a later row of the same entity. The keys of the mapping `columns` are the names of the
    results.

    If `seconds` is set, the later row is the last row exactly `seconds` later that has a value of `column`.
    If `step` is set, the later row is the row `step` positions after the rows with the same time.
    """

    columns: Mapping[str, str]
    column: str
    seconds: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRows:
    """Columns of each of the next `rows` rows, as DOUBLE.

    `names` contains for each result the name of its column and the number of rows ahead. If a value in the
    next rows is not a number, all results are missing, and the column `whole` is missing too. The column
    `known` is the latest value of `known_column` in the next rows.
    """

    rows: int
    names: Mapping[str, tuple[str, int]]
    whole: str
    known: str
    known_column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTable:
    """The rows of another table, which has its own key columns. `title` is the name of the table in messages
    for users.

    The query `sql` returns the columns that `on` names, the column `__known`, and the requested columns.
    `order` is SQL that sorts rows with the same key that become known at the same time. If `after` is a
    time, requests read no row that a newer row replaced before `after`. Of the rows that were known before
    `after`, only the newest row of each key is needed. If `after` is None, requests can read all rows.
    """

    title: str
    sql: str
    on: tuple[str, ...]
    order: tuple[str, ...] = ()
    aggregates: tuple[WindowAggregate, ...] = ()
    lags: tuple[LagValue, ...] = ()
    newest: tuple[NewestRow, ...] = ()
    after: datetime | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Return the columns from which the requested values are computed."""
        parts: tuple[WindowAggregate | LagValue, ...] = (*self.aggregates, *self.lags)
        newest = {column for one in self.newest for column in one.columns.values()}
        return frozenset({part.column for part in parts} | newest)


@dataclass(slots=True)
class WindowPlan:
    """The windows, lags and labels over the rows of the dataset itself and over the rows of other tables.

    `types` are the SQL types of the results.
    """

    aggregates: list[WindowAggregate] = field(default_factory=list)
    lags: list[LagValue] = field(default_factory=list)
    later: LaterRow | None = None
    next_rows: NextRows | None = None
    other_tables: list[OtherTable] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    def name(self, types: Mapping[str, str]) -> None:
        """Add a result by its name to the plan. Raises InputError if the plan already has a result with this
        name."""
        for name, type_ in types.items():
            refuse_duplicates((*self.types, name))
            self.types[name] = type_

    def add(self, theirs: OtherTable) -> None:
        """Add requests for values of other rows to the plan. Requests that read the same rows in the same
        order are merged."""
        for at, one in enumerate(self.other_tables):
            if (one.sql, one.on, one.order, one.after) == (theirs.sql, theirs.on, theirs.order, theirs.after):
                self.other_tables[at] = replace(
                    one,
                    aggregates=(*one.aggregates, *theirs.aggregates),
                    lags=(*one.lags, *theirs.lags),
                    newest=(*one.newest, *theirs.newest),
                )
                return
        self.other_tables.append(theirs)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the dataset's rows that are read by requests for other rows."""
        parts: tuple[WindowAggregate | LagValue, ...] = (*self.aggregates, *self.lags)
        named = [part.column for part in parts]
        if self.later is not None:
            named += [self.later.column, *self.later.columns.values()]
        if self.next_rows is not None:
            named += [*(column for column, _ in self.next_rows.names.values()), self.next_rows.known_column]
        return tuple(dict.fromkeys(named))

    @property
    def past(self) -> tuple[float, int]:
        """Return how many seconds and how many rows of the same entity a row reads back."""
        spans = (over.seconds or 0.0 for over in self.aggregates)
        rows = (*(over.rows or 0 for over in self.aggregates), *(back.step for back in self.lags))
        return max(spans, default=0.0), max(rows, default=0)

    @property
    def future(self) -> tuple[float, int]:
        """Return how many seconds and how many rows of the same entity a row reads ahead."""
        later = self.later
        step = (later.step or 0) if later else 0
        return (later.seconds or 0.0) if later else 0.0, max(
            step, self.next_rows.rows if self.next_rows else 0
        )

    def describe(self) -> Iterator[str]:
        """Yield the computations of the plan as text for users, one per line."""
        for over in self.aggregates:
            yield _describe_over(over)
        yield from (f"{back.name}: {back.column} {back.step} rows before" for back in self.lags)
        if self.later is not None:
            for name, column in self.later.columns.items():
                ahead = f"{self.later.step} rows" if self.later.step else f"{self.later.seconds:g} s"
                yield f"{name}: {column} {ahead} later"
        if self.next_rows is not None:
            for name, (column, step) in self.next_rows.names.items():
                yield f"{name}: {column} {step} rows later"
        for theirs in self.other_tables:
            yield from (f"{line}, of {theirs.title}" for line in _describe_theirs(theirs))


def _describe_over(over: WindowAggregate) -> str:
    span = f"the last {over.rows} rows" if over.rows is not None else f"the last {over.seconds:g} s"
    where = f"the next {over.seconds:g} s" if over.ahead else span
    return f"{over.name}: {over.aggregate} of {over.column} over {where}"


def _describe_theirs(theirs: OtherTable) -> Iterator[str]:
    yield from map(_describe_over, theirs.aggregates)
    yield from (f"{back.name}: {back.column} {back.step} rows before" for back in theirs.lags)
    for one in theirs.newest:
        when = f" {one.back_seconds:g} s before" if one.back_seconds is not None else ""
        when += f" of the last {one.within_seconds:g} s" if one.within_seconds is not None else ""
        yield from (f"{name}: the newest {column}{when}" for name, column in one.columns.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRows:
    """Rows that are sorted by entity and time, and are computed chunk by chunk.

    `rows` is SQL for the rows of the dataset with the needed columns. The query `sql` runs on each chunk. A
    chunk has the columns of `rows` and a column for each planned value. `types` contains the types of all
    these columns. `ties` is SQL that sorts the rows of an entity with the same time. `joins` means that the
    query joins tables that need no time, so that the result of the query must be sorted after the join. Two
    kinds of columns are not sorted with the rows: the column that `time` names, and the columns that `again`
    names. The columns in `again` belong to the entity, so their values are equal in all rows of an entity.
    If `again` or `time` is empty, these columns are sorted with the rows. Rows up to the time `after` are
    read only as history. If `after` is None, no rows are read only as history.
    """

    sql: str
    joins: bool
    rows: str
    types: Mapping[str, str]
    entity: tuple[str, ...]
    ties: tuple[str, ...]
    plan: WindowPlan
    again: tuple[str, ...] = ()
    time: str = ""
    after: datetime | None = None

    @property
    def empty(self) -> str:
        """Return SQL for a chunk without rows."""
        columns = {name: f"NULL::{type_}" for name, type_ in self.types.items()}
        return select([], columns, "range(0)", indent="")

    @property
    def looks_at_labels(self) -> bool:
        """Return whether the labels of all rows must be computed first."""
        return any(f'"{LABELS}"' in theirs.sql for theirs in self.plan.other_tables)


def is_alike(type_: str) -> bool:
    """Return whether equal values of this SQL type always have identical bytes."""
    return type_ in _ALIKE


def nulls_first(names: Sequence[str]) -> tuple[str, ...]:
    """Return SQL for an order in which missing values come first and the last row has the largest values."""
    return tuple(f"{name} NULLS FIRST" for name in quote_all(names))
