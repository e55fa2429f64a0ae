"""Checks a dataset against the tables that it is expected to read. If all rows of these tables are known,
the check uses the rows. If the rows are unknown, the check uses only the columns."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.describe import make_result
from gridmill.jobs.dataset.label_availability import with_label_clock
from gridmill.jobs.dataset.labels import with_predictions
from gridmill.jobs.dataset.prepare import PreparedQuery, Span, prepare, types_of_all
from gridmill.jobs.dataset.run import open_views, run
from gridmill.jobs.dataset.time_units import TIMES, units_before
from gridmill.jobs.dataset.write import PART, RowTally
from gridmill.jobs.duckdb_engine import open_engine, quoted
from gridmill.jobs.expressions import check_syntax, parse_select
from gridmill.jobs.preflight.results import PreflightContext, PreflightTable
from gridmill.jobs.tables import open_table, plain_schema

NOWHERE = "nowhere"
_SPAN: Span = (1, datetime(1, 1, 2), datetime(9999, 12, 30))
"""The time span of a table whose rows are unknown. The time span is so long that it contains every time at
which a split can begin."""


def check_dataset(
    scene: PreflightContext, job: Job, tables: Mapping[str, PreflightTable], earlier: Artifact | None = None
) -> PreflightTable:
    """Return the dataset that a run would make from these tables.

    `earlier` is the newest version of the dataset. If the run would fail, the function raises the InputError
    or DataError of the run.
    """
    spec = job.dataset
    assert spec is not None
    context = _after(scene.context(job, {name: table.artifact for name, table in tables.items()}), earlier)
    if all(table.whole for table in tables.values()):
        return PreflightTable(artifact=_as_version(job, run(context).outputs[0]), whole=True)
    query, made = _without_rows(context, spec, tables)
    unsure = frozenset(name for table in tables.values() for name in table.unsure)
    open_ = any(table.open for table in tables.values()) or bool(spec.encoders)
    return PreflightTable(
        artifact=_as_version(job, made), open=open_, unsure=unsure | _computed(query, unsure)
    )


def _after(context: JobContext, earlier: Artifact | None) -> JobContext:
    """Return the context with the time units of the previous dataset version, and without the rows of that
    version."""
    if earlier is None:
        return context
    kept = {TIMES: earlier.output.details.get(TIMES) or {}}
    version = replace(earlier, output=replace(earlier.output, uri=NOWHERE, details=kept))
    order = replace(context.order, earlier=(Input(name=context.order.job.name, artifact=version),))
    return replace(context, order=order)


def check_texts(scene: PreflightContext, job: Job) -> None:
    """Check the syntax of the SQL of a dataset whose tables are unknown. Raises InputError."""
    spec = job.dataset
    assert spec is not None
    with open_engine(scene.context(job, {})) as engine:
        if spec.sql is not None:
            parse_select(engine, spec.sql)
        for name, text in spec.features.items():
            check_syntax(engine, text, f"dataset.features.{name}")


def _without_rows(
    context: JobContext, spec: DatasetSpec, tables: Mapping[str, PreflightTable]
) -> tuple[PreparedQuery, Output]:
    inputs = {name: table.artifact for name, table in tables.items()}
    outputs = {name: artifact.output for name, artifact in inputs.items()}
    declared = with_predictions(spec, {n: o for n, o in outputs.items() if o.kind == ArtifactKind.PREDICTION})
    clocked = with_label_clock(declared, inputs)
    opened = {name: open_table(context, output, zoned=False) for name, output in outputs.items()}
    has_all_rows = spec.basis is not None and tables[spec.basis.table].whole
    with open_engine(context) as engine:
        views = open_views(context, engine, clocked, opened)
        types = types_of_all(engine, opened)
        span = None if has_all_rows else _SPAN
        query = prepare(
            engine,
            clocked,
            types,
            declared=declared,
            span=span,
            units=views.units,
            before=units_before(context),
        )
        schema = _schema(engine, query)
    pq.write_table(schema.empty_table(), context.output / f"{PART}-0.parquet")
    return query, make_result(context, query, RowTally(), (), {}).outputs[0]


def _schema(engine: duckdb.DuckDBPyConnection, query: PreparedQuery) -> pa.Schema:
    """Return the columns that the dataset would have, with the types that a table stores."""
    names = [name for name in query.compiled.columns if name in query.types]
    listed = ", ".join(f"NULL::{query.types[name]} AS {quoted(name)}" for name in names)
    return plain_schema(engine.sql(f"SELECT {listed} LIMIT 0").to_arrow_table().schema)


def _computed(query: PreparedQuery, unsure: frozenset[str]) -> frozenset[str]:
    """Return the columns whose type depends on columns with uncertain types."""
    return frozenset(query.compiled.columns) if unsure else frozenset()


def _as_version(job: Job, output: Output) -> Artifact:
    return Artifact(id=f"{job.name}@0", name=job.name, number=0, output=output, fingerprint=job.name)
