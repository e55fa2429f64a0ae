"""The plan of the features of a service: which columns a request sends, and which features are computed by
key.

The plan is made from the compiled query of the dataset, so that both compute the same values. This module
has no side effects.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

import duckdb

from gridmill.domain.amounts import show_count
from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Join
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.errors import InputError
from gridmill.jobs.dataset.columns import SQL_RESULT
from gridmill.jobs.dataset.compile import compile_dataset
from gridmill.jobs.dataset.joins import joined_columns
from gridmill.jobs.dataset.labels import label_names, label_type
from gridmill.jobs.dataset.prepare import register_functions
from gridmill.jobs.dataset.window_plan import LABELS, NewestRow, OtherTable, SortedRows
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import KNOWN, expression_columns, quote_all, select, sql_text

STORED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "DOUBLE", "FLOAT")
OTHERS = ("BOOLEAN", "DATE", "TIMESTAMP", "VARCHAR", "BLOB")
ALWAYS_KNOWN = "TIMESTAMP '0001-01-01'"
"""The time at which rows of a table become known that is joined without `known_at`."""
_FIRST = " NULLS FIRST"
_INSENSITIVE = frozenset(set(Aggregate) - {Aggregate.LAST})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """A column of the rows in a view, with its SQL type. `nulls_first` means that missing values come before
    all other values in the order of rows with the same key and time."""

    name: str
    type: str
    nulls_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The rows of one table, by key, from which features are computed. `table` is the name of the table in
    the declaration of the dataset.

    `key_types` are the SQL types of the key columns in the table. `columns` are the stored columns, in the
    order by which rows with the same key and time are sorted. `seconds` is how far before the time of a
    request its features read. In addition to these rows, they read the newest `rows` earlier rows of the
    key.
    """

    table: str
    request: OtherTable
    key_types: tuple[str, ...]
    columns: tuple[StoredColumn, ...]
    seconds: float
    rows: int

    @property
    def on(self) -> tuple[str, ...]:
        """The columns that identify the key, in the table and in a request."""
        return self.request.on

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that are computed from the rows."""
        return tuple(_names(self.request))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePlan:
    """The columns that a request sends, and the computation of all other features.

    `request` are the columns that a request must send, with their SQL types. The column `time` (the as-of
    time) is optional. `entity` are the key columns of the dataset. `sent` are features that the dataset
    computes and a request sends instead. `types` are the SQL types of the columns that expressions can read.
    `features` are all features in the order of the dataset.

    If the model reads sequences, `sequence` is their length, and `history` has the rows of the basis table:
    a sequence consists of the last rows of the entity and the row of the request.
    """

    time: str | None
    entity: tuple[str, ...]
    request: Types
    feeds: tuple[Feed, ...]
    expressions: Mapping[str, str]
    features: tuple[str, ...]
    sent: tuple[str, ...] = ()
    types: Types = field(default_factory=dict)
    sequence: int | None = None
    history: Feed | None = None

    @property
    def stored(self) -> tuple[Feed, ...]:
        """The feeds whose rows a view stores."""
        return self.feeds if self.history is None else (*self.feeds, self.history)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables from which features are computed by key."""
        return tuple(dict.fromkeys(feed.table for feed in self.stored))

    @property
    def computed(self) -> tuple[str, ...]:
        """The names of the features that are computed by key."""
        return tuple(name for feed in self.feeds for name in feed.features)

    @property
    def fingerprint(self) -> str:
        """Return the hash of everything that decides which rows a view stores and how."""
        parts = [
            (one.table, one.request.sql, one.columns, one.key_types, one.rows, one.seconds)
            for one in self.stored
        ]
        return hashlib.sha256(repr((parts, self.sequence)).encode()).hexdigest()


