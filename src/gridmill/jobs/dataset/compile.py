"""Compiles a dataset's declaration to one SQL query and to requests for values of other rows. Pure.

The query sees one row at a time and static tables. Besides these, only rows strictly before a row's time
reach its features: `asked` has the windows, lags and as-of joins.
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
    Step,
    ask_label,
    clocked,
    has_time,
    label_columns,
    label_known,
    label_steps,
    label_type,
)
from gridmill.jobs.dataset.splits import Bounds, dropped_column, split_column
from gridmill.jobs.dataset.window_plan import CHUNK, Asked, Sorted, is_alike
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import (
    AT,
    DROPPED,
    HIDDEN,
    LABEL_TIME,
    TIME,
    Scope,
    quote_all,
    select,
    sql_text,
)

ALL = Scope()
_NOT_KEPT = re.compile(r"\bBIT\b|TIME WITH TIME ZONE")
LABELLED = "labelled"
"""The stage of the query to which static tables are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The query and the parts its columns play. It gives the columns and `DROPPED`: why a row is left out,
    or null."""

    sql: str
    columns: tuple[str, ...]
    features: tuple[str, ...]
    entity: tuple[str, ...] = ()
    time: str | None = None
    label: str | None = None
    steps: tuple[Step, ...] = ()
    sorted: Sorted | None = None
    """The rows whose chunks the query is run on; None: it reads the tables itself."""
    labels: Sorted | None = None
    """What makes the labels of all rows, where windows or lags look at them; run before."""

    @property
    def text(self) -> str:
        """What is computed, for people."""
        if self.sorted is None:
            return self.sql
        told = [f"--   {' '.join(line.split())}" for line in self.sorted.asked.describe()]
        beside = ["-- computed beside the query, of rows known before (labels: of later ones):", *told]
        return "\n".join(
            (
                *(beside if told else ()),
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
    bounds: Bounds | None = None,
    seen_until: datetime | None = None,
    timed: bool = False,
    scope: Scope = ALL,
) -> Compiled:
    """The query and what is asked beside it. `basis` is the declared one, or stands for the result of `sql`;
    `used` are the columns that feature expressions name; `seen_until` is the latest moment that the events of
    a label tell of.

    `timed`: it also gives when each row is, and when its label is known. `scope` bounds the rows. Raises
    InputError for unknown or doubled columns and wrong types.
    """
    types = tables[basis.table]
    dated = spec.label is not None and spec.label.known_at is not None
    spec = replace(spec, label=clocked(spec.label, basis))
    own = _own_features(basis, types, spec.label)
    steps = label_steps(spec.label)
    labels = tuple(step.name for step in steps) or ((spec.label.name,) if spec.label else ())
    read = _read_columns(spec, basis, types, own, used, bounds)
    rows, asked = _basis_rows(spec, basis, read, scope), Asked()
    joined = join_all(asked, spec, basis, tables, LABELLED, scope)
    made = [*joined.names, *_ask_of_others(asked, spec, basis, tables, rows, scope)]
    ask_label(asked, spec.label, basis, tables)
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
    rows_by_time = Sorted(
        sql=sql,
        joins=bool(joined.joins),
        rows=rows,
        types=_chunk_types(types, read, spec.label, asked),
        entity=basis.entity,
        ties=tuple(quote_all(name for name in read if name not in (basis.time, *basis.entity))),
        asked=asked,
        again=tuple(name for name in basis.entity if name != basis.time and is_alike(types.get(name, ""))),
        time=basis.time if types.get(basis.time) == "TIMESTAMP" else "",
        after=scope.after,
    )
    return Compiled(
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


def _labels(spec: DatasetSpec, basis: Basis, tables: Mapping[str, Types], rows: Sorted) -> Sorted:
    """The same rows, of which only the label is asked and when it is known."""
    assert spec.label is not None
    asked = Asked()
    ask_label(asked, spec.label, basis, tables)
    stages = {LABELLED: select(["*"], label_columns(spec.label), quoted(CHUNK))}
    names = [*label_keys(spec, basis), LABEL_TIME, spec.label.name]
    sql = f"{_with(stages)}\n{select(quote_all(names), {}, LABELLED, indent='')}"
    read = {name: type_ for name, type_ in rows.types.items() if name not in rows.asked.types}
    return replace(rows, asked=asked, sql=sql, types={**read, **asked.types}, joins=False, after=None)


def _chunk_types(types: Types, read: Sequence[str], label: Label | None, asked: Asked) -> Mapping[str, str]:
    """The columns of a chunk: what is read, where what is found does not take its place, and what is found.
    Raises InputError for a type that Arrow does not keep."""
    found = {name.lower() for name in asked.types}
    mine = {name: types[name] for name in read if name.lower() not in found}
    for name, type_ in mine.items():
        if _NOT_KEPT.search(type_):
            raise InputError(
                f"column {name!r} is {type_}, which no table keeps",
                hint=f"{quoted(name)}::VARCHAR makes a text of it.",
                place="dataset",
            )
    times = dict.fromkeys((TIME, *label_known(label)), "TIMESTAMP")
    return {**mine, **times, **asked.types, AT: "BIGINT"}


def _with(stages: Mapping[str, str]) -> str:
    return "WITH " + ",\n".join(f"{name} AS (\n{text}\n)" for name, text in stages.items())


def _ask_of_others(
    asked: Asked,
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    rows: str,
    scope: Scope,
) -> list[str]:
    """Ask for windows and lags; their names in order."""
    types, before = tables[basis.table], len(asked.types)
    _ask_own(asked, spec, basis, types)
    label = spec.label
    own = label is not None and label.is_own
    source = labels_source(select(["*"], label_columns(label), f"(\n{rows}\n)") if own else "")
    ask_feeds(asked, spec, basis, tables, (source, label_type(label, types)), scope)
    return list(asked.types)[before:]


def _ask_own(asked: Asked, spec: DatasetSpec, basis: Basis, types: Types) -> None:
    """What the rows of the same entity make."""
    for window in spec.windows:
        if in_place(window, basis, spec.label):
            kinds = [aggregate_type(window, one, types, basis.table) for one in window.aggregates]
            overs = window_overs(window)
            asked.name({over.name: over.type_of(kind) for over, kind in zip(overs, kinds, strict=True)})
            asked.overs += overs
    for lag in spec.lags:
        if in_place(lag, basis, spec.label):
            kind = find_column(lag.column, types, basis.table, "lags")
            backs = lag_backs(lag)
            asked.name({back.name: kind for back in backs})
            asked.backs += backs


def _own_features(basis: Basis, types: Types, label: Label | None) -> tuple[str, ...]:
    for name in (basis.time, *basis.entity, *basis.columns):
        find_column(name, types, basis.table, "basis")
    keys = {basis.time, *basis.entity, *(label.sources if label and label.is_own else ())}
    return tuple(name for name in basis.columns or types if name not in keys)


def _refuse_hidden_by_label(spec: DatasetSpec, bounds: Bounds | None) -> None:
    """Raise InputError where the query would take the label for the row's own column of the same name."""
    if spec.label is None or spec.label.is_own:
        return
    keyed = {"joins.on": [name for join in spec.joins for name in join.on]}
    keyed["split.on"] = list(bounds.on) if bounds is not None else []
    for place, names in keyed.items():
        if spec.label.name.lower() in (name.lower() for name in names):
            raise InputError(
                f"{spec.label.name!r} is the name of the label, and of the column that `on` names",
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
    bounds: Bounds | None,
) -> tuple[str, ...]:
    """What is read of the basis table, in its order: no other column decides anything."""
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


def _basis_rows(spec: DatasetSpec, basis: Basis, read: Sequence[str], scope: Scope) -> str:
    time = quoted(basis.time)
    columns = {TIME: f"{time}::TIMESTAMP", **label_known(spec.label)}
    there = (f"{quoted(name)} IS NOT NULL" for name in (basis.time, *basis.entity))
    known = " AND ".join((*there, *scope.recent(time)))
    return select(quote_all(read), columns, quoted(basis.table), (f"WHERE {known}",))


def _expressions(features: Mapping[str, str]) -> Mapping[str, str]:
    return {name: f"({sql_text(expression)})" for name, expression in features.items()}


def _final(columns: Sequence[str], bounds: Bounds | None, dropped: str) -> str:
    made = {"split": split_column(bounds)} if bounds is not None else {}
    made[DROPPED] = dropped
    return select(quote_all(name for name in columns if name not in made), made, "featured", indent="")
