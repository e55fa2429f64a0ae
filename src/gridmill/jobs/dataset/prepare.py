"""Prepares the query of a dataset from its declaration and its tables, and makes all checks.

The declared `sql` may call functions that DuckDB does not have and Gridmill adds. The library of an added
function is imported only if `sql` calls this function. If a column of the result of `sql` has arrays of a
fixed length (`FLOAT[64]`), it is split into that number of columns.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime
from importlib import import_module
from typing import TypeAlias

import duckdb
import pyarrow.dataset as ds

from gridmill.domain.dataset import BUCKET_ROWS, Basis, DatasetSpec
from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset.checks import (
    EventCoverage,
    check_tables,
    known_span,
    resolve_bounds,
    seen_until,
    time_span,
)
from gridmill.jobs.dataset.columns import SQL_RESULT, find_column, refuse_duplicates, refuse_split
from gridmill.jobs.dataset.compile import CompiledQuery, compile_dataset
from gridmill.jobs.dataset.encode import needs_times
from gridmill.jobs.dataset.incremental import final_until, history_from
from gridmill.jobs.dataset.splits import SplitBounds
from gridmill.jobs.dataset.time_units import Unit, Units, check_declared, converted, find_units
from gridmill.jobs.dataset.window_plan import CHUNK
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import DROPPED, RowScope, explain, is_ordered, parse_select, types_of

FUNCTIONS = {"pixels": "gridmill.jobs.dataset.images"}
"""The module of each SQL function that Gridmill adds. Each of these modules has a function `register`, which
adds the SQL function to a connection."""


def register_functions(engine: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Register the added SQL functions that the text calls. Raises ModuleNotFoundError if the library of a
    function is not installed."""
    for name, module in FUNCTIONS.items():
        if re.search(rf"\b{name}\s*\(", sql, re.IGNORECASE):
            register: Callable[[duckdb.DuckDBPyConnection], None] = import_module(module).register
            register(engine)


