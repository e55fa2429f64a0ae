"""This module declares a sink: columns, constraints, outages, retention, and the handling of values that do
not fit a column.

A constraint is a condition that each row of a sink must meet. An outage is a period in which the data of a
sink is known to be wrong or missing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gridmill.domain.calendar import months_later
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.naming import read_moment
from gridmill.domain.source import UNIX_UNITS, Source
from gridmill.errors import InputError

Bound = int | float | str

_ONE_OF = ("column", "unique", "foreign_key", "expression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A condition on the rows of a sink. Exactly one of `column`, `unique`, `foreign_key` and `expression`
    is set.

    `column` has the conditions `required` (no missing value), `min`, `max` (both inclusive; times in ISO
    8601), `allowed` and `pattern` (RE2, which must match the whole text). `unique` names columns whose
    combined values may occur only once in the load and in the table. Of several rows with the same values,
    the first row is kept. `foreign_key` names columns whose values must exist in the sink `references`, in
    its columns `referenced` (default: the same names). `expression` is a condition on the row in the SQL of
    DuckDB. A missing value violates only the condition `required`. `name` is the name of the constraint in
    reports (default: a description).
    """

    name: str | None = None
    column: str | None = None
    required: bool = False
    min: Bound | None = None
    max: Bound | None = None
    allowed: tuple[str | int | float | bool, ...] = ()
    pattern: str | None = None
    unique: tuple[str, ...] = ()
    foreign_key: tuple[str, ...] = ()
    references: str | None = None
    referenced: tuple[str, ...] = ()
    expression: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the constraint names. The columns of an `expression` are not included, because
        they are only in its text."""
        return (self.column,) if self.column else self.unique or self.foreign_key

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the other sink that a foreign key refers to."""
        return self.referenced or self.foreign_key

    def rules(self) -> Iterator[tuple[str, str]]:
        """The conditions that the constraint checks, each with the reason that is recorded for a rejected
        row."""
        if self.column:
            yield from self._column_rules(self.column)
        elif self.unique:
            yield "unique", self.name or f"{', '.join(self.unique)}: not unique"
        elif self.foreign_key:
            yield "foreign_key", self.name or f"{', '.join(self.foreign_key)}: not in {self.references}"
        else:
            yield "expression", self.name or f"not ({self.expression})"

    def _column_rules(self, column: str) -> Iterator[tuple[str, str]]:
        if self.required:
            yield "required", self.name or f"{column}: missing"
        if self.min is not None:
            yield "min", self.name or f"{column}: less than {self.min}"
        if self.max is not None:
            yield "max", self.name or f"{column}: more than {self.max}"
        if self.allowed:
            yield "allowed", self.name or f"{column}: not one of {_listed(self.allowed)}"
        if self.pattern is not None:
            yield "pattern", self.name or f"{column}: does not match {self.pattern}"

    def check(self) -> None:
        """Raise InputError if the constraint has no kind or several kinds, if a column has no condition, or
        if a pattern is invalid."""
        given = [name for name in _ONE_OF if getattr(self, name)]
        if len(given) != 1:
            named = " and ".join(given) or "none"
            raise InputError(
                f"a constraint has exactly one of {', '.join(_ONE_OF)}; this one has {named}",
                place="constraint.",
            )
        if self.foreign_key and not self.references:
            raise InputError(
                "a foreign key needs `references`, the sink with the key", place="constraint.foreign_key"
            )
        if self.references and len(self.keys) != len(self.foreign_key):
            raise InputError(
                "`referenced` must name as many columns as `foreign_key`", place="constraint.referenced"
            )
        self._check_column()

    def _check_column(self) -> None:
        rules = [rule for rule, _ in self._column_rules(self.column or "")]
        if self.column and not rules:
            raise InputError(
                f"no condition is given for column {self.column!r}",
                hint="Add required, min, max, allowed or pattern.",
                place="constraint.column",
            )
        if rules and not self.column:
            raise InputError(f"`{rules[0]}` is for a `column`", place=f"constraint.{rules[0]}")
        if isinstance(self.min, int | float) and isinstance(self.max, int | float) and self.min > self.max:
            raise InputError("`min` is more than `max`", place="constraint.min")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise InputError(
                f"{self.pattern!r} is not a regular expression: {error}", place="constraint.pattern"
            ) from error


