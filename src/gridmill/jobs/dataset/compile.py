"""Compiles the declaration of a dataset to one SQL query, and to requests for values of other rows.

This module has no side effects. The query itself reads the rows of the basis table one by one, and tables
that are joined without a time. The features of a row can use values of other rows only if these rows have a
time strictly before the time of the row. Windows, lags and as-of joins read other rows, so they become
requests in a plan (`WindowPlan`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gridmill.domain.dataset import AsOfJoin, Basis, DatasetSpec, Join, Label, Lag, Window
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.dataset.as_of import (
    aggregate_type,
    ask_feeds,
    in_place,
    label_keys,
    labels_source,
    lag_backs,
    window_overs,
)
from gridmill.jobs.dataset.columns import find_column, refuse_duplicates, refuse_split
from gridmill.jobs.dataset.joins import join_all
from gridmill.jobs.dataset.labels import (
    LabelStep,
    ask_label,
    clocked,
    has_time,
    label_availability,
    label_columns,
    label_steps,
    label_type,
)
from gridmill.jobs.dataset.splits import SplitBounds, dropped_column, split_column
from gridmill.jobs.dataset.window_plan import CHUNK, SortedRows, WindowPlan, is_alike
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import (
    AT,
    DROPPED,
    HIDDEN,
    LABEL_TIME,
    TIME,
    RowScope,
    quote_all,
    select,
    sql_text,
)

ALL = RowScope()
_NOT_KEPT = re.compile(r"\bBIT\b|TIME WITH TIME ZONE")
LABELLED = "labelled"
"""The name of the subquery to which tables are joined that need no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledQuery:
    """The SQL query of a dataset, and the columns of its result that are features, the entity, the time and
    the label.

    The query also returns the column `DROPPED`, which holds the reason if a row is dropped and is null
    otherwise.
    """

    sql: str
    columns: tuple[str, ...]
    features: tuple[str, ...]
    entity: tuple[str, ...] = ()
    time: str | None = None
    label: str | None = None
    steps: tuple[LabelStep, ...] = ()
    sorted: SortedRows | None = None
    """The query whose result is the sorted rows. If `sorted` is set, the main query runs on one chunk of the
    sorted rows at a time. If `sorted` is None, the main query reads the tables itself."""
    labels: SortedRows | None = None
    """The query for the labels of all rows, if windows or lags read labels. This query runs first."""

    @property
    def text(self) -> str:
        """Return the computations of the features as text for users."""
        if self.sorted is None:
            return self.sql
        descriptions = [f"--   {' '.join(line.split())}" for line in self.sorted.plan.describe()]
        plan_lines = [
            "-- computed beside the query, of rows known before (labels: of later ones):",
            *descriptions,
        ]
        return "\n".join(
            (
                *(plan_lines if descriptions else ()),
                f"-- the rows of {CHUNK}, in the order of {', '.join((*self.entity, str(self.time)))}:",
                f"{self.sorted.rows};",
                "-- and the query over them:",
                self.sql,
            )
        )


