"""Windows and lags over rows that become known at a time of their own: another table's, or the basis's. Pure.

A feed is one table with one `known_at` and one set of keys. Windows of time run over its rows and the
dataset's rows together, sorted by when each is known; windows of rows and lags are computed beside each
row of the feed, and the newest one known is joined.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gridmill.jobs.dataset.asked import Newest as Found
from gridmill.jobs.dataset.asked import Over, Theirs, split_window
from gridmill.jobs.dataset.names import Types, check_comparable, check_number, find_column, show_span
from gridmill.jobs.dataset.sqltext import (
    FLOATS,
    LABEL_TIME,
    TIME,
    Scope,
    interval,
    partition,
    quote_all,
    select,
    sql_text,
)
from gridmill.jobs.engine import quoted
from gridmill.model.dataset import Aggregate, Basis, DatasetSpec, Label, Lag, Outcome, Window

KNOWN, NUMBER, MINE = "__known", "__number", "__mine"
PAST = "past"
"""The stage that has the labels of earlier rows."""
FUNCTIONS = {
    Aggregate.COUNT: "count({0})",
    Aggregate.SUM: "sum({0})",
    Aggregate.MEAN: "avg({0})",
    Aggregate.MIN: "min({0})",
    Aggregate.MAX: "max({0})",
    Aggregate.STD: "stddev_samp({0})",
    Aggregate.LAST: "arg_max({0}, {1})",
    Aggregate.DISTINCT: "count(DISTINCT {0})",
}
ZERO = (Aggregate.COUNT, Aggregate.DISTINCT)
"""What is 0 where there is nothing to count."""
_OUTCOMES = {
    Outcome.ANY: 'count("__event") {0} > 0',
    Outcome.COUNT: 'count("__event") {0}',
    Outcome.SUM: "coalesce(sum({1}) {0}, 0)",
    Outcome.MEAN: "avg({1}) {0}",
    Outcome.MIN: "min({1}) {0}",
    Outcome.MAX: "max({1}) {0}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Rows of `source` (SQL after FROM), known at `known_at` (SQL), with keys `on`; their columns' types.

    `table` is how errors call it; `where` are conditions for the rows that can matter.
    """

    table: str
    source: str
    known_at: str
    on: tuple[str, ...]
    types: Types
    where: tuple[str, ...] = ()


@dataclass(slots=True)
class Fed:
    """What is asked of one feed."""

    feed: Feed
    windows: list[Window] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)


def in_place(part: Window | Lag, basis: Basis, label: Label | None) -> bool:
    """Whether the part looks at the basis rows of the same entity, known with their time."""
    if is_of_label(part, basis, label) or (isinstance(part, Lag) and part.back_seconds):
        return False
    same_table = part.table in (None, basis.table)
    known = part.known_at or (basis.known_at if same_table else None) or (basis.time if same_table else None)
    return same_table and (part.on or basis.entity) == basis.entity and known == basis.time


def is_of_label(part: Window | Lag, basis: Basis, label: Label | None) -> bool:
    """Whether the part looks at earlier labels: by their name, or at a row's own label that is known late."""
    if label is None or part.table not in (None, basis.table):
        return False
    if label.is_own and part.column in label.sources:
        later = label.delay_seconds is not None or label.known_at not in (None, basis.known_at)
        return later and part.known_at is None
    return part.column == label.name


def find_feeds(
    spec: DatasetSpec, basis: Basis, tables: Mapping[str, Types], label_type: str, scope: Scope
) -> tuple[Fed, ...]:
    """What is asked of each feed, in the order of the declaration. Raises InputError."""
    found: dict[tuple[str, str, tuple[str, ...]], Fed] = {}
    parts: tuple[Window | Lag, ...] = (*spec.windows, *spec.lags)
    for part in parts:
        if in_place(part, basis, spec.label):
            continue
        feed = _feed(part, spec.label, basis, tables, label_type)
        feed = replace(feed, where=_where(feed, basis, tables, scope))
        fed = found.setdefault((feed.source, feed.known_at, feed.on), Fed(feed=feed))
        if isinstance(part, Window):
            fed.windows.append(part)
        else:
            fed.lags.append(part)
    return tuple(found.values())


