"""The sink job: source files that are new or changed go onto the table, in one commit."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from gridmill.codec import fingerprint, to_builtins
from gridmill.errors import ConflictError, DataError, InputError, UnavailableError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.sink.files import SourceFile, check_unchanged, find_files
from gridmill.jobs.sink.load import Loading, Progress
from gridmill.jobs.sink.plan import LoadPlan, decide, load_anew
from gridmill.jobs.sink.table import LostRaceError, SinkTable, commit, open_sink_table, rules_number, stem_of
from gridmill.jobs.tables import Part, columns_of, describe, write_parquet
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.job import JobSize
from gridmill.model.sink import SinkSpec

LOADER = 1
"""Part of every declaration's fingerprint: raised when the same declaration begins to load otherwise."""
RACES = 10
MOST_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one run of the job did."""

    version: int
    plan: LoadPlan
    rows: int


def run(context: JobContext) -> JobResult:
    """Load what is new. Raises DataError, ConflictError, StorageError; the table is then as it was."""
    spec = context.order.job.sink
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is no sink")
    files = find_files(spec.source, context.order.folder)
    load = _load_against_others(context, spec, files)
    _say(load)
    return _result(context, load, len(files))


def _load_against_others(context: JobContext, spec: SinkSpec, files: Sequence[SourceFile]) -> Load:
    path = context.below_root(context.order.table_uri)
    for _ in range(RACES):
        try:
            return load_onto(context, spec, files, open_sink_table(path))
        except LostRaceError:
            continue
    raise UnavailableError("others keep changing the table", place=context.order.table_uri)


def load_onto(context: JobContext, spec: SinkSpec, files: Sequence[SourceFile], table: SinkTable) -> Load:
    """Bring the table up to the files. Raises LostRaceError when it changed since it was opened."""
    rules = _rules(spec)
    plan = decide(files, table.loaded, same_rules=table.rules == rules)
    try:
        return _carry_out(context, spec, plan, table, rules)
    except DataError as misfit:
        if plan.anew:
            raise
        try:
            plan = load_anew(files, table.loaded)
        except ConflictError as lossy:
            raise misfit from lossy
        print(f"{misfit}: loading the table anew, so that its types fit all files")
        return _carry_out(context, spec, plan, table, rules)


def _rules(spec: SinkSpec) -> int:
    declared = to_builtins(spec)
    del declared["source"]["path"]
    return rules_number(fingerprint(LOADER, declared))


def _carry_out(context: JobContext, spec: SinkSpec, plan: LoadPlan, table: SinkTable, rules: int) -> Load:
    size = sum(file.size_bytes for file in plan.load)
    loading = Loading(spec=spec, progress=Progress(context=context, total=size * (2 if plan.anew else 1)))
    if not plan.load and not plan.remove and table.delta is not None:
        return Load(version=table.delta.version(), plan=plan, rows=0)
    schema = loading.schema(plan.load) if plan.anew else table.schema
    folder = context.output / uuid4().hex
    parts: list[Part] = []
    try:
        for file in plan.load:
            parts += write_parquet(loading.batches(file, schema), schema, folder, stem_of(file))
            check_unchanged(file)
        return _committed(plan, table, schema, parts, rules)
    finally:
        _clear(folder, context)


def _committed(
    plan: LoadPlan, table: SinkTable, schema: pa.Schema, parts: Sequence[Part], rules: int
) -> Load:
    rows = sum(part.rows for part in parts)
    if plan.anew and rows == 0:
        raise DataError(
            "there are no rows in it",
            hint="A table needs at least one row; the table is left as it was.",
            place=", ".join(file.name for file in plan.load[:3]),
        )
    if not parts and not plan.remove and table.delta is not None:
        return Load(version=table.delta.version(), plan=plan, rows=0)
    note = [{"file": file.name, "content": file.content} for file in plan.load]
    return Load(version=commit(table, plan, schema, parts, rules, note), plan=plan, rows=rows)


def _clear(folder: Path, context: JobContext) -> None:
    """Nothing of an attempt stays beside the table."""
    rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty, or gone
        context.output.rmdir()


def _say(load: Load) -> None:
    files = len(load.plan.load)
    if not files:
        print("nothing new in the source")
    else:
        print(
            f"{load.rows:,} rows of {files} file{'s' * (files > 1)} {'loaded' if load.plan.anew else 'added'}"
        )
    if load.plan.vanished:
        print(f"{load.plan.vanished} loaded files are not in the source any more; their rows stay")


def _result(context: JobContext, load: Load, files: int) -> JobResult:
    uri = context.order.table_uri
    table = SinkTable(
        path=context.below_root(uri), delta=DeltaTable(context.below_root(uri), version=load.version)
    )
    rows = sum(entry.rows for entry in table.loaded)
    size_bytes = sum(entry.size_bytes for entry in table.loaded)
    output = Output(
        kind=ArtifactKind.SINK,
        uri=uri,
        table_version=load.version,
        rows=rows,
        size_bytes=size_bytes,
        columns=columns_of(table.schema),
        details={
            "files": files,
            "loaded": [file.name for file in load.plan.load][:MOST_NAMES],
            "rows_added": load.rows,
            "loaded_anew": load.plan.anew,
            "vanished": load.plan.vanished,
            "columns": _statistics(context, table, load.version),
        },
    )
    size = JobSize(rows=rows, columns=len(output.columns), input_bytes=size_bytes)
    return JobResult(outputs=(output,), metrics={"rows": rows, "rows_added": load.rows}, size=size)


def _statistics(context: JobContext, table: SinkTable, version: int) -> Mapping[str, Any]:
    """Of every column; those of an earlier artifact where the table is the same."""
    for entry in context.order.earlier:
        before = entry.artifact.output
        if (before.uri, before.table_version) == (context.order.table_uri, version):
            known: Mapping[str, Any] = before.details.get("columns", {})
            return known
    assert table.delta is not None
    return describe(context, table.delta.to_pyarrow_dataset(), table.schema.names)
