"""Reads the rows of a version in a program that is not a job: all rows, some columns, or a single split."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from gridmill.domain.artifact import Artifact
from gridmill.domain.naming import did_you_mean
from gridmill.errors import InputError, StorageError
from gridmill.jobs.parquet_reader import RowGroupDataset
from gridmill.jobs.tables import open_version

BATCH_ROWS = 65_536


def read_rows(
    path: Path, version: Artifact, columns: Sequence[str] | None = None, split: str | None = None
) -> pa.Table:
    """Return the rows of a version as a table. Raises InputError for a column or split that does not exist,
    StorageError."""
    table, names, which = _chosen(path, version, columns, split)
    try:
        result: pa.Table = table.to_table(columns=names, filter=which)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(version, error) from error
    return result


def read_batches(
    path: Path,
    version: Artifact,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    rows: int = BATCH_ROWS,
) -> pa.RecordBatchReader:
    """Return a reader of the rows in batches of at most `rows` rows. One or two row groups are in memory.
    Raises the errors of the function `read_rows`."""
    table, names, which = _chosen(path, version, columns, split)
    schema = pa.schema([table.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, _batches(table, names, which, rows, version))


def _batches(
    table: RowGroupDataset, names: Sequence[str], which: ds.Expression | None, rows: int, version: Artifact
) -> Iterator[pa.RecordBatch]:
    try:
        for batch in table.turns(names, which).to_reader():
            for first in range(0, batch.num_rows, rows):
                yield batch.slice(first, rows)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(version, error) from error


def _chosen(
    path: Path, version: Artifact, columns: Sequence[str] | None, split: str | None
) -> tuple[RowGroupDataset, list[str], ds.Expression | None]:
    try:
        table = open_version(path, version.output)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise _unreadable(version, error) from error
    names = list(table.schema.names if columns is None else columns)
    for name in names:
        if name not in table.schema.names:
            raise InputError(
                f"{version.id} has no column {name!r}{did_you_mean(name, table.schema.names)}",
                hint=f"It has {', '.join(table.schema.names)}.",
            )
    return table, names, None if split is None else _of_split(table, split, version)


def _of_split(table: RowGroupDataset, split: str, version: Artifact) -> ds.Expression:
    if "split" not in table.schema.names:
        raise InputError(f"{version.id} has no splits", hint="Leave `split` out to read all rows.")
    splits = pc.unique(table.to_table(columns=["split"])["split"].cast(pa.string())).to_pylist()
    if split not in splits:
        names = ", ".join(sorted(str(one) for one in splits if one is not None))
        raise InputError(f"{version.id} has no split {split!r}", hint=f"The splits are {names}.")
    return ds.field("split").cast(pa.string()) == split


def _unreadable(version: Artifact, error: Exception) -> StorageError:
    return StorageError(
        f"the files of {version.id} cannot be read: {error}",
        hint=f"`gridmill verify {version.id}` shows which files are missing or changed.",
    )
