"""`python -m gridmill.jobs.export_sink` writes the rows of a version of a sink as Parquet, so that a command
can read them.

The export runs in a separate process, so that a pod never imports the libraries that read tables. The
program reads its request as JSON from standard input.
"""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Output
from gridmill.domain.frozen import dataclass
from gridmill.domain.storage_uri import below
from gridmill.errors import GridmillError, StorageError, to_body
from gridmill.jobs.parquet import forms_of, storage_errors
from gridmill.jobs.parquet_reader import RowGroupDataset
from gridmill.jobs.tables import open_version

FILE = "rows.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A request to write the version `output`, whose files are below `root`, into a folder."""

    root: str
    output: Output
    folder: str


def write_rows(wanted: ExportRequest) -> None:
    """Write the rows of the version with the columns of the table, except rows whose times are in an outage.

    If the version has no rows, write a file without rows. Raises StorageError.
    """
    folder = Path(wanted.folder)
    with storage_errors(folder):
        try:
            rows = _rows(wanted)
            with pq.ParquetWriter(folder / FILE, rows.schema, **forms_of(rows.schema)) as writer:
                for batch in rows:
                    writer.write_batch(batch)
        except DeltaError as error:
            raise StorageError(f"{wanted.output.uri} cannot be read: {error}") from error


def _rows(wanted: ExportRequest) -> pa.RecordBatchReader:
    """Return the rows of the version in batches of at most one row group."""
    table = open_version(below(wanted.root, wanted.output.uri), wanted.output)
    assert isinstance(table, RowGroupDataset)
    return table.turns().to_reader()


def main() -> int:
    """Write the rows. If an error occurs, print a message to standard output in the format of
    `errors.to_body`."""
    try:
        write_rows(decode(sys.stdin.buffer.read(), ExportRequest))
    except GridmillError as error:
        sys.stdout.buffer.write(encode(to_body(error)))
        sys.stdout.buffer.flush()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # deltalake's threads sometimes abort a normal exit; all files are already written