def _where(feed: Feed, basis: Basis, tables: Mapping[str, Types], scope: Scope) -> tuple[str, ...]:
    """The feed's rows in the bucket, where it has the basis's entities, and those late enough to be seen."""
    types = tables[basis.table]
    same = feed.on == basis.entity and all(types[name] == feed.types[name] for name in feed.on)
    return (*(scope.bucket(feed.on) if same else ()), *scope.recent(feed.known_at))


def _feed(
    part: Window | Lag, label: Label | None, basis: Basis, tables: Mapping[str, Types], label_type: str
) -> Feed:
    on = part.on or basis.entity
    field_ = "windows" if isinstance(part, Window) else "lags"
    if label is not None and is_of_label(part, basis, label):
        types = {**tables[basis.table], label.name: label_type}
        return Feed(table="labels", source=PAST, known_at=f'"{LABEL_TIME}"', on=on, types=types)
    table = part.table or basis.table
    known = part.known_at or basis.known_at or basis.time
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, field_)
        check_comparable(name, (basis.table, left), (table, find_column(name, tables[table], table, field_)))
    return Feed(
        table=table,
        source=quoted(table),
        known_at=f"({sql_text(known)})::TIMESTAMP",
        on=on,
        types=tables[table],
    )


# windows of time: the feed's rows and the dataset's rows in one sequence


def time_windows(fed: Fed) -> Mapping[str, str]:
    """The features that windows of time make, as SQL over `__x_COLUMN`."""
    by = partition(_keys(fed.feed.on))
    columns: dict[str, str] = {}
    for window in fed.windows:
        if window.span_seconds is None:
            continue
        span = interval(window.span_seconds)
        frame = f'ORDER BY "{TIME}" RANGE BETWEEN {span} PRECEDING AND {interval(1e-6)} PRECEDING'
        for name, aggregate, value in _aggregated(window, fed.feed, "__x_"):
            columns[name] = f"{FUNCTIONS[aggregate].format(value, quoted(NUMBER))} OVER ({by}{frame})"
    return columns


def merge(
    before: str, feed: Feed, values: Sequence[str], made: Mapping[str, str], *, event: bool = False
) -> str:
    """`before` with the columns `made` over its rows and the feed's, which have `values` as `__x_...`."""
    keys = {key: quoted(name) for key, name in zip(_keys(feed.on), feed.on, strict=True)}
    mine = select(["*"], {**keys, MINE: "true"}, before, indent="        ")
    theirs = {f"__x_{name}": quoted(name) for name in values} | ({"__event": "1"} if event else {})
    other = select(
        [f'"{KNOWN}" AS "{TIME}", "{NUMBER}"'],
        {**keys, **theirs},
        f"(\n{_numbered(feed, values)}\n        )",
        indent="        ",
    )
    every = select(["*"], made, f"(\n{mine}\n        UNION ALL BY NAME\n{other}\n    )")
    hidden = ", ".join(quote_all((*_keys(feed.on), MINE, NUMBER, *theirs)))
    return f'    SELECT * EXCLUDE ({hidden})\n    FROM (\n{every}\n    )\n    WHERE "{MINE}"'


def _numbered(feed: Feed, values: Sequence[str]) -> str:
    """The feed's rows in the order in which they are known; those known at once by their values."""
    order = ", ".join((feed.known_at, *quote_all(values)))
    number = f"row_number() OVER ({partition(feed.on)}ORDER BY {order})"
    return _known_rows(feed, values, {NUMBER: number})


def _known_rows(feed: Feed, values: Sequence[str], more: Mapping[str, str] | None = None) -> str:
    there = (f"{sql} IS NOT NULL" for sql in (feed.known_at, *quote_all(feed.on)))
    known = " AND ".join((*there, *feed.where))
    listed = quote_all(dict.fromkeys((*feed.on, *values)))
    return select(
        listed or ["1"],
        {KNOWN: feed.known_at, **(more or {})},
        feed.source,
        (f"WHERE {known}",),
        "            ",
    )


