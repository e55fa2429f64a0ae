"""Applies the availability time of the label, so that no window, lag or join reads a label before the label
is known, whatever `known_at` it declares.

A window, lag or join can read the column from which the label is made. With `known_at` it declares when the
rows that it reads become known. If the label declares a later time (with the `known_at` or the `delay` of
the label), the later time is used. A window, lag or join that declares `exempt` is not changed, and the
remarks of the dataset list this exemption.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import duckdb

from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.dataset import AsOfJoin, Basis, DatasetSpec, Join, Label, Lag, Window
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.dataset.columns import show_span
from gridmill.jobs.expressions import expression_columns, interval, sql_text

Part: TypeAlias = Window | Lag | AsOfJoin | Join
OnePart = TypeVar("OnePart", Window, Lag)
Joining = TypeVar("Joining", AsOfJoin, Join)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AvailabilityTime:
    """The time at which the value of the label in a row is known. The label is known `delay_seconds` after
    `known_at` (a column, or SQL over columns).

    `sources` are the names of the columns that contain the label, in lower case. If `sources` is None, every
    column of the table contains the label, because the row itself is an event. `tables` are the names of the
    table with the label and of its copies; the name "" means the basis table.
    """

    label: Label
    known_at: str
    delay_seconds: float
    sources: frozenset[str] | None
    tables: frozenset[str]
    basis: Basis

    @property
    def sql(self) -> str:
        """Return SQL for the time at which the label is known."""
        timestamp = _timestamp(self.known_at)
        return f"{timestamp} + {interval(self.delay_seconds)}" if self.delay_seconds else timestamp

    @property
    def words(self) -> str:
        """Return a text for users that describes the time at which the label is known."""
        delay = f"{show_span(self.delay_seconds)} after " if self.delay_seconds else "at "
        return f"{delay}`{self.known_at}`"

    def holds(self, column: str) -> bool:
        """Return whether the values of the column reveal the label."""
        return self.sources is None or column.lower() in self.sources

    def table_of(self, part: Part) -> str:
        """Return the name of the table that the window, lag or join reads. For the basis table, return
        ""."""
        return "" if part.table in (None, self.basis.table) else str(part.table)

    def own_time(self, part: Part) -> str | None:
        """Return the declared time at which the rows that the window, lag or join reads become known. If the
        declaration has no such time, return the time of the basis table."""
        if part.known_at is not None or self.table_of(part):
            return part.known_at
        return None if isinstance(part, Join) else self.basis.known_at or self.basis.time

    def later(self, known_at: str) -> str:
        """Return SQL for the later of two times: the given time, and the time at which the label is known.
        The value of the SQL is missing if either time is missing."""
        mine, theirs = _timestamp(known_at), self.sql
        if mine == theirs:
            return known_at
        return f"CASE WHEN {mine} >= {theirs} THEN {mine} WHEN {mine} < {theirs} THEN {theirs} END"


def _timestamp(text: str) -> str:
    return f"({sql_text(text)})::TIMESTAMP"


def with_label_clock(spec: DatasetSpec, inputs: Mapping[str, Artifact]) -> DatasetSpec:
    """Return the declaration, changed so that each window, lag or join that reads the label also declares
    when the label is known.

    `inputs` are the tables by the names that the declaration uses. Raises InputError if the time at which
    the label is known cannot be computed.
    """
    clock = _clock(spec, inputs)
    if clock is None:
        return spec
    with duckdb.connect(config={"threads": 1}) as engine:
        apply = _AvailabilityRewrite(clock=clock, engine=engine, inputs=inputs)
        return replace(
            spec,
            windows=tuple(apply.one(window, "windows") for window in spec.windows),
            lags=tuple(apply.one(lag, "lags") for lag in spec.lags),
            asof_joins=tuple(part for one in spec.asof_joins for part in apply.joined(one, "asof_joins")),
            joins=tuple(part for one in spec.joins for part in apply.joined(one, "joins")),
        )


def clock_remarks(spec: DatasetSpec, inputs: Mapping[str, Artifact]) -> tuple[str, ...]:
    """Return a sentence for each window, lag or join whose `known_at` is replaced by the availability time
    of the label, and a sentence for each exemption."""
    clock, clocked = _clock(spec, inputs), with_label_clock(spec, inputs)
    remarks = [text for part, place in _parts(spec) if (text := _exemption(part, place))]
    if clock is None:
        return tuple(remarks)
    declared, used = dict.fromkeys(one for one, _ in _parts(spec)), {one for one, _ in _parts(clocked)}
    changed = (part for part in declared if part not in used and part.known_at is not None)
    return (*remarks, *(_changed(part, clock) for part in changed))


def _parts(spec: DatasetSpec) -> Iterator[tuple[Part, str]]:
    for place in ("windows", "lags", "asof_joins", "joins"):
        parts: Sequence[Part] = getattr(spec, place)
        yield from ((part, place) for part in parts)


def _exemption(part: Part, place: str) -> str:
    if not part.exempt:
        return ""
    if isinstance(part, Join):
        return f"{part.table} is joined regardless of the times of its rows (exempt)"
    return f"{place}: {_named(part)} can hold a label before it is known (exempt: {part.exempt})"


def _changed(part: Part, clock: _AvailabilityTime) -> str:
    message = f"contains a label only from the time at which the label is known: {clock.words}"
    return f"{_named(part)} with `known_at: {part.known_at}` {message}"


def _named(part: Part) -> str:
    of = f" of {part.table}" if part.table else ""
    columns = [part.column] if isinstance(part, Window | Lag) else part.columns
    return f"{', '.join(columns) or 'all columns'}{of}"


def _clock(spec: DatasetSpec, inputs: Mapping[str, Artifact]) -> _AvailabilityTime | None:
    """Return the availability time of the label. Return None if there is no label, or if the column of the
    label is known together with the row."""
    label, basis = spec.label, spec.basis or Basis(table="", time=spec.time or "", entity=spec.entity)
    if label is None or not basis.time:
        return None
    if label.table is not None:
        known_at, sources = label.known_at or "", None
        tables = _copies(label.table, (label.table,), inputs, _is_same)
        tables |= {""} if basis.table in tables else set()
    else:
        known_at, sources = label.known_at or basis.known_at or basis.time, _sources(label, basis)
        tables = {"", *_copies(basis.table, (basis.table,) if basis.table else spec.tables, inputs, _is_kin)}
    if sources is not None and not sources:
        return None
    return _AvailabilityTime(
        label=label,
        known_at=known_at,
        delay_seconds=label.delay_seconds or 0.0,
        sources=sources,
        tables=frozenset(tables),
        basis=basis,
    )


def _sources(label: Label, basis: Basis) -> frozenset[str]:
    """Return the columns of the label that are not known together with the row.

    If the label is the value of a later row, and the row uses the same columns as features, these columns
    are known together with the row.
    """
    if label.is_own:
        return frozenset(name.lower() for name in label.sources)
    late = label.known_at is not None or label.delay_seconds is not None
    if not late or not basis.columns:
        return frozenset()
    own = {name.lower() for name in basis.columns}
    return frozenset(name.lower() for name in label.sources) - own


def _copies(
    own: str, of: Sequence[str], inputs: Mapping[str, Artifact], alike: Callable[[Artifact, Artifact], bool]
) -> set[str]:
    """Return the table name `own`, and the names of all tables that contain the same rows as one of the
    tables in `of`."""
    mine = [inputs[name] for name in of if name in inputs]
    same = (name for name, one in inputs.items() if name != own and any(alike(one, each) for each in mine))
    return {own, *same} - {""}


def _is_same(one: Artifact, other: Artifact) -> bool:
    """Return whether both inputs are the same table, or tables with the same columns that come from the same
    source or from parts of it."""
    return one.output.uri == other.output.uri or (
        one.kind != ArtifactKind.PREDICTION
        and bool(one.output.columns)
        and set(one.output.columns) == set(other.output.columns)
    )


def _is_kin(one: Artifact, other: Artifact) -> bool:
    """Return whether both artifacts are the same version, or one was made from the other, or both were made
    from the same version."""
    return _is_same(one, other) or (one.kind != ArtifactKind.PREDICTION and bool(_jobs(one) & _jobs(other)))


def _jobs(artifact: Artifact) -> set[str]:
    return {name.rpartition("@")[0] for name in (artifact.id, *artifact.made_from)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _AvailabilityRewrite:
    """Applies the availability time of the label to the windows, lags and joins of a dataset. This class
    uses the SQL engine only to parse expressions."""

    clock: _AvailabilityTime
    engine: duckdb.DuckDBPyConnection
    inputs: Mapping[str, Artifact]

    def one(self, part: OnePart, place: str) -> OnePart:
        """Return the window or lag with the time at which its rows become known."""
        clock, known_at = self.clock, self.clock.own_time(part)
        if known_at is None or not self._is_looked_at(part):
            return part
        is_label = clock.holds(part.column)
        if not is_label and not self._decides(known_at, place):
            return part
        if part.known_at is None and is_label and clock.label.is_own:
            return part  # unchanged, because the query itself applies the label's time
        later = clock.later(known_at)
        return part if later == known_at else replace(part, known_at=self._checked(later, part, place))

    def joined(self, part: Joining, place: str) -> Iterator[Joining]:
        """Yield the join with the time at which its rows become known. The columns of the label become a
        separate join."""
        clock, known_at = self.clock, self.clock.own_time(part)
        later = clock.later(known_at) if known_at is not None else known_at
        if known_at is None or later == known_at or not self._is_looked_at(part):
            yield part
            return
        added = self._added(part)
        late = added if self._decides(known_at, place) else tuple(name for name in added if clock.holds(name))
        others = tuple(name for name in added if name not in late)
        if others or not added:
            yield replace(part, columns=others)
        if late:
            yield replace(part, columns=late, known_at=self._checked(str(later), part, place))

    def _is_looked_at(self, part: Part) -> bool:
        return self.clock.table_of(part) in self.clock.tables and not part.exempt

    def _decides(self, known_at: str, place: str) -> bool:
        """Return whether the time at which rows become known depends on the label. If this time depends on
        the label, the set of known rows reveals the label."""
        used = expression_columns(self.engine, known_at, f"dataset.{place}.known_at")
        return self.clock.sources is not None and any(self.clock.holds(name) for name in used)

    def _added(self, part: AsOfJoin | Join) -> tuple[str, ...]:
        columns = self.inputs[part.table].output.columns if part.table in self.inputs else ()
        keys = {*part.on, part.known_at}
        return part.columns or tuple(column.name for column in columns if column.name not in keys)

    def _checked(self, later: str, part: Part, place: str) -> str:
        """Return the SQL of the time unchanged. Raises InputError if the table that the window, lag or join
        reads lacks a column from which the time is computed."""
        table = self.clock.table_of(part)
        if not table:
            return later
        columns = {column.name.lower() for column in self.inputs[table].output.columns}
        used = expression_columns(self.engine, self.clock.known_at, "dataset.label.known_at")
        lacking = [name for name in used if name.lower() not in columns]
        if not lacking:
            return later
        raise InputError(
            f"{_named(part)} is the label's column in a table that is made from the same rows. The label "
            f"is known {self.clock.words}, but {table!r} has no column {' and '.join(map(repr, lacking))} "
            "to compute this time from",
            hint="Add that column to the table; or declare `exempt: REASON` if it cannot reveal the label.",
            place=f"dataset.{place}",
        )
