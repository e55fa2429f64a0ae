"""The sink job loads new and changed source files into the table in a single commit.

A part of a sink job runs in another pod. The part of the job writes the rows of some of the files, for the
attempt that commits the load. The job also checks whether the data files of a version, read as Parquet,
contain exactly the rows of the version. If the data files contain exactly these rows, commands can read the
data files directly.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.codec import to_builtins
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.job import JobSize
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sink_status import WAITING
from gridmill.domain.source import Source
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.sink.ambiguous import AmbiguousTextError
from gridmill.jobs.sink.commit_info import by_source
from gridmill.jobs.sink.constraints import ConstraintFilter, open_filter, top
from gridmill.jobs.sink.files import SourceFile, content_of
from gridmill.jobs.sink.files_to_load import LoadPlan
from gridmill.jobs.sink.formats import UnexpectedTypeError
from gridmill.jobs.sink.load_job import LoadResult, LoadState, clear, first_columns, open_bench, rejects_path
from gridmill.jobs.sink.maintenance import check_times, remove_unused, tidy
from gridmill.jobs.sink.metrics import LoadMetrics, check_metrics
from gridmill.jobs.sink.part_files import PartFile, PartResult, TableColumns, referred, write_part_result
from gridmill.jobs.sink.rejects import at_version
from gridmill.jobs.sink.table import ConcurrentCommitError, SinkTable, open_sink_table
from gridmill.jobs.sink.write import WriteContext, WrittenFile
from gridmill.jobs.tables import columns_of
from gridmill.ports.storage import FileStat


def load_part(bench: LoadState) -> JobResult:
    """Write the rows of the files that are assigned to this part of the job and that seem to be new. Raises
    DataError, InputError, StorageError, UnavailableError."""
    plan = _plan(bench)
    part_result = _part_result(bench, plan)
    write_part_result(bench.context.output, part_result)
    rows = sum(done.rows for done in part_result.files)
    print(f"{rows:,} rows of {len(part_result.files):,} files read for the table")
    return JobResult()


def share_out(files: Sequence[SourceFile], count: int) -> list[list[SourceFile]]:
    """Divide the files into groups of about the same size. The files of each group are in the original
    order.

    The largest file is assigned to a group first. Each file is assigned to the group that is smallest at
    that time.
    """
    numbers: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for number in sorted(range(len(files)), key=lambda one: (-files[one].size_bytes, files[one].name)):
        least = sizes.index(min(sizes))
        numbers[least].append(number)
        sizes[least] += files[number].size_bytes
    return [[files[number] for number in sorted(share)] for share in numbers]


def _plan(bench: LoadState) -> LoadPlan:
    """Plan the load of the files that are assigned to this part of the job and that may be new.

    Whether a file is new depends on its content. No other part of the job reads these files.
    """
    part = bench.context.order.part
    assert part is not None
    loaded = () if bench.anew else bench.loaded
    same = {(entry.key, entry.content) for entry in loaded}
    keys, since_ns = {entry.key for entry in loaded}, _committed_ns(bench.table)

    def may_be_new(file: SourceFile) -> bool:
        # the object storage or server reported this hash, so that the content is known without a download
        if file.content:
            return (file.key, file.content) not in same
        return file.key not in keys or max(file.mtime_ns, file.changed_ns) >= since_ns

    fresh = list(filter(may_be_new, bench.look(_not_yet).files))
    mine = [_hashed(file) for file in share_out(fresh, part.count)[part.number]]
    load = tuple(file for file in mine if (file.key, file.content) not in same)
    return LoadPlan(load=load, anew=bench.anew, seen=len(load))


def _not_yet(stat: FileStat, name: str) -> str:
    """Return an empty hash, because the file is not read yet (see `Content`)."""
    del stat, name
    return ""


def _hashed(file: SourceFile) -> SourceFile:
    return file if file.content else replace(file, content=content_of(file.path, file.name))


def _committed_ns(table: SinkTable) -> int:
    """Return the time at which the table was last written.

    If a file was not changed after this time, its current content is already loaded.
    """
    return int(table.delta.history(1)[0]["timestamp"]) * 10**6 if table.delta else 0


def _part_result(bench: LoadState, plan: LoadPlan) -> PartResult:
    if not plan.load:
        return PartResult(rules=bench.rules, references=(), columns="", inferred=False, files=())
    if bench.may_expect_types:
        with suppress(UnexpectedTypeError):
            return _write(bench, plan, hasty=True)
    try:
        return _write(bench, plan, hasty=False)
    except AmbiguousTextError as error:
        unclear: DataError = error
    except DataError as error:
        if not (plan.anew and _may_be_clear(bench, plan)):
            raise
        unclear = error
    print(f"{unclear}: decided by the attempt that loads the output of the parts")
    return PartResult(rules=bench.rules, references=(), columns="", inferred=False, files=())


def _may_be_clear(bench: LoadState, plan: LoadPlan) -> bool:
    """Return whether the forms of texts are still unclear, so that the values of all files are needed to
    read them."""
    try:
        return bool(bench.found_forms(plan))
    except AmbiguousTextError:
        return True


def _write(bench: LoadState, plan: LoadPlan, *, hasty: bool) -> PartResult:
    context, spec = bench.context, bench.spec
    loading = bench.loading(plan, hasty=hasty)
    schema = first_columns(loading, plan) if plan.anew else bench.table.schema
    folder = context.output / ("hasty" if hasty else "whole")
    try:
        with open_filter(context, spec, schema) as sieve:
            check_metrics(context, schema, spec.metrics)
            meter = LoadMetrics(context=context, schema=schema, own=spec.metrics)
            writing = WriteContext(loading=loading, sieve=sieve, meter=meter, schema=schema, folder=folder)
            done = tuple(_each(bench, plan, writing))
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    return PartResult(
        rules=bench.rules,
        references=referred(context, spec),
        columns=TableColumns(schema=schema, forms=loading.forms).text(),
        inferred=plan.anew and not loading.without_type and not loading.later,
        files=done,
    )


def _each(bench: LoadState, plan: LoadPlan, writing: WriteContext) -> Iterator[PartFile]:
    """Load each file separately, and yield the result of each file.

    If a file does not fit an existing table, the columns of the table may have to change. Only an attempt
    that has all files can change the columns. The attempt that commits the load therefore reads such a file
    itself.
    """
    for file in plan.load:
        before = replace(writing.sieve, reasons=writing.sieve.reasons.copy())
        lost = writing.loading.lost.copy()
        try:
            written = writing.write(file)
        except DataError as misfit:
            if plan.anew:
                raise
            print(f"{misfit}: handled by the attempt that loads the output of the parts")
            continue
        yield replace(
            _part_file(bench, writing, written, before),
            lost=dict(writing.loading.lost - lost),
            read_as=dict(writing.loading.read_as),
        )


def _part_file(
    bench: LoadState, writing: WriteContext, written: WrittenFile, before: ConstraintFilter
) -> PartFile:
    """Return the record of a written file, with the numbers of rows that the file added. `before` contains
    the numbers of rows that were counted before this file was read."""
    file, sieve, below = written.file, writing.sieve, bench.context.output
    rejects = writing.write_rejects([written])
    return PartFile(
        key=file.key,
        content=file.content,
        size_bytes=file.size_bytes,
        mtime_ns=file.mtime_ns,
        changed_ns=file.changed_ns,
        files=tuple(str(part.path.relative_to(below)) for part in written.parts),
        rejects=tuple(str(part.path.relative_to(below)) for part in rejects),
        rows=sieve.rows - before.rows,
        rejected=sieve.rejected - before.rejected,
        reasons=dict(sieve.reasons - before.reasons),
    )


PLAIN = "plain"
"""The key in the details of a version which shows that the data files contain exactly the rows of the
version."""
_MOST_FILES = 2_000
"""The largest number of file footers that are read, which takes some tenths of a second. If there are more
files, commands get copies of the files."""


def is_plain(context: JobContext, spec: SinkSpec, table: SinkTable) -> bool:
    """Return whether every row of every data file belongs to the version, and whether all data files have
    the columns of the table.

    If columns were added later, earlier data files lack these columns. If the sink has outages, or if
    another program wrote to the table, some rows of the data files do not belong to the version. If the
    previous version recorded that all its data files meet both conditions, the function does not read these
    data files again.
    """
    if table.delta is None or spec.outages or _is_written_by_others(table):
        return False
    files = {entry.path for entry in table.loaded}
    new = files - _previous_files(context, table)
    return bool(files) and len(new) <= _MOST_FILES and _have(table.path, new, table.schema)


def _is_written_by_others(table: SinkTable) -> bool:
    assert table.delta is not None
    features = table.delta.protocol().reader_features or ()
    partitioned = bool(table.delta.metadata().partition_columns)
    return partitioned or "deletionVectors" in features or "columnMapping" in features


def _previous_files(context: JobContext, table: SinkTable) -> set[str]:
    """Return the data files of the previous version, if they have the same columns."""
    for entry in context.order.earlier:
        output = entry.artifact.output
        is_plain_sink = output.kind == ArtifactKind.SINK and output.details.get(PLAIN)
        if is_plain_sink and output.columns == columns_of(table.schema):
            before = open_sink_table(table.path, output.table_version)
            return {entry.path for entry in before.loaded}
    return set()


def _have(folder: Path, names: Iterable[str], schema: pa.Schema) -> bool:
    wanted = [(item.name, item.type) for item in schema]
    return all([(item.name, item.type) for item in pq.read_schema(folder / name)] == wanted for name in names)


RACES = 10


def run(context: JobContext) -> JobResult:
    """Load the new rows of the source into the table of the sink. Raises DataError, ConflictError,
    StorageError. After an error the table is unchanged."""
    spec = context.order.job.sink
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is not a sink")
    if context.order.part is not None:
        return load_part(open_bench(context, spec, _table(context)))
    load = _tidied(context, spec, _load_against_others(context, spec))
    _print_summary(load, spec.source)
    return _result(context, spec, load)


def _load_against_others(context: JobContext, spec: SinkSpec) -> LoadResult:
    for _ in range(RACES):
        try:
            return load_onto(context, spec, _table(context))
        except ConcurrentCommitError:
            continue
    raise UnavailableError("other attempts keep changing the table", place=context.order.table_uri)


def _table(context: JobContext, version: int | None = None) -> SinkTable:
    return open_sink_table(context.below_root(context.order.table_uri), version)


def _tidied(context: JobContext, spec: SinkSpec, load: LoadResult) -> LoadResult:
    table = _table(context, load.version)
    folder = context.output / uuid4().hex
    check_times(spec, table.schema)
    try:
        version = tidy(table, spec.retain, time.time(), folder)
        if context.order.kept_versions:  # otherwise it is unknown which versions are referenced
            _remove_unused(context, table)
    finally:
        clear(folder, context)
    return load if version is None else replace(load, version=version)


def _remove_unused(context: JobContext, table: SinkTable) -> None:
    """Delete the data files of the table, and of its table of rejected rows, that belong to no version any
    more."""
    now, kept = time.time(), sorted(context.order.kept_versions, reverse=True)
    remove_unused(table.path, kept, now)
    referred = (open_sink_table(table.path, number).rejects for number in kept)
    versions = (number for number in chain((table.rejects,), referred) if number is not None)
    remove_unused(rejects_path(context), versions, now)


def load_onto(context: JobContext, spec: SinkSpec, table: SinkTable) -> LoadResult:
    """Load the new rows of the source into the table. Raises ConcurrentCommitError if another attempt
    changed the table after it was opened."""
    bench = open_bench(context, spec, table)
    plan = bench.plan()
    try:
        return bench.execute(plan)
    except DataError as misfit:
        if plan.anew:
            forms = bench.found_forms(plan)
            if not forms:
                raise
            print(f"{misfit}: the files are read again, with forms that fit all values")
            return bench.execute(plan, forms=forms)
        evolved = bench.evolved(plan)
        if evolved is None:
            raise
        print(f"{misfit}: the table's columns change")
        return bench.execute(plan, evolved)


def _print_summary(load: LoadResult, source: Source) -> None:
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
        print(f"{column} has drifted since the last load: population stability index {index:g}")
    if load.plan.vanished:
        print(f"{load.plan.vanished} loaded files do not exist in the source any more; their rows are kept")
    if load.plan.waiting:
        print(source.waiting_text(load.plan.waiting))
    if load.plan.unseen:
        print(f"{_counted(load.plan.unseen, 'row')} not loaded: no value, NaN or infinity in the cursor")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _result(context: JobContext, spec: SinkSpec, load: LoadResult) -> JobResult:
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


def _waiting(load: LoadResult, source: Source) -> Mapping[str, float]:
    if not load.plan.waiting:
        return {}
    return {"files": load.plan.waiting, "settled_seconds": source.settled_seconds or 0.0}


def _metrics(rows: int, load: LoadResult, details: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the metrics of the load, and the metrics that the sink declares. The values of the declared
    metrics come from the last load that had rows."""
    metrics: dict[str, float] = {"rows": rows, "rows_added": load.rows}
    if details.get("rejects"):
        metrics["rejects"] = details["rejects"]["rows"]
    own = details.get("metrics", {}).get("values", {})
    return metrics | {name: value for name, value in own.items() if isinstance(value, int | float)}
