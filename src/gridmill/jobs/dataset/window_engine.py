"""The window engine sorts the rows of a dataset once, by entity and time, and computes them chunk by chunk.

Chunks are independent of each other. Each thread computes one chunk at a time, and each part of the job can
run on another machine. The boundaries of the chunks depend only on the data. The engine first counts the
entities. After the entities are counted, each part of the job sorts only the rows of its own chunks. The
engine reads the rows of other tables, sorted by key and availability time, once for all chunks, into memory
or into files.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import JobPart
from gridmill.jobs.dataset.key_order import (
    BATCH_ROWS,
    COUNT,
    batches_of,
    integers,
    number_keys,
    numbered,
    untied,
    whole_ties,
)
from gridmill.jobs.dataset.window_chunks import (
    ENTITIES,
    NUMBER,
    Chunk,
    ChunkBoundaries,
    cut_chunks,
    with_keys,
)
from gridmill.jobs.dataset.window_kernels import LoadedTable, RankedValues, own_features, rank, their_features
from gridmill.jobs.dataset.window_plan import CHUNK, OtherTable, SortedRows
from gridmill.jobs.dataset.window_ranges import (
    NOWHERE,
    Ints,
    KeyedTimes,
    OwnRows,
    QueryRows,
    changes,
    own_rows,
)
from gridmill.jobs.duckdb_engine import fetch_rows, quoted
from gridmill.jobs.expressions import AT, CODE, KNOWN, TIME, moment, quote_all
from gridmill.jobs.parquet import storage_errors

RECENT, NEWEST = "__recent", "__newest"


def load_all(
    engine: duckdb.DuckDBPyConnection, other_tables: Iterable[OtherTable], folder: Path, most_values: int
) -> tuple[LoadedTable, ...]:
    """Load the tables that the window engine reads. At most `most_values` values are stored in memory. If
    there are more values, further tables are stored in files in `folder`.

    Raises StorageError.
    """
    loaded: list[LoadedTable] = []
    for theirs in other_tables:
        loaded.append(_load(engine, theirs, f"__keys{len(loaded)}", folder, most_values))
        most_values -= 0 if loaded[-1].times.on_disk else _values(theirs, len(loaded[-1].times.times))
    return tuple(loaded)


def _values(theirs: OtherTable, rows: int) -> int:
    return (1 + len(theirs.columns)) * rows


def _load(
    engine: duckdb.DuckDBPyConnection, theirs: OtherTable, keys: str, folder: Path, most_values: int
) -> LoadedTable:
    rows_sql = _known_rows_sql(engine, theirs)
    number_keys(engine, keys, rows_sql, theirs.on)
    counted = engine.sql(f'SELECT {COUNT} FROM {quoted(keys)} ORDER BY "{CODE}"').to_arrow_table()
    counts = integers(counted[COUNT])
    # without empty keys, because a table without `on` that has no rows has one placeholder key
    offsets = np.concatenate(([0], np.cumsum(counts[counts > 0])))
    on_disk = _values(theirs, int(offsets[-1])) > most_values
    wanted = f"r.* EXCLUDE ({', '.join(quote_all(theirs.on))})" if _are_spare(theirs) else "r.*"
    relation = engine.sql(f'{numbered(rows_sql, theirs.on, keys, wanted)} ORDER BY "{CODE}", "{KNOWN}"')
    # a second cursor, because a query on `engine` would end the query that is being read
    columns, helper = sorted(theirs.columns), engine.cursor()
    kept = (
        _MappedRows(folder / keys)
        if on_disk
        else _MemoryRows(relation.limit(0).to_arrow_table().select(columns))
    )
    for rows in whole_ties(batches_of(relation), KNOWN):
        own = own_rows(integers(rows[CODE]), integers(rows[KNOWN]))
        kept.add(own.known.times, untied(helper, rows, own, theirs.order).select(columns))
    times, table = kept.close()
    return LoadedTable(
        plan=theirs, times=KeyedTimes(offsets=offsets, times=times, on_disk=on_disk), rows=table, keys=keys
    )


@dataclass(slots=True)
class _MemoryRows:
    """Collects the rows of a table in memory. `empty` is a table with the same columns and no rows."""

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
class _MappedRows:
    """Collects the rows of a table in files that are mapped into memory, so that the kernel can free the
    pages that were read."""

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


def _known_rows_sql(engine: duckdb.DuckDBPyConnection, theirs: OtherTable) -> str:
    rows_sql = f'SELECT * FROM (\n{theirs.sql}\n) WHERE "{KNOWN}" IS NOT NULL'
    return rows_sql if theirs.after is None else _recent(engine, rows_sql, theirs.on, theirs.after)


def _recent(engine: duckdb.DuckDBPyConnection, rows_sql: str, on: tuple[str, ...], after: datetime) -> str:
    """Store the rows that requests can read in a table, and return SQL that reads this table. The stored
    table has only few rows."""
    keys = quote_all(on)
    newest = ", ".join((*keys, f'max("{KNOWN}") AS "{NEWEST}"'))
    by = f"GROUP BY {', '.join(keys)}" if keys else ""
    earlier = f'SELECT {newest} FROM (\n{rows_sql}\n) WHERE "{KNOWN}" <= {moment(after)} {by}'
    same = " AND ".join(f"r.{key} = n.{key}" for key in keys) or "true"
    engine.execute(
        f"CREATE OR REPLACE TABLE {quoted(RECENT)} AS SELECT r.* FROM (\n{rows_sql}\n) AS r "
        f'LEFT JOIN (\n{earlier}\n) AS n ON {same} WHERE r."{KNOWN}" >= coalesce(n."{NEWEST}", r."{KNOWN}")'
    )
    return f"SELECT * FROM {quoted(RECENT)}"


def _are_spare(theirs: OtherTable) -> bool:
    """Return whether the loaded table can leave out the key columns, because no request reads them."""
    named = theirs.columns | {
        name for name in theirs.on if any(quoted(name) in text for text in theirs.order)
    }
    return bool(theirs.on) and not named & set(theirs.on)


CHUNK_ROWS = 1_048_576
PIECE_ROWS, PIECE_VALUES = 262_144, 3_000_000
CHUNK_VALUES, WIDE, WIDE_VALUES = 16_000_000, 32, 8_000_000
"""The number of values in a chunk. A chunk has fewer rows if its rows have more columns. If a chunk has more
than WIDE columns, it has at most WIDE_VALUES values. A chunk has at least BATCH_ROWS rows."""
MOST_VALUES = 96_000_000
"""The largest number of values of other tables that are stored in memory. Tables with more values are stored
in files."""
VALUE_BYTES, WAITING = 2 * 8, 2
"""VALUE_BYTES is the memory in bytes that a value of a chunk needs, including a second copy of the value.
WAITING is the number of further chunks in memory, because one chunk waits and one chunk is being read."""
PIECE, COUNTED = "__piece", "__counted"
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The data that is shared by the computations of all chunks.

    `chunk_values` is the usual number of values in a chunk. `types` are the SQL types of the columns whose
    types Arrow cannot represent.
    """

    sorted: SortedRows
    loaded: tuple[LoadedTable, ...]
    boundaries: ChunkBoundaries
    chunk_values: int
    types: Mapping[str, str]

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return len(self.boundaries.starts)

    def cut(self, engine: duckdb.DuckDBPyConnection, part: JobPart | None = None) -> Iterator[Chunk]:
        """Yield the chunks that a part of the job computes, in order."""
        return cut_chunks(engine, self.sorted, self.boundaries, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits of the window engine: the folder for its files, the number of values of other tables in
    memory, and the bytes of earlier rows in memory."""

    folder: Path
    values: int = MOST_VALUES
    history_bytes: int = 8 * MOST_VALUES


def bytes_for_chunks(threads: int) -> int:
    """Return the memory in bytes that chunks and other tables may use in addition to the memory of the SQL
    engine."""
    return (threads + WAITING) * VALUE_BYTES * CHUNK_VALUES + 8 * MOST_VALUES


def side_by_side(prepared: EngineState, threads: int, room_bytes: int) -> int:
    """Return the number of chunks that are computed in parallel. The number 0 means that chunks are computed
    one after another."""
    return max(0, min(threads, room_bytes // (VALUE_BYTES * prepared.chunk_values) - WAITING))


def prepare_chunks(
    engine: duckdb.DuckDBPyConnection,
    other: duckdb.DuckDBPyConnection,
    sorted_: SortedRows,
    columns: int,
    chunk_rows: int | None,
    room: EngineLimits,
) -> EngineState:
    """Number the entities. While the entities are numbered, another thread reads the other tables over the
    connection `other`.

    `columns` are the columns of the query, and `chunk_rows` is the requested number of rows of a chunk.
    Raises duckdb.Error, StorageError.
    """
    most = max(BATCH_ROWS, (CHUNK_VALUES if columns <= WIDE else WIDE_VALUES) // columns)
    wanted = min(chunk_rows or CHUNK_ROWS, most)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_all, other, sorted_.plan.other_tables, room.folder, room.values)
        number_keys(engine, COUNTED, sorted_.rows, sorted_.entity)
        _cut_entities(engine, wanted)
        loaded = loading.result()
    text = f'SELECT min("{CODE}") AS start FROM {ENTITIES} GROUP BY "{NUMBER}" ORDER BY start'
    starts = integers(engine.sql(text).to_arrow_table()["start"])
    return EngineState(
        sorted=sorted_,
        loaded=loaded,
        boundaries=ChunkBoundaries(starts=starts, rows=wanted, history_bytes=room.history_bytes),
        chunk_values=wanted * columns,
        types=_unlike(engine, sorted_),
    )


def _cut_entities(engine: duckdb.DuckDBPyConnection, chunk_rows: int) -> None:
    """Assign each entity to a chunk.

    To assign entities to chunks, the function divides all rows into ranges of `chunk_rows` rows. The chunk
    of an entity is the range that contains the first row of the entity.
    """
    before = f'sum({COUNT}) OVER (ORDER BY "{CODE}" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)'
    piece = f'coalesce({before}, 0) // {chunk_rows} AS "{PIECE}"'
    engine.execute(
        f'CREATE OR REPLACE TABLE {ENTITIES} AS SELECT * EXCLUDE ("{PIECE}"), '
        f'(dense_rank() OVER (ORDER BY "{PIECE}") - 1)::UINTEGER AS "{NUMBER}" '
        f"FROM (SELECT *, {piece} FROM {COUNTED})"
    )


def _unlike(engine: duckdb.DuckDBPyConnection, sorted_: SortedRows) -> dict[str, str]:
    """Return the columns of a chunk whose type changes when Arrow reads them, with their original types."""
    empty = engine.sql(sorted_.empty).to_arrow_table()
    engine.register("__empty", empty)
    columns = fetch_rows(engine, "DESCRIBE SELECT * FROM __empty")
    engine.unregister("__empty")
    after = {row["column_name"]: row["column_type"] for row in columns}
    return {name: type_ for name, type_ in sorted_.types.items() if after[name] != type_}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWorker:
    """Computes chunks with a DuckDB connection of its own."""

    engine: duckdb.DuckDBPyConnection
    prepared: EngineState

    def results(self, chunk: Chunk, batch_rows: int) -> Iterator[pa.RecordBatchReader]:
        """Yield the results of the query for a chunk, piece by piece. The caller must read each result
        completely before the next one."""
        sorted_ = self.prepared.sorted
        rows = with_keys(self.engine, sorted_, self.prepared.boundaries.starts, chunk.number, chunk.rows)
        for piece, count in self._pieces(chunk, rows):
            self._register(self._find(piece, count, chunk.history))
            yield self.engine.sql(sorted_.sql).to_arrow_reader(batch_rows)
            self.engine.unregister(f"{CHUNK}_rows")

    def _pieces(self, chunk: Chunk, rows: pa.Table) -> Iterator[tuple[pa.Table, int]]:
        """Divide the rows of a chunk into pieces of complete entities that fit into the CPU caches. Yield
        each piece with the number of its rows that are computed.

        The chunk stays in one piece if the query joins tables, or if each piece would read another table
        completely.
        """
        sorted_ = self.prepared.sorted
        wide = any(not set(one.plan.on) <= set(sorted_.entity) for one in self.prepared.loaded)
        if chunk.piece is not None or sorted_.joins or wide:
            yield rows, chunk.count
            return
        starts = own_rows(integers(rows[CODE]), integers(rows[TIME])).known.offsets
        wanted, begin = min(PIECE_ROWS, PIECE_VALUES // rows.num_columns), 0
        while begin < rows.num_rows:
            end = int(starts[min(int(np.searchsorted(starts, begin + wanted)), len(starts) - 1)])
            yield rows.slice(begin, end - begin), end - begin
            begin = end

    def _find(self, rows: pa.Table, count: int, history: pa.Table | None) -> pa.Table:
        """Return the first `count` rows, with additional columns that contain all requested values.

        Rows of an entity with the same time are sorted by their values. The result does not contain rows
        that are read only as history.
        """
        sorted_ = self.prepared.sorted
        own = own_rows(integers(rows[CODE]), integers(rows[TIME]))
        rows = untied_rows = untied(self.engine, rows, own, sorted_.ties)
        before = 0
        if history is not None:
            before = history.num_rows
            untied_rows = pa.concat_tables([history, rows.select(history.column_names)])
            own = own_rows(integers(untied_rows[CODE]), integers(untied_rows[TIME]))
        asks, rows = self._asking(own, rows.slice(0, count), before)
        features = dict(own_features(untied_rows, asks, sorted_.plan, self._rank))
        for loaded in self.prepared.loaded:
            keys = self._keys(loaded, rows, asks.keys)
            features |= their_features(
                loaded, QueryRows(known=loaded.times, keys=keys, times=asks.times), self._rank
            )
        hidden = {CODE, *(name.lower() for name in features)}
        names = [name for name in rows.column_names if name.lower() not in hidden]
        features[AT] = pa.array(np.arange(rows.num_rows))
        return pa.table([*(rows[name] for name in names), *features.values()], names=[*names, *features])

    def _asking(self, own: OwnRows, rows: pa.Table, before: int) -> tuple[OwnRows, pa.Table]:
        """Return the rows for which values are requested. `before` is the number of rows of history that
        come before these rows."""
        places, after = np.arange(before, before + rows.num_rows), self.prepared.sorted.after
        if after is not None:
            late = np.flatnonzero(own.times[places] > np.datetime64(after, "us").astype(np.int64))
            places, rows = places[late], rows.take(late)
        return own if len(places) == len(own.keys) else own.only(places), rows

    def _rank(self, column: pa.Array) -> RankedValues:
        return rank(column, self.engine)

    def _register(self, rows: pa.Table) -> None:
        """Register the rows as the table of the chunk, with the SQL types that the columns had before Arrow
        read them."""
        name, types = f"{CHUNK}_rows", self.prepared.types
        self.engine.register(name, rows)
        made = ", ".join(f"{quoted(one)}::{type_} AS {quoted(one)}" for one, type_ in types.items())
        listed = f"* REPLACE ({made})" if made else "*"
        self.engine.execute(f"CREATE OR REPLACE TEMP VIEW {CHUNK} AS SELECT {listed} FROM {name}")

    def _keys(self, loaded: LoadedTable, rows: pa.Table, owners: Ints) -> Ints:
        """Return for each row the number of its key in the loaded table. `owners` are the numbers of the
        entities of the rows."""
        on = loaded.plan.on
        if not on:
            return np.zeros(rows.num_rows, np.int64)
        if set(on) <= set(self.prepared.sorted.entity):
            new = changes(owners)
            firsts = rows.select(on).take(pa.array(np.flatnonzero(new)))
            numbers: Ints = self._look_up(loaded, firsts)[np.cumsum(new) - 1]
            return numbers
        return self._look_up(loaded, rows.select(on))

    def _look_up(self, loaded: LoadedTable, keys: pa.Table) -> Ints:
        self.engine.register("__asking", keys.append_column(AT, pa.array(np.arange(keys.num_rows))))
        text = numbered("SELECT * FROM __asking", loaded.plan.on, loaded.keys, f'r."{AT}"')
        pairs = self.engine.sql(text).to_arrow_table()
        self.engine.unregister("__asking")
        result = np.full(keys.num_rows, NOWHERE, np.int64)
        result[integers(pairs[AT])] = integers(pairs[CODE])
        return result


def in_turn(chunks: Iterator[Chunk], do: Callable[[Chunk], _Done], threads: int) -> Iterator[_Done]:
    """Apply the function `do` to each chunk, and yield the results in order. Several chunks are processed in
    parallel; with 0 threads the chunks are processed one after another in this thread."""
    if not threads:
        yield from map(do, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[_Done]] = deque()
        try:
            for chunk in chunks:
                running.append(pool.submit(do, chunk))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
