"""A dataset's declaration to one SQL query, as text: pure.

Nothing but rows strictly before a row's time reaches its features, beside the row itself and static tables.
Rows of an entity are numbered by time (`__row`; those at the same time by their values), and `__rank` is the
number of the first one at the same time: lags and windows of rows count back from there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gridmill.jobs.dataset.asked import CHUNK, Asked, Back, Over, Quick, is_alike, split_window
from gridmill.jobs.dataset.feeds import (
    FUNCTIONS,
    PAST,
    Fed,
    event_label,
    find_feeds,
    found_newest,
    found_windows,
    in_place,
    merge,
    newest_joins,
    time_values,
    time_windows,
    window_name,
)
from gridmill.jobs.dataset.joins import Joined, join_all
from gridmill.jobs.dataset.labels import (
    Step,
    clocked,
    has_time,
    label_columns,
    label_known,
    label_steps,
    label_type,
    needs_upto,
)
from gridmill.jobs.dataset.names import Types, check_number, find_column, refuse_duplicates, refuse_split
from gridmill.jobs.dataset.splits import Bounds, dropped_column, split_column
from gridmill.jobs.dataset.sqltext import (
    AT,
    DROPPED,
    FLOATS,
    HIDDEN,
    LABEL_TIME,
    NEXT,
    RANK,
    ROW,
    TIME,
    UPTO,
    Scope,
    interval,
    moment,
    partition,
    quote_all,
    select,
    sql_text,
)
from gridmill.jobs.engine import quoted
from gridmill.model.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Join, Label, Lag, Window

ALL = Scope()
BEFORE = "__before"
"""Stands for the stage that joins are made to, until it is known which one is the last."""


LABELS = "/* the labels of all rows */"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The query and the parts its columns play. It gives the columns and `DROPPED`: why a row is left out,
    or null. Rows are in the order of entity and time."""

    sql: str
    columns: tuple[str, ...]
    features: tuple[str, ...]
    entity: tuple[str, ...] = ()
    time: str | None = None
    label: str | None = None
    steps: tuple[Step, ...] = ()
    quick: Quick | None = None
    """The quicker way to the same rows, where something can be found beside the query."""


@dataclass(slots=True)
class _Stages:
    """The query's parts, each a table made from the one before, and the features that they make."""

    texts: list[tuple[str, str]] = field(default_factory=list)
    features: list[str] = field(default_factory=list)

    @property
    def last(self) -> str:
        return self.texts[-1][0]

    def add(self, name: str, text: str, features: Iterable[str] = ()) -> None:
        self.texts.append((name, text))
        for feature in features:
            refuse_duplicates((*self.features, feature))
            self.features.append(feature)

    @property
    def text(self) -> str:
        return "WITH " + ",\n".join(f"{name} AS (\n{text}\n)" for name, text in self.texts)


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
    """The query. `basis` is the declared one, or stands for the result of `sql`; `used` are the columns that
    feature expressions name; `seen_until` is the latest moment that the events of a label tell of.

    `timed`: it also gives when each row is, and when its label is known. `scope` bounds the rows.
    Raises InputError for unknown or doubled columns and wrong types.
    """
    types = tables[basis.table]
    dated = spec.label is not None and spec.label.known_at is not None
    spec = replace(spec, label=clocked(spec.label, basis))
    own = _own_features(basis, types, spec.label)
    steps = label_steps(spec.label)
    labels = tuple(step.name for step in steps) or ((spec.label.name,) if spec.label else ())
    read = _read_columns(spec, basis, types, own, used, bounds)
    stages = _stages(spec, basis, tables, read, scope)
    features = (*own, *stages.features, *spec.features)
    columns = (*basis.entity, basis.time, *features, *labels, *(["split"] if bounds else []))
    hidden = [name for name in read if name not in columns and not (name in labels and _is_own(spec.label))]
    refuse_duplicates((*columns, *hidden, *HIDDEN))
    refuse_split(columns if bounds is None else ())
    for name in spec.required:
        find_column(name, dict.fromkeys((*columns, *hidden), ""), "the dataset", "required")
    hidden_times = [TIME, *([LABEL_TIME] if has_time(spec.label) else [])] if timed else []
    dropped = dropped_column(spec.label, bounds, types, seen_until, spec.required, dated=dated)
    final = _final((*columns, *hidden_times), steps, bounds, dropped)
    order = [ROW] if _is_numbered(spec, basis) else _ties(basis, read)
    return Compiled(
        sql=f"{stages.text}\n{final}\nORDER BY {', '.join(quote_all((*basis.entity, TIME, *order)))}",
        columns=columns,
        features=features,
        entity=basis.entity,
        time=basis.time,
        label=labels[0] if labels else None,
        steps=steps,
        quick=_quick(spec, basis, tables, read, scope, final),
    )