def plan_online(
    spec: DatasetSpec,
    tables: Mapping[str, Types],
    *,
    features: Sequence[str] | None = None,
    sent: Sequence[str] = (),
    sequence: int | None = None,
) -> OnlinePlan:
    """Return the plan of the features that a model reads.

    `spec` is the declaration of the dataset, with the availability time of its label (`with_label_clock`).
    `tables` are the columns of its tables with their DuckDB types; times have no zone. For a dataset with
    `sql`, `tables` also has the result of that SQL under the name `SQL_RESULT`. `features` are the names of
    the needed features before they are encoded (default: all). `sent` are features that requests send.
    `sequence` is the length of the sequences that the model reads, or None. Raises InputError that names each
    feature that cannot be computed by key, with the reason.
    """
    if spec.basis is None and spec.time is None:
        _refuse_sequence(sequence, "the dataset has no time by which rows could be sorted")
        return _all_sent(spec, tables, features)
    basis = spec.basis or Basis(table=SQL_RESULT, time=spec.time or "", entity=spec.entity)
    with duckdb.connect(config={"threads": 1}) as engine:
        for text in spec.features.values():
            register_functions(engine, text)
        read = {
            name: expression_columns(engine, text, f"dataset.features.{name}")
            for name, text in spec.features.items()
        }
        used = {column for columns in read.values() for column in columns}
        dated = spec.label.known_at if spec.label is not None and spec.label.table is None else None
        used |= set(expression_columns(engine, dated, "dataset.label.known_at")) if dated else set()
        used |= set(spec.split.on) if spec.split is not None else set()
        compiled = compile_dataset(spec, basis, tables, used=used)
        assert compiled.sorted is not None
        needed = _needed(spec, compiled.features, features, sent, read)
        requests = list(_requests(spec, basis, tables, compiled.sorted))
        table_of = {request.sql: next(iter(engine.get_table_names(request.sql)), "") for request in requests}
    plan = _planned(spec, basis, tables, compiled.sorted, compiled.features, needed, sent, requests, table_of)
    return plan if sequence is None else _with_history(plan, basis, tables, compiled.sorted, sequence)


def _refuse_sequence(sequence: int | None, why: str) -> None:
    if sequence is not None:
        raise InputError(
            f"the model reads sequences of {sequence} rows, which cannot be computed by key: {why}",
            hint="Send complete sequences, or train a model that reads single rows.",
            place="service.sequence",
        )


def _with_history(
    plan: OnlinePlan, basis: Basis, tables: Mapping[str, Types], rows: SortedRows, sequence: int
) -> OnlinePlan:
    """Return the plan with the rows of the basis table that come before the row of a request."""
    if basis.table == SQL_RESULT:
        _refuse_sequence(sequence, "the rows of the dataset are the result of `sql`")
    if plan.sent:
        _refuse_sequence(sequence, f"requests send {', '.join(plan.sent)}, which earlier rows do not have")
    types = tables[basis.table]
    named = [name for name in plan.request if name not in basis.entity]
    request = replace(_own_request(basis, rows, named), aggregates=(), lags=())
    ordered = _order(request)
    columns = {**ordered, **dict.fromkeys(sorted(set(named) - ordered.keys()), False)}
    for name in (*columns, *basis.entity):
        if types[name] not in (*STORED, *OTHERS):
            _refuse_sequence(sequence, f"column {name!r} has type {types[name]}, which a view cannot store")
    history = Feed(
        table=basis.table,
        request=request,
        key_types=tuple(types[name] for name in basis.entity),
        columns=tuple(
            StoredColumn(name=name, type=types[name], nulls_first=first) for name, first in columns.items()
        ),
        seconds=0.0,
        rows=sequence - 1,
    )
    return replace(plan, sequence=sequence, history=history)


def _all_sent(spec: DatasetSpec, tables: Mapping[str, Types], features: Sequence[str] | None) -> OnlinePlan:
    """Return the plan for a dataset whose rows are the result of `sql` without a time. All features are sent
    by requests."""
    types = tables[SQL_RESULT]
    label = spec.label.sources if spec.label is not None else ()
    every = [name for name in types if name not in label and name not in (*spec.entity, "split")]
    names = tuple(every if features is None else features)
    for name in names:
        _check_exists(name, types)
    return OnlinePlan(
        time=None,
        entity=(),
        request={name: types[name] for name in names},
        feeds=(),
        expressions={},
        features=names,
    )


