"""The sink job: source files that are new or changed go onto the table, in one commit."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pyarrow as pa

from gridmill.codec import fingerprint, to_builtins
from gridmill.errors import ConflictError, DataError, InputError, UnavailableError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.parquet import Part
from gridmill.jobs.sink.arrivals import Asked, look
from gridmill.jobs.sink.evolve import evolve, is_widened
from gridmill.jobs.sink.layout import Layout
from gridmill.jobs.sink.load import Loading, Progress
from gridmill.jobs.sink.metrics import Meter, check_metrics
from gridmill.jobs.sink.note import Noted, by_source
from gridmill.jobs.sink.plan import Loaded, LoadPlan, decide, decide_next, load_anew
from gridmill.jobs.sink.reading import HastyError
from gridmill.jobs.sink.rejects import at_version, commit_rejects
from gridmill.jobs.sink.sieve import open_sieve, top
from gridmill.jobs.sink.table import (
    LostRaceError,
    Mark,
    SinkTable,
    add_columns,
    commit,
    open_sink_table,
    rules_number,
)
from gridmill.jobs.sink.upkeep import remove_unused, rewrite, spare, tidy
from gridmill.jobs.sink.writing import Writing, kept_rows
from gridmill.jobs.tables import columns_of
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.job import JobSize
from gridmill.model.outage import Outage
from gridmill.model.sink import OnMisfit, SinkSpec

LOADER = 1
"""Part of every declaration's fingerprint: raised when the same declaration begins to load otherwise."""
RACES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one run of the job did."""

    version: int
    plan: LoadPlan
    rows: int = 0
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    shifted: Mapping[str, float] = field(default_factory=dict)


def run(context: JobContext) -> JobResult:
    """Load what is new. Raises DataError, ConflictError, StorageError; the table is then as it was."""
    spec = context.order.job.sink
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is no sink")
    load = _tidied(context, spec, _load_against_others(context, spec))
    _say(load)
    return _result(context, load)


def _load_against_others(context: JobContext, spec: SinkSpec) -> Load:
    path = context.below_root(context.order.table_uri)
    for _ in range(RACES):
        try:
            return load_onto(context, spec, open_sink_table(path))
        except LostRaceError:
            continue
    raise UnavailableError("others keep changing the table", place=context.order.table_uri)


def _tidied(context: JobContext, spec: SinkSpec, load: Load) -> Load:
    table = open_sink_table(context.below_root(context.order.table_uri), load.version)
    folder = context.output / uuid4().hex
    if spec.retain is not None:
        check_time(table.schema, spec.retain.time, "sink.retain.time")
    try:
        version = tidy(table, spec.retain, time.time(), folder)
        if context.order.kept_versions:  # what nobody refers to is known
            _remove_unused(context, table)
    finally:
        _clear(folder, context)
    return load if version is None else replace(load, version=version)


def _remove_unused(context: JobContext, table: SinkTable) -> None:
    """The data files of no version any more, of the table and of its rejects."""
    now, kept = time.time(), sorted(context.order.kept_versions, reverse=True)
    remove_unused(table.path, kept, now)
    referred = (open_sink_table(table.path, number).rejects for number in kept)
    versions = (number for number in chain((table.rejects,), referred) if number is not None)
    remove_unused(_rejects(context), versions, now)


def load_onto(context: JobContext, spec: SinkSpec, table: SinkTable) -> Load:
    """Bring the table up to its source. Raises LostRaceError when it changed since it was opened."""
    bench = Bench(
        context=context,
        spec=spec,
        table=table,
        rejects=at_version(_rejects(context), table.rejects),
        rules=_rules(spec),
    )
    plan = bench.plan(anew=table.rules != bench.rules)
    try:
        return bench.carry_out(plan)
    except DataError as misfit:
        schema = None if plan.anew else bench.evolved(plan)
        if schema is None:
            raise
        print(f"{misfit}: the table's columns change")
        return bench.carry_out(plan, schema)


def rejects_uri(context: JobContext) -> str:
    """The table of rejects beside the sink's, below the storage root."""
    return f"{context.order.table_uri.rpartition('/')[0]}/rejects"


def _rejects(context: JobContext) -> Path:
    return context.below_root(rejects_uri(context))


