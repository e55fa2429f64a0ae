"""The dataset job compiles the declaration, runs the query, writes the rows as Parquet, and describes them.

If the dataset job runs in parts, each part of the job computes some of the buckets. All parts together
produce the same rows as a single process.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

import duckdb
import pyarrow.dataset as ds

from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset.checks import check_kept, check_splits
from gridmill.jobs.dataset.describe import describe_parts, describe_rows, make_result, note_part
from gridmill.jobs.dataset.encode import EncoderStep, load_encoders
from gridmill.jobs.dataset.incremental import ReusableVersion, find_kept, link_files, recent_rows
from gridmill.jobs.dataset.joins import TableViews, register_tables
from gridmill.jobs.dataset.label_availability import with_label_clock
from gridmill.jobs.dataset.labels import with_predictions
from gridmill.jobs.dataset.prepare import PreparedQuery, prepare, types_of_all
from gridmill.jobs.dataset.time_units import find_units, units_before
from gridmill.jobs.dataset.window_engine import bytes_for_chunks
from gridmill.jobs.dataset.write import PART, RAW, RowTally, write_encoded, write_rows
from gridmill.jobs.duckdb_engine import engine_bytes, open_engine
from gridmill.jobs.parquet import link_file, storage_errors
from gridmill.jobs.tables import open_table

TALLY_FILE = ".tally.json"


def write_tally(folder: Path, tally: RowTally) -> None:
    """Write the row counts of a part of the job into the folder with the rows of this part."""
    content = {"kept": tally.kept, "dropped": tally.dropped, "final": tally.final, "splits": tally.splits}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TALLY_FILE).write_text(json.dumps(content))


def take_together(folder: Path, parts: Sequence[Path], tally: RowTally) -> None:
    """Link the files of all parts of the job into `folder`, and add the row counts of the parts to `tally`.
    Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for path in sorted(part.glob("*.parquet")):
            link_file(path, folder)
        content = json.loads((part / TALLY_FILE).read_text())
        counted = {name: Counter[str](content[name]) for name in ("dropped", "final", "splits")}
        tally.add(RowTally(kept=content["kept"], **counted))


