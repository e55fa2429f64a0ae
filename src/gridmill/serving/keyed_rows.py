"""The rows of a large request that have keys, and whose features are computed by key.

The first rows of a file show whether it is small. The features of a small file are computed in this process,
and those of a larger one in several processes, piece by piece.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.errors import GridmillError
from gridmill.serving.bulk_features import (
    FIRST_ROWS,
    GROUP_ROWS,
    BulkFeatures,
    ComputedRows,
    RefusedRowError,
)
from gridmill.serving.feature_processes import FeatureProcesses, lines_work, table_work
from gridmill.serving.fields import RowReader
from gridmill.serving.request_file import (
    CsvRows,
    LineRows,
    Piece,
    RequestRows,
    RowCallback,
    TableRows,
    check_columns,
)
from gridmill.serving.table_requests import sent_columns

SMALL_PIECES = 2
"""The features of a request with at most this number of pieces are computed in this process."""


class _Grouped(NamedTuple):
    """A piece, and the number of rows of its first group."""

    piece: Piece
    group: int


class KeyedRows(RequestRows):
    """The rows of a request whose features `by_key` computes, in up to `processes` processes."""

    by_key: BulkFeatures
    processes = 1

    def write_features(self, to: Path, on_rows: RowCallback | None = None) -> int:
        """Compute the features of all rows from one state of the view, and write them as `RequestRows`
        does. Also raises MissingViewError, DamagedViewError, and JobError if a process ends early."""
        self._shown = _ShownFile(to.parent / "shown.parquet")
        self._counts: dict[str, Counter[str]] = {}
        with self.by_key:
            try:
                written = super().write_features(to, on_rows)
            finally:
                self._shown.close()
            self.table_versions = self.by_key.table_versions
        self.not_present = self._counts
        return written

    def shown(self) -> Iterator[pa.RecordBatch] | None:
        """Return the statuses and values of the features of each row."""
        return self._shown.batches()

    def computed(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, pa.Table]]:
        """Yield each piece with the features of its rows."""
        source = _with_error(pieces)
        first = list(islice(source, SMALL_PIECES + 1))
        every = self._grouped(chain(first, source))
        if self.processes == 1 or len(first) <= SMALL_PIECES:
            for one in map(_or_raise, every):
                features = self._accepted(one, partial(self.made_of, *one))
                yield one.piece, features
            return
        with FeatureProcesses(self.by_key, self.label, self.processes) as workers:
            for one, made_of in workers.in_order(every, lambda one: self.work_of(*one)):
                features = self._accepted(one, made_of)  # raises the error that is in the place of a piece
                yield one.piece, features

    def _grouped(self, pieces: Iterator[Piece | GridmillError]) -> "Iterator[_Grouped | GridmillError]":
        """Yield each piece with the number of rows of its first group."""
        group = FIRST_ROWS
        for piece in pieces:
            if isinstance(piece, GridmillError):
                yield piece
            else:
                yield _Grouped(piece, group)
                group = self.by_key.order.group_after(group, self.rows_in(piece))

    @abstractmethod
    def rows_in(self, piece: Piece) -> int:
        """Return the number of rows of a piece."""

    @abstractmethod
    def made_of(self, piece: Piece, group: int) -> ComputedRows:
        """Compute the features of a piece in this process. `group` is the number of rows of its first group.
        Raises RefusedRowError."""

    @abstractmethod
    def work_of(self, piece: Piece, group: int) -> bytes:
        """Return the rows of a piece as they are sent to another process."""

    @abstractmethod
    def place_in(self, piece: Piece, row: int) -> str:
        """Return the text that names a row of a piece in errors."""

    def _accepted(self, one: _Grouped, made_of: Callable[[], ComputedRows]) -> pa.Table:
        """Return the features of a piece, and keep what the answer shows about them."""
        try:
            made = made_of()
        except RefusedRowError as error:
            raise self.refused(self.place_in(one.piece, error.row), error) from error
        for name, counted in made.not_present.items():
            self._counts.setdefault(name, Counter()).update(counted)
        if made.shown is not None:
            self._shown.write(made.shown)
        return made.features


class KeyedLineRows(KeyedRows, LineRows):
    """The lines of a JSON Lines file, each an object with the fields of an HTTP request."""

    def __init__(self, path: Path, reader: RowReader, ending: str, by_key: BulkFeatures) -> None:
        super().__init__(path, reader, ending)
        self.by_key, self.is_list = by_key, False

    def rows_in(self, piece: Sequence[tuple[int, bytes]]) -> int:
        """See KeyedRows."""
        return len(piece)

    def made_of(self, piece: Sequence[tuple[int, bytes]], group: int) -> ComputedRows:
        """See KeyedRows."""
        return self.by_key.of_lines([line for _, line in piece], group)

    def work_of(self, piece: Sequence[tuple[int, bytes]], group: int) -> bytes:
        """See KeyedRows."""
        return lines_work([line for _, line in piece], group)

    def place_in(self, piece: Sequence[tuple[int, bytes]], row: int) -> str:
        """See KeyedRows."""
        return f"line {piece[row][0]}"


class KeyedTableRows(KeyedRows, TableRows):
    """The rows of a Parquet file, or of a version of a sink."""

    has_cells = False
    """Whether all values are the texts of cells."""

    def __init__(
        self,
        label: str,
        reader: RowReader,
        ending: str,
        opened: Callable[[], pa.RecordBatchReader],
        by_key: BulkFeatures,
    ) -> None:
        super().__init__(label, reader, ending, opened)
        self.by_key = by_key

    def check_names(self, names: Sequence[str]) -> None:
        """Raise DataError if a column is missing that each request sends."""
        optional = [key for key, features in self.by_key.optional.items() if features <= {*names}]
        needed = [name for name in self.by_key.plan.request if name not in optional]
        check_columns(self.label, names, needed, self.hint)

    def rows_in(self, piece: tuple[int, pa.RecordBatch]) -> int:
        """See KeyedRows."""
        rows: int = piece[1].num_rows
        return rows

    def made_of(self, piece: tuple[int, pa.RecordBatch], group: int) -> ComputedRows:
        """See KeyedRows."""
        return self.by_key.of_batch(piece[1], group, self.label, has_cells=self.has_cells)

    def work_of(self, piece: tuple[int, pa.RecordBatch], group: int) -> bytes:
        """See KeyedRows."""
        return table_work(sent_columns(piece[1], self.by_key.plan), group, has_cells=self.has_cells)

    def place_in(self, piece: tuple[int, pa.RecordBatch], row: int) -> str:
        """See KeyedRows."""
        return self.place_of(piece[0] + row)


class KeyedCsvRows(KeyedTableRows, CsvRows):
    """The rows of a CSV file."""

    has_cells = True

    def __init__(self, path: Path, reader: RowReader, ending: str, by_key: BulkFeatures) -> None:
        CsvRows.__init__(self, path, reader, ending)
        self.by_key = by_key


class _ShownFile:
    """A Parquet file with what the answer shows about the features of each row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._has_rows = False

    def write(self, rows: pa.Table) -> None:
        """Add the next rows."""
        if self._writer is None:
            self._writer, self._has_rows = pq.ParquetWriter(self._path, rows.schema), True
        self._writer.write_table(rows.cast(self._writer.schema))

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def batches(self) -> Iterator[pa.RecordBatch] | None:
        """Return all rows, or None if no rows were written."""
        if not self._has_rows:
            return None
        batches: Iterator[pa.RecordBatch] = pq.ParquetFile(self._path).iter_batches(GROUP_ROWS)
        return batches


def _with_error(pieces: Iterator[Piece]) -> Iterator[Piece | GridmillError]:
    """Yield the pieces, and then the error that has ended them, so that pieces before it can be computed
    first."""
    try:
        yield from pieces
    except GridmillError as error:
        yield error


def _or_raise(piece: _Grouped | GridmillError) -> _Grouped:
    if isinstance(piece, GridmillError):
        raise piece
    return piece
