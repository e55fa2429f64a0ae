"""The sink job: source files that are new or changed go onto the table, in one commit."""

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from uuid import uuid4

from gridmill.codec import to_builtins
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.sink.bench import Load, clear, open_bench, rejects_path
from gridmill.jobs.sink.note import by_source
from gridmill.jobs.sink.parts import load_part
from gridmill.jobs.sink.plain import PLAIN, is_plain
from gridmill.jobs.sink.rejects import at_version
from gridmill.jobs.sink.sieve import top
from gridmill.jobs.sink.table import LostRaceError, SinkTable, open_sink_table
from gridmill.jobs.sink.times import check_times
from gridmill.jobs.sink.upkeep import remove_unused, tidy
from gridmill.jobs.tables import columns_of
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.job import JobSize
from gridmill.model.loaded import WAITING
from gridmill.model.sink import SinkSpec
from gridmill.model.source import Source

RACES = 10


def run(context: JobContext) -> JobResult:
    """Load what is new. Raises DataError, ConflictError, StorageError; the table is then as it was."""
    spec = context.order.job.sink
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is no sink")
    if context.order.part is not None:
        return load_part(open_bench(context, spec, _table(context)))
    load = _tidied(context, spec, _load_against_others(context, spec))
    _say(load, spec.source)
    return _result(context, spec, load)


def _load_against_others(context: JobContext, spec: SinkSpec) -> Load:
    for _ in range(RACES):
        try:
            return load_onto(context, spec, _table(context))
        except LostRaceError:
            continue
    raise UnavailableError("others keep changing the table", place=context.order.table_uri)


def _table(context: JobContext, version: int | None = None) -> SinkTable:
    return open_sink_table(context.below_root(context.order.table_uri), version)


def _tidied(context: JobContext, spec: SinkSpec, load: Load) -> Load:
    table = _table(context, load.version)
    folder = context.output / uuid4().hex
    check_times(spec, table.schema)
    try:
        version = tidy(table, spec.retain, time.time(), folder)
        if context.order.kept_versions:  # what nobody refers to is known
            _remove_unused(context, table)
    finally:
        clear(folder, context)
    return load if version is None else replace(load, version=version)


def _remove_unused(context: JobContext, table: SinkTable) -> None:
    """The data files of no version any more, of the table and of its rejects."""
    now, kept = time.time(), sorted(context.order.kept_versions, reverse=True)
    remove_unused(table.path, kept, now)
    referred = (open_sink_table(table.path, number).rejects for number in kept)
    versions = (number for number in chain((table.rejects,), referred) if number is not None)
    remove_unused(rejects_path(context), versions, now)


def load_onto(context: JobContext, spec: SinkSpec, table: SinkTable) -> Load:
    """Bring the table up to its source. Raises LostRaceError when it changed since it was opened."""
    bench = open_bench(context, spec, table)
    plan = bench.plan()
    try:
        return bench.carry_out(plan)
    except DataError as misfit:
        if plan.anew:
            forms = bench.found_forms(plan)
            if not forms:
                raise
            print(f"{misfit}: read again in the forms that all values have")
            return bench.carry_out(plan, forms=forms)
        evolved = bench.evolved(plan)
        if evolved is None:
            raise
        print(f"{misfit}: the table's columns change")
        return bench.carry_out(plan, evolved)


def _say(load: Load, source: Source) -> None:
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
    if load.plan.waiting:
        print(source.waiting_text(load.plan.waiting))
    if load.plan.unseen:
        print(f"{_counted(load.plan.unseen, 'row')} not loaded: no value, NaN or infinity in the cursor")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _result(context: JobContext, spec: SinkSpec, load: Load) -> JobResult:
    uri = context.order.table_uri
    table = _table(context, load.version)
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
            "unseen": load.plan.unseen,
            WAITING: _waiting(load, spec.source),
            "source": spec.source.name,
            "sources": by_source(load.plan.origins, table, at_version(rejects_path(context), table.rejects)),
            "positions": table.positions,
            "outages": to_builtins(spec.outages),
            PLAIN: is_plain(context, spec, table),
        },
    )
    size = JobSize(rows=rows, columns=len(output.columns), input_bytes=size_bytes)
    return JobResult(outputs=(output,), metrics=_metrics(rows, load, output.details), size=size)


def _waiting(load: Load, source: Source) -> Mapping[str, float]:
    if not load.plan.waiting:
        return {}
    return {"files": load.plan.waiting, "settled_seconds": source.settled_seconds or 0.0}


def _metrics(rows: int, load: Load, details: Mapping[str, Any]) -> Mapping[str, float]:
    """What is told of the run itself; the sink's own metrics are those of the last load that brought rows."""
    metrics: dict[str, float] = {"rows": rows, "rows_added": load.rows}
    if details.get("rejects"):
        metrics["rejects"] = details["rejects"]["rows"]
    own = details.get("metrics", {}).get("values", {})
    return metrics | {name: value for name, value in own.items() if isinstance(value, int | float)}
