"""Running a dataset's query: rows counted, those without a reason to be left out written as Parquet."""

from collections import Counter
from collections.abc import Iterator, Sequence
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
from gridmill.jobs.dataset.encoders import Fitted
from gridmill.jobs.dataset.prepare import Query
from gridmill.jobs.dataset.sqltext import DROPPED, LABEL_TIME, TIME
from gridmill.jobs.parquet import write_parquet
from gridmill.jobs.tables import plain_schema
from gridmill.model.dataset import DatasetSpec

CHUNK_ROWS = 65_536
PART = "part"
RAW = "raw"
"""The folder of the rows before they are encoded, those that are left out among them."""


@dataclass(slots=True)
class Tally:
    """Rows kept, and those left out by reason; `final` are those of them that no later row can bring back."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    final: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)


def write_rows(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    query: Query,
    folder: Path,
    tally: Tally,
    *,
    whole: bool = False,
    stem: str = PART,
) -> None:
    """Write the rows that stay to `folder`; `whole`: all, with the reason of those that do not."""
    context.progress(0, query.rows or None, "rows", "sorting and joining")
    texts = query.buckets or (query.compiled.sql,)
    for number, text in enumerate(texts):
        name = stem if len(texts) == 1 else f"{stem}-{number:04d}"
        try:
            reader = engine.sql(text).to_arrow_reader(CHUNK_ROWS)
            hidden = () if whole else (DROPPED, TIME, LABEL_TIME)
            schema = plain_schema(pa.schema([item for item in reader.schema if item.name not in hidden]))
            write_parquet(_kept(context, reader, schema, query, tally), schema, folder, name)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            raise DataError(f"the query failed: {error}", place="dataset") from error


def _kept(
    context: JobContext, reader: pa.RecordBatchReader, schema: pa.Schema, query: Query, tally: Tally
) -> Iterator[pa.Table]:
    for batch in reader:
        context.progress(tally.kept + tally.dropped.total(), query.rows or None, "rows")
        table = pa.Table.from_batches([batch])
        reasons = table[DROPPED]
        tally.dropped.update(_counts(reasons.drop_null()))
        if query.final is not None and TIME in table.column_names:
            final = table.filter(pc.less_equal(table[TIME], pa.scalar(query.final, table[TIME].type)))
            tally.final.update(_counts(final[DROPPED].drop_null()))
        kept = table.filter(pc.is_null(reasons))
        tally.kept += kept.num_rows
        if "split" in kept.column_names:
            tally.splits.update(_counts(kept["split"].drop_null().cast(pa.string())))
        yield (table if DROPPED in schema.names else kept).select(schema.names).cast(schema)


def _counts(values: pa.Array) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()}


def write_encoded(
    spec: DatasetSpec, query: Query, draft: Path, stem: str = PART, frozen: Sequence[Fitted] = ()
) -> tuple[Step, ...]:
    """Fit the encoders on the raw rows below `draft` (or take `frozen` ones), and write there what they make
    of all rows that stay.

    Raises InputError for what cannot be encoded.
    """
    steps = tuple(Step(fitted=one) for one in frozen)
    files = sorted(str(path) for path in (draft / RAW).glob("*.parquet"))
    if files:
        raw = ds.dataset(files, format="parquet")
        steps = steps or fit_all(spec, raw, query.compiled)
        write_parquet(encode_batches(raw, steps), encoded_schema(raw.schema, steps), draft, stem)
    save_encoders(draft, steps)
    rmtree(draft / RAW, ignore_errors=True)
    return steps
