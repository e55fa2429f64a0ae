"""A load of a sink writes and commits the new rows of the source."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pyarrow as pa

from gridmill.codec import fingerprint, to_builtins
from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import OnMisfit, SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import ConflictError, DataError, UnavailableError
from gridmill.jobs.context import JobContext
from gridmill.jobs.parquet import ParquetPart
from gridmill.jobs.sink.commit_info import LoadRecord
from gridmill.jobs.sink.constraints import open_filter, top
from gridmill.jobs.sink.files import Content, SourceFile
from gridmill.jobs.sink.files_to_load import LoadedFile, LoadPlan, decide, decide_next, load_anew
from gridmill.jobs.sink.formats import UnexpectedTypeError
from gridmill.jobs.sink.maintenance import check_times, find_inexact, rewrite, spare
from gridmill.jobs.sink.metrics import LoadMetrics, check_metrics
from gridmill.jobs.sink.part_files import PartFileIndex, TableColumns, open_part_files
from gridmill.jobs.sink.rejects import at_version, commit_rejects, no_wider
from gridmill.jobs.sink.schema_evolution import ColumnMapping, evolve, widened
from gridmill.jobs.sink.source import SourceFiles, SourceRequest, list_source_files
from gridmill.jobs.sink.table import CommitMetadata, SinkTable, add_columns, commit, rules_number, times_of
from gridmill.jobs.sink.time_ranges import decide_stretch
from gridmill.jobs.sink.typed_batches import LoadContext, Progress
from gridmill.jobs.sink.value_forms import Form, Forms
from gridmill.jobs.sink.write import WriteContext, WrittenFile, kept_rows, rows_of

LOADER = 1
"""A number that is part of the fingerprint of every declaration. This number is increased when a new release
of Gridmill loads other rows for the same declaration."""
_READ_ANEW = ("mysql", "mariadb")
"""The kinds of databases whose tables must all be loaded again, because earlier versions of Gridmill read
times in the time zone of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of a load."""

    version: int
    plan: LoadPlan
    rows: int = 0
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    shifted: Mapping[str, float] = field(default_factory=dict)


def rejects_uri(context: JobContext) -> str:
    """Return the table of rejected rows as a path below the storage root. The table is in the folder of the
    table of the sink."""
    return f"{context.order.table_uri.rpartition('/')[0]}/rejects"


def rejects_path(context: JobContext) -> Path:
    """Return the path of the table of rejected rows."""
    return context.below_root(rejects_uri(context))


def declared_rules(spec: SinkSpec) -> int:
    """Return the fingerprint of all declared fields that influence the rows of the table or the form of
    their values."""
    declared = to_builtins(spec)
    for name in ("path", "headers", "endpoint", "settled_seconds"):
        del declared["source"][name]
    for name in ("decimal", "sheet"):
        # so that fingerprints from before this field existed stay the same
        if declared["source"][name] is None:
            del declared["source"][name]
    for name in ("metrics", "drift_threshold", "outages", "retain", "parts"):
        del declared[name]
    sql = declared["source"]["sql"] or {}
    sql.pop("lag", None)
    sql.pop("parameters", None)
    if spec.source.sql is not None and spec.source.sql.query is not None:
        sql["query"] = spec.source.sql.lasting_query
    if spec.source.sql is not None and spec.source.sql.url.startswith(_READ_ANEW):
        sql["loader"] = LOADER + 1
    for name in ("max_rows", "wait_seconds"):
        (declared["source"]["stream"] or {}).pop(name, None)
    return rules_number(fingerprint(LOADER, declared))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvedColumns:
    """The new columns of a table, and the `forms` of the texts in these columns. The columns in
    `without_type` have no value even after the change."""

    schema: pa.Schema
    without_type: tuple[str, ...]
    forms: Mapping[str, Forms]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """The state of a load: the table and its table of rejected rows when they were opened, and the files
    that parts of the job have written."""

    context: JobContext
    spec: SinkSpec
    table: SinkTable
    rejects: SinkTable
    rules: int
    part_files: PartFileIndex

    @property
    def anew(self) -> bool:
        """Return whether all rows must be loaded because the table does not exist, or because it was loaded
        with another declaration."""
        return self.table.rules != self.rules

    @property
    def loaded(self) -> tuple[LoadedFile, ...]:
        """Return the data files of loaded rows and of rejected rows."""
        return (*self.table.loaded, *self.rejected)

    @property
    def rejected(self) -> tuple[LoadedFile, ...]:
        """Return the data files of rejected rows."""
        return tuple(replace(entry, rejects=True) for entry in self.rejects.loaded)

    def look(self, content: Content) -> SourceFiles:
        """Return the current files and the current position of the source."""
        layout = ColumnMapping(spec=self.spec)
        request = SourceRequest(
            source=self.spec.source,
            folder=self.context.order.folder,
            work=self.context.work,
            positions={} if self.anew else self.table.positions,
            names=layout.named(),
            texts=layout.texts(),
            content=content,
        )
        return list_source_files(request)

    def plan(self) -> LoadPlan:
        """Return the plan of the load, computed from the current files of the source and the loaded
        files."""
        arrivals = self.look(self.part_files.content)
        return replace(self._decided(arrivals), waiting=len(arrivals.waiting))

    def _decided(self, arrivals: SourceFiles) -> LoadPlan:
        if arrivals.partial:
            return decide_stretch(arrivals.files, self.loaded, anew=self.anew)
        if arrivals.append:
            plan = decide_next(arrivals.files, self.loaded, arrivals.positions, anew=self.anew)
            return replace(plan, unseen=arrivals.unseen)
        choose = load_anew if self.anew else decide
        files = (*arrivals.files, *self._standing(arrivals))
        plan = choose(files, self.loaded, arrivals.positions)
        return replace(plan, origins={file.key: file.written for file in files if file.written})

    def _standing(self, arrivals: SourceFiles) -> list[SourceFile]:
        """Return the files that may still be incomplete, in the state in which they were loaded. Raises
        UnavailableError if these files must be loaded again."""
        content_by_key = {entry.key: entry.content for entry in self.loaded}
        unchanged = [
            replace(file, content=content_by_key[file.key])
            for file in arrivals.waiting
            if file.key in content_by_key
        ]
        if unchanged and self.anew:
            raise UnavailableError(
                "the table must be loaded again from the beginning; "
                f"{self.spec.source.waiting_text(len(unchanged))}",
                hint="Run the pipeline again when all files are complete.",
                place=unchanged[0].name,
            )
        return unchanged

    def evolved(self, plan: LoadPlan) -> EvolvedColumns | None:
        """Return the columns that the table must have after loading the new files. Return None if the
        columns must not change.

        Raises DataError if a file lacks a column, or if existing rows would lose digits.
        """
        loading = self.loading(plan)
        untold = set(loading.without_type)
        types = loading.inferred_types(plan.load, self.table.schema)
        schema = evolve(self.table.schema, types, self.spec.columns, untold)
        for name in widened(self.table.schema, schema):
            number = find_inexact(self.table, plan, name)
            if number is not None:
                raise no_wider(
                    name, number, loading.place_of_misfit(plan.load, self.table.schema.field(name))
                )
        new = set(schema.names) - set(self.table.schema.names)
        left = tuple(name for name in schema.names if name in untold | new and types.get(name) is None)
        same = (schema, set(left), loading.forms) == (self.table.schema, untold, self._forms)
        return None if same else EvolvedColumns(schema=schema, without_type=left, forms=loading.forms)

    def found_forms(self, plan: LoadPlan) -> Mapping[str, Forms]:
        """Return the forms of the texts in the files of a new table.

        For columns with declared types, the forms are detected from all values. Raises DataError.
        """
        loading = self.loading(plan)
        loading.find_forms(plan.load)
        return loading.forms

    @property
    def _forms(self) -> dict[str, Forms]:
        """For a load into an existing table, return the forms of the texts in the files."""
        return {} if self.anew else kept_forms(self.table.note)

    def loading(self, plan: LoadPlan, *, hasty: bool = False) -> LoadContext:
        """Return the rules by which the files of the plan are read."""
        size = sum(file.size_bytes for file in plan.load)
        progress = Progress(context=self.context, total=size * (2 if plan.anew and not hasty else 1))
        note = {} if plan.anew else self.table.note
        later, untold = set(note.get("later", ())), tuple(note.get("untold", ()))
        return LoadContext(
            spec=self.spec,
            progress=progress,
            later=later,
            without_type=untold,
            expect_types=hasty,
            forms=self._forms,
        )

    def execute(
        self, plan: LoadPlan, evolved: EvolvedColumns | None = None, forms: Mapping[str, Forms] | None = None
    ) -> LoadResult:
        """Load the planned files in a single commit. If the new files require other columns, the columns of
        the table are changed.

        `forms` are the forms of the texts in all files. Raises DataError, InputError, ConcurrentCommitError,
        StorageError.
        """
        if not plan.load and not plan.remove and self.table.delta is not None:
            return LoadResult(version=self.table.delta.version(), plan=plan)
        if not plan.load and plan.waiting:
            raise _nothing_settled(self.spec.source, plan)
        if not plan.load:
            raise _nothing_at_all(self.spec.source.name)
        if self.may_expect_types:
            with suppress(UnexpectedTypeError):
                return self._execute(plan, evolved, forms, hasty=True)
        return self._execute(plan, evolved, forms, hasty=False)

    @property
    def may_expect_types(self) -> bool:
        """Return whether no row can be rejected, so that the reader may return typed values.

        Rejected rows are stored as they were read in the file. If rows can be rejected, the reader must
        return the values as they are in the file.
        """
        return not self.spec.constraints and self.spec.on_misfit == OnMisfit.FAIL

    def _execute(
        self,
        plan: LoadPlan,
        evolved: EvolvedColumns | None,
        forms: Mapping[str, Forms] | None,
        *,
        hasty: bool,
    ) -> LoadResult:
        loading = self.loading(plan, hasty=hasty)
        if forms is not None:
            loading.forms, loading.decided = dict(forms), True
        if plan.anew:
            schema = self._first_columns(loading, plan)
        elif evolved is None:
            schema = self.table.schema
        else:
            schema, loading.without_type = evolved.schema, evolved.without_type
            loading.forms, loading.decided = dict(evolved.forms), True
            loading.later |= set(schema.names) - set(self.table.schema.names)
        folder = self.context.output / uuid4().hex
        try:
            with open_filter(self.context, self.spec, schema) as sieve:
                check_metrics(self.context, schema, self.spec.metrics)
                meter = LoadMetrics(context=self.context, schema=schema, own=self.spec.metrics)
                writing = WriteContext(
                    loading=loading, sieve=sieve, meter=meter, schema=schema, folder=folder
                )
                spared = spare(self.table, plan, folder)
                parts, rejects = self._written(plan, writing, spared)
                noted = LoadRecord(
                    context=self.context,
                    plan=plan,
                    table=self.table,
                    schema=schema,
                    sieve=sieve,
                    meter=meter,
                    parts=parts,
                    spared=spared,
                    later=loading.later,
                    untold=loading.without_type,
                    lost=loading.lost,
                    keys=loading.keys,
                    forms=loading.forms,
                    read_as=loading.read_as,
                )
                return self._committed(noted, rejects, folder)
        finally:
            clear(folder, self.context)

    def _first_columns(self, loading: LoadContext, plan: LoadPlan) -> pa.Schema:
        offered = self.part_files.columns(plan.load)
        if offered is None:
            return first_columns(loading, plan)
        loading.forms = dict(offered.forms)
        return offered.schema

    def _written(
        self, plan: LoadPlan, writing: WriteContext, spared: list[ParquetPart]
    ) -> tuple[list[ParquetPart], list[ParquetPart]]:
        taken = {file.key: one for file in plan.load if (one := self._from_part(file, writing))}
        with nullcontext() if taken else writing.meter.running():
            rest = writing.write_all([file for file in plan.load if file.key not in taken])
        written_by_key = taken | {one.file.key: one for one in rest}
        written = [written_by_key[file.key] for file in plan.load]
        repeated = writing.drop_repeated(written, kept_rows(self.table, plan, spared))
        writing.sieve.check_share()
        parts = [part for one in written for part in one.parts]
        if taken or repeated:
            writing.meter.again(rows_of(parts))
        return parts, writing.write_rejects(written)

    def _from_part(self, file: SourceFile, writing: WriteContext) -> WrittenFile | None:
        part_output = self.part_files.take(
            file, TableColumns(schema=writing.schema, forms=writing.loading.forms), writing.folder
        )
        if part_output is None:
            return None
        done, written = part_output
        writing.sieve.count(done.rows, done.rejected, done.reasons)
        writing.loading.lost.update(done.lost)
        for name, example_text in done.read_as.items():
            writing.loading.read_as.setdefault(name, example_text)
        writing.loading.progress.end(file)
        return written

    def _committed(self, noted: LoadRecord, rejects: list[ParquetPart], folder: Path) -> LoadResult:
        plan, sieve, table = noted.plan, noted.sieve, self.table
        check_times(self.spec, noted.schema)  # not earlier, because the new files may add the column
        lost = sieve.rejected if plan.partial else self.loaded or sieve.rejected or noted.untold
        if plan.anew and noted.rows == 0 and lost:
            raise _nothing_left(plan, noted)
        arrived = noted.rows + sieve.rejected
        if arrived < plan.least:
            raise _fewer(plan, arrived)
        some = noted.parts or rejects or plan.remove or dict(plan.positions) != dict(table.positions)
        if table.delta is not None and not (some or self._is_another(noted)):
            return LoadResult(version=table.delta.version(), plan=plan)
        gone = {entry.path for entry in plan.remove}
        outdated = [entry for entry in self.rejected if entry.path in gone]
        rejected = table.rejects
        if rejects or outdated:
            rejected = commit_rejects(
                self.rejects.path, self.rejects.loaded, outdated, rejects, times_of(plan.load, ())
            )
        note = noted.write(at_version(self.rejects.path, rejected), rejected, rejects_uri(self.context))
        kept = replace(plan, remove=tuple(entry for entry in plan.remove if entry not in outdated))
        mark = CommitMetadata(rules=self.rules, rejects=rejected, note=note)
        version = self._commit(kept, noted, mark, folder)
        return LoadResult(
            version=version,
            plan=plan,
            rows=noted.rows,
            rejected=sieve.rejected,
            reasons=dict(sieve.reasons),
            shifted=note["details"]["drift"].get("shifted", {}),
        )

    def _is_another(self, noted: LoadRecord) -> bool:
        """Return whether a load that replaces all rows would change the columns of the table, or whether the
        table was loaded with another declaration."""
        return noted.plan.anew and (noted.schema != self.table.schema or self.table.rules != self.rules)

    def _commit(self, plan: LoadPlan, noted: LoadRecord, mark: CommitMetadata, folder: Path) -> int:
        parts = [*noted.spared, *noted.parts]
        if plan.anew or self.table.delta is None or noted.schema == self.table.schema:
            return commit(self.table, plan, noted.schema, parts, mark)
        if widened(self.table.schema, noted.schema):
            kept = rewrite(self.table, plan, noted.schema, folder)
            return commit(self.table, plan, noted.schema, [*kept, *noted.parts], mark, overwrite=True)
        return commit(add_columns(self.table, noted.schema), plan, noted.schema, parts, mark)


def kept_forms(note: Mapping[str, Any]) -> dict[str, Forms]:
    """Return the forms of the columns of a table, from the record in its newest commit."""
    return {name: frozenset(map(Form, forms)) for name, forms in note.get("forms", {}).items()}


def first_columns(loading: LoadContext, plan: LoadPlan) -> pa.Schema:
    """Return the schema of a table into which all these files are loaded, either for the first time or
    again. Raises DataError."""
    return (loading.first_schema(plan.load) if loading.expect_types else None) or loading.schema(plan.load)


def _fewer(plan: LoadPlan, rows: int) -> ConflictError:
    return ConflictError(
        f"the table must be loaded again from the beginning, but {plan.least - rows:,} of its rows do not "
        "exist in the source any more",
        hint="Give the job another name to begin a new table.",
    )


def _nothing_settled(source: Source, plan: LoadPlan) -> UnavailableError:
    return UnavailableError(
        f"there is nothing to load yet; {source.waiting_text(plan.waiting)}",
        hint="Run the pipeline again when all files are complete.",
        place=source.name,
    )


def _nothing_at_all(place: str) -> DataError:
    return DataError(
        "the source has no rows",
        hint="A table needs at least one row; the table was not changed.",
        place=place,
    )


def _nothing_left(plan: LoadPlan, noted: LoadRecord) -> DataError:
    sieve, place = noted.sieve, ", ".join(file.name for file in plan.load[:3])
    if noted.untold and not sieve.rejected:
        types = ", ".join(f"{name}: float" for name in noted.untold[:5])
        hint = (
            f"To make an empty table, declare the types of its columns, for example `columns: {{{types}}}`."
        )
        return DataError("the source has no rows", hint=hint, place=place)
    why = f": all {sieve.rejected:,} break constraints ({top(sieve.reasons)})" if sieve.rejected else ""
    return DataError(f"the source has no rows{why}", hint="The table was not changed.", place=place)


def clear(folder: Path, context: JobContext) -> None:
    """Delete files in the folder of the table that an earlier attempt left there."""
    rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # fails if the folder is not empty, or does not exist
        context.output.rmdir()


def open_bench(context: JobContext, spec: SinkSpec, table: SinkTable) -> LoadState:
    """Return the state of a load into this table. Raises StorageError."""
    spec = spec.with_times()
    rules = declared_rules(spec)
    return LoadState(
        context=context,
        spec=spec,
        table=table,
        rejects=at_version(rejects_path(context), table.rejects),
        rules=rules,
        part_files=open_part_files(context, spec, rules),
    )
