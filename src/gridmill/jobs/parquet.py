"""Parquet files as jobs write them: whole or not at all, each column in a form that is small and quick."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from gridmill.errors import StorageError

GROUP_ROWS = 131_072
"""Rows of a Parquet row group: the unit that is read, and held while written."""
FILE_ROWS = 16 * GROUP_ROWS
MOST_CELLS, LEAST_ROWS = 32 * GROUP_ROWS, 1024
"""What is held at once of a wide table: so many values (of numbers 32 MiB), yet so many rows."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_TEXTS = ("No space left", "Disk quota exceeded", "os error 28", "os error 122", "File too large")


def rows_at_once(columns: int, most: int) -> int:
    """How many rows of a table with so many columns are held at once, at most `most`."""
    return min(most, max(LEAST_ROWS, MOST_CELLS // max(1, columns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A written Parquet file."""

    path: Path
    rows: int
    size_bytes: int


@dataclass(slots=True)
class _PartWriter:
    """Cuts any batches into row groups and files of fixed numbers of rows: same rows, same bytes."""

    folder: Path
    stem: str
    schema: pa.Schema
    file_rows: int
    parts: list[Part] = field(default_factory=list)
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_rows: int = 0
    _writer: pq.ParquetWriter | None = None
    _rows: int = 0

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        group = rows_at_once(len(self.schema), GROUP_ROWS)
        while self._waiting_rows >= group:
            self._write_group(group)

    def close(self) -> None:
        if self._waiting_rows:
            self._write_group(self._waiting_rows)
        self._close_file()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for path in (*(part.path for part in self.parts), self._path()):
            path.unlink(missing_ok=True)

    def _path(self) -> Path:
        return self.folder / f"{self.stem}-{len(self.parts):05d}.parquet"

    def _write_group(self, rows: int) -> None:
        table = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path(), self.schema, **forms_of(self.schema))
        self._writer.write_table(table.slice(0, rows), row_group_size=rows)
        rest = table.slice(rows)
        self._waiting, self._waiting_rows = [rest], rest.num_rows
        self._rows += rows
        if self._rows >= self.file_rows:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        path = self._path()
        _sync(path)
        self.parts.append(Part(path=path, rows=self._rows, size_bytes=path.stat().st_size))
        self._writer, self._rows = None, 0


def forms_of(schema: pa.Schema) -> dict[str, Any]:
    """How `ParquetWriter` is to write the columns: decision 14 has the numbers.

    Text by dictionary (as long as that is small) and zstd; whole numbers and times by their differences,
    and all but text and bytes through snappy.
    """
    texts = [item.name for item in schema if pa.types.is_string(item.type)]
    nested = any(pa.types.is_nested(item.type) for item in schema)
    return {
        "use_dictionary": texts or False,
        "column_encoding": {item.name: "DELTA_BINARY_PACKED" for item in schema if _counts(item.type)}
        or None,
        # What is inside nested columns would have to be named leaf by leaf.
        "compression": "zstd" if nested else {item.name: _codec(item.type) for item in schema},
    }


def _counts(kind: pa.DataType) -> bool:
    whole = pa.types.is_integer(kind) and kind.bit_width >= 32
    return bool(whole or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _codec(kind: pa.DataType) -> str:
    return "zstd" if pa.types.is_string(kind) or pa.types.is_binary(kind) else "snappy"


def write_parquet(
    batches: Iterable[pa.Table], schema: pa.Schema, folder: Path, stem: str, *, file_rows: int = FILE_ROWS
) -> tuple[Part, ...]:
    """Write `STEM-00000.parquet`, ..., none for no rows; on any error nothing remains.

    Raises StorageError when the disk is full, and whatever `batches` raises.
    """
    writer = _PartWriter(folder=folder, stem=stem, schema=schema, file_rows=file_rows)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for batch in batches:
                writer.write(batch)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
    return tuple(writer.parts)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def storage_errors(place: Path) -> Iterator[None]:
    """Turns a full disk, as every library says it, and other write errors into StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL or any(text in str(error) for text in _FULL_TEXTS):
            raise _full(place) from error
        raise StorageError(f"cannot be written: {error.strerror or error}", place=str(place)) from error
    except (DeltaError, pa.ArrowException) as error:
        if any(text in str(error) for text in _FULL_TEXTS):
            raise _full(place) from error
        raise


def _full(place: Path) -> StorageError:
    return StorageError(
        "the disk is full; nothing of this attempt is visible",
        hint="Free some space, or set GRIDMILL_ROOT to a larger disk, and run it again.",
        place=str(place),
    )
