"""Finds the time unit of each numeric column that a dataset uses as a time.

If the declaration gives the time unit of the column, this unit is used. If the declaration gives no time
unit, the column has the time unit that the previous dataset version used. If there is no previous version,
the time unit is the only unit that fits all numbers of the column.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.domain.amounts import show_count
from gridmill.domain.calendar import show_moment
from gridmill.domain.dataset import NUMBER_FORMATS, Basis, DatasetSpec, Label
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.domain.source import UNIX_UNITS
from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset.columns import SQL_RESULT, table_words
from gridmill.jobs.dataset.numeric_times import (
    NAMES,
    fits_sql,
    is_numeric,
    readings,
    shows,
    shows_sql,
    time_of,
    time_sql,
    value_sql,
)
from gridmill.jobs.duckdb_engine import Types, fetch_rows, quoted

TIMES = "times"
"""The key of the time units in the details of a dataset version; the units are stored by table and
column."""
INFERRED = "inferred"
"""The key, in the details of a dataset version, of the sentences about time units that are not declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The time unit of the numbers in a column. `type` is the DuckDB type of the column.

    `example` is a number of the column. If `example` is None, the column has no numbers, and any time unit
    is possible. If `shown` is true, the time unit was detected from the numbers of the column, because it is
    not declared.
    """

    unit: str
    type: str
    example: float | None = None
    shown: bool = False


Units: TypeAlias = Mapping[str, Mapping[str, Unit]]
"""The time units by table and column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimeColumn:
    """A numeric column that represents a time. `place` is the field of the declaration that names the
    column. `key` is the name of the column in the declaration."""

    table: str
    name: str
    type: str
    place: str
    key: str
    declared: str | None
    kept: str | None

    @property
    def value(self) -> str:
        """Return SQL for the number in the column."""
        return value_sql(self.name, self.type)


def units_before(context: JobContext) -> Mapping[str, Mapping[str, str]]:
    """Return the time units that the previous dataset version used."""
    earlier = context.order.earlier
    return earlier[0].artifact.output.details.get(TIMES) or {} if earlier else {}


def find_units(
    engine: duckdb.DuckDBPyConnection,
    spec: DatasetSpec,
    types: Mapping[str, Types],
    *,
    clocked: DatasetSpec | None = None,
    before: Mapping[str, Mapping[str, str]] | None = None,
    sources: Mapping[str, ds.Dataset] | None = None,
) -> dict[str, dict[str, Unit]]:
    """Return the time units of the numeric columns that are used or declared as times.

    The function searches the columns of the tables in `types`. One of these tables can be the result of the
    declared `sql`. `clocked` is the declaration with the availability time of the label. `sources` are the
    tables whose files may have statistics of their columns. Raises DataError if no time unit fits the
    numbers of a column, or if more than one fits.
    """
    units: dict[str, dict[str, Unit]] = {name: {} for name in types}
    for column in _columns(spec, clocked or spec, types, before or {}):
        bounds = _bounds((sources or {}).get(column.table), column.name)
        units[column.table][column.name] = _unit(engine, column, bounds)
    return units


def _columns(
    spec: DatasetSpec,
    clocked: DatasetSpec,
    types: Mapping[str, Types],
    before: Mapping[str, Mapping[str, str]],
) -> Iterator[_TimeColumn]:
    used: dict[tuple[str, str], str] = {}
    for table, name, place in (*_used(spec), *_clocks(spec, clocked), *_declared(spec, types)):
        if name in types.get(table, {}) and is_numeric(types[table][name]):
            used.setdefault((table, name), place)
    names = [name for _, name in used]
    for (table, name), place in used.items():
        full = f"{table}.{name}"
        yield _TimeColumn(
            table=table,
            name=name,
            type=types[table][name],
            place=f"dataset.{place}",
            key=full if names.count(name) > 1 and table != SQL_RESULT else name,
            declared=spec.timestamp_format.get(full) or spec.timestamp_format.get(name),
            kept=(before.get(table) or {}).get(name),
        )


