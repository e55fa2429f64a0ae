"""Assigns types to the rows of a driver, and writes the rows to Parquet files of the attempt, batch by batch.

Between loads, the position (the cursor value up to which a table has been read) is stored as JSON.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Compression, Format, SqlSource
from gridmill.errors import DataError, InputError
from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.sql_columns import Rows, batch_of


@dataclass(slots=True)
class StagedRows:
    """Writes rows to files. Whenever the types of the rows change, the class starts a new file. `content` is
    the hash of the rows in all files."""

    folder: Path
    name: str
    key: str
    paths: list[Path] = field(default_factory=list)
    _hash: Any = field(default_factory=hashlib.sha256)
    _writer: pq.ParquetWriter | None = None
    _schema: pa.Schema | None = None

    @property
    def content(self) -> str:
        """Return the hash of the rows and their types, in the order of the rows, as 16 hex digits."""
        digest: str = self._hash.hexdigest()
        return digest[:16]

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if self._schema is None or not batch.schema.equals(self._schema):
            self.close()
            self.paths.append(self.folder / f"{uuid4().hex}.parquet")
            self._schema = batch.schema
            self._writer = pq.ParquetWriter(self.paths[-1], batch.schema, compression="lz4")
            self._hash.update(batch.schema.serialize())
        assert self._writer is not None
        self._writer.write_batch(batch)
        for column in batch.columns:
            for buffer in column.buffers():
                self._hash.update(buffer or b"")

    def close(self) -> None:
        """Close the current file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def files(self, content: str) -> tuple[SourceFile, ...]:
        """Return the files as source files of a sink."""
        return tuple(
            SourceFile(
                path=path,
                name=self.name if len(self.paths) == 1 else f"{self.name} (part {number})",
                key=self.key,
                content=content,
                size_bytes=path.stat().st_size,
                mtime_ns=path.stat().st_mtime_ns,
                format=Format.PARQUET,
                compression=Compression.NONE,
                delimiter=",",
            )
            for number, path in enumerate(self.paths, start=1)
        )


def stage(
    batches: Iterable[Rows],
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
    folder: Path,
    name: str,
    key: str,
    rest: pa.DataType | None = None,
    texts: Collection[str] = (),
) -> StagedRows:
    """Write the rows to files below `folder`. `types` are the declared types. The columns in `texts` become
    texts.

    If there are no rows, the function writes a single file without rows. In a file without rows, columns
    without a declared type have the type that `rest` contains, if it is not None. Raises DataError for a
    value that no type can represent, StorageError.
    """
    staged = StagedRows(folder=folder, name=name, key=key)
    with storage_errors(folder):
        try:
            for rows in batches:
                staged.write(batch_of(rows, names, types, texts, name))
            if not staged.paths:
                staged.write(_none(names, types, rest or pa.null()))
        finally:
            staged.close()
    return staged


def _none(names: Sequence[str], types: Mapping[str, pa.DataType], rest: pa.DataType) -> pa.RecordBatch:
    schema = pa.schema([(name, types.get(name, rest)) for name in names])
    return pa.RecordBatch.from_pylist([], schema=schema)


_READ: Mapping[str, Callable[[str], Any]] = {
    "number": int,
    "float": float,
    "decimal": Decimal,
    "time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "text": str,
}


_EXACT = Context(prec=150_000)  # PostgreSQL allows 147,455 digits, but Python's default rounds to 28 digits
_LONGEST = 366.0 * 86_400 * 10_000
"""A number of seconds that is longer than the complete range of times in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorPosition:
    """The position of a source after a load: all rows with cursor values below `value` are loaded. If
    `included` is true, rows with exactly this cursor value are loaded too."""

    value: Any
    included: bool

    def written(self) -> Mapping[str, Any]:
        """Return the position as JSON."""
        kind = _kind(self.value)
        text = self.value.isoformat() if isinstance(self.value, date) else str(self.value)
        return {"kind": kind, "value": text, "included": self.included}


def read_position(written: Mapping[str, Any] | None) -> CursorPosition | None:
    """Parse a position from JSON."""
    if written is None:
        return None
    return CursorPosition(value=_READ[written["kind"]](written["value"]), included=written["included"])


def edge_of(newest: Any, source: SqlSource, low: CursorPosition | None, place: str) -> CursorPosition:  # noqa: ANN401
    """Return the cursor value up to which this load may read. Raises InputError, DataError.

    Without a `lag`, the result is the newest cursor value. With a lag, the result is the newest cursor value
    minus the lag (a lag of 0 means all values below the newest value). With a lag, a later load can include
    rows that arrive late. The database compares the values, because it may sort texts differently from
    Python.
    """
    _kind(newest, place)
    if low is not None and _kind(low.value) != _kind(newest):
        raise DataError(
            f"the cursor has another type than at the last load: {newest!r} after {low.value!r}",
            hint="Give the sink another name to begin a new table.",
            place=place,
        )
    if source.lag is None:
        return CursorPosition(value=newest, included=True)
    return CursorPosition(value=_before(newest, source.lag), included=False)


def is_endless(value: Any) -> bool:  # noqa: ANN401
    """Return whether no value except NaN can be greater. The result is true for NaN and infinity."""
    return isinstance(value, float | Decimal) and not isfinite(value)


def _before(newest: Any, lag: float) -> Any:  # noqa: ANN401
    match newest:
        case datetime():
            first = datetime.min.replace(tzinfo=newest.tzinfo)
            return newest - min(timedelta(seconds=min(lag, _LONGEST)), newest - first)
        case date():
            days = min(-(-lag // 86_400), (newest - date.min).days)
            return newest - timedelta(days=days)
        case Decimal():
            return _EXACT.subtract(newest, Decimal(str(lag)))
        case int():
            return newest - int(-(-lag // 1))
        case float():
            return newest - lag
    if lag == 0:
        return newest
    raise InputError(
        "a `lag` needs a cursor of numbers or times, but this cursor holds texts",
        hint="`lag: 0` leaves out only the rows with the newest value. SQLite stores times as texts.",
        place="source.sql.lag",
    )


def _kind(value: Any, place: str = "") -> str:  # noqa: ANN401
    match value:
        case bool():
            pass
        case int():
            return "number"
        case float():
            return "float"
        case Decimal():
            return "decimal"
        case datetime():
            return "time"
        case date():
            return "date"
        case str():
            return "text"
    raise InputError(
        f"a cursor column holds numbers, times or texts, not {type(value).__name__}",
        hint="Name a column that only grows, or leave `cursor` out.",
        place=place or "source.sql.cursor",
    )
