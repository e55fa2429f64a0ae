"""Tables as the dataset query sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from gridmill.jobs.dataset.units import Units, converted
from gridmill.jobs.engine import quoted


def register_tables(
    engine: duckdb.DuckDBPyConnection, tables: Mapping[str, ds.Dataset], units: Units | None = None
) -> None:
    """Each table under its name, in place of one that is there; its columns of numbers in `units` as times.

    Comparisons with times must not reach Arrow: it would hold the query's times, which have no zone, against
    the statistics of the files, whose times do, and refuse. Times that a function gives stay in DuckDB.
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
class Views:
    """Tables, and the units of their columns of numbers that are times."""

    tables: Mapping[str, ds.Dataset]
    units: Units = field(default_factory=dict)

    def register(self, engine: duckdb.DuckDBPyConnection) -> None:
        """Show a connection the tables."""
        register_tables(engine, self.tables, self.units)
