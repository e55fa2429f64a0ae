"""A part of a sink job: writes the rows of its share of the files, for the attempt that commits all."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from shutil import rmtree

from gridmill.errors import DataError
from gridmill.jobs.context import JobResult
from gridmill.jobs.sink.ambiguous import UnclearError
from gridmill.jobs.sink.files import SourceFile, content_of
from gridmill.jobs.sink.formats import HastyError
from gridmill.jobs.sink.load_job import Bench, first_columns
from gridmill.jobs.sink.metrics import Meter, check_metrics
from gridmill.jobs.sink.part_files import Columns, Done, Told, referred, write_told
from gridmill.jobs.sink.plan import LoadPlan
from gridmill.jobs.sink.table import SinkTable
from gridmill.jobs.sink.validate import Sieve, open_sieve
from gridmill.jobs.sink.write import Writing, Written
from gridmill.ports.storage import FileStat


def load_part(bench: Bench) -> JobResult:
    """Write the part's share of what seems to be new. Raises DataError, InputError, StorageError,
    UnavailableError."""
    plan = _plan(bench)
    told = _told(bench, plan)
    write_told(bench.context.output, told)
    rows = sum(done.rows for done in told.done)
    print(f"{rows:,} rows of {len(told.done):,} files read for the table")
    return JobResult()


def share_out(files: Sequence[SourceFile], count: int) -> list[list[SourceFile]]:
    """So many shares of about the same size, each in the order of the files: the largest goes first, to
    whoever has least."""
    numbers: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for number in sorted(range(len(files)), key=lambda one: (-files[one].size_bytes, files[one].name)):
        least = sizes.index(min(sizes))
        numbers[least].append(number)
        sizes[least] += files[number].size_bytes
    return [[files[number] for number in sorted(share)] for share in numbers]


def _plan(bench: Bench) -> LoadPlan:
    """The part's share of the files that may be new. Their content decides, which nobody else reads."""
    part = bench.context.order.part
    assert part is not None
    loaded = () if bench.anew else bench.loaded
    same = {(entry.key, entry.content) for entry in loaded}
    keys, since_ns = {entry.key for entry in loaded}, _committed_ns(bench.table)

    def may_be_new(file: SourceFile) -> bool:
        if file.content:  # as its store says
            return (file.key, file.content) not in same
        return file.key not in keys or max(file.mtime_ns, file.changed_ns) >= since_ns

    fresh = list(filter(may_be_new, bench.look(_not_yet).files))
    mine = [_hashed(file) for file in share_out(fresh, part.count)[part.number]]
    load = tuple(file for file in mine if (file.key, file.content) not in same)
    return LoadPlan(load=load, anew=bench.anew, seen=len(load))


def _not_yet(stat: FileStat, name: str) -> str:
    """A `Content`: unknown."""
    del stat, name
    return ""


def _hashed(file: SourceFile) -> SourceFile:
    return file if file.content else replace(file, content=content_of(file.path, file.name))


def _committed_ns(table: SinkTable) -> int:
    """When the table was last written to; a file that was not changed since is as it was loaded."""
    return int(table.delta.history(1)[0]["timestamp"]) * 10**6 if table.delta else 0


def _told(bench: Bench, plan: LoadPlan) -> Told:
    if not plan.load:
        return Told(rules=bench.rules, references=(), columns="", inferred=False, done=())
    if bench.may_be_hasty:
        with suppress(HastyError):
            return _write(bench, plan, hasty=True)
    try:
        return _write(bench, plan, hasty=False)
    except UnclearError as error:
        unclear: DataError = error
    except DataError as error:
        if not (plan.anew and _may_be_clear(bench, plan)):
            raise
        unclear = error
    print(f"{unclear}: left to the attempt that loads what the parts wrote")
    return Told(rules=bench.rules, references=(), columns="", inferred=False, done=())


def _may_be_clear(bench: Bench, plan: LoadPlan) -> bool:
    """Whether the values of all files may show that a value has the declared type."""
    try:
        return bool(bench.found_forms(plan))
    except UnclearError:
        return True


def _write(bench: Bench, plan: LoadPlan, *, hasty: bool) -> Told:
    context, spec = bench.context, bench.spec
    loading = bench.loading(plan, hasty=hasty)
    schema = first_columns(loading, plan) if plan.anew else bench.table.schema
    folder = context.output / ("hasty" if hasty else "whole")
    try:
        with open_sieve(context, spec, schema) as sieve:
            check_metrics(context, schema, spec.metrics)
            meter = Meter(context=context, schema=schema, own=spec.metrics)
            writing = Writing(loading=loading, sieve=sieve, meter=meter, schema=schema, folder=folder)
            done = tuple(_each(bench, plan, writing))
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    return Told(
        rules=bench.rules,
        references=referred(context, spec),
        columns=Columns(schema=schema, forms=loading.forms).text(),
        inferred=plan.anew and not loading.untold and not loading.later,
        done=done,
    )


def _each(bench: Bench, plan: LoadPlan, writing: Writing) -> Iterator[Done]:
    """Each file. One that does not fit a table that is there may be a reason to change the table's columns,
    which is for all files together to say."""
    for file in plan.load:
        before = replace(writing.sieve, reasons=writing.sieve.reasons.copy())
        lost = writing.loading.lost.copy()
        try:
            written = writing.write(file)
        except DataError as misfit:
            if plan.anew:
                raise
            print(f"{misfit}: left to the attempt that loads what the parts wrote")
            continue
        yield replace(
            _done(bench, writing, written, before),
            lost=dict(writing.loading.lost - lost),
            read_as=dict(writing.loading.read_as),
        )


def _done(bench: Bench, writing: Writing, written: Written, before: Sieve) -> Done:
    """`before`: what the sieve had counted."""
    file, sieve, below = written.file, writing.sieve, bench.context.output
    rejects = writing.write_rejects([written])
    return Done(
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
