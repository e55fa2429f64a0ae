"""Computes statistics of the columns of a table in one pass. The statistics that several processes computed
can be merged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime
from functools import reduce
from math import isfinite
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.jobs.column_moments import Moments
from gridmill.jobs.context import JobContext
from gridmill.jobs.duckdb_engine import fetch_rows, literal, open_engine, quoted

COUNTED, MOMENTS = "counted", "moments"
TOLD_AT_ONCE = 16
"""A single query computes the statistics of this number of columns. DuckDB allocates a vector of states for
each column, which takes 2.2 MiB even for a single row."""
Facts = Mapping[str, Mapping[str, Any]]
Files = Mapping[str, pa.RecordBatchReader]
"""The files to read, as a mapping from the name of each file to a reader of its rows. The files are read in
the order of this mapping."""


def describe(context: JobContext, files: Files, columns: Sequence[str], schema: pa.Schema) -> Facts:
    """Return statistics for each column of a table: nulls, min, max and approximate distinct count, and for
    numbers also mean and std.

    The values are JSON. Nested columns have no statistics. The rows are read only once.
    """
    count = _ColumnCounter(columns=columns, schema=schema)
    if not count.plain:
        return {}
    with open_engine(context, {"described": count.passing(files)}) as engine:
        engine.execute(count.sql())
        return _facts(engine, [COUNTED], count.plain, count.moments)


def note_facts(
    context: JobContext, files: Files, columns: Sequence[str], schema: pa.Schema, target: Path
) -> None:
    """Write a file with the statistics of those rows that one part of a job has computed. The function
    `join_facts` merges the statistics of all parts. Raises OSError."""
    count = _ColumnCounter(columns=columns, schema=schema)
    with open_engine(context, {"described": count.passing(files)}, database=str(target)) as engine:
        engine.execute(count.sql())
        engine.execute(
            f"CREATE TABLE {MOMENTS} (file TEXT, name TEXT, count BIGINT, mean DOUBLE, squares DOUBLE)"
        )
        for (file, name), moments in count.moments.items():
            values = [file, name, moments.count, moments.mean, moments.squares]
            engine.execute(f"INSERT INTO {MOMENTS} VALUES (?, ?, ?, ?, ?)", values)


def join_facts(notes: Sequence[Path], columns: Sequence[str], schema: pa.Schema) -> Facts:
    """Return the statistics that `describe` would return for the rows of all parts of a job together. The
    job must have at least one part."""
    plain = _plain(columns, schema)
    if not plain:
        return {}
    moments: dict[tuple[str, str], Moments] = {}
    with duckdb.connect(config={"threads": 1}) as engine:
        for number, note in enumerate(notes):
            engine.execute(f"ATTACH {literal(str(note))} AS part{number} (READ_ONLY)")
            for row in fetch_rows(engine, f"FROM part{number}.{MOMENTS}"):
                readings = Moments(row["count"], row["mean"], row["squares"])
                moments[row["file"], row["name"]] = readings
        return _facts(engine, [f"part{number}.{COUNTED}" for number in range(len(notes))], plain, moments)


@dataclass(slots=True, kw_only=True)
class _ColumnCounter:
    """Computes the moments of the numbers in each column while the rows are read.

    The moments are stored separately for each file, so the result does not depend on which process read a
    file.
    """

    columns: Sequence[str]
    schema: pa.Schema
    moments: dict[tuple[str, str], Moments] = field(default_factory=dict)

    @property
    def plain(self) -> list[str]:
        return _plain(self.columns, self.schema)

    def passing(self, files: Files) -> pa.RecordBatchReader:
        """Yield the batches of the files unchanged, and add the numbers in the batches to the moments."""
        schema = pa.schema([self.schema.field(name) for name in self.plain])
        return pa.RecordBatchReader.from_batches(schema, self._passing(files))

    def _passing(self, files: Files) -> Iterator[pa.RecordBatch]:
        numeric = [name for name in self.plain if _has_moments(self.schema.field(name).type)]
        for file, rows in files.items():
            seen = {name: self.moments.setdefault((file, name), Moments()) for name in numeric}
            for batch in rows:
                for name, moments in seen.items():
                    moments.see(batch.column(name))
                yield batch.select(self.plain)

    def sql(self) -> str:
        """Return SQL that writes a table of one row with the aggregates of each column. Several tables of
        this kind can be merged."""
        counted = ['count(*) AS "rows"']
        for number, name in enumerate(self.plain):
            column = quoted(name)
            facts = {"known": f"count({column})", "distinct": f"approx_count_distinct({column}) EXPORT_STATE"}
            if not pa.types.is_binary(self.schema.field(name).type):
                facts |= {"min": f"min({column})", "max": f"max({column})"}
            counted += [f"{sql} AS {_key(number, fact)}" for fact, sql in facts.items()]
        return f"CREATE TABLE {COUNTED} AS SELECT {', '.join(counted)} FROM described"


def _plain(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    return [name for name in columns if not pa.types.is_nested(schema.field(name).type)]


def _has_moments(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _key(number: int, fact: str) -> str:
    return quoted(f"{number} {fact}")


def _facts(
    engine: duckdb.DuckDBPyConnection,
    tables: Sequence[str],
    plain: Sequence[str],
    moments: Mapping[tuple[str, str], Moments],
) -> Facts:
    """Return the statistics of all columns, computed from several tables of aggregates."""
    result: dict[str, dict[str, Any]] = {name: {} for name in plain}
    counted = engine.table(tables[0])
    types = dict(zip(counted.columns, map(str, counted.types), strict=True))
    for first in range(0, len(plain), TOLD_AT_ONCE):
        numbers = range(first, min(first + TOLD_AT_ONCE, len(plain)))
        for key, value in _column_facts(engine, tables, types, numbers).items():
            number, _, fact = key.partition(" ")
            result[plain[int(number)]][fact] = json_value(value)
    for name, column_moments in _by_column(moments).items():
        result[name] |= column_moments.facts()
    return result


def _column_facts(
    engine: duckdb.DuckDBPyConnection,
    tables: Sequence[str],
    types: Mapping[str, str],
    numbers: Sequence[int],
) -> Mapping[str, Any]:
    """Return the statistics of some of the columns. `types` are the types of the aggregates."""
    wanted = [
        f"{_python_safe(_together(number, fact, len(tables)), types.get(f'{number} {fact}', ''))}"
        f" AS {_key(number, fact)}"
        for number in numbers
        for fact in ("nulls", "distinct", "min", "max")
        if fact not in ("min", "max") or f"{number} {fact}" in types
    ]
    sources = ", ".join(f"{table} AS t{number}" for number, table in enumerate(tables))
    return fetch_rows(engine, f"SELECT {', '.join(wanted)} FROM {sources}")[0]


def _python_safe(sql: str, kind: str) -> str:
    """Return SQL that computes a value which Python can represent. The SQL replaces a time outside the years
    1 to 9999 by a missing value."""
    if kind != "DATE" and not kind.startswith("TIMESTAMP"):
        return sql
    return f"CASE WHEN {sql} BETWEEN '0001-01-02'::{kind} AND '9999-12-30'::{kind} THEN {sql} END"


def _together(number: int, fact: str, count: int) -> str:
    """Return SQL for one statistic of a column over all tables of aggregates."""
    tables = [f"t{one}" for one in range(count)]
    if fact == "nulls":
        return " + ".join(f'{one}."rows" - {one}.{_key(number, "known")}' for one in tables)
    each = [f"{one}.{_key(number, fact)}" for one in tables]
    if fact == "distinct":
        return f"finalize({reduce(lambda one, other: f'combine({one}, {other})', each)})"
    return f"{'least' if fact == 'min' else 'greatest'}({', '.join(each)})"


def _by_column(moments: Mapping[tuple[str, str], Moments]) -> Mapping[str, Moments]:
    result: dict[str, Moments] = {}
    for (_, name), one in sorted(moments.items(), key=lambda item: item[0]):
        result.setdefault(name, Moments()).add(one)
    return result


def json_value(value: object) -> Any:  # noqa: ANN401  JSON has no better type
    """Return the value in a form that JSON can store: times in ISO 8601, long texts shortened, None for NaN
    and infinity."""
    match value:
        case bool() | int() | None:
            return value
        case float():
            return value if isfinite(value) else None
        case datetime() | date():
            return value.isoformat()
        case str():
            return value if len(value) <= 80 else f"{value[:77]}..."
    return str(value)
