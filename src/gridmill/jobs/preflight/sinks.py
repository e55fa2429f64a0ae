"""Checks a sink against the beginning of its files: columns, types, constraints, metrics, and the existing
table."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Compression, Format
from gridmill.domain.storage_uri import below
from gridmill.errors import DataError, GridmillError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.preflight.remote import FetchedFiles, TimeBudget, fetch
from gridmill.jobs.preflight.results import NotCheckableError, PreflightContext, PreflightTable
from gridmill.jobs.sink import files_as_rows
from gridmill.jobs.sink.ambiguous import AmbiguousTextError
from gridmill.jobs.sink.constraints import ConstraintFilter, RejectSpool, open_filter
from gridmill.jobs.sink.files import SourceFile, described, find_files
from gridmill.jobs.sink.load_job import declared_rules, kept_forms
from gridmill.jobs.sink.maintenance import check_times
from gridmill.jobs.sink.metrics import check_metrics
from gridmill.jobs.sink.table import open_sink_table
from gridmill.jobs.sink.typed_batches import LoadContext, NoProgress

_NAMES = re.compile(r"there is no column '.*', which `(?P<field>\w+)` names")
_MISFIT = re.compile(r"column '.*': .* is not of type")


WHOLE_BYTES = 2 * 2**20
WHOLE_ROWS = 20_000
"""The check reads a source completely if no file of the source has more rows than this number."""
SAMPLE_ROWS = 2_000
"""If the check does not read a source completely, it reads this number of rows of each file."""
MOST_FILES = 20
"""If the check does not read a source completely, it reads this number of files of the source."""


def check_sink(
    scene: PreflightContext,
    job: Job,
    tables: Mapping[str, PreflightTable],
    earlier: Artifact | None,
    patience: TimeBudget,
) -> PreflightTable:
    """Return the table that a run of the sink would load.

    `tables` are the tables that foreign keys reference, `earlier` is the newest version of the sink, and
    `patience` is the time limit for remote sources. If the run would fail, the function raises the
    InputError or DataError of the run. Raises NotCheckableError if the sink cannot be checked.
    """
    assert job.sink is not None
    spec = job.sink.with_times()
    local = bool(spec.source.paths) and len(spec.source.local_paths) == len(spec.source.paths)
    try:
        fetched = (
            FetchedFiles(files=_files(scene, spec), whole=True) if local else fetch(scene, spec, patience)
        )
    except NotCheckableError:
        if earlier is None:
            raise
        return _loaded_before(scene, earlier)
    files = fetched.files
    context = scene.context(job, {name: table.artifact for name, table in tables.items()})
    read, small = files[:MOST_FILES], sum(file.size_bytes for file in files) <= WHOLE_BYTES
    loading = _loading(scene, spec, earlier, WHOLE_ROWS if small else SAMPLE_ROWS)
    applied = _checkable_keys(spec, tables)
    judged = applied == spec and all(tables[name].whole for name in spec.references())
    trial = _TrialLoad(context=context, spec=applied, loading=loading, files=read, judged=judged)
    try:
        schema, rows, sieve = trial.read()
    except AmbiguousTextError as error:
        if loading.is_cut or len(read) < len(files) or not fetched.whole:
            raise NotCheckableError(
                f"only a part of the source's rows was read, and {error.message}"
            ) from error
        raise _placed(error) from error
    except DataError as error:
        raise _placed(error) from error
    check_times(spec, schema)
    complete = fetched.whole and len(read) == len(files) and not loading.is_cut
    if complete and judged:
        sieve.check_share()
    whole = complete and local and earlier is None and judged and not _drops_rows(spec)
    unsure = frozenset() if complete else _unsure(loading, schema, files)
    open_ = not complete and any(file.format == Format.JSONL for file in files)
    return _table(scene, job.name, schema, rows if whole else None, unsure, earlier, is_open=open_)


def _loading(
    scene: PreflightContext, spec: SinkSpec, earlier: Artifact | None, most_rows: int
) -> LoadContext:
    """Return the rules by which the files of a sink are read. If the existing table has the same
    declaration, the function returns the rules of that table."""
    loading = LoadContext(spec=spec, progress=NoProgress(), most_rows=most_rows)
    if earlier is None:
        return loading
    table = open_sink_table(Path(below(scene.root, earlier.output.uri)), earlier.output.table_version)
    if table.rules != declared_rules(spec):
        return loading
    note = table.note
    return replace(loading, later=set(note.get("later", ())), forms=kept_forms(note))


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrialLoad:
    """Loads the first rows of the files of a sink. If `judged` is true, rows that break constraints are left
    out."""

    context: JobContext
    spec: SinkSpec
    loading: LoadContext
    files: tuple[SourceFile, ...]
    judged: bool

    def read(self) -> tuple[pa.Schema, list[pa.Table], ConstraintFilter]:
        """Return the columns and the rows of the files. If some values do not fit the text forms that were
        detected first, this method reads the rows once more with forms that fit all values. A real load does
        the same. Raises DataError."""
        try:
            return self._read()
        except DataError:
            if self.loading.decided:
                raise
            self.loading.find_forms(self.files)
            if not self.loading.forms:
                raise
            return self._read()

    def _read(self) -> tuple[pa.Schema, list[pa.Table], ConstraintFilter]:
        schema = self.loading.schema(self.files)
        with open_filter(self.context, self.spec, schema) as sieve:
            check_metrics(self.context, schema, self.spec.metrics)
            spool = RejectSpool(path=self.context.work / "rejects.parquet")
            batches = (batch for file in self.files for batch in self.loading.batches(file, schema))
            rows = sieve.good(batches, spool) if self.judged else (batch.rows for batch in batches)
            return schema, list(rows), sieve


def _files(scene: PreflightContext, spec: SinkSpec) -> tuple[SourceFile, ...]:
    files = find_files(spec.source, scene.folder, lambda stat, name: "")
    return (_rows_of_files(scene, spec),) if spec.source.format == Format.FILES else files


def _rows_of_files(scene: PreflightContext, spec: SinkSpec) -> SourceFile:
    """Return an empty table with the columns of a source whose files contain rows."""
    path = scene.work / "files.parquet"
    pq.write_table(files_as_rows.SCHEMA.empty_table(), path)
    source = replace(spec.source, format=Format.PARQUET, compression=Compression.NONE)
    return described(source, path=path, name=spec.source.name, content="", size_bytes=path.stat().st_size)


def _checkable_keys(spec: SinkSpec, tables: Mapping[str, PreflightTable]) -> SinkSpec:
    """Return the sink without the foreign keys that reference unknown tables."""
    kept = (
        constraint
        for constraint in spec.constraints
        if constraint.references is None or constraint.references in tables
    )
    return replace(spec, constraints=tuple(kept))


def _drops_rows(spec: SinkSpec) -> bool:
    """Return whether the table may lack rows that satisfy the constraints, or contain rows that break
    them."""
    return bool(
        any(constraint.unique for constraint in spec.constraints)
        or spec.retain
        or spec.outages
        or spec.source.settled_seconds
        or spec.source.format == Format.FILES
    )


def _unsure(loading: LoadContext, schema: pa.Schema, files: tuple[SourceFile, ...]) -> frozenset[str]:
    """Return the columns whose type can change when later rows are read. Text columns and columns with
    declared types do not change."""
    if all(file.format == Format.PARQUET for file in files):
        return frozenset()
    fixed = {*loading.spec.columns, *loading.spec.add}
    inferred = [item for item in schema if item.name not in fixed]
    return frozenset(
        item.name for item in inferred if item.type != pa.string() or item.name in loading.without_type
    )


def _table(
    scene: PreflightContext,
    name: str,
    schema: pa.Schema,
    rows: list[pa.Table] | None,
    unsure: frozenset[str],
    earlier: Artifact | None,
    *,
    is_open: bool,
) -> PreflightTable:
    """Return the table of a sink, with the additional columns that its newest version has."""
    if earlier is not None:
        before = scene.schema_of(earlier)
        present = [item for item in before if item.name in schema.names]
        unsure |= {item.name for item in present if schema.field(item.name).type != item.type}
        schema = pa.schema([*schema, *(item for item in before if item.name not in schema.names)])
    made = pa.concat_tables(rows).cast(schema) if rows else schema.empty_table()
    return PreflightTable(
        artifact=scene.keep(name, made), whole=rows is not None, open=is_open, unsure=unsure
    )


def _loaded_before(scene: PreflightContext, earlier: Artifact) -> PreflightTable:
    """Return the columns of a source that cannot be read. The result includes the columns of the newest
    version."""
    schema = scene.schema_of(earlier)
    artifact = scene.keep(earlier.name, schema.empty_table())
    return PreflightTable(artifact=artifact, open=True, unsure=frozenset(schema.names))


def _placed(error: GridmillError) -> InputError:
    """Return the error with the field of the declaration that caused it. The message of the error contains
    the place in the file."""
    if error.place.startswith("sink."):
        return InputError(error.message, hint=error.hint, place=error.place)
    named = _NAMES.search(error.message)
    field = f"sink.{named['field']}" if named else "sink.columns" if _MISFIT.search(error.message) else ""
    message = f"{error.place}: {error.message}" if error.place else error.message
    return InputError(message, hint=error.hint, place=field or "sink.source")
