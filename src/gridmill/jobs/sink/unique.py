"""Rows whose key was there before: in the table, or earlier in the same load."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from gridmill.jobs.engine import quoted
from gridmill.model.constraint import Constraint

ORDINAL = "__ordinal"


def find_repeated(
    engine: duckdb.DuckDBPyConnection,
    constraints: Sequence[Constraint],
    written: Sequence[Path],
    table: ds.Dataset | None,
) -> dict[int, str]:
    """Ordinal (from 0, over the files of the load in order) and reason of each repeated row, in order.

    A row that one constraint rejects does not count for the next. A key with a missing part is not
    compared. DuckDB spills where the keys do not fit into memory.
    """
    unique = [one for one in constraints if one.unique]
    if not unique or not written:
        return {}
    columns = tuple(dict.fromkeys(name for one in unique for name in one.unique))
    engine.register("__written", _ordered(written, columns))
    engine.execute("CREATE TEMP TABLE __incoming AS SELECT * FROM __written")
    engine.unregister("__written")
    found: dict[int, str] = {}
    for one in unique:
        ((_, reason),) = one.rules()
        if table is not None:
            engine.register("__table", table.scanner(columns=list(one.unique)).to_reader())
        repeated = [row for (row,) in engine.execute(_repeated_sql(one, table is not None)).fetchall()]
        found |= dict.fromkeys(repeated, reason)
        if repeated:
            engine.register("__repeated", pa.table({ORDINAL: pa.array(repeated, pa.int64())}))
            engine.execute(f"DELETE FROM __incoming WHERE {ORDINAL} IN (SELECT {ORDINAL} FROM __repeated)")
            engine.unregister("__repeated")
    engine.execute("DROP TABLE __incoming")
    return dict(sorted(found.items()))


def _ordered(written: Sequence[Path], columns: Sequence[str]) -> pa.RecordBatchReader:
    schema = pq.read_schema(written[0])
    wanted = pa.schema([schema.field(name) for name in columns]).append(pa.field(ORDINAL, pa.int64()))

    def batches() -> Iterator[pa.RecordBatch]:
        ordinal = 0
        for path in written:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=list(columns)):
                    numbers = pa.array(range(ordinal, ordinal + batch.num_rows), pa.int64())
                    ordinal += batch.num_rows
                    arrays = [batch.column(name) for name in columns]
                    yield pa.RecordBatch.from_arrays([*arrays, numbers], schema=wanted)

    return pa.RecordBatchReader.from_batches(wanted, batches())


def _repeated_sql(one: Constraint, has_table: bool) -> str:
    keys = ", ".join(quoted(name) for name in one.unique)
    there = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in one.unique)
    same = " AND ".join(f"i.{quoted(name)} = f.{quoted(name)}" for name in one.unique)
    within = (
        f"SELECT i.{ORDINAL} FROM __incoming i JOIN (SELECT {keys}, min({ORDINAL}) AS first FROM __incoming "
        f"WHERE {there} GROUP BY {keys} HAVING count(*) > 1) f ON {same} WHERE i.{ORDINAL} > f.first"
    )
    if not has_table:
        return within
    return (
        f"{within} UNION SELECT {ORDINAL} FROM __incoming SEMI JOIN (SELECT {keys} FROM __table) t "
        f"USING ({keys})"
    )
