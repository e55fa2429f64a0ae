"""Declarations of sinks and datasets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Format(StrEnum):
    """File formats of a source."""

    CSV = "csv"
    PARQUET = "parquet"
    JSONL = "jsonl"


class ColumnType(StrEnum):
    """Types a column can be declared as."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files: a path, a glob or several. Relative paths start at the pipeline file's folder.

    `package://NAME/PATH` is a file that an installed Python package carries. Compression (gzip, zstd,
    bzip2, xz, one-file zip) and format follow from the file's name unless given.
    """

    path: str | tuple[str, ...]
    format: Format | None = None
    compression: str | None = None
    delimiter: str = ","
    nulls: tuple[str, ...] = ("", "NA", "NaN", "null")
    encoding: str = "utf-8"
    timestamp_format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """A table loaded from sources: appended to, versioned, each source file exactly once.

    `columns` gives types (others are inferred); `select` keeps and orders columns; `rename` maps source
    names to table names (before `columns` and `select` apply); `add` adds constant columns.
    """

    source: FileSource
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)

    def references(self) -> tuple[str, ...]:
        """A sink reads sources, no other job."""
        return ()


class Aggregate(StrEnum):
    """Window aggregates."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STD = "std"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The rows of the dataset: one per row of `table`, at time `time`, for entity `entity`."""

    table: str
    time: str
    entity: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """An ordinary left join to a static table on equal columns."""

    table: str
    on: tuple[str, ...]
    columns: tuple[str, ...] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin:
    """The newest row of `table` that was known before the basis time, per `on`.

    `known_at` is the column (or SQL expression over the table) that says when a row became known;
    it is compared with the basis time: strictly earlier. `within_seconds` drops older rows.
    """

    table: str
    known_at: str
    on: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    prefix: str = ""
    within_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Aggregates of `column` over the entity's rows in the time (or row) span before the basis time."""

    column: str
    aggregates: tuple[Aggregate, ...]
    span_seconds: float | None = None
    span_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Earlier values of `column` of the same entity, `steps` rows back (1 = the row before)."""

    column: str
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is to be predicted: `column` of the same entity, `horizon_seconds` after the basis time.

    With `steps` instead, that many rows ahead. Rows without a label are left out of all splits.
    """

    column: str
    horizon_seconds: float | None = None
    steps: int | None = None
    name: str = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Splits by time: `train` before `validation_from` ≤ validation before `test_from` ≤ test.

    Either times (ISO 8601) or fractions of the time span (`validation: 0.15`, `test: 0.15`).
    """

    validation_from: str | None = None
    test_from: str | None = None
    validation: float | None = None
    test: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """Features and labels, point-in-time correct; or plain SQL over the tables in `tables`."""

    basis: Basis | None = None
    joins: tuple[Join, ...] = ()
    asof_joins: tuple[AsOfJoin, ...] = ()
    windows: tuple[Window, ...] = ()
    lags: tuple[Lag, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    label: Label | None = None
    split: Split | None = None
    sql: str | None = None
    tables: tuple[str, ...] = ()
    time: str | None = None
    entity: tuple[str, ...] = ()

    def references(self) -> tuple[str, ...]:
        """The tables that are read."""
        named = [self.basis.table] if self.basis else []
        named += [join.table for join in self.joins] + [join.table for join in self.asof_joins]
        return tuple(dict.fromkeys((*named, *self.tables)))