def compile_dataset(
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    *,
    used: Iterable[str] = (),
    bounds: SplitBounds | None = None,
    seen_until: datetime | None = None,
    timed: bool = False,
    scope: RowScope = ALL,
) -> CompiledQuery:
    """Return the query of a dataset, and its requests for values of other rows.

    `basis` is the declared basis, or a basis that reads the result of `sql`. `used` contains the columns
    that occur in feature expressions. `seen_until` is the time up to which the events of a label are known.
    If `timed` is true, the query also returns the time of each row and the time at which the label of the
    row is known. `scope` restricts the rows. Raises InputError for unknown or duplicate columns and wrong
    types.
    """
    types = tables[basis.table]
    dated = spec.label is not None and spec.label.known_at is not None
    spec = replace(spec, label=clocked(spec.label, basis))
    own = _own_features(basis, types, spec.label)
    steps = label_steps(spec.label)
    labels = tuple(step.name for step in steps) or ((spec.label.name,) if spec.label else ())
    read = _read_columns(spec, basis, types, own, used, bounds)
    rows, plan = _basis_rows(spec, basis, read, scope), WindowPlan()
    joined = join_all(plan, spec, basis, tables, LABELLED, scope)
    made = [*joined.names, *_ask_of_others(plan, spec, basis, tables, rows, scope)]
    ask_label(plan, spec.label, basis, tables)
    _refuse_hidden_by_label(spec, bounds)
    features = (*own, *made, *spec.features)
    columns = (*basis.entity, basis.time, *features, *labels, *(["split"] if bounds else []))
    hidden = [name for name in read if name not in columns and not (name in labels and _is_own(spec.label))]
    refuse_duplicates((*columns, *hidden, *HIDDEN))
    refuse_split(columns if bounds is None else ())
    for name in spec.required:
        find_column(name, dict.fromkeys((*columns, *hidden), ""), "the dataset", "required")
    hidden_times = [TIME, *([LABEL_TIME] if has_time(spec.label) else [])] if timed else []
    dropped = dropped_column(spec.label, bounds, types, seen_until, spec.required, dated=dated)
    stages = {
        LABELLED: select(["*"], label_columns(spec.label), quoted(CHUNK)),
        "joined": select([f"{LABELLED}.*"], joined.columns, LABELLED, joined.joins),
        "featured": select(["*"], _expressions(spec.features), "joined"),
    }
    sql = f"{_with(stages)}\n{_final((*columns, *hidden_times), bounds, dropped)}"
    sql = f'{sql}\nORDER BY "{AT}"' if joined.joins else sql
    rows_by_time = SortedRows(
        sql=sql,
        joins=bool(joined.joins),
        rows=rows,
        types=_chunk_types(types, read, spec.label, plan),
        entity=basis.entity,
        ties=tuple(quote_all(name for name in read if name not in (basis.time, *basis.entity))),
        plan=plan,
        again=tuple(name for name in basis.entity if name != basis.time and is_alike(types.get(name, ""))),
        time=basis.time if types.get(basis.time) == "TIMESTAMP" else "",
        after=scope.after,
    )
    return CompiledQuery(
        sql=sql,
        columns=columns,
        features=features,
        entity=basis.entity,
        time=basis.time,
        label=labels[0] if labels else None,
        steps=steps,
        sorted=rows_by_time,
        labels=_labels(spec, basis, tables, rows_by_time) if rows_by_time.looks_at_labels else None,
    )


def _labels(spec: DatasetSpec, basis: Basis, tables: Mapping[str, Types], rows: SortedRows) -> SortedRows:
    """Return a query over the same rows that returns only the label and the time at which the label is
    known."""
    assert spec.label is not None
    plan = WindowPlan()
    ask_label(plan, spec.label, basis, tables)
    stages = {LABELLED: select(["*"], label_columns(spec.label), quoted(CHUNK))}
    names = [*label_keys(spec, basis), LABEL_TIME, spec.label.name]
    sql = f"{_with(stages)}\n{select(quote_all(names), {}, LABELLED, indent='')}"
    read = {name: type_ for name, type_ in rows.types.items() if name not in rows.plan.types}
    return replace(rows, plan=plan, sql=sql, types={**read, **plan.types}, joins=False, after=None)


def _chunk_types(
    types: Types, read: Sequence[str], label: Label | None, plan: WindowPlan
) -> Mapping[str, str]:
    """Return the names and types of the columns of a chunk: the columns that the query reads and the values
    that it requests.

    If a requested value and a column of the query have the same name, the requested value replaces the
    column. Raises InputError for a column type that Arrow cannot store.
    """
    names = {name.lower() for name in plan.types}
    mine = {name: types[name] for name in read if name.lower() not in names}
    for name, type_ in mine.items():
        if _NOT_KEPT.search(type_):
            raise InputError(
                f"column {name!r} has type {type_}, which a table cannot store",
                hint=f"{quoted(name)}::VARCHAR converts it to text.",
                place="dataset",
            )
    times = dict.fromkeys((TIME, *label_availability(label)), "TIMESTAMP")
    return {**mine, **times, **plan.types, AT: "BIGINT"}


def _with(stages: Mapping[str, str]) -> str:
    return "WITH " + ",\n".join(f"{name} AS (\n{text}\n)" for name, text in stages.items())


