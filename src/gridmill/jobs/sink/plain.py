"""Whether the data files of a version, read as Parquet, are just its rows: then commands are given them."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.jobs.context import JobContext
from gridmill.jobs.sink.table import SinkTable, open_sink_table
from gridmill.jobs.tables import columns_of
from gridmill.model.artifact import ArtifactKind
from gridmill.model.sink import SinkSpec

PLAIN = "plain"
"""The fact's name in a version's details."""
_MOST_FILES = 2_000
"""So many footers are read: some tenths of a second. Where there are more, commands are given copies."""


def is_plain(context: JobContext, spec: SinkSpec, table: SinkTable) -> bool:
    """Whether every row of every data file counts, and all files have the table's columns.

    They have not where columns came with later files; not all rows count where the sink has outages, or where
    another program wrote to the table. What was known of the version before is not looked at again.
    """
    if table.delta is None or spec.outages or _is_written_by_others(table):
        return False
    files = {entry.path for entry in table.loaded}
    new = files - _known(context, table)
    return bool(files) and len(new) <= _MOST_FILES and _have(table.path, new, table.schema)


def _is_written_by_others(table: SinkTable) -> bool:
    assert table.delta is not None
    features = table.delta.protocol().reader_features or ()
    partitioned = bool(table.delta.metadata().partition_columns)
    return partitioned or "deletionVectors" in features or "columnMapping" in features


def _known(context: JobContext, table: SinkTable) -> set[str]:
    """Files of the version before, where they have the same columns."""
    for entry in context.order.earlier:
        output = entry.artifact.output
        known = output.kind == ArtifactKind.SINK and output.details.get(PLAIN)
        if known and output.columns == columns_of(table.schema):
            before = open_sink_table(table.path, output.table_version)
            return {entry.path for entry in before.loaded}
    return set()


def _have(folder: Path, names: Iterable[str], schema: pa.Schema) -> bool:
    wanted = [(item.name, item.type) for item in schema]
    return all([(item.name, item.type) for item in pq.read_schema(folder / name)] == wanted for name in names)
