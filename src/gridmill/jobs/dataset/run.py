"""The dataset job: compile the declaration, run the query, write its rows as Parquet, describe them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset.checks import (
    check_kept,
    check_label,
    check_splits,
    check_tables,
    resolve_bounds,
    seen_until,
    time_span,
)
from gridmill.jobs.dataset.compile import Compiled, compile_dataset
from gridmill.jobs.dataset.expressions import explain, is_ordered, parse_select, types_of
from gridmill.jobs.dataset.names import Types, find_column, is_learnable
from gridmill.jobs.dataset.splits import Bounds
from gridmill.jobs.dataset.sqltext import DROPPED
from gridmill.jobs.engine import open_engine, quoted
from gridmill.jobs.tables import (
    Part,
    columns_of,
    describe,
    open_table,
    plain_schema,
    storage_errors,
    write_parquet,
)
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.dataset import Basis, DatasetSpec
from gridmill.model.job import JobSize

SQL_RESULT = "__sql"
"""The table that stands for the result of a declared `sql`."""
KEYLESS = "no time or no entity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is run, and what was found out before. `rows` are those of the basis."""

    compiled: Compiled
    types: Types
    bounds: Bounds | None = None
    rows: int = 0
    span_seconds: float = 0.0


@dataclass(slots=True)
class Tally:
    """Rows kept, and those left out by reason."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)


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
            query = _prepare(engine, spec, _types(engine, tables))
            parts = _write(context, engine, query, draft, tally)
        _count_keyless(query, tally)
        check_kept(spec, tally.dropped, tally.kept, query.span_seconds)
        check_splits(query.bounds, tally.splits)
        facts = _facts(context, query, draft)
        _publish(draft, target)
    finally:
        rmtree(draft, ignore_errors=True)
    return _result(context, spec, query, tally, parts, facts)


def _with_short_names(tables: Mapping[str, ds.Dataset]) -> Mapping[str, ds.Dataset]:
    """Another pipeline's `weather/hourly` can be called `hourly` in SQL too, where that is free."""
    short = {name.rpartition("/")[2]: table for name, table in tables.items()}
    return {**short, **tables}


def _types(engine: duckdb.DuckDBPyConnection, tables: Mapping[str, ds.Dataset]) -> dict[str, Types]:
    return {name: types_of(engine, f"SELECT * FROM {quoted(name)}") for name in tables}


def _prepare(engine: duckdb.DuckDBPyConnection, spec: DatasetSpec, tables: dict[str, Types]) -> Query:
    if spec.sql is not None:
        node = parse_select(engine, spec.sql)
        text = spec.sql.strip().rstrip(";")
        types = _sql_types(engine, text)
        if spec.time is None:
            return _plain(spec, text, types, ordered=is_ordered(node))
        engine.execute(f"CREATE TEMP TABLE {quoted(SQL_RESULT)} AS\n{text}")
        tables[SQL_RESULT] = types
    basis = spec.basis or Basis(table=SQL_RESULT, time=spec.time or "", entity=spec.entity)
    used = check_tables(engine, spec, basis, tables)
    rows, first, last = time_span(
        engine, basis, f"table {basis.table!r}" if spec.basis else "the result of `sql`"
    )
    assert first is not None
    assert last is not None
    bounds = resolve_bounds(spec.split, basis, first, last)
    compiled = compile_dataset(
        spec, basis, tables, used=used, bounds=bounds, seen_until=seen_until(engine, spec.label, last)
    )
    return Query(
        compiled=compiled,
        types=_bound_types(engine, spec, basis, tables, compiled),
        bounds=bounds,
        rows=rows,
        span_seconds=(last - first).total_seconds(),
    )


def _sql_types(engine: duckdb.DuckDBPyConnection, text: str) -> dict[str, str]:
    try:
        return types_of(engine, text)
    except duckdb.Error as error:
        raise explain(error, {}, "dataset.sql", text) from error


def _plain(spec: DatasetSpec, text: str, types: Types, *, ordered: bool) -> Query:
    """SQL without a time: its rows as they are, in an order of their own or in that of their values."""
    label = spec.label.sources[0] if spec.label else None
    for name in (*spec.entity, *([label] if label else [])):
        find_column(name, types, "sql", "label" if name == label else "entity")
    names = {name: spec.label.name if spec.label and name == label else name for name in types}
    listed = ", ".join(f"{quoted(old)} AS {quoted(new)}" for old, new in names.items())
    dropped = f"CASE WHEN {quoted(label)} IS NULL THEN 'no label' END" if label else "NULL::VARCHAR"
    order = "" if ordered else "\nORDER BY ALL"
    compiled = Compiled(
        sql=f'SELECT {listed}, {dropped} AS "{DROPPED}"\nFROM (\n{text}\n){order}',
        columns=tuple(names.values()),
        features=tuple(name for name in types if name not in (label, "split", *spec.entity)),
        entity=spec.entity,
        label=spec.label.name if spec.label else None,
    )
    return Query(compiled=compiled, types={new: types[old] for old, new in names.items()})


def _bound_types(
    engine: duckdb.DuckDBPyConnection,
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    compiled: Compiled,
) -> Types:
    """The query's columns and types. Raises InputError, naming the expression that is wrong."""
    try:
        return types_of(engine, compiled.sql)
    except duckdb.Error as error:
        there = {name: "" for name in (*tables[basis.table], *compiled.features) if name not in spec.features}
        for name, text in spec.features.items():
            _try_alone(engine, compiled, name, text, there)
        raise explain(error, there, "dataset") from error


