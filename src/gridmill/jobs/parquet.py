"""Writes Parquet files atomically. For each column, this module selects an encoding that is small and fast.

`link_file` puts a file into another folder by a hard link, or by a copy if the file system does not support
hard links.
"""

import errno
import os
import shutil
from base64 import b64encode
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from gridmill.domain.frozen import dataclass
from gridmill.errors import StorageError

GROUP_ROWS = 131_072
"""The number of rows of a Parquet row group. A row group is read as a whole, and it is in memory while it is
written."""
FILE_ROWS = 16 * GROUP_ROWS
MOST_CELLS, LEAST_ROWS = 16 * GROUP_ROWS, 1024
"""Limits for a table with many columns: the number of values in memory at the same time (16 MiB of numbers),
and the smallest number of rows."""
BATCH_CELLS = 8 * GROUP_ROWS
"""The number of values in a batch that a query passes to its reader. Several batches are in memory at the
same time."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_TEXTS = ("No space left", "Disk quota exceeded", "os error 28", "os error 122", "File too large")

_OUT_OF_MEMORY = "Out of Memory Error"


def rows_at_once(columns: int, most: int, cells: int = MOST_CELLS) -> int:
    """Return the number of rows of a table with `columns` columns that may be in memory at the same time.

    The result is at most `most`, and these rows have about `cells` values.
    """
    return min(most, max(LEAST_ROWS, cells // max(1, columns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPart:
    """A written Parquet file."""

    path: Path
    rows: int
    size_bytes: int


@dataclass(slots=True)
class _PartWriter:
    """Divides batches into row groups and files of fixed numbers of rows, so that the same rows always give
    the same bytes."""

    folder: Path
    stem: str
    schema: pa.Schema
    file_rows: int
    syncing: Executor
    parts: list[ParquetPart] = field(default_factory=list)
    _synced: list[Future[None]] = field(default_factory=list)
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
        for synced in self._synced:
            synced.result()

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
            self._writer = _open_writer(self._path(), self.schema, table.schema)
        # One dictionary per row group: Parquet's writer stops using dictionaries when it finds a second one.
        self._writer.write_table(table.slice(0, rows).unify_dictionaries(), row_group_size=rows)
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
        # in a thread, so that the next file is written while this file is synced
        self._synced.append(self.syncing.submit(_sync, path))
        self.parts.append(ParquetPart(path=path, rows=self._rows, size_bytes=path.stat().st_size))
        self._writer, self._rows = None, 0


def _open_writer(path: Path, schema: pa.Schema, given: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet writer. The tables to write have the schema `given`, in which texts may be
    dictionary-encoded. The written files have the schema `schema` for their readers."""
    forms = forms_of(schema)
    coded = pa.schema(map(_coded, schema, given))
    if coded == schema:
        return pq.ParquetWriter(path, schema, **forms)
    if not any(_is_long(item.type) for item in coded):
        # large batches, because the writer searches the dictionary for the extreme texts of each batch
        forms |= {"write_batch_size": GROUP_ROWS, "max_rows_per_page": GROUP_ROWS}
    writer = pq.ParquetWriter(path, coded, store_schema=False, **forms)
    writer.add_key_value_metadata({"ARROW:schema": b64encode(schema.serialize()), **(schema.metadata or {})})
    return writer


def _coded(item: pa.Field, given: pa.Field) -> pa.Field:
    same = pa.types.is_dictionary(given.type) and given.type.value_type == item.type
    return item.with_type(given.type) if same else item


def _is_long(kind: pa.DataType) -> bool:
    """Return whether a Parquet page can be large if it has GROUP_ROWS values of this type."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind))


def forms_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of `ParquetWriter` for each column. Decision record 14 in docs/adr has the
    measurements for these options.

    Text uses a dictionary (as long as the dictionary is small) and zstd compression. Whole numbers and times
    use delta encoding. All columns except text and bytes are compressed with snappy.
    """
    texts = [item.name for item in schema if pa.types.is_string(item.type)]
    nested = any(pa.types.is_nested(item.type) for item in schema)
    return {
        "use_dictionary": texts or False,
        "column_encoding": {item.name: "DELTA_BINARY_PACKED" for item in schema if _counts(item.type)}
        or None,
        # Options name the leaves of columns, so a nested column would need one entry for each leaf.
        "compression": "zstd" if nested else {item.name: _codec(item.type) for item in schema},
    }


def _counts(kind: pa.DataType) -> bool:
    whole = pa.types.is_integer(kind) and kind.bit_width >= 32
    return bool(whole or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _codec(kind: pa.DataType) -> str:
    return "zstd" if pa.types.is_string(kind) or pa.types.is_binary(kind) else "snappy"


def write_parquet(
    batches: Iterable[pa.Table], schema: pa.Schema, folder: Path, stem: str, *, file_rows: int = FILE_ROWS
) -> tuple[ParquetPart, ...]:
    """Write the rows to the files `STEM-00000.parquet`, `STEM-00001.parquet` and so on. If there are no
    rows, the function writes no file. If any error occurs, the function deletes all files that it has
    written.

    A text column may be dictionary-encoded if it is dictionary-encoded in all batches. Raises StorageError
    if the disk is full, and any error that the iterator `batches` raises.
    """
    with storage_errors(folder), ThreadPoolExecutor(1, "sync") as syncing:
        writer = _PartWriter(folder=folder, stem=stem, schema=schema, file_rows=file_rows, syncing=syncing)
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
def memory_errors() -> Iterator[None]:
    """Convert out-of-memory errors of DuckDB into MemoryError. While rows are read, Arrow passes the errors
    of DuckDB on to its caller."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if _OUT_OF_MEMORY in str(error) and not any(text in str(error) for text in _FULL_TEXTS):
            raise MemoryError(str(error)) from error
        raise


@contextmanager
def storage_errors(place: Path) -> Iterator[None]:
    """Convert write errors into StorageError, and convert out-of-memory errors as `memory_errors` does.

    The conversion of write errors is needed because each library reports a full disk in a different way.
    """
    try:
        with memory_errors():
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
        "the disk is full; nothing of this attempt was committed",
        hint="Free some space, or set GRIDMILL_ROOT to a folder on a larger disk, and run the pipeline "
        "again.",
        place=str(place),
    )


def link_file(path: Path, folder: Path, name: str = "") -> Path:
    """Put the file into `folder` too, under the same name or another name, and return the new path.

    If the target file exists, it is replaced. Raises OSError.
    """
    target = folder / (name or path.name)
    target.unlink(missing_ok=True)
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)
    return target
