"""Parquet files: their own types, batch by batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.errors import DataError
from gridmill.jobs.parquet import rows_at_once
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.reading import Seen, Types, check_names
from gridmill.model.source import Compression, Source

BATCH_ROWS = 65_536


@dataclass(slots=True)
class Columnar:
    """A Parquet file."""

    file: SourceFile
    source: Source

    def names(self) -> tuple[str, ...]:
        """The columns. Raises DataError."""
        with self._opened() as parquet:
            return check_names(self.file, tuple(parquet.schema_arrow.names))

    def schema(self) -> pa.Schema:
        """The columns and their types. Raises DataError."""
        with self._opened() as parquet:
            return parquet.schema_arrow

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, types: Types | None = None
    ) -> Iterator[pa.Table]:
        """All rows."""
        done = 0
        with self._opened() as parquet:
            total = max(1, parquet.metadata.num_rows)
            rows = rows_at_once(len(columns or parquet.schema_arrow.names), BATCH_ROWS)
            for batch in parquet.iter_batches(rows, columns=list(columns) if columns else None):
                done += batch.num_rows
                seen(int(self.file.size_bytes * done / total))
                yield pa.Table.from_batches([batch])

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Parquet has no lines."""
        return (None for _ in rows)

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        if self.file.compression != Compression.NONE:
            raise DataError(
                f"a Parquet file cannot be read through {self.file.compression}",
                hint="Parquet compresses inside; unpack it.",
                place=self.file.name,
            )
        try:
            with pq.ParquetFile(self.file.local()) as parquet:
                yield parquet
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"not a readable Parquet file: {error}", place=self.file.name) from error