MOST_COLUMNS = 4096
_ARRAY = re.compile(r"(?P<item>[^\[\]]+)\[(?P<length>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHotColumns:
    """SQL that has a separate column for each element of an array, and the names of these columns."""

    sql: str
    types: Types


def spread(sql: str, types: Types) -> OneHotColumns:
    """Return SQL in which an array such as `pixel FLOAT[64]` becomes the columns `pixel_1` to `pixel_64`.
    SQL without arrays is returned unchanged.

    Raises InputError for duplicate columns, and for too many columns.
    """
    made = [item for name, type_ in types.items() for item in _columns(name, type_)]
    if len(made) == len(types) and all(_ARRAY.fullmatch(type_) is None for type_ in types.values()):
        return OneHotColumns(sql=sql, types=types)
    if len(made) > MOST_COLUMNS:
        raise InputError(
            f"the query's arrays would make {len(made):,} columns, but at most {MOST_COLUMNS:,} are allowed",
            hint="Use smaller inputs: a smaller image, or fewer buckets of words.",
            place="dataset.sql",
        )
    refuse_duplicates(name for name, _, _ in made)
    listed = ", ".join(f"{value} AS {quoted(name)}" for name, value, _ in made)
    return OneHotColumns(
        sql=f"SELECT {listed}\nFROM (\n{sql}\n)", types={name: type_ for name, _, type_ in made}
    )


def _columns(name: str, type_: str) -> list[tuple[str, str, str]]:
    """Return the name, SQL and type of each column that an array becomes."""
    array = _ARRAY.fullmatch(type_)
    if array is None:
        return [(name, quoted(name), type_)]
    numbers = range(1, int(array["length"]) + 1)
    return [(f"{name}_{number}", f"{quoted(name)}[{number}]", array["item"]) for number in numbers]


Span: TypeAlias = tuple[int, datetime | None, datetime | None]
"""The number of rows of a table, and its first and last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedQuery:
    """The query of a dataset, and facts about the tables that it reads. `rows` is the number of rows of the
    basis table."""

    compiled: CompiledQuery
    types: Types
    bounds: SplitBounds | None = None
    rows: int = 0
    span_seconds: float = 0.0
    buckets: int = 1
    """The number of buckets of about equal size into which the rows can be divided."""
    cut: bool = False
    """Whether the declaration sets the number of buckets."""
    seen: datetime | None = None
    """The latest time in the tables. From this time, the field `final` is computed, which is the time up to
    which rows are final."""
    final: datetime | None = None
    events: EventCoverage | None = None
    units: Units = field(default_factory=dict)


def types_of_all(engine: duckdb.DuckDBPyConnection, tables: Mapping[str, ds.Dataset]) -> dict[str, Types]:
    """Return the column types of each table."""
    return {name: types_of(engine, f"SELECT * FROM {quoted(name)}") for name in tables}


def prepare(
    engine: duckdb.DuckDBPyConnection,
    spec: DatasetSpec,
    tables: dict[str, Types],
    after: datetime | None = None,
    sources: Mapping[str, ds.Dataset] | None = None,
    *,
    declared: DatasetSpec | None = None,
    span: Span | None = None,
    units: Units | None = None,
    before: Mapping[str, Mapping[str, str]] | None = None,
) -> PreparedQuery:
    """Return the query of a dataset. If `after` is given, the query computes only the rows after this time.

    `sources` are the tables themselves, not the views of them. If `declared` is given, its windows, lags,
    joins and label are checked instead of those of `spec`. `span` is used as the time span of a basis table
    whose rows are unknown. `units` are the time units of numeric columns in the tables, and `before` are the
    time units that the previous version used. Raises InputError and DataError if the declaration does not
    fit these tables.
    """
    declared_spec, units = declared or spec, dict(units or {})
    if spec.sql is not None:
        node = parse_select(engine, spec.sql)
        register_functions(engine, spec.sql)
        text = spec.sql.strip().rstrip(";")
        encoded = spread(text, _sql_types(engine, text, tables))
        if spec.time is None:
            check_declared(declared_spec, tables, units)
            return _plain(spec, encoded.sql, encoded.types, ordered=is_ordered(node))
        _keep_result(engine, encoded.sql)
        tables[SQL_RESULT] = encoded.types
        units |= find_units(engine, declared_spec, {SQL_RESULT: encoded.types}, clocked=spec, before=before)
        tables[SQL_RESULT] = _with_times(engine, encoded.types, units[SQL_RESULT])
    check_declared(declared_spec, tables, units)
    basis = spec.basis or Basis(table=SQL_RESULT, time=spec.time or "", entity=spec.entity)
    used = check_tables(engine, declared_spec, basis, tables)
    unit = units.get(basis.table, {}).get(basis.time)
    rows, first, last = (
        span
        or known_span((sources or {}).get(basis.table), basis.time, unit.unit if unit is not None else None)
        or time_span(engine, basis, f"table {basis.table!r}" if spec.basis else "the result of `sql`")
    )
    assert first is not None
    assert last is not None
    bounds = resolve_bounds(spec.split, basis, first, last)
    seen = seen_until(engine, spec.label, first, last)
    count = _buckets(spec, basis, rows)
    history = history_from(spec, after) if after is not None else None
    compiled = compile_dataset(
        spec,
        basis,
        tables,
        used=used,
        bounds=bounds,
        seen_until=seen.labels if seen is not None else None,
        timed=needs_times(spec.encoders) or spec.incremental,
        scope=RowScope(after=after, history=history),
    )
    return PreparedQuery(
        cut=spec.buckets is not None,
        compiled=compiled,
        types=_bound_types(engine, spec, basis, tables, compiled),
        bounds=bounds,
        rows=rows,
        span_seconds=(last - first).total_seconds(),
        buckets=count,
        seen=seen.tables if seen is not None else last,
        final=final_until(spec.label, last, seen.complete if seen is not None else None),
        events=seen,
        units=units,
    )


def _buckets(spec: DatasetSpec, basis: Basis, rows: int) -> int:
    """Return the number of buckets: the declared number, or a number that depends on the number of rows.
    Raises InputError if the dataset has no entity by which rows can be divided into buckets."""
    if not basis.entity:
        if (spec.buckets or 1) > 1:
            raise InputError("buckets need an entity", place="dataset.buckets")
        return 1
    return spec.buckets or -(-rows // BUCKET_ROWS) or 1


def _sql_types(engine: duckdb.DuckDBPyConnection, text: str, tables: Mapping[str, Types]) -> dict[str, str]:
    try:
        return types_of(engine, text)
    except duckdb.Error as error:
        lacks = "Referenced column" in str(error)
        columns = {name: "" for types in tables.values() for name in types} if lacks else {}
        explained_error = explain(error, columns, "dataset.sql", text)
        if "Table with name" in explained_error.message:
            hint = (
                "`tables` must list the tables that the query reads; now it lists "
                f"{', '.join(sorted(tables)) or 'none'}."
            )
            raise InputError(explained_error.message, hint=hint, place="dataset.sql") from error
        raise explained_error from error


def _keep_result(engine: duckdb.DuckDBPyConnection, text: str) -> None:
    """Store the rows of the declared SQL in a table, so that the SQL runs only once."""
    try:
        engine.execute(f"CREATE OR REPLACE TABLE {quoted(SQL_RESULT)} AS\n{text}")
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise DataError(f"the query failed: {error}", place="dataset.sql") from error


def _with_times(
    engine: duckdb.DuckDBPyConnection, types: Types, units: Mapping[str, Unit]
) -> Mapping[str, str]:
    """Return the column types of the result of the declared SQL. Numeric columns that represent times become
    timestamps."""
    for name, sql in converted(units).items():
        engine.execute(f"ALTER TABLE {quoted(SQL_RESULT)} ALTER {quoted(name)} TYPE TIMESTAMP USING {sql}")
    return {**types, **dict.fromkeys(units, "TIMESTAMP")}


def _plain(spec: DatasetSpec, text: str, types: Types, *, ordered: bool) -> PreparedQuery:
    """Return a query for a dataset without a time: it returns the rows of the declared SQL unchanged, in the
    order of that SQL. If the declared SQL defines no order, the query sorts the rows by their values."""
    label = spec.label.sources[0] if spec.label else None
    for name in (*spec.entity, *([label] if label else [])):
        find_column(name, types, "the result of `sql`", "label" if name == label else "entity")
    if types.get("split", "VARCHAR") != "VARCHAR":
        refuse_split(types)
    names = {name: spec.label.name if spec.label and name == label else name for name in types}
    listed = ", ".join(f"{quoted(old)} AS {quoted(new)}" for old, new in names.items())
    dropped = f"CASE WHEN {quoted(label)} IS NULL THEN 'no label' END" if label else "NULL::VARCHAR"
    order = "" if ordered else "\nORDER BY ALL"
    compiled = CompiledQuery(
        sql=f'SELECT {listed}, {dropped} AS "{DROPPED}"\nFROM (\n{text}\n){order}',
        columns=tuple(names.values()),
        features=tuple(name for name in types if name not in (label, "split", *spec.entity)),
        entity=spec.entity,
        label=spec.label.name if spec.label else None,
    )
    return PreparedQuery(compiled=compiled, types=_kept({new: types[old] for old, new in names.items()}))


def _kept(types: Types) -> Types:
    """Return the column types unchanged. Raises InputError for a column type that tables cannot store."""
    for name, kind in types.items():
        if "INTERVAL" in kind:
            raise InputError(
                f"column {name!r} has type {kind}, which a table cannot store",
                hint=f"epoch({quoted(name)}) converts it to seconds.",
                place="dataset",
            )
        if "UNION(" in kind:
            raise InputError(
                f"column {name!r} has type {kind}, which a table cannot store",
                hint=f"union_extract({quoted(name)}, 'TAG') selects the values of one type.",
                place="dataset",
            )
    return types


def _bound_types(
    engine: duckdb.DuckDBPyConnection,
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    compiled: CompiledQuery,
) -> Types:
    """Return the names and types of the columns that the query returns. Raises InputError with the name of
    the expression that causes an error."""
    assert compiled.sorted is not None
    engine.execute(f"CREATE OR REPLACE TEMP VIEW {CHUNK} AS {compiled.sorted.empty}")
    try:
        types_of(engine, compiled.sorted.rows)
        return _kept(types_of(engine, compiled.sql))
    except duckdb.Error as error:
        columns = {
            name: "" for name in (*tables[basis.table], *compiled.features) if name not in spec.features
        }
        for name, text in spec.features.items():
            _try_alone(engine, compiled, name, text, columns)
        raise explain(error, columns, "dataset") from error
    finally:
        engine.execute(f"DROP VIEW {CHUNK}")


def _try_alone(
    engine: duckdb.DuckDBPyConnection, compiled: CompiledQuery, name: str, text: str, types: Types
) -> None:
    before = compiled.sql.partition("),\nfeatured AS (")[0]
    try:
        types_of(engine, f"{before})\nSELECT *,\n({text}\n) AS {quoted(name)}\nFROM joined")
    except duckdb.Error as error:
        raise explain(error, types, f"dataset.features.{name}") from error
