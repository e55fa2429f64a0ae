"""The dataset job: compile the declaration, run the query, write its rows as Parquet, describe them."""

from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree

import pyarrow.dataset as ds

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset.checks import check_kept, check_splits
from gridmill.jobs.dataset.describe import describe_rows, make_result
from gridmill.jobs.dataset.prepare import Query, prepare, types_of_all
from gridmill.jobs.dataset.writing import RAW, Tally, write_encoded, write_rows
from gridmill.jobs.engine import open_engine
from gridmill.jobs.tables import open_table, storage_errors

KEYLESS = "no time or no entity"


def run(context: JobContext) -> JobResult:
    """Make the dataset. Raises InputError, DataError, StorageError; nothing is visible then."""
    spec = context.order.job.dataset
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is no dataset")
    tables = {
        name: open_table(context, context.input(name).output, zoned=False) for name in spec.references()
    }
    tally, target = Tally(), context.below_root(context.order.output_uri)
    draft = target.with_name(f".{target.name}.draft")
    rmtree(draft, ignore_errors=True)
    try:
        with open_engine(context, _with_short_names(tables)) as engine:
            query = prepare(engine, spec, types_of_all(engine, tables))
            folder = draft / RAW if spec.encoders else draft
            parts = write_rows(context, engine, query, folder, tally, whole=bool(spec.encoders))
        _count_keyless(query, tally)
        check_kept(spec, tally.dropped, tally.kept, query.span_seconds)
        check_splits(query.bounds, tally.splits)
        parts, steps = write_encoded(spec, query, draft) if spec.encoders else (parts, ())
        facts = describe_rows(context, query, steps, draft)
        _publish(draft, target)
    finally:
        rmtree(draft, ignore_errors=True)
    return make_result(context, query, tally, parts, steps, facts)


def _with_short_names(tables: Mapping[str, ds.Dataset]) -> Mapping[str, ds.Dataset]:
    """Another pipeline's `weather/hourly` can be called `hourly` in SQL too, where that is free."""
    short = {name.rpartition("/")[2]: table for name, table in tables.items()}
    return {**short, **tables}


def _count_keyless(query: Query, tally: Tally) -> None:
    missing = query.rows - tally.kept - tally.dropped.total()
    if query.rows and missing:
        tally.dropped[KEYLESS] = missing


def _publish(draft: Path, target: Path) -> None:
    """The folder appears whole or not at all."""
    with storage_errors(target):
        rmtree(target, ignore_errors=True)
        draft.rename(target)