def _check_exists(name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        raise InputError(
            f"the dataset has no feature {name!r}{did_you_mean(name, names)}",
            hint=f"It has {', '.join(names)}.",
            place="service.features",
        )


def _needed(
    spec: DatasetSpec,
    all_features: Sequence[str],
    features: Sequence[str] | None,
    sent: Sequence[str],
    read: Mapping[str, Sequence[str]],
) -> dict[str, None]:
    """Return the names of all columns that are needed: the features, and the columns that their expressions
    read."""
    for name in (*(features or ()), *sent):
        _check_exists(name, all_features)
    needed = dict.fromkeys(all_features if features is None else features)
    lower = {name.lower(): name for name in spec.features}
    waiting = list(needed)
    while waiting:
        name = waiting.pop()
        for column in read.get(name, ()) if name not in sent else ():
            column_name = lower.get(column.lower(), column)
            if column_name not in needed:
                needed[column_name] = None
                waiting.append(column_name)
    return needed


def _requests(
    spec: DatasetSpec, basis: Basis, tables: Mapping[str, Types], rows: SortedRows
) -> Iterator[OtherTable]:
    """Yield the requests for rows of all tables. Windows and lags over the rows of the dataset itself, and
    joins without a time, become requests of the same kind."""
    plan = rows.plan
    if plan.aggregates or plan.lags:
        yield _own_request(basis, rows)
    for number, join in enumerate(spec.joins):
        yield _join_request(join, tables, number)
    yield from (theirs for theirs in plan.other_tables if not any(one.ahead for one in theirs.aggregates))


def _own_request(basis: Basis, rows: SortedRows, more: Sequence[str] = ()) -> OtherTable:
    """Return the request for the rows of the basis table with the same entity, which are known at their
    time.

    The order of rows with the same time is the order in which the window engine sorts them.
    """
    plan = rows.plan
    read = (*(one.column for one in plan.aggregates), *(one.column for one in plan.lags), *more)
    columns = dict.fromkeys((*rows.ties, *quote_all(read)))
    keys = quote_all(rows.entity)
    conditions = " AND ".join(f"{name} IS NOT NULL" for name in (quoted(basis.time), *keys))
    listed = list(dict.fromkeys((*keys, *columns)))
    return OtherTable(
        title=basis.table,
        sql=select(
            listed, {KNOWN: f"{quoted(basis.time)}::TIMESTAMP"}, quoted(basis.table), (f"WHERE {conditions}",)
        ),
        on=rows.entity,
        order=rows.ties,
        aggregates=tuple(plan.aggregates),
        lags=tuple(plan.lags),
    )


def _join_request(join: Join, tables: Mapping[str, Types], number: int) -> OtherTable:
    """Return the request for the row of a table that is joined without a time. Its keys are unique, so the
    newest row is the only row."""
    added = joined_columns(join, tables)
    known = f"({sql_text(join.known_at)})::TIMESTAMP" if join.known_at is not None else ALWAYS_KNOWN
    keys = quote_all(join.on)
    conditions = " AND ".join(f"{name} IS NOT NULL" for name in keys)
    return OtherTable(
        title=f"{join.table} by {', '.join(join.on)} (join {number + 1})",
        sql=select(
            list(dict.fromkeys((*keys, *quote_all(added)))),
            {KNOWN: known},
            quoted(join.table),
            (f"WHERE {conditions}",),
        ),
        on=join.on,
        newest=(NewestRow(columns={f"{join.prefix}{name}": name for name in added}),),
    )


def _planned(
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    rows: SortedRows,
    all_features: Sequence[str],
    needed: Mapping[str, None],
    sent: Sequence[str],
    requests: Sequence[OtherTable],
    table_of: Mapping[str, str],
) -> OnlinePlan:
    lower = {name.lower() for name in needed} - {name.lower() for name in sent}
    feeds: list[Feed] = []
    refused: dict[str, str] = {}
    for request in requests:
        part = _only(request, lower)
        if part is None:
            continue
        table = table_of[request.sql]
        made = _feed(part, table, {**tables.get(table, {}), **_label_column(spec, basis, table, tables)})
        if isinstance(made, Feed):
            feeds.append(made)
        else:
            refused |= dict.fromkeys(_names(part), made)
    _refuse(refused)
    computed = {name for feed in feeds for name in feed.features}
    types = tables[basis.table]
    keys = {*basis.entity, *(name for feed in feeds for name in feed.on)}
    asked = {name.lower() for name in (*needed, *keys)} - {name.lower() for name in (*computed, *sent)}
    label = {name.lower() for name in label_names(spec.label)}
    request_types = {
        name: kind
        for name, kind in types.items()
        if name.lower() in asked and (name in keys or name.lower() not in label) and name != basis.time
    }
    every = {**types, **rows.types, **_joined_types(spec, tables)}
    request_types |= {name: every[name] for name in sent if name in every and name in needed}
    request_types |= {name: "DOUBLE" for name in sent if name not in every and name in needed}
    return OnlinePlan(
        time=basis.time,
        entity=basis.entity,
        request=request_types,
        feeds=tuple(feeds),
        expressions={
            name: text for name, text in spec.features.items() if name in needed and name not in sent
        },
        features=tuple(name for name in all_features if name in needed),
        sent=tuple(name for name in sent if name in needed),
        types={**{name: every[name] for name in every if name.lower() in asked or name in computed}},
    )


def _label_column(spec: DatasetSpec, basis: Basis, table: str, tables: Mapping[str, Types]) -> Types:
    if spec.label is None or table != basis.table or not spec.label.is_own:
        return {}
    return {spec.label.name: label_type(spec.label, tables[basis.table])}


def _joined_types(spec: DatasetSpec, tables: Mapping[str, Types]) -> Types:
    return {
        f"{join.prefix}{name}": tables[join.table][name]
        for join in spec.joins
        for name in joined_columns(join, tables)
    }


def _only(request: OtherTable, lower: set[str]) -> OtherTable | None:
    """Return the request with only the needed features (names in lower case), or None if none is needed."""
    newest = (
        replace(one, columns={name: of for name, of in one.columns.items() if name.lower() in lower})
        for one in request.newest
    )
    part = replace(
        request,
        aggregates=tuple(one for one in request.aggregates if one.name.lower() in lower),
        lags=tuple(one for one in request.lags if one.name.lower() in lower),
        newest=tuple(one for one in newest if one.columns),
        after=None,
    )
    return part if _names(part) else None


def _names(request: OtherTable) -> list[str]:
    named = [*(one.name for one in request.aggregates), *(one.name for one in request.lags)]
    return named + [name for one in request.newest for name in one.columns]


def _feed(request: OtherTable, table: str, types: Types) -> Feed | str:
    """Return the feed of a request, or the reason why its features cannot be computed by key."""
    if table == LABELS or not table:
        return "it reads labels that are values of later rows or events, which are not stored by key"
    if table == SQL_RESULT:
        return "it reads rows of the result of `sql`, which is computed for all rows together"
    ordered = _order(request) if _is_order_sensitive(request) else {}
    columns = {**ordered, **dict.fromkeys(sorted(request.columns - ordered.keys()), False)}
    kinds = {name: _type_of(name, types) for name in (*columns, *request.on)}
    for name, kind in kinds.items():
        if kind not in (*STORED, *OTHERS):
            return f"column {name!r} of {table} has type {kind or 'unknown'}, which a view cannot store"
    kept = [name for name in columns if name in request.columns or name in ordered]
    return Feed(
        table=table,
        request=replace(request, order=request.order if ordered else ()),
        key_types=tuple(kinds[name] for name in request.on),
        columns=tuple(StoredColumn(name=name, type=kinds[name], nulls_first=columns[name]) for name in kept),
        seconds=_seconds(request),
        rows=_rows(request),
    )


def _type_of(name: str, types: Types) -> str:
    return types.get(name) or {key.lower(): kind for key, kind in types.items()}.get(name.lower(), "")


def _is_order_sensitive(request: OtherTable) -> bool:
    """Return whether the order of rows with the same key and time can change a feature."""
    over = any(one.rows is not None or one.aggregate not in _INSENSITIVE for one in request.aggregates)
    return bool(over or request.lags or request.newest)


def _order(request: OtherTable) -> dict[str, bool]:
    """Return the columns by which rows with the same key and time are sorted, and whether missing values
    come first."""
    order: dict[str, bool] = {}
    for text in request.order:
        name = text.removesuffix(_FIRST)[1:-1].replace('""', '"')
        if name not in request.on:
            order[name] = text.endswith(_FIRST)
    return order


def _seconds(request: OtherTable) -> float:
    spans = [one.seconds or 0.0 for one in request.aggregates]
    spans += [one.back_seconds or 0.0 for one in request.newest]
    return max(spans, default=0.0)


def _rows(request: OtherTable) -> int:
    counts = [one.rows or 0 for one in request.aggregates] + [one.step for one in request.lags]
    return max([*counts, 1 if request.newest else 0], default=0)


def _refuse(refused: Mapping[str, str]) -> None:
    """Raise one InputError that names all features that cannot be computed by key."""
    if not refused:
        return
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    hint = f"Let requests send them (`sent: [{', '.join(refused)}]`), or train the model without them."
    error = InputError(
        f"{show_count(len(refused), 'feature')} cannot be computed by key: {reasons}",
        hint=hint,
        place="service.features",
    )
    error.problems = tuple((f"service.features.{name}", why, hint) for name, why in refused.items())
    raise error


def request_types(plan: OnlinePlan) -> Types:
    """Return the columns of a request with their SQL types, and the as-of time."""
    time = {plan.time: "TIMESTAMP"} if plan.time is not None else {}
    return {**plan.request, **time}