def _basis(spec: DatasetSpec) -> Basis:
    return spec.basis or Basis(table=SQL_RESULT, time=spec.time or "", entity=spec.entity)


def _used(spec: DatasetSpec) -> Iterator[tuple[str, str, str]]:
    """Yield each time column that the declaration names, as the name of its table, the name of the column,
    and the field of the declaration."""
    basis = _basis(spec)
    yield basis.table, basis.time, "basis" if spec.basis else "time"
    if basis.known_at is not None:
        yield basis.table, basis.known_at, "basis.known_at"
    for place, part in spec.parts():
        table = part.table or basis.table
        if part.known_at is not None:
            yield table, part.known_at, f"{place}.known_at"
        if not isinstance(part, Label) and basis.time in part.on:
            yield table, basis.time, f"{place}.on"


def _clocks(spec: DatasetSpec, clocked: DatasetSpec) -> Iterator[tuple[str, str, str]]:
    """Yield the columns of other tables from which the availability time of the label is computed."""
    names = {name for _, name, _ in _used(spec)}
    declared = {part for _, part in spec.parts()}
    for place, part in clocked.parts():
        table = part.table or _basis(clocked).table
        if part not in declared and part.known_at is not None:
            words = {*re.findall(r"\w+", part.known_at), *re.findall(r'"([^"]+)"', part.known_at)}
            yield from ((table, name, f"{place}.known_at") for name in sorted(names & words))


def _declared(spec: DatasetSpec, types: Mapping[str, Types]) -> Iterator[tuple[str, str, str]]:
    """Return the declared time units by table and column.

    A column name without a table refers to the column with this name in each table that is named in the
    declaration of a window, lag, join or label. A column name without a table does not refer to columns of
    tables that only `sql` reads.
    """
    named = {_basis(spec).table, *(part.table for _, part in spec.parts())}
    for key in spec.timestamp_format:
        for table, columns in types.items():
            if table in named and key in columns:
                yield table, key, "timestamp_format"
            elif key.startswith(f"{table}.") and key.removeprefix(f"{table}.") in columns:
                yield table, key.removeprefix(f"{table}."), "timestamp_format"


def check_declared(spec: DatasetSpec, types: Mapping[str, Types], units: Units) -> None:
    """Raise InputError if a column with a `timestamp_format` does not exist or is not numeric."""
    named = {_basis(spec).table, *(part.table for _, part in spec.parts())}
    kinds = {(table, name): kind for table, columns in types.items() for name, kind in columns.items()}
    for key in spec.timestamp_format:
        mine = {
            at: kind for at, kind in kinds.items() if key == ".".join(at) or (key == at[1] and at[0] in named)
        }
        if any(name in units.get(table, {}) for table, name in mine):
            continue
        place = f"dataset.timestamp_format.{key}"
        for (table, name), kind in mine.items():
            raise InputError(
                f"{name!r} of {table_words(table)} has type {kind}, but `timestamp_format` of a dataset "
                "is for numbers",
                hint="Remove the format here. Declare the format of texts in the sink: `timestamp_format` "
                "under `source`.",
                place=place,
            )
        declared_names = [".".join(at) for at in kinds if at[0] != SQL_RESULT] + [
            name for table, name in kinds if table in named
        ]
        raise InputError(
            f"there is no column {key!r}{did_you_mean(key, declared_names)}",
            hint="Write COLUMN or TABLE.COLUMN, with a table that the dataset reads.",
            place=place,
        )


