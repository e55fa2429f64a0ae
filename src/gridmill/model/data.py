"""Declarations of sinks and datasets."""

from codecs import lookup
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gridmill.errors import InputError


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


class Compression(StrEnum):
    """How a source file is packed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZIP = "zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files: a path, a glob or several. Relative paths start at the pipeline file's folder.

    `package://NAME/PATH` is a file that an installed Python package carries. Format and compression (a ZIP
    file holds exactly one file) follow from the file's name unless given. `delimiter` (default: a comma, a
    tab for `.tsv`), `nulls` (texts that mean "missing") and `encoding` are for CSV.
    `timestamp_format` is a strptime pattern for columns declared `timestamp` or `date`; without it they are
    ISO 8601. Times without a zone are taken as UTC.
    """

    path: str | tuple[str, ...]
    format: Format | None = None
    compression: Compression | None = None
    delimiter: str | None = None
    nulls: tuple[str, ...] = ("", "NA", "NaN", "null")
    encoding: str = "utf-8"
    timestamp_format: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths and globs as written."""
        return (self.path,) if isinstance(self.path, str) else self.path

    def check(self) -> None:
        """Raise InputError for no path, a delimiter of several characters, an unknown encoding."""
        if not self.paths or not all(self.paths):
            raise InputError("a source needs a path", place="source.path")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(
                f"the delimiter is one character, not {self.delimiter!r}", place="source.delimiter"
            )
        try:
            lookup(self.encoding)
        except LookupError as error:
            raise InputError(
                f"there is no encoding {self.encoding!r}",
                hint="Common ones are utf-8, latin-1, cp1252 and utf-16.",
                place="source.encoding",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """A table loaded from sources: appended to, versioned, each source file exactly once.

    `rename` maps source names to table names and applies first; `select` keeps and orders columns;
    `columns` gives types (others are inferred over the whole of the files); `add` adds columns of one text
    each. A changed source file replaces its rows; a changed declaration loads the table anew.
    """

    source: FileSource
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)

    def references(self) -> tuple[str, ...]:
        """A sink reads sources, no other job."""
        return ()

    def check(self) -> None:
        """Raise InputError for a column selected, renamed to or added twice."""
        for name, columns in (("select", self.select), ("rename", tuple(self.rename.values()))):
            twice = sorted({column for column in columns if columns.count(column) > 1})
            if twice:
                raise InputError(f"column {twice[0]!r} is named twice", place=f"sink.{name}")
        both = sorted({*self.add} & {*self.select, *self.rename.values()})
        if both:
            raise InputError(f"column {both[0]!r} is added and read from the source", place="sink.add")


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
