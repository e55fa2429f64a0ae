"""Tables as the dataset query sees them."""

from collections.abc import Mapping

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.jobs.engine import quoted


def register_tables(engine: duckdb.DuckDBPyConnection, tables: Mapping[str, ds.Dataset]) -> None:
    """Each table under its name, in place of one that is there.

    Comparisons with times must not reach Arrow: it would hold the query's times, which have no zone, against
    the statistics of the files, whose times do, and refuse. Times that a function gives stay in DuckDB.
    """
    for name, table in tables.items():
        source = f"__source_{name}"
        engine.register(source, table)
        times = [item.name for item in table.schema if pa.types.is_timestamp(item.type)]
        made = ", ".join(f"make_timestamp(epoch_us({quoted(time)})) AS {quoted(time)}" for time in times)
        listed = f"* REPLACE ({made})" if made else "*"
        engine.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {listed} FROM {quoted(source)}")
