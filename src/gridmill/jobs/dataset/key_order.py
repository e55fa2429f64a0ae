"""Replaces keys by numbers in the order of the keys, and sorts rows by the number and a time.

DuckDB sorts two numbers much faster than other values. Because only few rows have the same key and the same
time, these rows are sorted by their values in a second step.
"""

from collections.abc import Iterable, Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.dataset.window_ranges import Ints, OwnRows, changes
from gridmill.jobs.duckdb_engine import quoted
from gridmill.jobs.expressions import CODE, quote_all
from gridmill.jobs.parquet import BATCH_CELLS, memory_errors, rows_at_once

COUNT = "__count"
BATCH_ROWS = 131_072


def number_keys(engine: duckdb.DuckDBPyConnection, name: str, rows: str, keys: tuple[str, ...]) -> None:
    """Make a table of the distinct keys, numbered in order. Keys with missing values are left out. The table
    also has the number of rows of each key."""
    listed = ", ".join(quote_all(keys))
    not_null = " AND ".join(f"{key} IS NOT NULL" for key in quote_all(keys))
    counted_keys = (
        f"SELECT {listed}, count(*) AS {COUNT} FROM (\n{rows}\n) WHERE {not_null} GROUP BY {listed}"
    )
    if not keys:
        counted_keys = f"SELECT count(*) AS {COUNT} FROM (\n{rows}\n)"
    order = f"ORDER BY {listed}" if keys else ""
    engine.execute(
        f"CREATE OR REPLACE TABLE {quoted(name)} AS "
        f'SELECT *, (row_number() OVER ({order}) - 1)::UINTEGER AS "{CODE}" FROM (\n{counted_keys}\n)'
    )


def numbered(rows: str, keys: tuple[str, ...], table: str, columns: str = "r.*") -> str:
    """Return SQL for the rows that have a key, with the number of the key as a column."""
    same = " AND ".join(f"r.{key} = k.{key}" for key in quote_all(keys)) or "true"
    return f'SELECT {columns}, k."{CODE}" FROM (\n{rows}\n) AS r JOIN {quoted(table)} AS k ON {same}'


def batches_of(relation: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query, batch by batch."""
    with memory_errors():
        yield from relation.to_arrow_reader(rows_at_once(len(relation.columns), BATCH_ROWS, BATCH_CELLS))


def whole_ties(batches: Iterable[pa.RecordBatch], time: str) -> Iterator[pa.Table]:
    """Yield tables of rows that are sorted by key number and `time`. Rows with the same key and time are
    always in the same table."""
    waiting: list[pa.Table] = []
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        if not rows.num_rows:
            continue
        last = waiting[-1].slice(waiting[-1].num_rows - 1) if waiting else rows.slice(0, 0)
        new = moments(pa.concat_tables([last, rows]), time)[last.num_rows :]
        begins = np.flatnonzero(new)
        if len(begins) and (waiting or begins[-1]):
            yield pa.concat_tables([*waiting, rows.slice(0, begins[-1])])
            waiting = []
        waiting.append(rows.slice(begins[-1] if len(begins) else 0))
    if waiting:
        yield pa.concat_tables(waiting)


def moments(rows: pa.Table, time: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the positions of rows whose key or time differs from the previous row. The position of the
    first row is always in the result."""
    if not rows.num_rows:
        return np.zeros(0, np.bool_)
    return changes(integers(rows[CODE])) | changes(integers(rows[time]))


def untied(
    engine: duckdb.DuckDBPyConnection, rows: pa.Table, own: OwnRows, order: tuple[str, ...]
) -> pa.Table:
    """Sort rows that have the same key and time by their values.

    Only the few rows with equal keys and times are sorted by values, because sorting all rows by values
    would be slow.
    """
    places = np.arange(len(own.first))
    later = own.first != places
    tied = later.copy()
    tied[own.first[later]] = True
    at = np.flatnonzero(tied)
    if not len(at) or not order:
        return rows
    some = rows.take(pa.array(at)).append_column("__group", pa.array(own.first[at]))
    engine.register("__tied", some.append_column("__place", pa.array(at)))
    text = f"SELECT __place FROM __tied ORDER BY __group, {', '.join(order)}"
    places[at] = integers(engine.sql(text).to_arrow_table()["__place"])
    engine.unregister("__tied")
    return rows.take(pa.array(places))


def integers(column: pa.ChunkedArray) -> Ints:
    """Return the values as whole numbers; times become microseconds."""
    numbers: Ints = pc.cast(column, pa.int64()).to_numpy()
    return numbers