def time_values(fed: Fed) -> tuple[str, ...]:
    """The feed's columns that its windows of time aggregate."""
    return tuple(dict.fromkeys(w.column for w in fed.windows if w.span_seconds is not None))


def _keys(on: Sequence[str]) -> list[str]:
    return [f"__key{number}" for number in range(1, len(on) + 1)]


def _aggregated(window: Window, feed: Feed, prefix: str = "") -> Iterator[tuple[str, Aggregate, str]]:
    """Of each aggregate the feature's name and the value that is aggregated."""
    kind = find_column(window.column, feed.types, feed.table, "windows")
    for aggregate in window.aggregates:
        value = quoted(f"{prefix}{window.column}")
        if aggregate in (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD):
            check_number(window.column, kind, f"`{aggregate}`", feed.table)
            value = value if kind in FLOATS else f"{value}::DOUBLE"
        yield window_name(window, aggregate), aggregate, value


def window_name(window: Window, aggregate: Aggregate) -> str:
    """`temp_mean_1d`."""
    rows = window.span_rows
    span = f"{rows}rows" if rows is not None else show_span(window.span_seconds or 0)
    return f"{window.prefix}{window.column}_{aggregate}_{span}"


# windows of rows, and lags: computed beside the feed's rows, the newest known one joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """A join of the newest row of a feed, and the columns it adds."""

    columns: Mapping[str, str]
    join: str


def newest_joins(fed: Fed, number: int, before: str) -> Iterator[Newest]:
    """The as-of joins for windows of rows and lags by rows, and one for each lag by time."""
    rows = _beside(fed)
    if rows:
        alias = f"f{number}"
        columns = {name: _zeroed(name, alias, fed) for name in rows}
        yield Newest(columns=columns, join=_join(fed.feed, rows, alias, before, f'{before}."{TIME}" >'))
    for at, (back, named) in enumerate(_by_time(fed), start=1):
        alias = f"f{number}_{at}"
        than = f'{before}."{TIME}" - {interval(back)} >='
        columns = {name: f"{alias}.{quoted(name)}" for name in named}
        yield Newest(columns=columns, join=_join(fed.feed, named, alias, before, than))


def _by_time(fed: Fed) -> Iterator[tuple[float, Mapping[str, str]]]:
    """The features of each lag by time, as SQL over the feed's rows. Raises InputError."""
    for lag in fed.lags:
        find_column(lag.column, fed.feed.types, fed.feed.table, "lags")
    for back in dict.fromkeys(back for lag in fed.lags for back in lag.back_seconds):
        yield (
            back,
            {lag_name(lag, back): quoted(lag.column) for lag in fed.lags if back in lag.back_seconds},
        )


def _beside(fed: Fed) -> dict[str, str]:
    by = partition(fed.feed.on)
    columns: dict[str, str] = {}
    for window in fed.windows:
        if window.span_rows is not None:
            frame = f'ORDER BY "{NUMBER}" ROWS BETWEEN {window.span_rows - 1} PRECEDING AND CURRENT ROW'
            for name, aggregate, value in _aggregated(window, fed.feed):
                columns[name] = f"{FUNCTIONS[aggregate].format(value, quoted(NUMBER))} OVER ({by}{frame})"
    for lag in fed.lags:
        find_column(lag.column, fed.feed.types, fed.feed.table, "lags")
        for step in lag.steps:
            over = f'OVER ({by}ORDER BY "{NUMBER}")'
            columns[f"{lag.prefix}{lag.column}_lag_{step}"] = f"lag({quoted(lag.column)}, {step - 1}) {over}"
    return columns


def lag_name(lag: Lag, back_seconds: float) -> str:
    """`temp_lag_7d`."""
    return f"{lag.prefix}{lag.column}_lag_{show_span(back_seconds)}"


def _zeroed(name: str, alias: str, fed: Fed) -> str:
    value = f"{alias}.{quoted(name)}"
    return f"coalesce({value}, 0)" if name in _counts(fed) else value