def _ask_of_others(
    plan: WindowPlan,
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    rows: str,
    scope: RowScope,
) -> list[str]:
    """Add the requests for windows and lags to the plan, and return the names of the requested columns in
    order."""
    types, before = tables[basis.table], len(plan.types)
    _ask_own(plan, spec, basis, types)
    label = spec.label
    own = label is not None and label.is_own
    source = labels_source(select(["*"], label_columns(label), f"(\n{rows}\n)") if own else "")
    ask_feeds(plan, spec, basis, tables, (source, label_type(label, types)), scope)
    return list(plan.types)[before:]


def _ask_own(plan: WindowPlan, spec: DatasetSpec, basis: Basis, types: Types) -> None:
    """Add the request for values of other rows of the same entity to the plan."""
    for window in spec.windows:
        if in_place(window, basis, spec.label):
            kinds = [aggregate_type(window, aggregate, types, basis.table) for aggregate in window.aggregates]
            overs = window_overs(window)
            plan.name({over.name: over.type_of(kind) for over, kind in zip(overs, kinds, strict=True)})
            plan.aggregates += overs
    for lag in spec.lags:
        if in_place(lag, basis, spec.label):
            kind = find_column(lag.column, types, basis.table, "lags")
            backs = lag_backs(lag)
            plan.name({back.name: kind for back in backs})
            plan.lags += backs


def _own_features(basis: Basis, types: Types, label: Label | None) -> tuple[str, ...]:
    for name in (basis.time, *basis.entity, *basis.columns):
        find_column(name, types, basis.table, "basis")
    keys = {basis.time, *basis.entity, *(label.sources if label and label.is_own else ())}
    return tuple(name for name in basis.columns or types if name not in keys)


def _refuse_hidden_by_label(spec: DatasetSpec, bounds: SplitBounds | None) -> None:
    """Raise InputError if the label has the same name as a column of the basis table that the query
    needs."""
    if spec.label is None or spec.label.is_own:
        return
    keyed = {"joins.on": [name for join in spec.joins for name in join.on]}
    keyed["split.on"] = list(bounds.on) if bounds is not None else []
    for place, names in keyed.items():
        if spec.label.name.lower() in (name.lower() for name in names):
            raise InputError(
                f"{spec.label.name!r} is the name of both the label and a column in `on`",
                hint="Give the label another `name`.",
                place=f"dataset.{place}",
            )


def _is_own(label: Label | None) -> bool:
    return label is not None and label.is_own


def _read_columns(
    spec: DatasetSpec,
    basis: Basis,
    types: Types,
    own: Sequence[str],
    used: Iterable[str],
    bounds: SplitBounds | None,
) -> tuple[str, ...]:
    """Return the columns of the basis table that the query reads, in the order of the table. Rows with equal
    keys and times are sorted by these columns only."""
    named = {basis.time, *basis.entity, *own, *used, *spec.required}
    parts: tuple[Window | Lag, ...] = (*spec.windows, *spec.lags)
    named |= {part.column for part in parts if in_place(part, basis, spec.label)}
    keyed: tuple[Join | AsOfJoin | Window | Lag, ...] = (*spec.joins, *spec.asof_joins, *parts)
    named |= {column for part in keyed for column in part.on}
    named |= set(bounds.on) if bounds else set()
    if spec.label is not None:
        named |= set(spec.label.sources) if spec.label.table is None else set(spec.label.on)
    lower = {name.lower() for name in named}
    return tuple(name for name in types if name.lower() in lower)


def _basis_rows(spec: DatasetSpec, basis: Basis, read: Sequence[str], scope: RowScope) -> str:
    time = quoted(basis.time)
    columns = {TIME: f"{time}::TIMESTAMP", **label_availability(spec.label)}
    conditions = (f"{quoted(name)} IS NOT NULL" for name in (basis.time, *basis.entity))
    text = " AND ".join((*conditions, *scope.recent(time)))
    return select(quote_all(read), columns, quoted(basis.table), (f"WHERE {text}",))


def _expressions(features: Mapping[str, str]) -> Mapping[str, str]:
    return {name: f"({sql_text(expression)})" for name, expression in features.items()}


def _final(columns: Sequence[str], bounds: SplitBounds | None, dropped: str) -> str:
    made = {"split": split_column(bounds)} if bounds is not None else {}
    made[DROPPED] = dropped
    return select(quote_all(name for name in columns if name not in made), made, "featured", indent="")