OneTable = TypeVar("OneTable")
KEYLESS = "no time or no entity"
KEPT = "kept"
"""The name of a folder that a part of the job makes in its own folder. The folder contains the files of an
earlier version that the new version uses unchanged. Files of an earlier version belong to the whole dataset
and not to a single part of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DatasetDraft:
    """The computed rows of a dataset before they are published: the query, the files that come from an
    earlier version, and the row counts.

    The rows are stored in the draft folder. The names of new files begin with `stem`.
    """

    query: PreparedQuery
    kept: ReusableVersion | None
    tally: RowTally
    stem: str


def run(context: JobContext) -> JobResult:
    """Make a version of the dataset. Raises InputError, DataError or StorageError. After an error, no
    incomplete version is visible."""
    if context.order.job.dataset is None:
        raise InputError(f"job {context.order.job.name!r} is not a dataset")
    inputs = {name: context.input(name).output for name in context.order.job.dataset.references()}
    spec = _declared(context, inputs)
    spec = with_label_clock(spec, {name: context.input(name) for name in inputs})
    target = context.below_root(context.order.output_uri)
    draft = target.with_name(f".{target.name}.draft")
    part, parts = context.order.part, [context.below_root(uri) for uri in context.order.parts]
    try:
        made = _make_rows(context, spec, inputs, draft)
        query, kept, tally = made.query, made.kept, made.tally
        # if true, the statistics that each part writes of its own rows can be combined
        is_complete = kept is None and not spec.encoders
        if part is not None:
            write_tally(draft, tally)
            if is_complete:
                note_part(context, query, draft)
            _publish(draft, target)
            return JobResult()
        _count_keyless(query, tally)
        check_kept(spec, tally.dropped, tally.kept, query.span_seconds)
        check_splits(query.bounds, tally.splits)
        steps: tuple[EncoderStep, ...] = ()
        if spec.encoders:
            frozen = load_encoders(kept.folder) if kept else ()
            steps = write_encoded(context, spec, query, draft, made.stem, frozen)
        facts = _reusable_facts(kept, query) or (
            describe_parts(context, query, parts, draft)
            if parts and is_complete
            else describe_rows(context, query, steps, draft)
        )
        _publish(draft, target)
    finally:
        rmtree(draft, ignore_errors=True)
    return make_result(context, query, tally, steps, facts, kept)


def _make_rows(
    context: JobContext, spec: DatasetSpec, inputs: Mapping[str, Output], draft: Path
) -> _DatasetDraft:
    """Compute the rows in the draft folder.

    If the SQL engine runs out of memory, the computation starts again, and the engine also gets the memory
    that was reserved for chunks.
    """
    reserved_bytes = bytes_for_chunks(context.threads) if spec.basis or spec.time else 0
    try:
        return _make_rows_in_limits(context, spec, inputs, draft, reserved_bytes)
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        if engine_bytes(context, reserved_bytes) == engine_bytes(context):
            raise
        why = str(error).partition("\n")[0]
        print(f"all rows are computed again, with more memory for the engine: {why}")
        return _make_rows_in_limits(context, spec, inputs, draft, 0)


def _make_rows_in_limits(
    context: JobContext, spec: DatasetSpec, inputs: Mapping[str, Output], draft: Path, reserved_bytes: int
) -> _DatasetDraft:
    for folder in (draft, context.work / KEPT):
        rmtree(folder, ignore_errors=True)
    tables = {name: open_table(context, output, zoned=False) for name, output in inputs.items()}
    unfiltered = {name: table for name, table in tables.items() if not inputs[name].details.get("outages")}
    tally, declared = RowTally(), _declared(context, inputs)
    with open_engine(context, reserved_bytes=reserved_bytes) as engine:
        views = open_views(context, engine, spec, tables, unfiltered)
        kept, why = find_kept(context, engine, spec, tables, views.units)
        query = prepare(
            engine,
            spec,
            types_of_all(engine, tables),
            kept.after if kept else None,
            unfiltered,
            declared=declared,
            units=views.units,
            before=units_before(context),
        )
        if kept is not None and not _holds(spec, query, kept):
            kept, why = None, "the training rows have changed"
            query = prepare(
                engine,
                spec,
                types_of_all(engine, tables),
                None,
                unfiltered,
                declared=declared,
                units=views.units,
                before=units_before(context),
            )
        if kept is not None:
            recent = recent_rows(context, spec, tables, views.units, kept.after)
            views = replace(views, tables={**views.tables, **recent})
            register_tables(engine, recent, views.units)
        if why:
            print(f"all rows are computed: {why}")
        part = context.order.part
        stem = _continue(kept, RowTally() if part else tally, context.work / KEPT if part else draft)
        folder = draft / RAW if spec.encoders and not part else draft
        parts = [context.below_root(uri) for uri in context.order.parts]
        if parts:
            take_together(folder, parts, tally)
        else:
            write_rows(
                context,
                engine,
                query,
                folder,
                tally,
                tables=views,
                whole=bool(spec.encoders),
                stem=stem,
                reserved_bytes=reserved_bytes,
            )
    return _DatasetDraft(query=query, kept=kept, tally=tally, stem=stem)


def _declared(context: JobContext, inputs: Mapping[str, Output]) -> DatasetSpec:
    """Return the declaration with the times as the user wrote them, for error messages."""
    spec = context.order.job.dataset
    assert spec is not None
    predictions = {name: one for name, one in inputs.items() if one.kind == ArtifactKind.PREDICTION}
    return with_predictions(spec, predictions)


def _holds(spec: DatasetSpec, query: PreparedQuery, kept: ReusableVersion) -> bool:
    """Return whether the encoders of the reused version are still valid. The encoders are valid if none of
    the new rows is a training row."""
    return not spec.encoders or _is_trained(query, kept)


def _is_trained(query: PreparedQuery, kept: ReusableVersion) -> bool:
    starts = query.bounds.starts if query.bounds and query.bounds.shares is None else ()
    return bool(starts) and starts[0] <= kept.after


def _reusable_facts(kept: ReusableVersion | None, query: PreparedQuery) -> Mapping[str, Any]:
    """Return the statistics of the reused version that are still valid, because the training rows have not
    changed."""
    if kept is None or not _is_trained(query, kept):
        return {}
    return {name: kept.details.get(name, []) for name in ("columns", "statistics", "suspects")}


def _continue(kept: ReusableVersion | None, tally: RowTally, draft: Path) -> str:
    """Link the files of the reused version into the draft, and add their row counts to `tally`. Return the
    text with which the names of new files begin."""
    if kept is None:
        return PART
    details = kept.details
    tally.kept = kept.rows
    tally.splits.update(details["splits"])
    tally.dropped.update(details["incremental"]["dropped"])
    tally.final.update(details["incremental"]["dropped"])
    link_files(kept, draft)
    since = kept.after.strftime("%Y%m%d%H%M%S%f")
    print(f"{kept.rows:,} rows are kept; only rows after {kept.after:%Y-%m-%d %H:%M:%S} are computed")
    return f"{PART}-s{since}"


def open_views(
    context: JobContext,
    engine: duckdb.DuckDBPyConnection,
    clocked: DatasetSpec,
    tables: Mapping[str, ds.Dataset],
    sources: Mapping[str, ds.Dataset] | None = None,
) -> TableViews:
    """Create the views of the tables in the SQL engine, and convert numeric columns to times as declared.

    `sources` are the tables without excluded rows. Raises DataError.
    """
    views = TableViews(tables=with_short_names(tables))
    views.register(engine)
    declared = _declared(context, {name: context.input(name).output for name in tables})
    units = find_units(
        engine,
        declared,
        types_of_all(engine, tables),
        clocked=clocked,
        before=units_before(context),
        sources=sources,
    )
    if any(units.values()):
        views = replace(views, units=with_short_names(units))
        views.register(engine)
    return views


def with_short_names(tables: Mapping[str, OneTable]) -> Mapping[str, OneTable]:
    """Return the tables by the names that they have in SQL. A table of another pipeline, such as
    `weather/hourly`, also has the name `hourly` if no other table has that name."""
    short = {name.rpartition("/")[2]: table for name, table in tables.items()}
    return {**short, **tables}


def _count_keyless(query: PreparedQuery, tally: RowTally) -> None:
    missing = query.rows - tally.kept - tally.dropped.total()
    if query.rows and missing:
        tally.dropped[KEYLESS] = missing


def _publish(draft: Path, target: Path) -> None:
    """Rename the draft folder to the target, so that the result appears completely or not at all."""
    with storage_errors(target):
        rmtree(target, ignore_errors=True)
        draft.rename(target)
