"""Rows as a driver gives them, typed and written to Parquet files of the attempt's own, batch by batch."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.sink.convert import TIMESTAMP, MisfitError, TextRules, convert
from gridmill.jobs.sink.files import SourceFile
from gridmill.model.source import Compression, Format

Rows = Sequence[tuple[Any, ...]]


@dataclass(slots=True)
class Staged:
    """Files of rows, a new one whenever the rows' types change. `content` is of all of them."""

    folder: Path
    name: str
    key: str
    paths: list[Path] = field(default_factory=list)
    _hash: Any = field(default_factory=hashlib.sha256)
    _writer: pq.ParquetWriter | None = None
    _schema: pa.Schema | None = None

    @property
    def content(self) -> str:
        """16 hex digits of the rows and their types, in their order."""
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
        """Finish the file that is open."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def files(self, content: str) -> tuple[SourceFile, ...]:
        """The files, as a sink loads them."""
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
) -> Staged:
    """Write the rows below `folder`; `types` are those that are declared. Without any row a file that has
    none: all other columns are of type `rest` in it, if that is known. Raises StorageError."""
    staged = Staged(folder=folder, name=name, key=key)
    with storage_errors(folder):
        try:
            for rows in batches:
                staged.write(batch_of(rows, names, types))
            if not staged.paths:
                staged.write(_none(names, types, rest or pa.null()))
        finally:
            staged.close()
    return staged


def _none(names: Sequence[str], types: Mapping[str, pa.DataType], rest: pa.DataType) -> pa.RecordBatch:
    schema = pa.schema([(name, types.get(name, rest)) for name in names])
    return pa.RecordBatch.from_pylist([], schema=schema)


def batch_of(rows: Rows, names: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Rows as columns: a declared type where the values fit it, else the values' own."""
    columns = [
        _column(list(values), types.get(name))
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _column(values: list[Any], declared: pa.DataType | None) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values), declared or pa.null())
    column = _by_kind(values, kinds)
    if declared is None or column.type == declared:
        return column
    if pa.types.is_decimal(column.type) and pa.types.is_floating(declared):
        return column  # the sink makes floats of it, or texts that keep the digits
    try:
        return convert(pa.chunked_array([column]), declared, TextRules()).combine_chunks()
    except MisfitError:
        return column


def _by_kind(values: list[Any], kinds: set[type]) -> pa.Array:
    """In the values' own type; as texts where they have several."""
    for known, make in _KINDS:
        if all(issubclass(kind, known) for kind in kinds):
            try:
                return make(values)
            except (OverflowError, ValueError, pa.ArrowException):
                break
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _times(values: list[Any]) -> pa.Array:
    """Times without a zone are UTC."""
    zoned = (v if v is None or v.tzinfo is not None else v.replace(tzinfo=UTC) for v in values)
    return pa.array(list(zoned), TIMESTAMP)


def _decimals(values: list[Any]) -> pa.Array:
    """Exact, of 76 digits at most; beside NaN or infinity all are floats."""
    there = [value for value in values if value is not None]
    if not all(isfinite(value) for value in there):
        return _floats(values)
    scale = max(0, *(-int(Decimal(value).as_tuple().exponent) for value in there))
    try:
        return pa.array(values, pa.decimal128(38, scale))
    except (ValueError, pa.ArrowException):
        return pa.array(values, pa.decimal256(76, scale))


def _floats(values: list[Any]) -> pa.Array:
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


_KINDS: tuple[tuple[type | tuple[type, ...], Callable[[list[Any]], pa.Array]], ...] = (
    (bool, lambda values: pa.array(values, pa.bool_())),
    (int, lambda values: pa.array(values, pa.int64())),
    ((int, float), lambda values: pa.array(values, pa.float64())),
    ((int, Decimal), _decimals),
    ((int, float, Decimal), _floats),
    (datetime, _times),
    (date, lambda values: pa.array(values, pa.date32())),
    ((bytes, memoryview, bytearray), lambda values: pa.array(values, pa.binary())),
    (timedelta, lambda values: _floats([v and v.total_seconds() for v in values])),
    (str, lambda values: pa.array(values, pa.string())),
)


def _text(value: Any) -> str:  # noqa: ANN401  whatever a driver makes of a column
    match value:
        case dict() | list():
            return json.dumps(value, default=str)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
    return str(value)
