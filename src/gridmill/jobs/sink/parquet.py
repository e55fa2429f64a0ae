"""The Parquet reader returns the types that the file defines, batch by batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Compression, Source
from gridmill.errors import DataError
from gridmill.jobs.parquet import rows_at_once
from gridmill.jobs.sink.column_stats import leaves
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.formats import ExpectedTypes, Seen, Types, check_names

BATCH_ROWS = 65_536
_CODED_BYTES = 4
"""If texts have fewer bytes than this number on average, dictionary encoding saves no memory."""


@dataclass(slots=True)
class ParquetReader:
    """Reads a Parquet file."""

    file: SourceFile
    source: Source

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns. Raises DataError."""
        with self._opened() as parquet:
            return tuple(parquet.schema_arrow.names)

    def schema(self) -> pa.Schema:
        """Return the columns and their types. Raises DataError."""
        with self._opened() as parquet:
            return parquet.schema_arrow

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows of the file. If the file stores texts dictionary-encoded, the texts stay
        dictionary-encoded, even if `haste` contains their columns."""
        done = 0
        with self._opened(haste.types if haste else None) as parquet:
            total = max(1, parquet.metadata.num_rows)
            rows = rows_at_once(len(columns or parquet.schema_arrow.names), BATCH_ROWS)
            for batch in parquet.iter_batches(rows, columns=list(columns) if columns else None):
                done += batch.num_rows
                seen(int(self.file.size_bytes * done / total))
                yield pa.Table.from_batches([batch])

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield None for each row, because Parquet files have no lines."""
        return (None for _ in rows)

    @contextmanager
    def _opened(self, types: Types | None = None) -> Iterator[pq.ParquetFile]:
        if self.file.compression != Compression.NONE:
            raise DataError(
                f"a Parquet file cannot be read through {self.file.compression}",
                hint="Unpack the file: Parquet files are already compressed.",
                place=self.file.name,
            )
        try:
            with pa.OSFile(str(self.file.local())) as file:
                parquet_file = pq.ParquetFile(file)
                check_names(self.file, tuple(parquet_file.schema_arrow.names))
                coded = _repeating(parquet_file, types or {})
                # With a read-ahead buffer, Arrow would keep the whole file in memory.
                yield pq.ParquetFile(
                    file, read_dictionary=coded, metadata=parquet_file.metadata, pre_buffer=False
                )
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"not a readable Parquet file: {error}", place=self.file.name) from error


def _repeating(parquet: pq.ParquetFile, types: Types) -> list[int]:
    """Return the numbers of the text columns that are dictionary-encoded in the complete file, and that
    `types` also expects as texts."""
    metadata = parquet.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [
        leaf
        for name, leaf in leaves(parquet.schema_arrow)
        if parquet.schema_arrow.field(name).type == types.get(name) == pa.string()
        and _is_coded([group.column(leaf) for group in groups])
    ]


def _is_coded(chunks: Sequence[pq.ColumnChunkMetaData]) -> bool:
    """Return whether the dictionary-encoded texts are smaller than plain texts, which need 4 additional bytes
    each."""
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    small: bool = size < _CODED_BYTES * sum(chunk.num_values for chunk in chunks)
    return small and all(chunk.has_dictionary_page for chunk in chunks)
