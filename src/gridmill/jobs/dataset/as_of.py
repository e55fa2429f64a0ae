"""Windows and lags over rows that have a time of availability of their own: rows of another table, or rows
of the basis table.

This module has no side effects. A feed consists of the rows of one table, with one `known_at` column and one
set of key columns. The labels of earlier rows are a feed, too. The feed of labels contains the labels of all
rows, even if only some rows are computed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Label, Lag, Window
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.dataset.columns import check_comparable, check_number, find_column, show_span
from gridmill.jobs.dataset.window_plan import (
    LABELS,
    LagValue,
    NewestRow,
    OtherTable,
    WindowAggregate,
    WindowPlan,
)
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import KNOWN, LABEL_TIME, RowScope, quote_all, select, sql_text

_NUMBERS = (Aggregate.SUM, Aggregate.MEAN, Aggregate.STD)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfTable:
    """The rows of `source` (the SQL text after FROM), with the key columns `on` and the types of all
    columns. `known_at` is SQL for the time at which a row becomes known.

    `table` is the name of the table in error messages. `where` are the SQL conditions that select the rows
    to read.
    """

    table: str
    source: str
    known_at: str
    on: tuple[str, ...]
    types: Types
    where: tuple[str, ...] = ()


@dataclass(slots=True)
class AsOfRequest:
    """The windows and lags that read one feed."""

    feed: AsOfTable
    windows: list[Window] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)


def in_place(part: Window | Lag, basis: Basis, label: Label | None) -> bool:
    """Return whether a window or lag reads rows of the basis table that have the same entity and are known
    at the time of the row."""
    if is_of_label(part, basis, label) or (isinstance(part, Lag) and part.back_seconds):
        return False
    same_table = part.table in (None, basis.table)
    known_at = (
        part.known_at or (basis.known_at if same_table else None) or (basis.time if same_table else None)
    )
    return same_table and (part.on or basis.entity) == basis.entity and known_at == basis.time


def is_of_label(part: Window | Lag, basis: Basis, label: Label | None) -> bool:
    """Return whether a window or lag reads labels of earlier rows.

    A window or lag reads labels if it names the label. A window or lag also reads labels if it names a
    column that contains the label of the row, and the label is known later than the row.
    """
    if label is None or part.table not in (None, basis.table):
        return False
    if label.is_own and part.column in label.sources:
        later = label.delay_seconds is not None or label.known_at not in (None, basis.known_at)
        return later and part.known_at is None
    return part.column == label.name


def label_keys(spec: DatasetSpec, basis: Basis) -> tuple[str, ...]:
    """Return the columns of the basis table by which windows and lags find the labels of earlier rows, in
    order."""
    parts: tuple[Window | Lag, ...] = (*spec.windows, *spec.lags)
    keys = (part.on or basis.entity for part in parts if is_of_label(part, basis, spec.label))
    return tuple(dict.fromkeys(name for on in keys for name in on))


def aggregate_type(window: Window, aggregate: Aggregate, types: Types, table: str) -> str:
    """Return the SQL type of the column that a window computes. Raises InputError if the aggregate cannot be
    computed for the type of the column."""
    kind = find_column(window.column, types, table, "windows")
    if aggregate in _NUMBERS:
        check_number(window.column, kind, f"`{aggregate}`", table)
    return kind


def window_name(window: Window, aggregate: Aggregate) -> str:
    """Return the name of the column that a window computes, such as `temp_mean_1d`."""
    rows = window.span_rows
    span = f"{rows}rows" if rows is not None else show_span(window.span_seconds or 0)
    return f"{window.prefix}{window.column}_{aggregate}_{span}"


def window_overs(window: Window) -> tuple[WindowAggregate, ...]:
    """Return the aggregates that a window requests."""
    return tuple(
        WindowAggregate(
            name=window_name(window, aggregate),
            aggregate=aggregate,
            column=window.column,
            seconds=window.span_seconds,
            rows=window.span_rows,
        )
        for aggregate in window.aggregates
    )


def lag_backs(lag: Lag) -> tuple[LagValue, ...]:
    """Return the values that a lag by a number of rows requests."""
    return tuple(
        LagValue(name=f"{lag.prefix}{lag.column}_lag_{step}", column=lag.column, step=step)
        for step in lag.steps
    )


def lag_name(lag: Lag, back_seconds: float) -> str:
    """Return the name of the column that a lag computes, such as `temp_lag_7d`."""
    return f"{lag.prefix}{lag.column}_lag_{show_span(back_seconds)}"


def ask_feeds(
    plan: WindowPlan,
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    label: tuple[str, str],
    scope: RowScope,
) -> None:
    """Add the requests for the windows and lags of each feed to the plan, in the order of the declaration.
    `label` has the labels of earlier rows (as SQL after FROM) and the type of the label. Raises
    InputError."""
    as_of_requests: dict[tuple[str, str, tuple[str, ...]], AsOfRequest] = {}
    parts: tuple[Window | Lag, ...] = (*spec.windows, *spec.lags)
    for part in parts:
        if in_place(part, basis, spec.label):
            continue
        feed = _feed(part, spec.label, basis, tables, label)
        feed = replace(feed, where=scope.recent(feed.known_at))
        fed = as_of_requests.setdefault((feed.source, feed.known_at, feed.on), AsOfRequest(feed=feed))
        if isinstance(part, Window):
            fed.windows.append(part)
        else:
            fed.lags.append(part)
    for fed in as_of_requests.values():
        _ask_time(plan, fed)
        _ask_rows(plan, fed)
        _ask_back(plan, fed)


def _feed(
    part: Window | Lag,
    label: Label | None,
    basis: Basis,
    tables: Mapping[str, Types],
    labels: tuple[str, str],
) -> AsOfTable:
    on = part.on or basis.entity
    field_ = "windows" if isinstance(part, Window) else "lags"
    if label is not None and is_of_label(part, basis, label):
        if label.next_rows is not None:
            raise InputError(
                f"{label.name!r} is a label of several rows ahead, not a single value",
                hint=f"Use earlier values of {' or '.join(label.sources)} instead.",
                place=f"dataset.{field_}",
            )
        for name in on:
            find_column(name, tables[basis.table], basis.table, field_)
        source, kind = labels
        types = {**tables[basis.table], label.name: kind}
        return AsOfTable(table="labels", source=source, known_at=f'"{LABEL_TIME}"', on=on, types=types)
    table = part.table or basis.table
    known_at = part.known_at or basis.known_at or basis.time
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, field_)
        check_comparable(name, (basis.table, left), (table, find_column(name, tables[table], table, field_)))
    return AsOfTable(
        table=table,
        source=quoted(table),
        known_at=f"({sql_text(known_at)})::TIMESTAMP",
        on=on,
        types=tables[table],
    )


def _ask_time(plan: WindowPlan, fed: AsOfRequest) -> None:
    """Add the requests for windows over a time range to the plan."""
    windows = [window for window in fed.windows if window.span_seconds is not None]
    overs = tuple(over for window in windows for over in window_overs(window))
    _name(plan, fed.feed, windows)
    if overs:
        columns = tuple(dict.fromkeys(window.column for window in windows))
        plan.add(replace(_theirs(fed.feed, columns), aggregates=overs))


def _ask_rows(plan: WindowPlan, fed: AsOfRequest) -> None:
    """Add the requests for windows over a number of rows, and for lags by a number of rows, to the plan."""
    windows = [window for window in fed.windows if window.span_rows is not None]
    overs = tuple(over for window in windows for over in window_overs(window))
    backs = tuple(back for lag in fed.lags for back in lag_backs(lag))
    _name(plan, fed.feed, windows)
    for lag in fed.lags:
        find_column(lag.column, fed.feed.types, fed.feed.table, "lags")
    plan.name({back.name: fed.feed.types[back.column] for back in backs})
    if overs or backs:
        columns = _in_order(fed.feed, (*(over.column for over in overs), *(back.column for back in backs)))
        plan.add(replace(_theirs(fed.feed, columns), aggregates=overs, lags=backs))


def _ask_back(plan: WindowPlan, fed: AsOfRequest) -> None:
    """Add the requests for lags by a duration to the plan."""
    for back in dict.fromkeys(back for lag in fed.lags for back in lag.back_seconds):
        named = {lag_name(lag, back): lag.column for lag in fed.lags if back in lag.back_seconds}
        plan.name({name: fed.feed.types[column] for name, column in named.items()})
        newest = NewestRow(columns=named, back_seconds=back)
        plan.add(replace(_theirs(fed.feed, _in_order(fed.feed, named.values())), newest=(newest,)))


def _name(plan: WindowPlan, feed: AsOfTable, windows: Sequence[Window]) -> None:
    for window in windows:
        kinds = {
            window_name(window, aggregate): aggregate_type(window, aggregate, feed.types, feed.table)
            for aggregate in window.aggregates
        }
        plan.name({over.name: over.type_of(kinds[over.name]) for over in window_overs(window)})


def _in_order(feed: AsOfTable, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the given columns in the order in which the table has them. Rows that are known at the same
    time are sorted by these columns."""
    named = set(columns)
    return tuple(name for name in feed.types if name in named)


def _theirs(feed: AsOfTable, columns: Sequence[str]) -> OtherTable:
    """Return the table from which a request reads the rows of the feed. Rows with the same key that are
    known at the same time are sorted by their values."""
    conditions = (f"{sql} IS NOT NULL" for sql in (feed.known_at, *quote_all(feed.on)))
    listed = quote_all(dict.fromkeys((*feed.on, *columns)))
    return OtherTable(
        title=" by ".join(filter(None, (feed.table, ", ".join(feed.on)))),
        sql=select(
            listed,
            {KNOWN: feed.known_at},
            feed.source,
            (f"WHERE {' AND '.join((*conditions, *feed.where))}",),
        ),
        on=feed.on,
        order=tuple(quote_all(columns)),
    )


def labels_source(own: str) -> str:
    """Return SQL (after FROM) that reads the labels of all rows.

    If each row contains its own label, `own` is the SQL that selects these labels. Otherwise `own` is empty.
    If `own` is empty, the labels are read from a table that another query computed before.
    """
    return f"(\n{own}\n)" if own else quoted(LABELS)
