"""Writes ordinary joins as SQL, requests as-of joins from the window engine, and creates a view of each
table that is read by a query.

The functions of this module that write SQL have no side effects.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.domain.dataset import AsOfJoin, Basis, DatasetSpec, Join, Label
from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.columns import check_comparable, find_column, refuse_duplicates
from gridmill.jobs.dataset.labels import own_label_availability
from gridmill.jobs.dataset.time_units import Units, converted
from gridmill.jobs.dataset.window_plan import NewestRow, OtherTable, WindowPlan, nulls_first
from gridmill.jobs.duckdb_engine import Types, quoted
from gridmill.jobs.expressions import KNOWN, TIME, RowScope, quote_all, select, sql_text


@dataclass(slots=True)
class JoinedColumns:
    """The result of joining tables: the columns that ordinary joins add (as SQL by column name), the SQL
    after FROM, and the names of the columns that as-of joins add."""

    columns: dict[str, str] = field(default_factory=dict)
    joins: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, names: Iterable[str]) -> None:
        """Add columns. Raises InputError if a column with the name of the new column exists already."""
        for name in names:
            refuse_duplicates((*self.names, name))
            self.names.append(name)


def join_all(
    plan: WindowPlan,
    spec: DatasetSpec,
    basis: Basis,
    tables: Mapping[str, Types],
    before: str,
    scope: RowScope,
) -> JoinedColumns:
    """Add the declared joins of a dataset. An as-of join becomes a request to the window engine. Raises
    InputError."""
    made = JoinedColumns()
    for number, join in enumerate(spec.joins, start=1):
        _ordinary(made, join, f"j{number}", basis, tables, before)
    for asof in spec.asof_joins:
        for part in _by_clock(asof, spec.label, basis, tables):
            _as_of(plan, made, part, basis, tables, scope)
    return made


def _by_clock(
    asof: AsOfJoin, label: Label | None, basis: Basis, tables: Mapping[str, Types]
) -> Iterator[AsOfJoin]:
    """Yield the as-of join. If the join reads labels that become known later than the row, also yield a
    separate join for the label columns, which reads a row only after its label is known."""
    mine = asof.table == basis.table and not asof.exempt
    available_at = own_label_availability(label, basis) if label is not None and mine else ""
    added = _added_as_of(asof, tables)
    late = tuple(name for name in added if available_at and label is not None and name in label.sources)
    others = tuple(name for name in added if name not in late)
    if others or not late:
        yield replace(asof, columns=others)
    if late:
        message = f"({sql_text(asof.known_at)})::TIMESTAMP"
        later = (
            f"CASE WHEN {message} >= {available_at} THEN {message} WHEN {message} < {available_at}"
            f" THEN {available_at} END"
        )
        yield replace(asof, columns=late, known_at=later)


def _as_of(
    plan: WindowPlan,
    made: JoinedColumns,
    asof: AsOfJoin,
    basis: Basis,
    tables: Mapping[str, Types],
    scope: RowScope,
) -> None:
    added = _added_as_of(asof, tables)
    _check_keys(asof.on, basis, tables, asof.table, "asof_joins")
    named = {f"{asof.prefix}{name}": name for name in added}
    made.add(named)
    plan.name({name: tables[asof.table][column] for name, column in named.items()})
    listed = list(dict.fromkeys((*asof.on, *added)))
    message = f"({sql_text(asof.known_at)})::TIMESTAMP"
    plan.add(
        OtherTable(
            title=f"{asof.table}, known at {asof.known_at}",
            sql=select(
                quote_all(listed),
                {KNOWN: message},
                quoted(asof.table),
                (f"WHERE {message} IS NOT NULL",),
            ),
            on=asof.on,
            order=nulls_first(added),
            newest=(NewestRow(columns=named, within_seconds=asof.within_seconds),),
            after=scope.after,
        )
    )


def _ordinary(
    made: JoinedColumns, join: Join, alias: str, basis: Basis, tables: Mapping[str, Types], before: str
) -> None:
    added = joined_columns(join, tables)
    _check_keys(join.on, basis, tables, join.table, "joins")
    same = [f"{before}.{quoted(name)} = {alias}.{quoted(name)}" for name in join.on]
    values = {name: f"{alias}.{quoted(name)}" for name in added}
    table = quoted(join.table)
    if join.known_at is not None:
        table = f'(SELECT *, ({sql_text(join.known_at)})::TIMESTAMP AS "{KNOWN}" FROM {table})'
        before_it = f'{alias}."{KNOWN}" < {before}."{TIME}"'
        values = {name: f"CASE WHEN {before_it} THEN {sql} END" for name, sql in values.items()}
    columns = {f"{join.prefix}{name}": sql for name, sql in values.items()}
    made.add(columns)
    made.columns |= columns
    made.joins.append(f"LEFT JOIN {table} AS {alias} ON {' AND '.join(same)}")


def _added(
    columns: Sequence[str], keys: Iterable[str], types: Types, table: str, field_: str
) -> tuple[str, ...]:
    for name in columns:
        find_column(name, types, table, field_)
    return tuple(columns) or tuple(name for name in types if name not in set(keys))


def joined_columns(join: Join, tables: Mapping[str, Types]) -> tuple[str, ...]:
    """Return the columns of the table that an ordinary join adds. Raises InputError for a missing column."""
    return _added(join.columns, (*join.on, join.known_at or ""), tables[join.table], join.table, "joins")


def _added_as_of(asof: AsOfJoin, tables: Mapping[str, Types]) -> tuple[str, ...]:
    return _added(asof.columns, (*asof.on, asof.known_at), tables[asof.table], asof.table, "asof_joins")


def _check_keys(
    on: Sequence[str], basis: Basis, tables: Mapping[str, Types], table: str, field_: str
) -> None:
    for name in on:
        left = find_column(name, tables[basis.table], basis.table, field_)
        right = find_column(name, tables[table], table, field_)
        check_comparable(name, (basis.table, left), (table, right))


def register_tables(
    engine: duckdb.DuckDBPyConnection, tables: Mapping[str, ds.Dataset], units: Units | None = None
) -> None:
    """Create a view for each table under the name of the table, and replace existing views. Numeric columns
    whose time unit is in `units` become times.

    The views prevent DuckDB from passing comparisons with times to Arrow. Arrow would raise an error,
    because it would compare the times of the query, which have no time zone, with the statistics in the
    files, whose times have a time zone. The views convert times with a function, so that DuckDB itself
    evaluates the comparisons.
    """
    for name, table in tables.items():
        source = f"__source_{name}"
        engine.register(source, table)
        times = [item.name for item in table.schema if pa.types.is_timestamp(item.type)]
        moments = {time: f"make_timestamp(epoch_us({quoted(time)}))" for time in times}
        moments |= converted((units or {}).get(name, {}))
        made = ", ".join(f"{sql} AS {quoted(time)}" for time, sql in moments.items())
        listed = f"* REPLACE ({made})" if made else "*"
        engine.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {listed} FROM {quoted(source)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableViews:
    """Tables, and the units of their numeric columns that represent times."""

    tables: Mapping[str, ds.Dataset]
    units: Units = field(default_factory=dict)

    def register(self, engine: duckdb.DuckDBPyConnection) -> None:
        """Create the views of the tables in a connection."""
        register_tables(engine, self.tables, self.units)
