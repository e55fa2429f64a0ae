"""A dataset's declaration to one SQL query, as text: pure.

Nothing but rows strictly before a row's time reaches its features, beside the row itself and static tables.
Rows of an entity are numbered by time (`__row`; those at the same time by their values), and `__rank` is the
number of the first one at the same time: lags and windows of rows count back from there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gridmill.jobs.dataset.labels import label_columns, label_known, needs_upto
from gridmill.jobs.dataset.names import (
    Types,
    check_comparable,
    check_number,
    find_column,
    refuse_duplicates,
    span_name,
)
from gridmill.jobs.dataset.splits import Bounds, dropped_column, split_column
from gridmill.jobs.dataset.sqltext import (
    DROPPED,
    FLOATS,
    HIDDEN,
    RANK,
    ROW,
    TIME,
    UPTO,
    interval,
    partition,
    quote_all,
    select,
    sql_text,
)
from gridmill.jobs.engine import quoted
from gridmill.model.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Label, Lag, Window

_FUNCTIONS = {
    Aggregate.COUNT: "count({0})",
    Aggregate.SUM: "sum({0})",
    Aggregate.MEAN: "avg({0})",
    Aggregate.MIN: "min({0})",
    Aggregate.MAX: "max({0})",
    Aggregate.STD: "stddev_samp({0})",
    Aggregate.LAST: f'arg_max({{0}}, "{ROW}")',
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Columns that a step adds (name -> SQL) and, for joins, the text after FROM."""

    columns: Mapping[str, str]
    joins: tuple[str, ...] = ()


def compile_dataset(
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    *,
    used: Iterable[str] = (),
    bounds: Bounds | None = None,
) -> Compiled:
    """The query. `basis` is the declared one, or stands for the result of `sql`; `used` are the columns that
    feature expressions name. Raises InputError for unknown or doubled columns and wrong types.
    """
    types = tables[basis.table]
    own = _own_features(basis, types, spec.label)
    past = _past(spec, basis, types)
    joined = _joined(spec, basis, tables)
    label = spec.label.name if spec.label else None
    features = (*own, *joined.columns, *past.columns, *spec.features)
    columns = (
        *basis.entity,
        basis.time,
        *features,
        *([label] if label else []),
        *(["split"] if bounds else []),
    )
    read = _read_columns(spec, basis, types, own, used, bounds)
    hidden = [
        name
        for name in read
        if name not in columns and not (label == name and spec.label and spec.label.is_own)
    ]
    refuse_duplicates((*columns, *hidden, *HIDDEN))
    ahead = label_columns(spec.label, basis, types)
    text = "\n".join(
        (
            f"WITH basis AS (\n{_basis(basis, read, spec.label)}\n),",
            f"past AS (\n{select(['*'], {**past.columns, **ahead}, 'basis')}\n),",
            f"joined AS (\n{select(['past.*'], joined.columns, 'past', joined.joins)}\n),",
            f"featured AS (\n{select(['*'], _expressions(spec.features), 'joined')}\n)",
            _final(columns, spec.label, bounds, types),
            f"ORDER BY {', '.join(quote_all((*basis.entity, TIME, ROW)))}",
        )
    )
    return Compiled(
        sql=text, columns=columns, features=features, entity=basis.entity, time=basis.time, label=label
    )


def _own_features(basis: Basis, types: Types, label: Label | None) -> tuple[str, ...]:
    for name in (basis.time, *basis.entity, *basis.columns):
        find_column(name, types, basis.table, "basis")
    keys = {basis.time, *basis.entity, *(label.sources if label and label.is_own else ())}
    return tuple(name for name in basis.columns or types if name not in keys)


def _read_columns(
    spec: DatasetSpec,
    basis: Basis,
    types: Types,
    own: Sequence[str],
    used: Iterable[str],
    bounds: Bounds | None,
) -> tuple[str, ...]:
    """What is read of the basis table, in its order: no other column decides anything."""
    named = {basis.time, *basis.entity, *own, *used}
    named |= {window.column for window in spec.windows} | {lag.column for lag in spec.lags}
    named |= {column for join in spec.joins for column in join.on}
    named |= {column for join in spec.asof_joins for column in join.on}
    named |= set(spec.label.sources) if spec.label else set()
    named |= set(bounds.on) if bounds else set()
    lower = {name.lower() for name in named}
    return tuple(name for name in types if name.lower() in lower)


def _basis(basis: Basis, read: Sequence[str], label: Label | None) -> str:
    time = quoted(basis.time)
    ties = [quoted(name) for name in read if name not in (basis.time, *basis.entity)]
    by = partition(basis.entity)
    columns = {
        TIME: f"{time}::TIMESTAMP",
        ROW: f"row_number() OVER ({by}ORDER BY {', '.join([time, *ties])})",
        RANK: f"rank() OVER ({by}ORDER BY {time})",
    }
    if needs_upto(label):
        columns[UPTO] = f"count(*) OVER ({by}ORDER BY {time})"
    columns |= label_known(label)
    known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in (basis.time, *basis.entity))
    return select(quote_all(read), columns, quoted(basis.table), (f"WHERE {known}",))


