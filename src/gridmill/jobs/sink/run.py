"""The sink job: source files that are new or changed go onto the table, in one commit."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from gridmill.codec import fingerprint, to_builtins
from gridmill.errors import ConflictError, DataError, InputError, UnavailableError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.sink.arrivals import Asked, look
from gridmill.jobs.sink.load import Loading, Progress
from gridmill.jobs.sink.plan import Loaded, LoadPlan, decide, decide_next, load_anew
from gridmill.jobs.sink.rejects import at_version, commit_rejects, count_reasons
from gridmill.jobs.sink.sieve import Sieve, open_sieve, top
from gridmill.jobs.sink.table import LostRaceError, Mark, SinkTable, commit, open_sink_table, rules_number
from gridmill.jobs.sink.writing import Writing, kept_rows
from gridmill.jobs.tables import Part, columns_of, describe
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.job import JobSize
from gridmill.model.sink import SinkSpec

LOADER = 1
"""Part of every declaration's fingerprint: raised when the same declaration begins to load otherwise."""
RACES = 10
MOST_NAMES = 20
MOST_TEXT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one run of the job did."""

    version: int
    plan: LoadPlan
    rows: int = 0
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


def run(context: JobContext) -> JobResult:
    """Load what is new. Raises DataError, ConflictError, StorageError; the table is then as it was."""
    spec = context.order.job.sink
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is no sink")
    load = _load_against_others(context, spec)
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


def load_onto(context: JobContext, spec: SinkSpec, table: SinkTable) -> Load:
    """Bring the table up to its source. Raises LostRaceError when it changed since it was opened."""
    bench = Bench(
        context=context,
        spec=spec,
        table=table,
        rejects=at_version(context.below_root(rejects_uri(context)), table.rejects),
        rules=_rules(spec),
    )
    plan = bench.plan(anew=table.rules != bench.rules)
    try:
        return bench.carry_out(plan)
    except DataError as misfit:
        if plan.anew:
            raise
        try:
            plan = bench.plan(anew=True)
        except ConflictError as lossy:
            raise misfit from lossy
        print(f"{misfit}: loading the table anew, so that its types fit all files")
        return bench.carry_out(plan)


def rejects_uri(context: JobContext) -> str:
    """The table of rejects beside the sink's, below the storage root."""
    return f"{context.order.table_uri.rpartition('/')[0]}/rejects"


def _rules(spec: SinkSpec) -> int:
    declared = to_builtins(spec)
    del declared["source"]["path"]
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
        )
        arrivals = look(asked)
        if arrivals.append:
            return decide_next(arrivals.files, self.loaded, arrivals.positions, anew=anew)
        if anew:
            return load_anew(arrivals.files, self.loaded, arrivals.positions)
        return decide(arrivals.files, self.loaded, arrivals.positions)

    def carry_out(self, plan: LoadPlan) -> Load:
        """Load what the plan says, in one commit.

        Raises DataError, InputError, LostRaceError, StorageError.
        """
        if not plan.load and not plan.remove and self.table.delta is not None:
            return Load(version=self.table.delta.version(), plan=plan)
        if not plan.load:
            raise _nothing_at_all(self.spec.source.name)
        size = sum(file.size_bytes for file in plan.load)
        progress = Progress(context=self.context, total=size * (2 if plan.anew else 1))
        loading = Loading(spec=self.spec, progress=progress)
        schema = loading.schema(plan.load) if plan.anew else self.table.schema
        folder = self.context.output / uuid4().hex
        try:
            with open_sieve(self.context, self.spec, schema) as sieve:
                writing = Writing(loading=loading, sieve=sieve, schema=schema, folder=folder)
                return self._committed(plan, schema, sieve, *self._written(plan, writing))
        finally:
            _clear(folder, self.context)

    def _written(self, plan: LoadPlan, writing: Writing) -> tuple[list[Part], list[Part]]:
        written = [writing.write(file) for file in plan.load]
        writing.drop_repeated(written, kept_rows(self.table, plan))
        writing.sieve.check_share()
        return [part for one in written for part in one.parts], writing.write_rejects(written)

    def _committed(
        self, plan: LoadPlan, schema: pa.Schema, sieve: Sieve, parts: list[Part], rejects: list[Part]
    ) -> Load:
        rows = sum(part.rows for part in parts)
        if plan.anew and rows == 0:
            raise _nothing_left(plan, sieve)
        if not (parts or rejects or plan.remove or plan.positions) and self.table.delta is not None:
            return Load(version=self.table.delta.version(), plan=plan)
        gone = {entry.path for entry in plan.remove}
        outdated = [entry for entry in self.rejects.loaded if entry.path in gone]
        version = self.table.rejects
        if rejects or outdated:
            version = commit_rejects(self.rejects.path, self.rejects.loaded, outdated, rejects)
        kept = replace(plan, remove=tuple(entry for entry in plan.remove if entry not in outdated))
        files = [{"file": file.name, "content": file.content} for file in plan.load]
        note = {"files": files, "positions": plan.positions}
        mark = Mark(rules=self.rules, rejects=version, note=note)
        version = commit(self.table, kept, schema, parts, mark)
        return Load(
            version=version, plan=plan, rows=rows, rejected=sieve.rejected, reasons=dict(sieve.reasons)
        )