def _unit(engine: duckdb.DuckDBPyConnection, column: _TimeColumn, bounds: tuple[int, int] | None) -> Unit:
    example: float | None
    if column.declared is not None:
        _check_fits(engine, column, column.declared)
        example = bounds[0] if bounds else _example(engine, column)
        return Unit(unit=column.declared, type=column.type, example=example)
    units = _shown_by(bounds)
    example = bounds[0] if bounds and units else None
    if not units:
        example, units = _shown_by_all(engine, column)
    if example is None:
        return Unit(unit=column.kept or NUMBER_FORMATS[0], type=column.type)
    if column.kept is not None and column.kept not in units and units:
        raise _changed(column, units, example)
    if (column.kept is None and len(units) != 1) or not units:
        raise _unclear(engine, column, units, example)
    return Unit(unit=column.kept or units[0], type=column.type, example=example, shown=True)


def _bounds(table: ds.Dataset | None, name: str) -> tuple[int, int] | None:
    """Return the smallest and the largest number of a column from the statistics in the files of the table.

    Return None if the files have no statistics, or if the numbers are fractions.
    """
    if not isinstance(table, ds.FileSystemDataset) or name not in table.schema.names:
        return None
    if not pa.types.is_integer(table.schema.field(name).type):
        return None
    files = [part.metadata for part in table.get_fragments()]
    least: list[int] = []
    largest: list[int] = []
    for group in (file.row_group(number) for file in files for number in range(file.num_row_groups)):
        columns = (group.column(number) for number in range(group.num_columns))
        stated = next((column.statistics for column in columns if column.path_in_schema == name), None)
        if not group.num_rows:
            continue
        if stated is None or not stated.has_min_max or not isinstance(stated.min, int):
            return None
        least.append(stated.min)
        largest.append(stated.max)
    return (min(least), max(largest)) if least else None


def _shown_by(bounds: tuple[int, int] | None) -> tuple[str, ...]:
    """Return the only time unit that fits all numbers between the bounds. The result is empty if no unit or
    several units fit."""
    if bounds is None or (bounds[0] < 0) != (bounds[1] < 0):
        return ()
    units = tuple(unit for unit in NUMBER_FORMATS if all(shows(unit, bound) for bound in bounds))
    return units if len(units) == 1 and units[0] in UNIX_UNITS else ()


def _shown_by_all(
    engine: duckdb.DuckDBPyConnection, column: _TimeColumn
) -> tuple[float | None, tuple[str, ...]]:
    """Return an example of the numbers in a column, and the time units that fit all numbers."""
    counts = ", ".join(f'count(*) FILTER ({shows_sql(unit, "v")}) AS "{unit}"' for unit in NUMBER_FORMATS)
    row = _row(engine, column, f"count(v) AS n, max(v) AS example, {counts}")
    units = tuple(unit for unit in NUMBER_FORMATS if row["n"] and row[unit] == row["n"])
    return row["example"], units


def _example(engine: duckdb.DuckDBPyConnection, column: _TimeColumn) -> float | None:
    result: float | None = _row(engine, column, "max(v) AS example")["example"]
    return result


def _row(engine: duckdb.DuckDBPyConnection, column: _TimeColumn, what: str) -> dict[str, Any]:
    numbers = f"SELECT {column.value} AS v FROM {quoted(column.table)}"
    return fetch_rows(engine, f"SELECT {what} FROM ({numbers}) WHERE v IS NOT NULL")[0]


def _check_fits(engine: duckdb.DuckDBPyConnection, column: _TimeColumn, unit: str) -> None:
    """Raise DataError if the column has numbers that are not times in this unit."""
    bad = f"FILTER (NOT coalesce({fits_sql(unit, 'v')}, false))"
    row = _row(engine, column, f"count(*) {bad} AS n, any_value(v) {bad} AS example")
    if row["n"]:
        raise DataError(
            f"{_named(column)} is declared as {NAMES[unit]} ({unit}), but in {row['n']:,} rows it is no "
            f"time of the years 1 to 9999 in that unit, for example {row['example']}",
            hint="Declare another unit, or replace such values with missing ones: rows with a missing "
            "time are dropped and counted.",
            place=f"dataset.timestamp_format.{column.key}",
        )