def _listed(values: tuple[object, ...]) -> str:
    more = f", ... {len(values) - 5} more" if len(values) > 5 else ""
    return ", ".join(str(value) for value in values[:5]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The rows whose value in the column that `time` names is at least `begins` and before `ends` (ISO 8601;
    a time without a zone is in UTC).

    The rows of an outage stay in the table, but datasets do not read them: no feature, window, lag, join or
    label is made from them. A backfill skips the time of an outage.
    """

    time: str
    begins: str
    ends: str
    reason: str = ""

    def check(self) -> None:
        """Raise InputError if a time is invalid, or if the end is not after the beginning."""
        if self.range[0] >= self.range[1]:
            raise InputError("`ends` of an outage must be after `begins`", place="outage.ends")

    @property
    def range(self) -> tuple[datetime, datetime]:
        """The beginning and the end of the outage, in UTC. Raises InputError."""
        return read_moment(self.begins, "outage.begins"), read_moment(self.ends, "outage.ends")

    def covers(self, begins: datetime, ends: datetime) -> bool:
        """Return whether the whole range of time is within the outage."""
        return self.range[0] <= begins and ends <= self.range[1]


class ColumnType(StrEnum):
    """The types that a declaration can set for a column."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"


def _time_type(pattern: str) -> ColumnType:
    """Return `date` if a pattern has no time of day, otherwise `timestamp`."""
    timed = pattern in UNIX_UNITS or re.search("%[HIMSfpzZcXTs]", pattern)
    return ColumnType.TIMESTAMP if timed else ColumnType.DATE


class OnMisfit(StrEnum):
    """The handling of a row with a value that cannot be read as the declared type of its column."""

    FAIL = "fail"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """The time for which the rows of a sink are kept. If the value of a row in the column that `time` names
    is older than `keep`, the next load deletes the row. `6mo` and `1y` are calendar months and years (in
    UTC)."""

    time: str
    keep_seconds: float | None
    keep_months: int | None = None

    def check(self) -> None:
        """Raise InputError if the period is missing or has zero months."""
        if self.keep_seconds is None and self.keep_months is None:
            raise InputError(
                "needs `keep`, how long rows are kept", place="retain.keep", hint="For example keep: 90d"
            )
        if self.keep_months is not None and self.keep_months < 1:
            raise InputError("`keep` must be 1mo or more", place="retain.keep")

    def cutoff(self, now: float) -> datetime:
        """Return the time before which rows are deleted at the time `now` (Unix seconds)."""
        if self.keep_months is not None:
            return datetime.fromtimestamp(months_later(now, -self.keep_months, UTC), UTC)
        return datetime.fromtimestamp(now, UTC) - timedelta(seconds=self.keep_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """The declaration of a versioned table that is loaded from sources by appending rows; each source file
    is loaded exactly once.

    `rename` maps names in the source to names in the table, and is applied first. `select` lists the columns
    that are kept, in their order. `columns` sets the types of columns (the types of all other columns are
    inferred from all of the files). `add` adds columns, each with one constant text. If a source file
    changes, the rows of this file are replaced. If the declaration of the sink changes, the whole table is
    loaded again.

    Rows that violate one of the `constraints` are written to the table of rejects of the sink. `on_misfit`
    selects whether rows with values that do not have their declared type are rejected too, or whether the
    load fails. If a load rejects more than `max_rejects` rows (a number below 1 is a fraction of the rows of
    the load), the load fails; if `max_rejects` is None, there is no limit.

    Each load is measured: the missing values, minimum, maximum, mean and number of distinct values of each
    column, and the `metrics` of the sink, which are SQL aggregates over its rows, by name. If the population
    stability index of a column compared with the previous load is above `drift_threshold`, a warning is
    shown; if `drift_threshold` is None, this check is off. Datasets do not read the rows that are within
    `outages`. `retain` deletes rows that are too old.

    Many files or objects are read in parts if the site of the sink has several machines. `parts` is the
    number of parts in which the files are read. The default is one part for every 256 MiB of files in
    folders (the size of objects is not known before the load). The rows of the table do not depend on the
    number of parts.
    """

    source: Source
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    on_misfit: OnMisfit = OnMisfit.FAIL
    max_rejects: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    drift_threshold: float | None = 0.25
    outages: tuple[Outage, ...] = ()
    retain: Retain | None = None
    parts: int | None = None

    def with_times(self) -> "SinkSpec":
        """Return the declaration of the sink in which the columns that `timestamp_format` names are declared
        as times, unless the sink already declares their types."""
        formats = self.source.timestamp_format
        if not isinstance(formats, Mapping):
            return self
        times = {name: _time_type(pattern) for name, pattern in formats.items()}
        return replace(self, columns=times | dict(self.columns))

    def references(self) -> tuple[str, ...]:
        """The names of the sinks that foreign keys refer to."""
        return tuple(
            dict.fromkeys(constraint.references for constraint in self.constraints if constraint.references)
        )

    def check(self) -> None:
        """Raise InputError for duplicate or empty names, and for implausible amounts."""
        if self.max_rejects is not None and not self.max_rejects >= 0:
            raise InputError("`max_rejects` must be a number of rows or a share", place="sink.max_rejects")
        if self.drift_threshold is not None and not self.drift_threshold >= 0:
            raise InputError(
                "`drift_threshold` must be 0 or more",
                hint="A usual value is 0.25. The value null disables the check.",
                place="sink.drift_threshold",
            )
        self._check_parts()
        self._check_names()
        for name, columns in (("select", self.select), ("rename", tuple(self.rename.values()))):
            twice = sorted({column for column in columns if columns.count(column) > 1})
            if twice:
                raise InputError(f"column {twice[0]!r} is named twice", place=f"sink.{name}")
        both = sorted({*self.add} & {*self.select, *self.rename.values()})
        if both:
            raise InputError(f"column {both[0]!r} is both added and read from the source", place="sink.add")

    def _check_names(self) -> None:
        named = {
            "select": self.select,
            "rename": self.rename.values(),
            "add": self.add,
            "metrics": self.metrics,
        }
        for field_, names in named.items():
            if not all(name.strip() for name in names):
                raise InputError(f"a name in `{field_}` is empty", place=f"sink.{field_}")

    def _check_parts(self) -> None:
        if self.parts is not None and self.parts < 1:
            raise InputError("`parts` must be 1 or more", place="sink.parts")
        if (self.parts or 1) > 1 and not self.source.splits:
            raise InputError(
                f"{self.source.name} cannot be read in parts",
                hint="Only several files or objects can: use a glob, or a list of paths.",
                place="sink.parts",
            )