def _rules(spec: SinkSpec) -> int:
    """Of all that decides which rows are in the table, and how."""
    declared = to_builtins(spec)
    for name in ("path", "headers", "endpoint"):
        del declared["source"][name]
    for name in ("metrics", "drift_threshold", "outages", "retain"):
        del declared[name]
    (declared["source"]["sql"] or {}).pop("lag", None)
    for name in ("max_rows", "wait_seconds"):
        (declared["source"]["stream"] or {}).pop(name, None)
    return rules_number(fingerprint(LOADER, declared))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One load's surroundings: the table and its rejects as they were when opened."""

    context: JobContext
    spec: SinkSpec
    table: SinkTable
    rejects: SinkTable
    rules: int

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """What was loaded, as rows or as rejects."""
        return (*self.table.loaded, *self.rejects.loaded)

    def plan(self, *, anew: bool) -> LoadPlan:
        """What the source holds now, against what is loaded."""
        asked = Asked(
            source=self.spec.source,
            folder=self.context.order.folder,
            work=self.context.work,
            positions={} if anew else self.table.positions,
            names=Layout(spec=self.spec).named(),
        )
        arrivals = look(asked)
        if arrivals.append:
            return decide_next(arrivals.files, self.loaded, arrivals.positions, anew=anew)
        choose = load_anew if anew else decide
        plan = choose(arrivals.files, self.loaded, arrivals.positions)
        return replace(plan, origins={file.key: file.written for file in arrivals.files if file.written})

    def evolved(self, plan: LoadPlan) -> pa.Schema | None:
        """The table's columns as the new files would have them; None when they may not change so.

        Raises DataError for a file that lacks a column.
        """
        loading = self._loading(plan)
        schema = evolve(self.table.schema, loading.found(plan.load, self.table.schema), self.spec.columns)
        return None if schema == self.table.schema else schema

    def _loading(self, plan: LoadPlan, *, hasty: bool = False) -> Loading:
        size = sum(file.size_bytes for file in plan.load)
        progress = Progress(context=self.context, total=size * (2 if plan.anew and not hasty else 1))
        later = set() if plan.anew else set(self.table.note.get("later", ()))
        return Loading(spec=self.spec, progress=progress, later=later, hasty=hasty)

    def carry_out(self, plan: LoadPlan, schema: pa.Schema | None = None) -> Load:
        """Load what the plan says, in one commit; with a schema that the table's evolves to.

        Raises DataError, InputError, LostRaceError, StorageError.
        """
        if not plan.load and not plan.remove and self.table.delta is not None:
            return Load(version=self.table.delta.version(), plan=plan)
        if not plan.load:
            raise _nothing_at_all(self.spec.source.name)
        if not self.spec.constraints and self.spec.on_misfit == OnMisfit.FAIL:
            with suppress(HastyError):
                return self._carry_out(plan, schema, hasty=True)
        return self._carry_out(plan, schema, hasty=False)  # which rejected rows need: as they were read

    def _carry_out(self, plan: LoadPlan, schema: pa.Schema | None, *, hasty: bool) -> Load:
        loading = self._loading(plan, hasty=hasty)
        if plan.anew:
            schema = (loading.first_schema(plan.load) if hasty else None) or loading.schema(plan.load)
        elif schema is None:
            schema = self.table.schema
        else:
            loading.later |= set(schema.names) - set(self.table.schema.names)
        folder = self.context.output / uuid4().hex
        try:
            with open_sieve(self.context, self.spec, schema) as sieve:
                check_metrics(self.context, schema, self.spec.metrics)
                meter = Meter(context=self.context, schema=schema, own=self.spec.metrics)
                writing = Writing(loading=loading, sieve=sieve, meter=meter, schema=schema, folder=folder)
                spared = spare(self.table, plan, folder)
                parts, rejects = self._written(plan, writing, spared)
                noted = Noted(
                    context=self.context,
                    plan=plan,
                    table=self.table,
                    schema=schema,
                    sieve=sieve,
                    meter=meter,
                    parts=parts,
                    spared=spared,
                    later=loading.later,
                    untold=loading.untold,
                )
                return self._committed(noted, rejects, folder)
        finally:
            _clear(folder, self.context)

    def _written(self, plan: LoadPlan, writing: Writing, spared: list[Part]) -> tuple[list[Part], list[Part]]:
        with writing.meter.running():
            written = [writing.write(file) for file in plan.load]
        writing.drop_repeated(written, kept_rows(self.table, plan, spared))
        writing.sieve.check_share()
        return [part for one in written for part in one.parts], writing.write_rejects(written)

    def _committed(self, noted: Noted, rejects: list[Part], folder: Path) -> Load:
        plan, sieve, table = noted.plan, noted.sieve, self.table
        if plan.anew and noted.rows == 0 and (self.loaded or sieve.rejected or noted.untold):
            raise _nothing_left(plan, noted)
        arrived = noted.rows + sieve.rejected
        if arrived < plan.least:
            raise _fewer(plan, arrived)
        some = noted.parts or rejects or plan.remove or plan.positions
        if table.delta is not None and not (some or self._is_another(noted)):
            return Load(version=table.delta.version(), plan=plan)
        gone = {entry.path for entry in plan.remove}
        outdated = [entry for entry in self.rejects.loaded if entry.path in gone]
        rejected = table.rejects
        if rejects or outdated:
            rejected = commit_rejects(self.rejects.path, self.rejects.loaded, outdated, rejects)
        note = noted.write(at_version(self.rejects.path, rejected), rejected, rejects_uri(self.context))
        kept = replace(plan, remove=tuple(entry for entry in plan.remove if entry not in outdated))
        mark = Mark(rules=self.rules, rejects=rejected, note=note)
        version = self._commit(kept, noted, mark, folder)
        return Load(
            version=version,
            plan=plan,
            rows=noted.rows,
            rejected=sieve.rejected,
            reasons=dict(sieve.reasons),
            shifted=note["details"]["drift"].get("shifted", {}),
        )

    def _is_another(self, noted: Noted) -> bool:
        """Whether a table without rows is to have other columns, or is declared otherwise."""
        return noted.plan.anew and (noted.schema != self.table.schema or self.table.rules != self.rules)

    def _commit(self, plan: LoadPlan, noted: Noted, mark: Mark, folder: Path) -> int:
        parts = [*noted.spared, *noted.parts]
        if plan.anew or self.table.delta is None or noted.schema == self.table.schema:
            return commit(self.table, plan, noted.schema, parts, mark)
        if is_widened(self.table.schema, noted.schema):
            kept = rewrite(self.table, plan, noted.schema, folder)
            return commit(self.table, plan, noted.schema, [*kept, *noted.parts], mark, overwrite=True)
        return commit(add_columns(self.table, noted.schema), plan, noted.schema, parts, mark)