def _nothing_at_all(place: str) -> DataError:
    return DataError(
        "there are no rows in it",
        hint="A table needs at least one row; the table is left as it was.",
        place=place,
    )


def _nothing_left(plan: LoadPlan, sieve: Sieve) -> DataError:
    why = f": all {sieve.rejected:,} break constraints ({top(sieve.reasons)})" if sieve.rejected else ""
    return DataError(
        f"there are no rows in it{why}",
        hint="A table needs at least one row; the table is left as it was.",
        place=", ".join(file.name for file in plan.load[:3]),
    )


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
    if load.plan.vanished:
        print(f"{load.plan.vanished} loaded files are not in the source any more; their rows stay")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _result(context: JobContext, load: Load) -> JobResult:
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
            "files": load.plan.seen,
            "loaded": [file.name for file in load.plan.load][:MOST_NAMES],
            "rows_added": load.rows,
            "loaded_anew": load.plan.anew,
            "vanished": load.plan.vanished,
            "columns": _statistics(context, table, load.version),
            "rejects": _rejects(context, load, table),
        },
    )
    size = JobSize(rows=rows, columns=len(output.columns), input_bytes=size_bytes)
    metrics = {"rows": rows, "rows_added": load.rows}
    if output.details["rejects"]:
        metrics["rejects"] = output.details["rejects"]["rows"]
    return JobResult(outputs=(output,), metrics=metrics, size=size)


def _rejects(context: JobContext, load: Load, table: SinkTable) -> Mapping[str, Any]:
    """How many rows are rejected, how many of them now, why, and some of them; empty without any."""
    rejects = at_version(context.below_root(rejects_uri(context)), table.rejects)
    rows = sum(entry.rows for entry in rejects.loaded)
    if rejects.delta is None or not rows:
        return {}
    head = (
        rejects.delta.to_pyarrow_dataset()
        .head(MOST_NAMES)
        .sort_by([("source", "ascending"), ("row", "ascending")])
    )
    return {
        "rows": rows,
        "added": load.rejected,
        "reasons": dict(count_reasons(rejects).most_common(MOST_NAMES)),
        "uri": rejects_uri(context),
        "table_version": table.rejects,
        "sample": [row | {"record": row["record"][:MOST_TEXT]} for row in _by_place(head)],
    }


def _by_place(rejects: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rejects.sort_by([("source", "ascending"), ("row", "ascending")]).to_pylist()
    return rows


def _statistics(context: JobContext, table: SinkTable, version: int) -> Mapping[str, Any]:
    """Of every column; those of an earlier artifact where the table is the same."""
    for entry in context.order.earlier:
        before = entry.artifact.output
        if (before.uri, before.table_version) == (context.order.table_uri, version):
            known: Mapping[str, Any] = before.details.get("columns", {})
            return known
    assert table.delta is not None
    return describe(context, table.delta.to_pyarrow_dataset(), table.schema.names)
