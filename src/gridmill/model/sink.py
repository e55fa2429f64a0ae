"""Declaration of a sink."""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gridmill.errors import InputError
from gridmill.model.calendar import months_later
from gridmill.model.constraint import Constraint
from gridmill.model.noun import dataclass
from gridmill.model.outage import Outage
from gridmill.model.source import UNIX_UNITS, Source


class ColumnType(StrEnum):
    """Types a column can be declared as."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"


def _time_type(pattern: str) -> ColumnType:
    """`date` where a pattern has no time of day."""
    timed = pattern in UNIX_UNITS or re.search("%[HIMSfpzZcXTs]", pattern)
    return ColumnType.TIMESTAMP if timed else ColumnType.DATE


class OnMisfit(StrEnum):
    """What becomes of a row with a value that cannot be read as its column's declared type."""

    FAIL = "fail"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """How long rows are kept. Rows whose column `time` is longer ago than `keep` are deleted with the next
    load; `6mo` and `1y` are calendar months and years (UTC).
    """

    time: str
    keep_seconds: float | None
    keep_months: int | None = None

    def check(self) -> None:
        """Raise InputError where there is no period, or one of no month."""
        if self.keep_seconds is None and self.keep_months is None:
            raise InputError(
                "needs `keep`, how long rows are kept", place="retain.keep", hint="For example keep: 90d"
            )
        if self.keep_months is not None and self.keep_months < 1:
            raise InputError("`keep` is 1mo or more", place="retain.keep")

    def cutoff(self, now: float) -> datetime:
        """The time before which rows are deleted at `now` (Unix seconds)."""
        if self.keep_months is not None:
            return datetime.fromtimestamp(months_later(now, -self.keep_months, UTC), UTC)
        return datetime.fromtimestamp(now, UTC) - timedelta(seconds=self.keep_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """A table loaded from sources: appended to, versioned, each source file exactly once.

    `rename` maps source names to table names and applies first; `select` keeps and orders columns;
    `columns` gives types (others are inferred over the whole of the files); `add` adds columns of one text
    each. A changed source file replaces its rows; a changed declaration loads the table anew.

    Rows that break one of the `constraints` go to the sink's table of rejects. `on_misfit` says whether rows
    with values not of their declared type do so too, or fail the load. More than `max_rejects` rejected
    rows of one load (below 1: that share of them) fail it; None is no limit.

    Each load is measured: per column what is missing, min, max, mean, how many differ; and the sink's own
    `metrics`, SQL aggregates over its rows by name. A column whose population stability index against the
    load before is above `drift_threshold` is warned of; None looks for no drift. Datasets do not see the rows
    within `outages`. `retain` takes old rows out.

    Many files or objects are read in parts where the sink's site has several machines: in as many as `parts`
    says, by default one for every 256 MiB of files in folders (what objects hold is not known before). The
    rows are those of one machine.
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
        """The same, with the columns of `timestamp_format` declared as times where they are not declared."""
        formats = self.source.timestamp_format
        if not isinstance(formats, Mapping):
            return self
        times = {name: _time_type(pattern) for name, pattern in formats.items()}
        return replace(self, columns=times | dict(self.columns))

    def references(self) -> tuple[str, ...]:
        """The sinks that foreign keys refer to."""
        return tuple(dict.fromkeys(one.references for one in self.constraints if one.references))

    def check(self) -> None:
        """Raise InputError for names given twice or empty, and amounts that make no sense."""
        if self.max_rejects is not None and not self.max_rejects >= 0:
            raise InputError("`max_rejects` is a number of rows or a share", place="sink.max_rejects")
        if self.drift_threshold is not None and not self.drift_threshold >= 0:
            raise InputError(
                "`drift_threshold` is 0 or more",
                hint="0.25 is usual; null looks for no drift.",
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
            raise InputError(f"column {both[0]!r} is added and read from the source", place="sink.add")

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
                hint="Several files or objects can: a glob, or a list of paths.",
                place="sink.parts",
            )