def _counts(fed: Fed) -> frozenset[str]:
    return frozenset(window_name(w, a) for w in fed.windows for a in w.aggregates if a in ZERO)


def _join(feed: Feed, columns: Mapping[str, str], alias: str, before: str, than: str) -> str:
    same = [f"{before}.{quoted(name)} = {alias}.{quoted(name)}" for name in feed.on]
    on = " AND ".join((*same, f'{than} {alias}."{KNOWN}"'))
    return f"ASOF LEFT JOIN (\n{_newest(feed, columns)}\n    ) AS {alias} ON {on}"


def _newest(feed: Feed, columns: Mapping[str, str]) -> str:
    """The last one of the rows of a key that are known at once."""
    used = [name for name in feed.types if any(quoted(name) in sql for sql in columns.values())]
    keys = ", ".join(quote_all((*feed.on, KNOWN)))
    last = f'QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY "{NUMBER}" DESC) = 1'
    return select(quote_all((*feed.on, KNOWN)), columns, f"(\n{_numbered(feed, used)}\n    )", (last,))


# the same, found beside the query


def found_windows(fed: Fed) -> tuple[Theirs | None, Fed]:
    """The windows of time that are found beside the query, and what is left to it."""
    timed = [window for window in fed.windows if window.span_seconds is not None]
    if fed.feed.source == PAST or not timed:
        return None, fed
    halves = [split_window(window, fed.feed.types) for window in timed]
    overs = tuple(
        Over(name=name, aggregate=aggregate, column=window.column, seconds=window.span_seconds)
        for window, _ in halves
        for name, aggregate, _ in _aggregated(window, fed.feed)
    )
    left = [left for _, left in halves if left.aggregates]
    rest = replace(fed, windows=[*(w for w in fed.windows if w.span_seconds is None), *left])
    values = time_values(fed)
    theirs = Theirs(
        sql=_known_rows(fed.feed, values), on=fed.feed.on, order=tuple(quote_all(values)), overs=overs
    )
    return (theirs if overs else None), rest


def found_newest(fed: Fed) -> tuple[Theirs, ...]:
    """What `newest_joins` joins."""
    if fed.feed.source == PAST:
        return ()
    rows = _beside(fed)
    asked: list[tuple[Mapping[str, str], float | None]] = [(rows, None)] if rows else []
    asked += [(named, back) for back, named in _by_time(fed)]
    return tuple(
        Theirs(
            sql=_newest(fed.feed, named),
            on=fed.feed.on,
            newest=(
                Found(
                    columns={name: name for name in named},
                    back_seconds=back,
                    zeros=_counts(fed) & set(named),
                ),
            ),
        )
        for named, back in asked
    )


# labels made of events


def event_label(label: Label, basis: Basis, tables: Mapping[str, Types]) -> tuple[Feed, Mapping[str, str]]:
    """The feed of a label's events, and its SQL over the merged rows. Raises InputError."""
    assert label.table is not None
    assert label.outcome is not None
    on = label.on or basis.entity
    types = tables[label.table]
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, "label")
        right = find_column(name, types, label.table, "label")
        check_comparable(name, (basis.table, left), (label.table, right))
    feed = Feed(
        table=label.table,
        source=quoted(label.table),
        known_at=f"({sql_text(label.known_at or '')})::TIMESTAMP",
        on=on,
        types=types,
    )
    value = ""
    if label.column is not None:
        kind = find_column(label.column, types, label.table, "label")
        check_number(label.column, kind, f"`{label.outcome}`", label.table)
        value = f'"__x_{label.column}"::DOUBLE'
    ahead = interval(label.horizon_seconds or 0.0)
    frame = f'ORDER BY "{TIME}" RANGE BETWEEN {interval(1e-6)} FOLLOWING AND {ahead} FOLLOWING'
    over = f"OVER ({partition(_keys(on))}{frame})"
    delay = f" + {interval(label.delay_seconds)}" if label.delay_seconds else ""
    made = {
        label.name: _OUTCOMES[label.outcome].format(over, value),
        LABEL_TIME: f'"{TIME}" + {ahead}{delay}',
    }
    return feed, made
