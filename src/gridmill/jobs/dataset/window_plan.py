"""The plan of the computations that read other rows than the row itself, beside the query. No side effects.

The query sees one row at a time, and joined static tables. All values of other rows (windows, lags, as-of
joins, labels that are later values or are computed from events) are requested here. `window_engine` computes
them over rows that are sorted once: a window is a range of these rows, an earlier or later row is a position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime

from gridmill.domain.dataset import Aggregate
from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.columns import refuse_duplicates
from gridmill.jobs.expressions import quote_all, select

CHUNK = "__chunk"
"""The table of the rows that are computed at a time, with the requested values of other rows."""
LABELS = "__labels"
"""The table of the labels of all rows, if windows or lags read labels that are later values."""
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_ALIKE = (*_INTEGERS, "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types whose equal values are identical, unlike 0.0 and -0.0."""
_TYPES = {Aggregate.COUNT: "BIGINT", Aggregate.DISTINCT: "BIGINT"} | dict.fromkeys(
    (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD), "DOUBLE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate:
    """An aggregate of `column` over the last `seconds` or `rows` before the row, or over the seconds
    `ahead`."""

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
    """The value of `column` this many rows before."""

    name: str
    column: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRow:
    """Columns (by the feature's name) of the newest row that is known before the row; with `back_seconds`,
    known before that earlier time; with a limit, known not longer ago than this."""

    columns: Mapping[str, str]
    back_seconds: float | None = None
    within_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRow:
    """Columns (by the result's name) of a later row of the same entity: the last row exactly `seconds` later
    that has a value of `column`; or the row that is `step` rows after the rows at the same time."""

    columns: Mapping[str, str]
    column: str
    seconds: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRows:
    """Columns of each of the next `rows` rows as DOUBLE: `names` (result's name -> column, rows ahead).

    Unless each of them is a number, they are all missing, and `whole` is too. `known` is the latest value of
    `known_column`.
    """

    rows: int
    names: Mapping[str, tuple[str, int]]
    whole: str
    known: str
    known_column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTable:
    """Rows with their own keys: `sql` returns `on`, `__known` and columns; `order` (SQL) sorts rows with one
    key that are known at the same time. `title` is the name for users.

    No request reads rows that were replaced by newer ones before the moment `after`: of the rows known before
    it, the newest ones of each key are enough (None: all rows can be requested).
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
    """The windows, lags and labels over the dataset's own rows and other tables; `types` are the SQL types
    of the results."""

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
        """Add requests for other rows; requests for the same rows in the same order are merged."""
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
        """The columns of the dataset's own rows that are read from other rows."""
        parts: tuple[WindowAggregate | LagValue, ...] = (*self.aggregates, *self.lags)
        named = [part.column for part in parts]
        if self.later is not None:
            named += [self.later.column, *self.later.columns.values()]
        if self.next_rows is not None:
            named += [*(column for column, _ in self.next_rows.names.values()), self.next_rows.known_column]
        return tuple(dict.fromkeys(named))

    @property
    def past(self) -> tuple[float, int]:
        """The number of seconds and of rows of the same entity that are read before a row."""
        spans = (over.seconds or 0.0 for over in self.aggregates)
        rows = (*(over.rows or 0 for over in self.aggregates), *(back.step for back in self.lags))
        return max(spans, default=0.0), max(rows, default=0)

    @property
    def future(self) -> tuple[float, int]:
        """The number of seconds and of rows of the same entity that are read after a row."""
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
    """Rows sorted by entity and time and computed chunk by chunk: `sql` is run on each chunk, which has the
    columns of `rows` and the planned values.

    `rows` (SQL) are the dataset's rows with the needed columns; `ties` (SQL) sort rows of an entity at the
    same time; `types` are the types of a chunk's columns. `joins`: the query joins static tables, and sorts
    afterwards.

    `again` are the entity's columns that are the same in each of its rows, and `time` is the column of the
    times: these are not sorted with the rows (empty: they must be). Rows up to the moment `after` (None:
    there are none) are only read as history.
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
        """A chunk without rows, as SQL."""
        columns = {name: f"NULL::{type_}" for name, type_ in self.types.items()}
        return select([], columns, "range(0)", indent="")

    @property
    def looks_at_labels(self) -> bool:
        """Whether the labels of all rows must be computed first."""
        return any(f'"{LABELS}"' in theirs.sql for theirs in self.plan.other_tables)


def is_alike(type_: str) -> bool:
    """Whether equal values of this type are identical."""
    return type_ in _ALIKE


def nulls_first(names: Sequence[str]) -> tuple[str, ...]:
    """The order whose last row is the one with the largest values."""
    return tuple(f"{name} NULLS FIRST" for name in quote_all(names))
