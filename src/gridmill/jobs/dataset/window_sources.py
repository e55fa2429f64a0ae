"""Rows of other tables by key and availability time, read once for all chunks, in memory or in files."""

from collections.abc import Iterable
from dataclasses import field
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.key_order import (
    COUNT,
    batches_of,
    integers,
    number_keys,
    numbered,
    untied,
    whole_ties,
)
from gridmill.jobs.dataset.window_kernels import Loaded
from gridmill.jobs.dataset.window_plan import Theirs
from gridmill.jobs.dataset.window_ranges import Ints, Known, own_rows
from gridmill.jobs.duckdb_engine import quoted
from gridmill.jobs.expressions import CODE, KNOWN, moment, quote_all
from gridmill.jobs.parquet import storage_errors

RECENT, NEWEST = "__recent", "__newest"


def load_all(
    engine: duckdb.DuckDBPyConnection, asked: Iterable[Theirs], folder: Path, most_values: int
) -> tuple[Loaded, ...]:
    """The tables: of so many values in memory, the rest of them in files in `folder`. Raises StorageError."""
    loaded: list[Loaded] = []
    for theirs in asked:
        loaded.append(_load(engine, theirs, f"__keys{len(loaded)}", folder, most_values))
        most_values -= 0 if loaded[-1].known.on_disk else _values(theirs, len(loaded[-1].known.times))
    return tuple(loaded)


def _values(theirs: Theirs, rows: int) -> int:
    return (1 + len(theirs.columns)) * rows


def _load(
    engine: duckdb.DuckDBPyConnection, theirs: Theirs, keys: str, folder: Path, most_values: int
) -> Loaded:
    known = _known(engine, theirs)
    number_keys(engine, keys, known, theirs.on)
    counted = engine.sql(f'SELECT {COUNT} FROM {quoted(keys)} ORDER BY "{CODE}"').to_arrow_table()
    offsets = np.concatenate(([0], np.cumsum(integers(counted[COUNT]))))
    on_disk = _values(theirs, int(offsets[-1])) > most_values
    wanted = f"r.* EXCLUDE ({', '.join(quote_all(theirs.on))})" if _are_spare(theirs) else "r.*"
    found = engine.sql(f'{numbered(known, theirs.on, keys, wanted)} ORDER BY "{CODE}", "{KNOWN}"')
    columns, helper = sorted(theirs.columns), engine.cursor()  # a query would end the one that is read
    kept = _Filed(folder / keys) if on_disk else _Held(found.limit(0).to_arrow_table().select(columns))
    for rows in whole_ties(batches_of(found), KNOWN):
        own = own_rows(integers(rows[CODE]), integers(rows[KNOWN]))
        kept.add(own.known.times, untied(helper, rows, own, theirs.order).select(columns))
    times, table = kept.close()
    return Loaded(
        theirs=theirs, known=Known(offsets=offsets, times=times, on_disk=on_disk), rows=table, keys=keys
    )


@dataclass(slots=True)
class _Held:
    """Rows in memory; `empty` has their columns."""

    empty: pa.Table
    times: list[Ints] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)

    def add(self, times: Ints, rows: pa.Table) -> None:
        self.times.append(times)
        self.tables.append(rows)

    def close(self) -> tuple[Ints, pa.Table]:
        times = np.concatenate([np.zeros(0, np.int64), *self.times])
        return times, pa.concat_tables([self.empty, *self.tables]).combine_chunks()


@dataclass(slots=True)
class _Filed:
    """Rows in files that are mapped into memory: the kernel may forget what it has read of them."""

    folder: Path
    _writer: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, times: Ints, rows: pa.Table) -> None:
        with storage_errors(self.folder):
            if self._writer is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._times.unlink(missing_ok=True)
                self._writer = pa.ipc.new_file(str(self._rows), rows.schema)
            with self._times.open("ab") as file:
                times.tofile(file)
            self._writer.write_table(rows)

    def close(self) -> tuple[Ints, pa.Table]:
        assert self._writer is not None
        with storage_errors(self.folder):
            self._writer.close()
        table = pa.ipc.open_file(pa.memory_map(str(self._rows))).read_all()
        return np.memmap(self._times, np.int64, "r"), table

    @property
    def _times(self) -> Path:
        return self.folder / "times"

    @property
    def _rows(self) -> Path:
        return self.folder / "rows.arrow"


def _known(engine: duckdb.DuckDBPyConnection, theirs: Theirs) -> str:
    known = f'SELECT * FROM (\n{theirs.sql}\n) WHERE "{KNOWN}" IS NOT NULL'
    return known if theirs.after is None else _recent(engine, known, theirs.on, theirs.after)


def _recent(engine: duckdb.DuckDBPyConnection, known: str, on: tuple[str, ...], after: datetime) -> str:
    """The rows that are asked for, kept as a table: they are few of many."""
    keys = quote_all(on)
    newest = ", ".join((*keys, f'max("{KNOWN}") AS "{NEWEST}"'))
    by = f"GROUP BY {', '.join(keys)}" if keys else ""
    earlier = f'SELECT {newest} FROM (\n{known}\n) WHERE "{KNOWN}" <= {moment(after)} {by}'
    same = " AND ".join(f"r.{key} = n.{key}" for key in keys) or "true"
    engine.execute(
        f"CREATE OR REPLACE TABLE {quoted(RECENT)} AS SELECT r.* FROM (\n{known}\n) AS r "
        f'LEFT JOIN (\n{earlier}\n) AS n ON {same} WHERE r."{KNOWN}" >= coalesce(n."{NEWEST}", r."{KNOWN}")'
    )
    return f"SELECT * FROM {quoted(RECENT)}"


def _are_spare(theirs: Theirs) -> bool:
    """Whether nothing is asked of the keys themselves."""
    named = theirs.columns | {
        name for name in theirs.on if any(quoted(name) in text for text in theirs.order)
    }
    return bool(theirs.on) and not named & set(theirs.on)