def _try_alone(
    engine: duckdb.DuckDBPyConnection, compiled: Compiled, name: str, text: str, there: Types
) -> None:
    before = compiled.sql.partition("),\nfeatured AS (")[0]
    try:
        types_of(engine, f"{before})\nSELECT *,\n({text}\n) AS {quoted(name)}\nFROM joined")
    except duckdb.Error as error:
        raise explain(error, there, f"dataset.features.{name}") from error


def _write(
    context: JobContext, engine: duckdb.DuckDBPyConnection, query: Query, draft: Path, tally: Tally
) -> tuple[Part, ...]:
    context.progress(0, query.rows or None, "rows", "sorting and joining")
    try:
        reader = engine.sql(query.compiled.sql).to_arrow_reader(CHUNK_ROWS)
        schema = plain_schema(pa.schema([item for item in reader.schema if item.name != DROPPED]))
        return write_parquet(_kept(context, reader, schema, query, tally), schema, draft, "part")
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise DataError(f"the query failed: {error}", place="dataset") from error


CHUNK_ROWS = 65_536


def _kept(
    context: JobContext, reader: pa.RecordBatchReader, schema: pa.Schema, query: Query, tally: Tally
) -> Iterator[pa.Table]:
    done = 0
    for batch in reader:
        done += batch.num_rows
        context.progress(done, query.rows or None, "rows")
        reasons = batch.column(DROPPED)
        tally.dropped.update(_counts(reasons.drop_null()))
        kept = pa.Table.from_batches([batch]).filter(pc.is_null(reasons)).drop_columns([DROPPED])
        tally.kept += kept.num_rows
        if "split" in kept.column_names:
            tally.splits.update(_counts(kept["split"].drop_null().cast(pa.string())))
        yield kept.cast(schema)


def _counts(values: pa.Array) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()}


def _count_keyless(query: Query, tally: Tally) -> None:
    missing = query.rows - tally.kept - tally.dropped.total()
    if query.rows and missing:
        tally.dropped[KEYLESS] = missing


def _facts(context: JobContext, query: Query, folder: Path) -> Mapping[str, Any]:
    """Of the columns over the training rows (or all). Raises DataError for a constant label."""
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    table = ds.dataset(files, format="parquet")
    split = "split" in table.schema.names
    facts = describe(context, table, table.schema.names, "\"split\" = 'train'" if split else "true")
    check_label(query.compiled.label, facts, "the training split" if split else "the dataset")
    return facts


def _publish(draft: Path, target: Path) -> None:
    """The folder appears whole or not at all."""
    with storage_errors(target):
        rmtree(target, ignore_errors=True)
        draft.rename(target)


def _result(
    context: JobContext,
    spec: DatasetSpec,
    query: Query,
    tally: Tally,
    parts: tuple[Part, ...],
    facts: Mapping[str, Any],
) -> JobResult:
    compiled, size_bytes = query.compiled, sum(part.size_bytes for part in parts)
    table = ds.dataset([context.below_root(context.order.output_uri) / part.path.name for part in parts])
    output = Output(
        kind=ArtifactKind.DATASET,
        uri=context.order.output_uri,
        rows=tally.kept,
        size_bytes=size_bytes,
        columns=columns_of(table.schema),
        metrics={},
        details={
            "features": [name for name in compiled.features if is_learnable(query.types[name])],
            "label": compiled.label,
            "label_column": _label_column(spec, compiled),
            **_labels(compiled),
            "ahead_seconds": (spec.label.horizon_seconds or 0.0) if spec.label else 0.0,
            "time": compiled.time,
            "entity": list(compiled.entity),
            "splits": dict(sorted(tally.splits.items())),
            "bounds": _bounds(query.bounds),
            "dropped": dict(sorted(tally.dropped.items())),
            "columns": facts,
            "point_in_time": spec.sql is None,
            "static": [join.table for join in spec.joins if join.known_at is None and not join.exempt],
            "exempt": [join.table for join in spec.joins if join.exempt],
            "sql": compiled.sql if spec.sql is None or spec.time is None else f"{spec.sql}\n\n{compiled.sql}",
        },
    )
    for reason, count in sorted(tally.dropped.items()):
        print(f"{count:,} rows dropped: {reason}")
    print(f"{tally.kept:,} rows, {len(compiled.features)} features")
    size = JobSize(rows=tally.kept, columns=len(output.columns), input_bytes=size_bytes)
    metrics = {"rows": float(tally.kept)} | {
        f"{name}_rows": float(n) for name, n in sorted(tally.splits.items())
    }
    return JobResult(outputs=(output,), metrics=metrics, size=size)


def _label_column(spec: DatasetSpec, compiled: Compiled) -> str | None:
    """The column whose later value is the label, where the row's own value is among the features."""
    if spec.label is None or spec.label.next_rows is not None:
        return None
    column = spec.label.column if spec.label.table is None else None
    return column if column in compiled.features else None


def _labels(compiled: Compiled) -> Mapping[str, Any]:
    """Of labels of several rows ahead: their names, of which column each is, how many rows ahead."""
    if not compiled.steps:
        return {}
    steps = ({"name": step.name, "column": step.column, "step": step.step} for step in compiled.steps)
    return {"labels": list(steps)}


def _bounds(bounds: Bounds | None) -> Mapping[str, str]:
    if bounds is None:
        return {}
    begins = {"validation": bounds.validation_from, "test": bounds.test_from, "until": bounds.until}
    return {name: time.isoformat() + "Z" for name, time in begins.items() if time is not None}
