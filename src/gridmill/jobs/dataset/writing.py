"""Running a dataset's query: rows counted, those without a reason to be left out written as Parquet."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.encode import Step, encode_batches, encoded_schema, fit_all, save_encoders
from gridmill.jobs.dataset.prepare import Query
from gridmill.jobs.dataset.sqltext import DROPPED
from gridmill.jobs.tables import Part, plain_schema, write_parquet
from gridmill.model.dataset import DatasetSpec

CHUNK_ROWS = 65_536
RAW = "raw"
"""The folder of the rows before they are encoded, those that are left out among them."""


@dataclass(slots=True)
class Tally:
    """Rows kept, and those left out by reason."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)


def write_rows(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    query: Query,
    folder: Path,
    tally: Tally,
    *,
    whole: bool = False,
) -> tuple[Part, ...]:
    """Write the rows that stay to `folder`; `whole`: all, with the reason of those that do not."""
    context.progress(0, query.rows or None, "rows", "sorting and joining")
    try:
        reader = engine.sql(query.compiled.sql).to_arrow_reader(CHUNK_ROWS)
        schema = plain_schema(pa.schema([item for item in reader.schema if whole or item.name != DROPPED]))
        return write_parquet(_kept(context, reader, schema, query, tally), schema, folder, "part")
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise DataError(f"the query failed: {error}", place="dataset") from error


def _kept(
    context: JobContext, reader: pa.RecordBatchReader, schema: pa.Schema, query: Query, tally: Tally
) -> Iterator[pa.Table]:
    done = 0
    for batch in reader:
        done += batch.num_rows
        context.progress(done, query.rows or None, "rows")
        reasons = batch.column(DROPPED)
        tally.dropped.update(_counts(reasons.drop_null()))
        table = pa.Table.from_batches([batch])
        kept = table.filter(pc.is_null(reasons)).drop_columns([DROPPED])
        tally.kept += kept.num_rows
        if "split" in kept.column_names:
            tally.splits.update(_counts(kept["split"].drop_null().cast(pa.string())))
        yield (table if DROPPED in schema.names else kept).cast(schema)


def _counts(values: pa.Array) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()}


def write_encoded(spec: DatasetSpec, query: Query, draft: Path) -> tuple[tuple[Part, ...], tuple[Step, ...]]:
    """Fit the encoders on the raw rows below `draft`, and write there what they make of all rows that stay.

    Raises InputError for what cannot be encoded.
    """
    raw = ds.dataset(sorted(str(path) for path in (draft / RAW).glob("*.parquet")), format="parquet")
    steps = fit_all(spec, raw, query.compiled)
    parts = write_parquet(encode_batches(raw, steps), encoded_schema(raw.schema, steps), draft, "part")
    save_encoders(draft, steps)
    rmtree(draft / RAW)
    return parts, steps
