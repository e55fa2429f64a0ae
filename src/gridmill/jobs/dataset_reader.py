"""Reads the Parquet files of a dataset as a single sequence of rows. This module can read any range of rows
without reading the other rows."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group of a dataset: its rows have the numbers from `start` to `stop` (exclusive)."""

    file: Path
    group: int
    start: int
    stop: int


Fetch: TypeAlias = "Callable[[RowGroup, tuple[str, ...]], pa.Table]"
"""A function that returns all rows of a row group, with the requested columns."""


def fetch_piece(piece: RowGroup, columns: tuple[str, ...]) -> pa.Table:
    """Read the requested columns of a row group (see `Fetch`)."""
    with pq.ParquetFile(piece.file) as file:
        return file.read_row_group(piece.group, columns=list(columns), use_threads=False).select(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The files of a dataset in the order of their names. Row numbers continue from each file to the
    next."""

    pieces: tuple[RowGroup, ...]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.pieces[-1].stop if self.pieces else 0

    def read(
        self,
        columns: Sequence[str],
        start: int = 0,
        stop: int | None = None,
        *,
        fetch: Fetch = fetch_piece,
    ) -> pa.Table:
        """Return the rows from `start` to `stop` (exclusive; by default all rows) with these columns, in
        order.

        To read many ranges one after another, pass a function `fetch` that caches row groups.
        """
        end = self.rows if stop is None else stop
        parts = [
            _between(piece, fetch(piece, tuple(columns)), start, end)
            for piece in self.pieces
            if piece.start < end and piece.stop > start
        ]
        if not parts:
            return pa.schema([self.schema.field(name) for name in columns]).empty_table()
        return pa.concat_tables(parts, promote_options="permissive")


def open_partitions(folder: Path) -> Partitions:
    """Open the dataset in `folder`. Raises StorageError if the files of the dataset do not exist, DataError
    if they cannot be read."""
    files = sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_")))
    if not files:
        raise StorageError(
            f"the dataset's files do not exist any more: {folder}",
            hint="Run the dataset's pipeline again with --force.",
        )
    try:
        return Partitions(pieces=tuple(_pieces(files)), schema=pq.read_schema(files[0]))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"not a readable Parquet file: {error}", place=str(folder)) from error


def _pieces(files: Sequence[Path]) -> Iterator[RowGroup]:
    start = 0
    for file in files:
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            stop = start + metadata.row_group(group).num_rows
            yield RowGroup(file=file, group=group, start=start, stop=stop)
            start = stop


def _between(piece: RowGroup, table: pa.Table, start: int, stop: int) -> pa.Table:
    first, last = max(start, piece.start), min(stop, piece.stop)
    return table.slice(first - piece.start, last - first)