def _fewer(plan: LoadPlan, rows: int) -> ConflictError:
    return ConflictError(
        f"the table must be loaded anew, and {plan.least - rows:,} of its rows are gone from the source",
        hint="Give the job another name to begin a new table.",
    )


def _nothing_at_all(place: str) -> DataError:
    return DataError(
        "there are no rows in it",
        hint="A table needs at least one row; the table is left as it was.",
        place=place,
    )


def _nothing_left(plan: LoadPlan, noted: Noted) -> DataError:
    sieve, place = noted.sieve, ", ".join(file.name for file in plan.load[:3])
    if noted.untold and not sieve.rejected:
        types = ", ".join(f"{name}: float" for name in noted.untold[:5])
        hint = (
            f"With types for its columns there would be an empty table: `columns: {{{types}}}`, for example."
        )
        return DataError("there are no rows in it", hint=hint, place=place)
    why = f": all {sieve.rejected:,} break constraints ({top(sieve.reasons)})" if sieve.rejected else ""
    return DataError(f"there are no rows in it{why}", hint="The table is left as it was.", place=place)


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
            f"{_counted(load.rows, 'row')} of {_counted(files, 'file')} "
            f"{'loaded' if load.plan.anew else 'added'}"
        )
    if load.rejected:
        print(f"{_counted(load.rejected, 'row')} rejected: {top(load.reasons)}")
    for column, index in load.shifted.items():
        print(f"{column} has drifted since the load before: population stability index {index:g}")
    if load.plan.vanished:
        print(f"{load.plan.vanished} loaded files are not in the source any more; their rows stay")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _result(context: JobContext, load: Load) -> JobResult:
    uri = context.order.table_uri
    table = open_sink_table(context.below_root(uri), load.version)
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
            **table.note.get("details", {}),
            "files": load.plan.seen,
            "vanished": load.plan.vanished,
            "source": context.order.job.sink.source.name if context.order.job.sink else "",
            "sources": by_source(load.plan.origins, table, at_version(_rejects(context), table.rejects)),
            "positions": table.positions,
            "outages": to_builtins(_outages(context, table)),
        },
    )
    size = JobSize(rows=rows, columns=len(output.columns), input_bytes=size_bytes)
    return JobResult(outputs=(output,), metrics=_metrics(rows, load, output.details), size=size)


def _outages(context: JobContext, table: SinkTable) -> tuple[Outage, ...]:
    """The declared ones. Raises InputError for a column that holds no times."""
    spec = context.order.job.sink
    outages = spec.outages if spec else ()
    for number, outage in enumerate(outages, start=1):
        check_time(table.schema, outage.time, f"sink.outages[{number}].time")
    return outages


def check_time(schema: pa.Schema, name: str, place: str) -> None:
    """Raise InputError for a column that holds no times."""
    kind = schema.field(name).type if name in schema.names else None
    if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise InputError(
            f"column {name!r} holds no times", hint=f"The sink has {', '.join(schema.names)}.", place=place
        )


def _metrics(rows: int, load: Load, details: Mapping[str, Any]) -> Mapping[str, float]:
    """What is told of the run itself; the sink's own metrics are those of the last load that brought rows."""
    metrics: dict[str, float] = {"rows": rows, "rows_added": load.rows}
    if details.get("rejects"):
        metrics["rejects"] = details["rejects"]["rows"]
    own = details.get("metrics", {}).get("values", {})
    return metrics | {name: value for name, value in own.items() if isinstance(value, int | float)}