def _quick(
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    read: Sequence[str],
    scope: Scope,
    final: str,
) -> Quick | None:
    asked, types = Asked(), tables[basis.table]
    stages = _stages(spec, basis, tables, read, replace(scope, number=0, buckets=1), asked)
    if not asked:
        return None
    text = f"{stages.text}\n{final}"
    if LABELS in text:
        return None  # each chunk would find the labels of all rows again
    moves = " OVER (" in stages.text or " JOIN " in stages.text
    return Quick(
        sql=f'{text}\nORDER BY "{AT}"' if moves else text,
        moves=moves,
        rows=_basis_rows(spec, basis, read, replace(scope, number=0, buckets=1), {}),
        entity=basis.entity,
        ties=tuple(quote_all(_ties(basis, read))),
        asked=asked,
        again=tuple(name for name in basis.entity if name != basis.time and is_alike(types.get(name, ""))),
        time=basis.time if types.get(basis.time) == "TIMESTAMP" else "",
        after=None if moves else scope.after,
    )


def _stages(
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    read: Sequence[str],
    scope: Scope,
    asked: Asked | None = None,
) -> _Stages:
    """The parts of the query; less those that are `asked` of another, where that is given."""
    types, stages = tables[basis.table], _Stages()
    past = _past(spec, basis, types)
    left = past
    if asked is None:
        stages.add("basis", _basis(spec, basis, read, scope))
    else:
        stages.add("basis", select(["*"], {}, quoted(CHUNK)))
        _ask_own(asked, spec, basis, types)
        left = {name: sql for name, sql in past.items() if name not in asked.own}
    stages.add(PAST, select(["*"], {**left, **label_columns(spec.label, basis, types)}, "basis"))
    if scope.after is not None:
        stages.add("fresh", select(["*"], {}, PAST, (f'WHERE "{TIME}" > {moment(scope.after)}',)))
    joined = join_all(spec, basis, tables, BEFORE, scope, asked)
    before = [*joined.columns, *past]
    if spec.label is not None and spec.label.table is not None:
        feed, made = event_label(spec.label, basis, tables)
        values = (spec.label.column,) if spec.label.column else ()
        stages.add("labelled", merge(stages.last, feed, values, made, event=True))
    late: list[str] = []
    feeds = find_feeds(spec, basis, tables, label_type(spec.label, types), scope)
    if asked is not None:
        feeds = tuple(_of_all_rows(fed, spec, basis, types, read, scope) for fed in feeds)
    for number, fed in enumerate(feeds, start=1):
        late += _add_feed(stages, joined, fed, number, asked)
    for name in (*before, *late):
        refuse_duplicates((*stages.features, name))
        stages.features.append(name)
    columns = {name: sql for name, sql in joined.columns.items() if sql}
    text = select([f"{stages.last}.*"], columns, stages.last, joined.joins)
    stages.add("joined", text.replace(BEFORE, stages.last))
    stages.add("featured", select(["*"], _expressions(spec.features), "joined"))
    return stages


def _of_all_rows(
    fed: Fed, spec: DatasetSpec, basis: Basis, types: Types, read: Sequence[str], scope: Scope
) -> Fed:
    """The feed of labels by another key than the entity with the labels of all rows: a chunk has those of its
    own entities only."""
    if fed.feed.source != PAST or set(basis.entity) <= set(fed.feed.on):
        return fed
    rows = _basis(spec, basis, read, scope)
    labels = select(["*"], label_columns(spec.label, basis, types), "basis")
    text = f"(\n{LABELS}\nWITH basis AS (\n{rows}\n)\n{labels}\n)"
    return replace(fed, feed=replace(fed.feed, source=text))


def _add_feed(stages: _Stages, joined: Joined, fed: Fed, number: int, asked: Asked | None) -> list[str]:
    """The features that the feed makes, in their order."""
    names = list(time_windows(fed))
    if asked is not None:
        theirs, fed = found_windows(fed)
        asked.theirs += [theirs] if theirs else []
    if windows := time_windows(fed):
        stages.add(f"fed{number}", merge(stages.last, fed.feed, time_values(fed), windows))
    found = found_newest(fed) if asked is not None else ()
    for newest in newest_joins(fed, number, BEFORE):
        if found:
            joined.add(dict.fromkeys(newest.columns, ""))
        else:
            joined.add(newest.columns, newest.join)
        names += newest.columns
    if asked is not None:
        asked.theirs += found
    return names


def _ask_own(asked: Asked, spec: DatasetSpec, basis: Basis, types: Types) -> None:
    """What the rows of the same entity make, as far as it need not be left to the query."""
    for window in spec.windows:
        if in_place(window, basis, spec.label):
            found, _ = split_window(window, types)
            asked.overs += [
                Over(
                    name=window_name(window, aggregate),
                    aggregate=aggregate,
                    column=window.column,
                    seconds=window.span_seconds,
                    rows=window.span_rows,
                )
                for aggregate in found.aggregates
            ]
    for lag in spec.lags:
        if in_place(lag, basis, spec.label):
            asked.backs += [
                Back(name=f"{lag.prefix}{lag.column}_lag_{step}", column=lag.column, step=step)
                for step in lag.steps
            ]


def _own_features(basis: Basis, types: Types, label: Label | None) -> tuple[str, ...]:
    for name in (basis.time, *basis.entity, *basis.columns):
        find_column(name, types, basis.table, "basis")
    keys = {basis.time, *basis.entity, *(label.sources if label and label.is_own else ())}
    return tuple(name for name in basis.columns or types if name not in keys)


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


