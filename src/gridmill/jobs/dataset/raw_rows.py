"""Stores the rows of a dataset before they are encoded, and reports the progress of the job.

The raw rows are written once, read once, and then deleted. The progress has three phases: the job computes
rows, encodes them, and describes them.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.domain.frozen import dataclass
from gridmill.jobs.context import JobContext
from gridmill.jobs.parquet import storage_errors
from gridmill.jobs.parquet_reader import ahead, thrifty


class Phase(StrEnum):
    """The phases through which each row passes, in this order. The names of the phases are shown to
    users."""

    COMPUTE = "computing"
    ENCODE = "encoding"
    DESCRIBE = "describing"


def show_progress(context: JobContext, phase: Phase, done: int, rows: int, note: str = "") -> None:
    """Report that `done` of `rows` rows have passed a phase.

    All phases are part of the percentage, so that a job shows 100 % only when it has finished.
    """
    spec, part = context.order.job.dataset, context.order.part
    encodes = spec is not None and bool(spec.encoders) and part is None
    phases = [one for one in Phase if one != Phase.ENCODE or encodes]
    at = phases.index(phase) * rows + min(done, rows)
    context.progress(at, len(phases) * rows or None, "rows", note or phase.value)


SUFFIX = ".arrow"
_FEW_TEXTS = 8
"""Rows are compressed only if texts or lists are in more than one of every _FEW_TEXTS columns. If fewer
columns contain texts or lists, compression takes more time than it saves."""


def write_raw(batches: Iterable[pa.Table], schema: pa.Schema, folder: Path, stem: str) -> None:
    """Write the rows to the file `STEM.arrow`. If there are no rows, the function writes no file. If any
    error occurs, the function deletes the file.

    The file has Arrow's own format, in which columns need no encoding and decoding. With thousands of
    columns, writing Parquet would take as much time as the encoders take. Raises StorageError if the disk is
    full, and any error that the iterator `batches` raises.
    """
    path, writer = folder / f"{stem}{SUFFIX}", None
    options = pa.ipc.IpcWriteOptions(compression=_compression(schema))
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for table in batches:
                if table.num_rows and writer is None:
                    writer = pa.ipc.new_file(str(path), schema, options=options)
                if writer is not None:
                    writer.write_table(table)
            if writer is not None:
                writer.close()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _compression(schema: pa.Schema) -> str | None:
    large = [item for item in schema if _is_large(item.type)]
    return "lz4" if len(large) * _FEW_TEXTS > len(schema) else None


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """Raw rows of a dataset, stored in files of one format. The process of the job itself writes Arrow
    files, and the parts of the job write Parquet files."""

    table: ds.FileSystemDataset
    paths: tuple[Path, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order. While the caller uses a batch, the next batch is already read."""
        arrow = self.paths[0].suffix == SUFFIX
        return ahead(self._arrow() if arrow else thrifty(self.table).turns().to_reader(), 1)

    def _arrow(self) -> Iterator[pa.RecordBatch]:
        for path in self.paths:
            with pa.OSFile(str(path)) as source:
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)


def open_raw(folder: Path) -> RawRows | None:
    """Return the raw rows in this folder, or None if the folder has no raw rows."""
    for suffix, name in ((SUFFIX, "ipc"), (".parquet", "parquet")):
        paths = tuple(sorted(folder.glob(f"*{suffix}")))
        if paths:
            return RawRows(table=ds.dataset([str(path) for path in paths], format=name), paths=paths)
    return None
