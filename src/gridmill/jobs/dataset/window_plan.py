"""The plan of the computations that read other rows than the row itself, in addition to the query.

This module has no side effects. The query reads one row at a time, and joined static tables. All values of
other rows are requested here: windows, lags, as-of joins, and labels that are later values or are computed
from events. `window_engine` computes these values over rows that are sorted once: a window is a range of
these rows, an earlier or later row is a position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime

from gridmill.domain.dataset import Aggregate
from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.columns import refuse_duplicates
from gridmill.jobs.expressions import quote_all, select

CHUNK = "__chunk"
"""The table of the rows that are computed at the same time, with the requested values of other rows."""
LABELS = "__labels"
"""The table of the labels of all rows, if windows or lags read labels that are later values."""
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_ALIKE = (*_INTEGERS, "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types whose equal values have identical bytes. Floats are not among them: 0.0 and -0.0 are equal."""
_TYPES = {Aggregate.COUNT: "BIGINT", Aggregate.DISTINCT: "BIGINT"} | dict.fromkeys(
    (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD), "DOUBLE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate:
    """An aggregate of `column` over the last `seconds` or `rows` before the row; with `ahead`, over the next
    seconds."""

    name: str
    aggregate: Aggregate
    column: str
    seconds: float | None = None
    rows: int | None = None
    ahead: bool = False

    def type_of(self, column_type: str) -> str:
        """The SQL type of the result."""
        return _TYPES.get(self.aggregate, column_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagValue:
    """The value of `column` in the row that is this number of rows before."""

    name: str
    column: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRow:
    """Columns (by the feature's name) of the newest row that is known before the row.

    With `back_seconds`, the newest row must be known before that earlier time. With a limit, it must have
    become known within that time.
    """

    columns: Mapping[str, str]
    back_seconds: float | None = None
    within_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRow:
    """Columns (by the result's name) of a later row of the same entity.

    With `seconds`, it is the last row exactly `seconds` later that has a value of `column`. With `step`, it
    is the row that is `step` rows after the rows at the same time.
    """

    columns: Mapping[str, str]
    column: str
    seconds: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRows:
    """Columns of each of the next `rows` rows as DOUBLE.

    `names` has for each result its column and the number of rows ahead. If one of the values is not a number,
    all values are missing, and `whole` is missing too. `known` is the latest value of `known_column`.
    """

    rows: int
    names: Mapping[str, tuple[str, int]]
    whole: str
    known: str
    known_column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTable:
    """Rows of another table with their own keys. `title` is the table's name for users.

    `sql` returns the columns `on`, `__known` and the requested columns. `order` (SQL) sorts rows with one key
    that are known at the same time. If `after` is a time, requests read no row that a newer row replaced
    before this time: of the rows known before it, the newest row of each key is enough. If `after` is None,
    requests can read all rows.
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
        """The columns from which a request is computed."""
        parts: tuple[WindowAggregate | LagValue, ...] = (*self.aggregates, *self.lags)
        newest = {column for one in self.newest for column in one.columns.values()}
        return frozenset({part.column for part in parts} | newest)


@dataclass(slots=True)
class WindowPlan:
    """The windows, lags and labels over the dataset's own rows and over other tables.

    `types` are the SQL types of the results.
    """

    aggregates: list[WindowAggregate] = field(default_factory=list)
    lags: list[LagValue] = field(default_factory=list)
    later: LaterRow | None = None
    next_rows: NextRows | None = None
    other_tables: list[OtherTable] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    def name(self, types: Mapping[str, str]) -> None:
        """Add a result by its name. Raises InputError for a name that exists already."""
        for name, type_ in types.items():
            refuse_duplicates((*self.types, name))
            self.types[name] = type_

    def add(self, theirs: OtherTable) -> None:
        """Add requests for other rows. Requests for the same rows in the same order are merged."""
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
        """The columns of the dataset's own rows that other rows read."""
        parts: tuple[WindowAggregate | LagValue, ...] = (*self.aggregates, *self.lags)
        named = [part.column for part in parts]
        if self.later is not None:
            named += [self.later.column, *self.later.columns.values()]
        if self.next_rows is not None:
            named += [*(column for column, _ in self.next_rows.names.values()), self.next_rows.known_column]
        return tuple(dict.fromkeys(named))

    @property
    def past(self) -> tuple[float, int]:
        """The number of seconds and of rows that a row reads from earlier rows of the same entity."""
        spans = (over.seconds or 0.0 for over in self.aggregates)
        rows = (*(over.rows or 0 for over in self.aggregates), *(back.step for back in self.lags))
        return max(spans, default=0.0), max(rows, default=0)

    @property
    def future(self) -> tuple[float, int]:
        """The number of seconds and of rows that a row reads from later rows of the same entity."""
        later = self.later
        step = (later.step or 0) if later else 0
        return (later.seconds or 0.0) if later else 0.0, max(
            step, self.next_rows.rows if self.next_rows else 0
        )

    def describe(self) -> Iterator[str]:
        """The computations as text for users, one per line."""
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

    `rows` (SQL) are the dataset's rows with the needed columns. `sql` runs on each chunk, which has the
    columns of `rows` and the planned values; `types` are the types of these columns. `ties` (SQL) sort rows
    of an entity at the same time. `joins` means that the query joins static tables, and sorts afterwards. Two
    kinds of columns are not sorted with the rows: the entity's columns `again`, if they are equal in all rows
    of the entity, and the column of the times, `time`. If `again` or `time` is empty, these columns are
    sorted with the rows. Rows up to the time `after` are read only as history; None means that there are no
    such rows.
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
        """SQL for a chunk without rows."""
        columns = {name: f"NULL::{type_}" for name, type_ in self.types.items()}
        return select([], columns, "range(0)", indent="")

    @property
    def looks_at_labels(self) -> bool:
        """Whether the labels of all rows must be computed first."""
        return any(f'"{LABELS}"' in theirs.sql for theirs in self.plan.other_tables)


def is_alike(type_: str) -> bool:
    """Return whether equal values of this type always have identical bytes."""
    return type_ in _ALIKE


def nulls_first(names: Sequence[str]) -> tuple[str, ...]:
    """Return SQL for an order whose last row has the largest values; missing values come first."""
    return tuple(f"{name} NULLS FIRST" for name in quote_all(names))
