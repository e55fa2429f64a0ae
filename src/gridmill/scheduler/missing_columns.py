"""This module checks the columns and inputs of a pipeline against the known tables before a run.

The module compares the columns that jobs and alterations of sinks name with the columns of the newest
version of each table. Expressions are SQL, which only the job itself can read, so this module does not check
expressions. This module also finds the tables without rows, and the jobs that need rows of such tables. All
functions of this module are pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from gridmill.domain.artifact import Input
from gridmill.domain.dataset import AsOfJoin, DatasetSpec, Join, Lag, Window
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.naming import did_you_mean
from gridmill.domain.sink import SinkSpec
from gridmill.domain.sink_overrides import SinkChange
from gridmill.errors import PipelineError

Known = Mapping[str, tuple[str, ...]]
"""The columns of each table, by the name that the declaration gives the table. For a dataset, the mapping
may contain only the names of the features. Tables that are unknown are missing from the mapping."""
_AGGREGATE = re.compile(r"\s*\w+\s*\(\s*(?:distinct\s+)?([A-Za-z_]\w*)\s*\)\s*", re.IGNORECASE)
"""The pattern of a metric that is one aggregate of one column."""
_CONSTANTS = frozenset({"true", "false", "null"})
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumn:
    """A column that a declaration names, with the field that names it and the table that should have it."""

    field: str
    table: str
    column: str


def missing(
    columns: Iterable[NamedColumn], known: Known, *, ignore_case: bool = False
) -> tuple[NamedColumn, ...]:
    """Return the columns that the known tables do not have, each field once. With `ignore_case`, upper case
    and lower case are treated as equal."""
    form = str.lower if ignore_case else str
    names = {table: {form(name) for name in columns_of_table} for table, columns_of_table in known.items()}
    wrong = (one for one in columns if one.table in names and form(one.column) not in names[one.table])
    return tuple(dict.fromkeys(wrong))


def missing_text(column: NamedColumn, known: Known) -> str:
    """Return a sentence about a missing column, which begins with its field."""
    available = known[column.table]
    meant = did_you_mean(column.column, available) or f"; it has {', '.join(dict.fromkeys(available))}"
    return f"{column.field}: {column.table!r} has no {column.column!r}{meant}"


def missing_error(job: Job, column: NamedColumn, known: Known) -> PipelineError:
    """Return the error with which a run is refused because of a missing column."""
    available = list(dict.fromkeys(known[column.table]))
    return PipelineError(
        f"table {column.table!r} has no column {column.column!r}{did_you_mean(column.column, available)}",
        place=f"jobs.{job.name}.{column.field}",
        hint=f"It has {', '.join(available)}.",
    )


def columns_of_change(change: SinkChange, sink: str) -> Iterator[NamedColumn]:
    """Yield the columns that an addition to a sink names. For a foreign key, these are also the columns of
    the other sink."""
    rule, plain = change.constraint, _AGGREGATE.fullmatch(change.text)
    if rule is not None:
        yield from (NamedColumn(field="constraint", table=sink, column=name) for name in rule.columns)
        if rule.references:
            yield from (
                NamedColumn(field="constraint", table=rule.references, column=name) for name in rule.keys
            )
    if change.outage is not None:
        yield NamedColumn(field="outage_window.time", table=sink, column=change.outage.time)
    if plain is not None and plain[1].lower() not in _CONSTANTS:
        yield NamedColumn(field="metric", table=sink, column=plain[1])


def columns_of(job: Job) -> Iterator[NamedColumn]:
    """Yield the columns that a job names."""
    if job.sink is not None:
        yield from _of_sink(job.name, job.sink)
    if job.training is not None:
        for name in job.training.features:
            yield NamedColumn(field="training.features", table=job.training.dataset, column=name)
    if job.dataset is not None and job.dataset.basis is not None:
        yield from _of_basis(job.dataset)
        yield from _of_joins(job.dataset)
        yield from _of_past(job.dataset)
        yield from _of_label(job.dataset)


def _of_sink(name: str, spec: SinkSpec) -> Iterator[NamedColumn]:
    for number, rule in enumerate(spec.constraints):
        field = f"sink.constraints[{number}]"
        yield from (NamedColumn(field=field, table=name, column=column) for column in rule.columns)
        if rule.references:
            yield from (NamedColumn(field=field, table=rule.references, column=key) for key in rule.keys)
    for number, outage in enumerate(spec.outages):
        yield NamedColumn(field=f"sink.outages[{number}].time", table=name, column=outage.time)


def columns_selected(spec: SinkSpec) -> tuple[str, ...]:
    """Return the columns that the table of a sink will have, if its declaration names all of them with
    `select`. Otherwise, the result is empty."""
    return (*spec.select, *spec.add) if spec.select else ()


def _of_basis(spec: DatasetSpec) -> Iterator[NamedColumn]:
    basis = spec.basis
    assert basis is not None
    columns = {"time": (basis.time,), "entity": basis.entity, "columns": basis.columns}
    yield from _each(basis.table, {f"basis.{name}": named for name, named in columns.items()})


def _of_joins(spec: DatasetSpec) -> Iterator[NamedColumn]:
    basis = spec.basis.table if spec.basis else ""
    joins: list[tuple[str, Join | AsOfJoin]] = [(f"joins[{n}]", one) for n, one in enumerate(spec.joins)]
    joins += [(f"asof_joins[{n}]", one) for n, one in enumerate(spec.asof_joins)]
    for field, join in joins:
        yield from _each(basis, {f"{field}.on": join.on})
        yield from _each(join.table, {f"{field}.on": join.on, f"{field}.columns": join.columns})
        yield from _known_at(join.table, field, join.known_at)


def _of_past(spec: DatasetSpec) -> Iterator[NamedColumn]:
    basis = spec.basis.table if spec.basis else ""
    parts: list[tuple[str, Window | Lag]] = [(f"windows[{n}]", one) for n, one in enumerate(spec.windows)]
    parts += [(f"lags[{n}]", one) for n, one in enumerate(spec.lags)]
    for field, part in parts:
        table = part.table or basis
        yield from _each(basis, {f"{field}.on": part.on})
        yield from _each(table, {f"{field}.on": part.on})
        if part.table is not None or spec.label is None or part.column != spec.label.name:
            yield from _each(table, {f"{field}.column": (part.column,)})
        yield from _known_at(table, field, part.known_at)


def _of_label(spec: DatasetSpec) -> Iterator[NamedColumn]:
    basis, label = spec.basis.table if spec.basis else "", spec.label
    if label is None:
        return
    yield from _each(basis, {"label.on": label.on})
    yield from _each(label.table or basis, {"label.on": label.on, "label.column": label.sources})
    # without a table, the expression is not checked, because it may name any column or feature of the row
    if label.table is not None:
        yield from _known_at(label.table, "label", label.known_at)


def _known_at(table: str, field: str, text: str | None) -> Iterator[NamedColumn]:
    """Return the column that `known_at` names, if the text of `known_at` is a single word. A single word of
    SQL that is not a column, such as `now`, makes no sense as `known_at`, so such a word is treated as a
    column."""
    if text is not None and _WORD.fullmatch(text):
        yield from _each(table, {f"{field}.known_at": (text,)})


def _each(table: str, columns: Mapping[str, tuple[str, ...]]) -> Iterator[NamedColumn]:
    for field, names in columns.items():
        yield from (NamedColumn(field=f"dataset.{field}", table=table, column=name) for name in names)


def empty_tables(job: Job, inputs: Iterable[Input]) -> tuple[str, ...]:
    """Return the tables that a dataset needs, if none of them has rows: the table of its basis, or without a
    basis all tables that its `sql` reads. The result is empty for all other jobs, because they process empty
    tables themselves."""
    spec = job.dataset
    if spec is None:
        return ()
    needed = (spec.basis.table,) if spec.basis else spec.references()
    empty = {one.name for one in inputs if one.artifact.output.rows == 0}
    return needed if needed and empty.issuperset(needed) else ()