def _past(spec: DatasetSpec, basis: Basis, types: Types) -> _Step:
    columns: dict[str, str] = {}
    for window in spec.windows:
        _add(columns, _window(window, basis, types))
    for lag in spec.lags:
        _add(columns, _lag(lag, basis, types))
    return _Step(columns=columns)


def _add(columns: dict[str, str], more: Iterable[tuple[str, str]]) -> None:
    for name, sql in more:
        refuse_duplicates((*columns, name))
        columns[name] = sql


def _window(window: Window, basis: Basis, types: Types) -> Iterator[tuple[str, str]]:
    type_ = find_column(window.column, types, basis.table, "windows")
    frame = _frame(window, basis)
    for aggregate in window.aggregates:
        value = _value(window.column, type_, aggregate, basis.table)
        name = f"{window.column}_{aggregate}_{span_name(window)}"
        yield name, f"{_FUNCTIONS[aggregate].format(value)} OVER ({partition(basis.entity)}{frame})"


def _value(column: str, type_: str, aggregate: Aggregate, table: str) -> str:
    if aggregate not in (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD):
        return quoted(column)
    check_number(column, type_, f"`{aggregate}`", table)
    return quoted(column) if type_ in FLOATS else f"{quoted(column)}::DOUBLE"


def _frame(window: Window, basis: Basis) -> str:
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
        yield f"{lag.column}_lag_{step}", f"lag({quoted(lag.column)}, {back}) {over}"


def _joined(spec: DatasetSpec, basis: Basis, tables: Mapping[str, Types]) -> _Step:
    columns: dict[str, str] = {}
    joins: list[str] = []
    for number, join in enumerate(spec.joins, start=1):
        alias, types = f"j{number}", tables[join.table]
        added = _added(join.columns, join.on, types, join.table, "joins")
        _add(columns, ((f"{join.prefix}{name}", f"{alias}.{quoted(name)}") for name in added))
        same = _same(join.on, basis, tables, join.table, alias, "joins")
        joins.append(f"LEFT JOIN {quoted(join.table)} AS {alias} ON {' AND '.join(same)}")
    for number, asof in enumerate(spec.asof_joins, start=1):
        alias = f"a{number}"
        added = _added(asof.columns, (*asof.on, asof.known_at), tables[asof.table], asof.table, "asof_joins")
        _add(columns, ((f"{asof.prefix}{name}", _within(asof, alias, name)) for name in added))
        same = _same(asof.on, basis, tables, asof.table, alias, "asof_joins")
        before = f'past."{TIME}" > {alias}."__known"'
        joins.append(
            f"ASOF LEFT JOIN (\n{_newest(asof, added)}\n) AS {alias} ON {' AND '.join((*same, before))}"
        )
    return _Step(columns=columns, joins=tuple(joins))


def _added(
    columns: Sequence[str], keys: Sequence[str], types: Types, table: str, field: str
) -> tuple[str, ...]:
    for name in columns:
        find_column(name, types, table, field)
    return tuple(columns) or tuple(name for name in types if name not in keys)


def _same(
    on: Sequence[str], basis: Basis, tables: Mapping[str, Types], table: str, alias: str, field: str
) -> list[str]:
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, field)
        right = find_column(name, tables[table], table, field)
        check_comparable(name, (basis.table, left), (table, right))
    return [f"past.{quoted(name)} = {alias}.{quoted(name)}" for name in on]


def _newest(asof: AsOfJoin, added: Sequence[str]) -> str:
    """One row per key and moment: of several known at once the one whose values are last in order."""
    keys = quote_all(asof.on)
    last = ", ".join(f"{quoted(name)} DESC" for name in added) or '"__known"'
    by = ", ".join((*keys, '"__known"'))
    columns = list(dict.fromkeys((*keys, *quote_all(added))))
    inner = f'SELECT *, ({sql_text(asof.known_at)})::TIMESTAMP AS "__known" FROM {quoted(asof.table)}'
    return "\n".join(
        (
            f"    SELECT {', '.join((*columns, chr(34) + '__known' + chr(34)))}",
            f"    FROM ({inner})",
            '    WHERE "__known" IS NOT NULL',
            f"    QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {last}) = 1",
        )
    )


def _within(asof: AsOfJoin, alias: str, name: str) -> str:
    value = f"{alias}.{quoted(name)}"
    if asof.within_seconds is None:
        return value
    return f'CASE WHEN {alias}."__known" >= past."{TIME}" - {interval(asof.within_seconds)} THEN {value} END'


def _expressions(features: Mapping[str, str]) -> Mapping[str, str]:
    return {name: f"({sql_text(expression)})" for name, expression in features.items()}


def _final(columns: Sequence[str], label: Label | None, bounds: Bounds | None, types: Types) -> str:
    made: dict[str, str] = {}
    if bounds is not None:
        made["split"] = split_column(bounds)
    made[DROPPED] = dropped_column(label, bounds, types)
    return select(quote_all(name for name in columns if name not in made), made, "featured", indent="")
