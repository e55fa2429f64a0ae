"""Opens DuckDB with the memory, threads and folder of an attempt, and without access to files and
extensions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import duckdb

from gridmill.jobs.context import JobContext

Types: TypeAlias = Mapping[str, str]
"""The columns of a table in order, with their DuckDB types."""

BASE_BYTES = 192 * 2**20
"""The memory in bytes that Python, its libraries and the Parquet writer (for one row group) use before any
row is read."""
MEMORY_SHARE = 0.7
"""The largest fraction of the memory of the attempt, without BASE_BYTES, that DuckDB may use. The rest of
this memory is for the Parquet writer and Arrow batches."""
SMALL_SHARE = 0.35
"""The smallest fraction of the memory of the attempt, without BASE_BYTES, that DuckDB may use. This fraction
applies if the job needs much memory outside of the SQL engine."""
LEAST_MEMORY_BYTES = 144 * 2**20


@contextmanager
def open_engine(
    context: JobContext,
    tables: Mapping[str, Any] | None = None,
    *,
    reserved_bytes: int = 0,
    database: str = ":memory:",
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection that can read only `tables`. Each Arrow table, dataset or reader in `tables` becomes
    a view.

    The connection uses a fixed fraction of the memory of the attempt. `reserved_bytes` is the memory that
    the job needs outside of DuckDB. If the memory is not enough, DuckDB writes temporary data to the work
    folder. The rows of a query without ORDER BY keep the order in which DuckDB reads them. Tables that
    DuckDB creates itself are stored in the file `database`.
    """
    with duckdb.connect(database, config=_config(context, reserved_bytes)) as connection:
        for statement in ("SET TimeZone = 'UTC'", "SET enable_external_access = false"):
            connection.execute(statement)
        for name, table in (tables or {}).items():
            connection.register(name, table)
        connection.execute("SET lock_configuration = true")
        yield connection


def engine_bytes(context: JobContext, reserved_bytes: int = 0) -> int:
    """Return the number of bytes of memory that DuckDB may use. The job needs `reserved_bytes` bytes of
    memory outside of DuckDB."""
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
        # An Arrow stream has no row count: DuckDB would expect few rows and compare each row with each other
        # row.
        "asof_loop_join_threshold": 0,
    }


def fetch_rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    """Return all rows of a query as dicts. Use this function only for small results.

    A time outside the years 1 to 9999 is returned as text.
    """
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
    """Return the text as a quoted SQL identifier. The identifier may contain any characters."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return the text as a quoted SQL string. The string may contain any characters."""
    return "'" + text.replace("'", "''") + "'"
