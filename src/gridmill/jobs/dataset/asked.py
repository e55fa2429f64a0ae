"""What is computed beside the query, in the order of entity and time, rather than by it: pure.

The query's windows are a tree per window, and each as-of join sorts all rows again. Rows that are sorted once
need neither: windows are ranges, an earlier row is a place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gridmill.jobs.dataset.names import Types
from gridmill.jobs.dataset.sqltext import quote_all
from gridmill.model.dataset import Aggregate, Window

CHUNK = "__chunk"
"""The table of the rows that are computed at a time, with what was found beside them."""
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_ALIKE = (*_INTEGERS, "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
"""Of these, values that are equal are the same: unlike 0.0 and -0.0."""
_ORDERED = (*_INTEGERS, "FLOAT", "DOUBLE", "TIMESTAMP", "DATE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """An aggregate of `column` over the time, or the rows, before."""

    name: str
    aggregate: Aggregate
    column: str
    seconds: float | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """The value of `column` that many rows before."""

    name: str
    column: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Columns (by the feature's name) of the newest row known before; or `back_seconds` before that time, or
    not long before. `zeros` are 0 where there is no row."""

    columns: Mapping[str, str]
    back_seconds: float | None = None
    within_seconds: float | None = None
    zeros: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """Rows with keys of their own: `sql` gives `on`, `__known` and columns; `order` (SQL) is that of rows of
    one key that are known at once.

    Nobody asks for what was the newest of a key before the moment `after`: of the rows known until then those
    of the newest time of each key are enough (None: all are asked for).
    """

    sql: str
    on: tuple[str, ...]
    order: tuple[str, ...] = ()
    overs: tuple[Over, ...] = ()
    newest: tuple[Newest, ...] = ()
    after: datetime | None = None


@dataclass(slots=True)
class Asked:
    """All that is asked of the dataset's own rows and of others."""

    overs: list[Over] = field(default_factory=list)
    backs: list[Back] = field(default_factory=list)
    theirs: list[Theirs] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.overs or self.backs or self.theirs)

    @property
    def own(self) -> set[str]:
        """The features made of the rows of the same entity."""
        return {over.name for over in self.overs} | {back.name for back in self.backs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """The same rows as the query gives, found in the order of entity and time: `sql` is run on each chunk.

    `rows` (SQL) are the dataset's rows with what they are computed from; `ties` (SQL) order those of an
    entity at the same time. `moves`: the query still joins or sorts.

    `again` are the entity's columns that are the same in each of its rows, and `time` the column that the
    times are of: neither need be sorted with the rows (empty: they must). The query drops the rows up to the
    moment `after` (None: it keeps all); they are there to be looked back at.
    """

    sql: str
    moves: bool
    rows: str
    entity: tuple[str, ...]
    ties: tuple[str, ...]
    asked: Asked
    again: tuple[str, ...] = ()
    time: str = ""
    after: datetime | None = None


def is_alike(type_: str) -> bool:
    """Whether equal values of that type are the same."""
    return type_ in _ALIKE


def is_found(aggregate: Aggregate, type_: str) -> bool:
    """Whether the aggregate of such values need not be left to the query."""
    if aggregate in (Aggregate.COUNT, Aggregate.LAST):
        return True
    if aggregate in (Aggregate.MIN, Aggregate.MAX):
        return type_ in _ORDERED
    numbers = (*_INTEGERS, "FLOAT", "DOUBLE", "BOOLEAN")
    return aggregate != Aggregate.DISTINCT and (type_ in numbers or type_.startswith("DECIMAL("))


def split_window(window: Window, types: Types) -> tuple[Window, Window]:
    """The window with the aggregates that are found beside the query, and with those left to it."""
    found = tuple(one for one in window.aggregates if is_found(one, types[window.column]))
    left = tuple(one for one in window.aggregates if one not in found)
    return replace(window, aggregates=found), replace(window, aggregates=left)


def nulls_first(names: Sequence[str]) -> tuple[str, ...]:
    """The order whose last row is the one with the largest values."""
    return tuple(f"{name} NULLS FIRST" for name in quote_all(names))