def _named(column: _TimeColumn) -> str:
    return f"{column.name!r} of {table_words(column.table)}"


def _changed(column: _TimeColumn, found: Sequence[str], example: float) -> DataError:
    kept, units = column.kept or "", tuple(found)
    line = f"`timestamp_format: {{{column.key}: {_written(units[0])}}}`"
    return DataError(
        f"the numbers of {_named(column)} were {NAMES[kept]} ({kept}) in the previous version, but are now "
        f"{' or '.join(NAMES[unit] for unit in units)}: {_shown(example)} is {readings(example, units)}",
        hint=f"If that is correct, write {line} under `dataset`.",
        place=column.place,
    )


def _unclear(
    engine: duckdb.DuckDBPyConnection, column: _TimeColumn, units: Sequence[str], example: float
) -> DataError:
    start = f"{_named(column)} has type {column.type}, not timestamp"
    if units:
        lines = " or ".join(f"`timestamp_format: {{{column.key}: {_written(unit)}}}`" for unit in units)
        message = (
            f"{_shown(example)} is {readings(example, tuple(units))}, but no row shows which of them is right"
        )
        return DataError(
            f"{start}, and {message}", hint=f"Under `dataset`, write {lines}.", place=column.place
        )
    line = f"`timestamp_format: {{{column.key}: unix_s}}`"
    others = ", ".join(_written(unit) for unit in NUMBER_FORMATS[1:])
    return DataError(
        f"{start}, and its numbers do not show one unit: {_kinds(engine, column)}",
        hint=f"Under `dataset`, write {line} (or {others}) if all numbers have that unit. If some are "
        "mistakes, correct them or replace them with missing values.",
        place=column.place,
    )


def _kinds(engine: duckdb.DuckDBPyConnection, column: _TimeColumn) -> str:
    """Return a text with the number of values that fit each time unit, and an example for each unit."""
    parts: list[str] = []
    tests = {unit: shows_sql(unit, "v") for unit in NUMBER_FORMATS}
    tests[""] = f"NOT ({' OR '.join(tests.values())})"
    selections = (
        f'count(*) FILTER ({test}) AS "n{unit}", min(v) FILTER ({test}) AS "e{unit}"'
        for unit, test in tests.items()
    )
    row = _row(engine, column, ", ".join(selections))
    for unit in tests:
        if row[f"n{unit}"]:
            example = row[f"e{unit}"]
            text = readings(example, (unit,)) if unit else "no such time"
            parts.append(f"{_shown(example)} is {text} ({show_count(row[f'n{unit}'], 'row')})")
    return "; ".join(parts)


def _shown(number: float) -> str:
    """Return the number as text without an exponent."""
    return f"{int(number)}" if number == number // 1 else f"{number}"


def _written(unit: str) -> str:
    return unit if unit in UNIX_UNITS else f"'{unit}'"


def described(units: Units) -> Mapping[str, Mapping[str, str]]:
    """Return the time units in the form in which the details of a dataset version store them."""
    known = {
        table: {name: one.unit for name, one in columns.items() if one.example is not None}
        for table, columns in units.items()
    }
    return {table: columns for table, columns in known.items() if columns}


def unit_lines(units: Units) -> Iterator[str]:
    """Yield a sentence for each time unit that was detected and not declared."""
    for table, columns in units.items():
        for name, one in columns.items():
            moment = time_of(one.unit, one.example) if one.example is not None else None
            if one.shown and moment is not None:
                message = f"{_shown(one.example or 0)} is {show_moment(moment)}"
                yield f"{name!r} of {table_words(table)} is read as {NAMES[one.unit]} ({one.unit}): {message}"


def converted(units: Mapping[str, Unit]) -> Mapping[str, str]:
    """Return, for each column, the SQL that converts its numbers to times."""
    return {name: time_sql(one.unit, name, one.type) for name, one in units.items()}
