"""DuckDB limited to an attempt's memory, threads and folder, without access to files and extensions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import duckdb

from gridmill.jobs.context import JobContext

Types: TypeAlias = Mapping[str, str]
"""A table's columns in order, with their DuckDB types."""

BASE_BYTES = 192 * 2**20
"""Memory of Python and its libraries before any row is read, and of Parquet's writer for one row group."""
MEMORY_SHARE = 0.7
"""DuckDB's share of the attempt's remaining memory; the rest is for Arrow batches in transit and Parquet's
writer."""
SMALL_SHARE = 0.35
"""DuckDB's smallest share, if much memory is used beside the engine."""
LEAST_MEMORY_BYTES = 144 * 2**20


@contextmanager
def open_engine(
    context: JobContext,
    tables: Mapping[str, Any] | None = None,
    *,
    reserved_bytes: int = 0,
    database: str = ":memory:",
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that can read only `tables` (Arrow tables, datasets or readers, each of which becomes a
    view).

    It uses its share of the attempt's memory; `reserved_bytes` bytes are needed outside the engine. It
    spills to its work folder. Rows without ORDER BY keep the order in which they are read. The engine's own
    tables are stored in the file `database`.
    """
    with duckdb.connect(database, config=_config(context, reserved_bytes)) as connection:
        for statement in ("SET TimeZone = 'UTC'", "SET enable_external_access = false"):
            connection.execute(statement)
        for name, table in (tables or {}).items():
            connection.register(name, table)
        connection.execute("SET lock_configuration = true")
        yield connection


def engine_bytes(context: JobContext, reserved_bytes: int = 0) -> int:
    """The memory that an engine needs if so many bytes are used outside of it."""
    whole = context.order.given.memory_bytes - BASE_BYTES
    wanted = max(whole * SMALL_SHARE, whole - reserved_bytes)
    return max(LEAST_MEMORY_BYTES, int(min(whole * MEMORY_SHARE, wanted)))


def _config(context: JobContext, reserved_bytes: int) -> dict[str, str | bool | int | float | list[str]]:
    spill = context.work / "spill"
    spill.mkdir(parents=True, exist_ok=True)
    return {
        "memory_limit": f"{engine_bytes(context, reserved_bytes)}B",
        "threads": context.threads,
        "temp_directory": str(spill),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        # An Arrow stream has no row count: DuckDB would assume few rows and compare all rows with all rows.
        "asof_loop_join_threshold": 0,
    }


def fetch_rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    """All rows of a query, as dicts; for small results. A time outside the years 1 to 9999 is text."""
    table: Any = connection.sql(sql).to_arrow_table()
    rows: list[dict[str, Any]]
    try:
        rows = table.to_pylist()
    except (OverflowError, ValueError):
        names, columns = table.column_names, table.columns
        values = ([_python_value(value) for value in column] for column in columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return rows


def _python_value(value: Any) -> Any:  # noqa: ANN401  a value of any type
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return str(value.cast("string"))


def quoted(name: str) -> str:
    """The text as an SQL identifier, with any characters."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as an SQL string, with any characters."""
    return "'" + text.replace("'", "''") + "'"