def _basis(spec: DatasetSpec, basis: Basis, read: Sequence[str], scope: Scope) -> str:
    time = quoted(basis.time)
    by = partition(basis.entity)
    columns: dict[str, str] = {}
    if _is_numbered(spec, basis):
        order = ", ".join([time, *quote_all(_ties(basis, read))])
        columns[ROW] = f"row_number() OVER ({by}ORDER BY {order})"
        columns[RANK] = f"rank() OVER ({by}ORDER BY {time})"
    if needs_upto(spec.label):
        columns[UPTO] = f"count(*) OVER ({by}ORDER BY {time})"
    return _basis_rows(spec, basis, read, scope, columns)


def _basis_rows(
    spec: DatasetSpec, basis: Basis, read: Sequence[str], scope: Scope, more: Mapping[str, str]
) -> str:
    time = quoted(basis.time)
    columns = {TIME: f"{time}::TIMESTAMP", **more, **label_known(spec.label)}
    there = (f"{quoted(name)} IS NOT NULL" for name in (basis.time, *basis.entity))
    known = " AND ".join((*there, *scope.bucket(basis.entity), *scope.recent(time)))
    return select(quote_all(read), columns, quoted(basis.table), (f"WHERE {known}",))


def _ties(basis: Basis, read: Sequence[str]) -> list[str]:
    """What orders the rows of an entity at the same time."""
    return [name for name in read if name not in (basis.time, *basis.entity)]


def _is_numbered(spec: DatasetSpec, basis: Basis) -> bool:
    """Whether something counts rows, or asks for the last one; else a sort of all rows is saved."""
    if spec.label is not None and not spec.label.is_own and spec.label.table is None:
        return True
    mine = [window for window in spec.windows if in_place(window, basis, spec.label)]
    counted = any(w.span_rows is not None or Aggregate.LAST in w.aggregates for w in mine)
    return counted or any(in_place(lag, basis, spec.label) for lag in spec.lags)


def _past(spec: DatasetSpec, basis: Basis, types: Types) -> dict[str, str]:
    """Windows and lags over the rows of the same entity, known with their time."""
    columns: dict[str, str] = {}
    windows = (
        _window(window, basis, types) for window in spec.windows if in_place(window, basis, spec.label)
    )
    lags = (_lag(lag, basis, types) for lag in spec.lags if in_place(lag, basis, spec.label))
    for made in (*windows, *lags):
        for name, sql in made:
            refuse_duplicates((*columns, name))
            columns[name] = sql
    return columns


def _window(window: Window, basis: Basis, types: Types) -> Iterator[tuple[str, str]]:
    type_ = find_column(window.column, types, basis.table, "windows")
    frame = _frame(window)
    for aggregate in window.aggregates:
        value = _value(window.column, type_, aggregate, basis.table)
        over = f"OVER ({partition(basis.entity)}{frame})"
        function = FUNCTIONS[aggregate].format(value, f'"{ROW}"')
        sql = f"{function} {over}"
        if aggregate == Aggregate.MEAN and {Aggregate.SUM, Aggregate.COUNT} <= set(window.aggregates):
            sql = f"sum({value}) {over} / nullif(count({quoted(window.column)}) {over}, 0)"  # computed once
        yield window_name(window, aggregate), sql


def _value(column: str, type_: str, aggregate: Aggregate, table: str) -> str:
    if aggregate not in (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD):
        return quoted(column)
    check_number(column, type_, f"`{aggregate}`", table)
    return quoted(column) if type_ in FLOATS else f"{quoted(column)}::DOUBLE"


def _frame(window: Window) -> str:
    if window.span_seconds is not None:
        span = interval(window.span_seconds)
        return f'ORDER BY "{TIME}" RANGE BETWEEN {span} PRECEDING AND {interval(1e-6)} PRECEDING'
    at = f'"{ROW}" - "{RANK}"'
    return f'ORDER BY "{ROW}" ROWS BETWEEN ({window.span_rows} + {at}) PRECEDING AND (1 + {at}) PRECEDING'


def _lag(lag: Lag, basis: Basis, types: Types) -> Iterator[tuple[str, str]]:
    find_column(lag.column, types, basis.table, "lags")
    for step in lag.steps:
        back = f'{step} + "{ROW}" - "{RANK}"'
        over = f'OVER ({partition(basis.entity)}ORDER BY "{ROW}")'
        yield f"{lag.prefix}{lag.column}_lag_{step}", f"lag({quoted(lag.column)}, {back}) {over}"


def _expressions(features: Mapping[str, str]) -> Mapping[str, str]:
    return {name: f"({sql_text(expression)})" for name, expression in features.items()}


def _final(columns: Sequence[str], steps: Sequence[Step], bounds: Bounds | None, dropped: str) -> str:
    made = {step.name: f'"{NEXT}"[{step.number}]' for step in steps}
    if bounds is not None:
        made["split"] = split_column(bounds)
    made[DROPPED] = dropped
    return select(quote_all(name for name in columns if name not in made), made, "featured", indent="")
