"""A dataset's rows sorted once, by entity and time, and computed chunk by chunk.

The rows of an entity are never in two chunks, so chunks are independent: as many are computed side by side
as there are threads, and on as many machines as do a part each. Which rows a chunk has depends on the data
alone: entities are counted first, and a part sorts only the rows of its own chunks.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.dataset.asked import Quick, Theirs
from gridmill.jobs.dataset.beside import Loaded, own_features, their_features
from gridmill.jobs.dataset.frames import NOWHERE, Asking, Ints, Own, changes, own_rows
from gridmill.jobs.dataset.sqltext import AT, CODE, RANK, ROW, TIME, UPTO, moment, quote_all
from gridmill.jobs.engine import fetch_rows, quoted
from gridmill.jobs.parquet import BATCH_CELLS, memory_errors, rows_at_once
from gridmill.model.part import Part

CHUNK_ROWS = 1_048_576
PIECE_ROWS, PIECE_VALUES = 262_144, 3_000_000
BATCH_ROWS = 131_072
CHUNK_VALUES, WIDE, WIDE_VALUES = 16_000_000, 32, 8_000_000
"""Of wider rows fewer are computed at a time, fewer still of rows of more than WIDE columns; but never fewer
than BATCH_ROWS."""
MOST_VALUES = 96_000_000
"""What is held of an entity, or of another table; of more the query takes care, which can spill to disk."""
VALUE_BYTES, WAITING = 2 * 8, 2
"""Of a chunk, which is held twice; and how many chunks there are beside those that are computed: one waits
and one is read."""
KNOWN, NUMBER, PIECE = "__known", "__chunk_number", "__piece"
COUNTED, ENTITIES = "__counted", "__entities"
RECENT, NEWEST = "__recent", "__newest"
COUNT = "__count"
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What all chunks look at; `starts` is the number of each chunk's first entity, `chunk_values` what most
    chunks have."""

    quick: Quick
    loaded: tuple[Loaded, ...]
    starts: Ints
    chunk_values: int

    @property
    def chunks(self) -> int:
        """How many there are."""
        return len(self.starts)


def held_beside(threads: int) -> int:
    """Bytes that chunks and another table may take beside the engine."""
    return (threads + WAITING) * VALUE_BYTES * CHUNK_VALUES + 8 * MOST_VALUES


def side_by_side(prepared: Prepared, threads: int, room_bytes: int) -> int:
    """How many chunks are computed at a time. 0: one after another."""
    return max(0, min(threads, room_bytes // (VALUE_BYTES * prepared.chunk_values) - WAITING))


def prepare_chunks(
    engine: duckdb.DuckDBPyConnection,
    other: duckdb.DuckDBPyConnection,
    quick: Quick,
    columns: int,
    rows: int,
    chunk_rows: int | None,
) -> Prepared | None:
    """Numbers the entities and, at the same time and by the `other` connection, reads the other tables; None
    where too much would have to be held at once.

    `columns` are those that the query gives; `chunk_rows` is what is wanted. Raises duckdb.Error.
    """
    if not _keeps_types(engine, quick.rows) or not all(
        _keeps_types(engine, t.sql) for t in quick.asked.theirs
    ):
        return None
    most = max(BATCH_ROWS, (CHUNK_VALUES if columns <= WIDE else WIDE_VALUES) // columns)
    wanted = min(chunk_rows or CHUNK_ROWS, most)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(_load_all, other, quick)
        starts = _number_entities(engine, quick, columns, rows, most, wanted)
        loaded = loading.result()
    return None if starts is None or loaded is None else Prepared(quick, loaded, starts, wanted * columns)


def _number_entities(
    engine: duckdb.DuckDBPyConnection, quick: Quick, columns: int, rows: int, most: int, wanted: int
) -> Ints | None:
    """The number of each chunk's first entity; None where an entity has too many rows."""
    _number(engine, COUNTED, quick.rows, quick.entity)
    _cut_entities(engine, wanted)
    text = f'SELECT min("{CODE}") AS start, max({COUNT}) AS largest FROM {ENTITIES} GROUP BY "{NUMBER}"'
    found = engine.sql(f"{text} ORDER BY start").to_arrow_table()
    if rows > most and _integers(found["largest"]).max(initial=0) * columns > MOST_VALUES:
        return None
    return _integers(found["start"])


def _load_all(engine: duckdb.DuckDBPyConnection, quick: Quick) -> tuple[Loaded, ...] | None:
    """The other tables; None where one has too many values."""
    loaded: list[Loaded] = []
    for number, theirs in enumerate(quick.asked.theirs):
        known, keys = _known(engine, theirs), f"__keys{number}"
        _number(engine, keys, known, theirs.on)
        if _size(engine, theirs, keys) > MOST_VALUES:
            return None
        loaded.append(_load(engine, theirs, known, keys))
    return tuple(loaded)


def _keeps_types(engine: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether the rows are of the same types after a way through Arrow."""
    empty = engine.sql(f"SELECT * FROM (\n{sql}\n) LIMIT 0").to_arrow_table()
    engine.register("__empty", empty)
    one, other = (
        [row["column_type"] for row in fetch_rows(engine, f"DESCRIBE SELECT * FROM (\n{text}\n)")]
        for text in (sql, "SELECT * FROM __empty")
    )
    engine.unregister("__empty")
    return one == other


def _number(engine: duckdb.DuckDBPyConnection, name: str, rows: str, keys: tuple[str, ...]) -> None:
    """A table of the different keys (none missing), numbered in their order, with how many rows each has."""
    listed = ", ".join(quote_all(keys))
    there = " AND ".join(f"{key} IS NOT NULL" for key in quote_all(keys))
    found = f"SELECT {listed}, count(*) AS {COUNT} FROM (\n{rows}\n) WHERE {there} GROUP BY {listed}"
    if not keys:
        found = f"SELECT count(*) AS {COUNT} FROM (\n{rows}\n)"
    order = f"ORDER BY {listed}" if keys else ""
    engine.execute(
        f"CREATE OR REPLACE TABLE {quoted(name)} AS "
        f'SELECT *, (row_number() OVER ({order}) - 1)::UINTEGER AS "{CODE}" FROM (\n{found}\n)'
    )


def _numbered(rows: str, keys: tuple[str, ...], table: str, columns: str = "r.*") -> str:
    """The rows that have a key, with its number."""
    same = " AND ".join(f"r.{key} = k.{key}" for key in quote_all(keys)) or "true"
    return f'SELECT {columns}, k."{CODE}" FROM (\n{rows}\n) AS r JOIN {quoted(table)} AS k ON {same}'


def _cut_entities(engine: duckdb.DuckDBPyConnection, chunk_rows: int) -> None:
    """To each entity the number of its chunk: the piece that the first of its rows is in, when all rows are
    cut into pieces of `chunk_rows`."""
    before = f'sum({COUNT}) OVER (ORDER BY "{CODE}" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)'
    piece = f'coalesce({before}, 0) // {chunk_rows} AS "{PIECE}"'
    engine.execute(
        f'CREATE OR REPLACE TABLE {ENTITIES} AS SELECT * EXCLUDE ("{PIECE}"), '
        f'(dense_rank() OVER (ORDER BY "{PIECE}") - 1)::UINTEGER AS "{NUMBER}" '
        f"FROM (SELECT *, {piece} FROM {COUNTED})"
    )


def _size(engine: duckdb.DuckDBPyConnection, theirs: Theirs, keys: str) -> int:
    columns = 2 + len(theirs.order) + len(theirs.overs)
    rows = f"SELECT coalesce(sum({COUNT}), 0)::BIGINT AS n FROM {quoted(keys)}"
    return columns * int(fetch_rows(engine, rows)[0]["n"])


def _load(engine: duckdb.DuckDBPyConnection, theirs: Theirs, known: str, name: str) -> Loaded:
    wanted = f"r.* EXCLUDE ({', '.join(quote_all(theirs.on))})" if _are_spare(theirs) else "r.*"
    text = f'{_numbered(known, theirs.on, name, wanted)} ORDER BY "{CODE}", "{KNOWN}"'
    rows = engine.sql(text).to_arrow_table()
    codes, times = _integers(rows[CODE]), _integers(rows[KNOWN])
    rows, own = _untied(engine, rows, own_rows(codes, times), theirs.order)
    return Loaded(theirs, own.known, rows.drop_columns([CODE, KNOWN]), name)


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
    asked = {over.column for over in theirs.overs}
    asked |= {column for one in theirs.newest for column in one.columns.values()}
    named = asked | {name for name in theirs.on if any(quoted(name) in text for text in theirs.order)}
    return bool(theirs.on) and not named & set(theirs.on)


def _untied(
    engine: duckdb.DuckDBPyConnection, rows: pa.Table, own: Own, order: tuple[str, ...]
) -> tuple[pa.Table, Own]:
    """The rows of a key at the same time put in order: few are; sorting all by it would be a waste."""
    places = np.arange(len(own.first))
    later = own.first != places
    tied = later.copy()
    tied[own.first[later]] = True
    at = np.flatnonzero(tied)
    if not len(at) or not order:
        return rows, own
    some = rows.take(pa.array(at)).append_column("__group", pa.array(own.first[at]))
    engine.register("__tied", some.append_column("__place", pa.array(at)))
    text = f"SELECT __place FROM __tied ORDER BY __group, {', '.join(order)}"
    places[at] = _integers(engine.sql(text).to_arrow_table()["__place"])
    engine.unregister("__tied")
    return rows.take(pa.array(places)), own


def _integers(column: pa.ChunkedArray) -> Ints:
    found: Ints = pc.cast(column, pa.int64()).to_numpy()
    return found


def cut_chunks(
    engine: duckdb.DuckDBPyConnection, prepared: Prepared, part: Part | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """The chunks in order, those of a part: their numbers and their rows, by entity and time, without the
    columns that `with_keys` adds: what is sorted should be little."""
    quick = prepared.quick
    mine = f' WHERE k."{NUMBER}" % {part.count} = {part.number}' if part is not None else ""
    spare = quote_all((*quick.again, *([quick.time] if quick.time else [])))
    columns = f"r.* EXCLUDE ({', '.join(spare)})" if spare else "r.*"
    text = f'{_numbered(quick.rows, quick.entity, ENTITIES, columns)}{mine} ORDER BY "{CODE}", "{TIME}"'
    waiting: list[pa.Table] = []
    before = 0
    for batch in _batches(engine.sql(text)):
        for number, rows in _by_number(pa.Table.from_batches([batch]), prepared.starts):
            if waiting and number != before:
                yield before, pa.concat_tables(waiting)
                waiting = []
            waiting.append(rows)
            before = number
    if waiting:
        yield before, pa.concat_tables(waiting)


def _batches(found: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
    with memory_errors():
        yield from found.to_arrow_reader(rows_at_once(len(found.columns), BATCH_ROWS, BATCH_CELLS))


def _by_number(rows: pa.Table, starts: Ints) -> Iterator[tuple[int, pa.Table]]:
    """Rows in the order of their chunks, cut where the next one begins."""
    codes = _integers(rows[CODE])
    for begin, end in pairwise(sorted({0, *np.searchsorted(codes, starts).tolist(), len(codes)})):
        number = np.searchsorted(starts, codes[begin], "right") - 1
        yield int(number), rows.slice(begin, end - begin)


def with_keys(engine: duckdb.DuckDBPyConnection, prepared: Prepared, number: int, rows: pa.Table) -> pa.Table:
    """A chunk with the columns that were not sorted with it: its entities', and its times by their name."""
    quick = prepared.quick
    if quick.time:
        rows = rows.append_column(quick.time, rows[TIME])
    if quick.again:
        listed = ", ".join(quote_all(quick.again))
        text = f'SELECT {listed} FROM {ENTITIES} WHERE "{NUMBER}" = {number} ORDER BY "{CODE}"'
        keys = engine.sql(text).to_arrow_table().combine_chunks()
        each = keys.take(pa.array(_integers(rows[CODE]) - prepared.starts[number]))
        rows = pa.table([*rows.columns, *each.columns], names=[*rows.column_names, *quick.again])
    return rows


def cut_pieces(prepared: Prepared, rows: pa.Table) -> Iterator[pa.Table]:
    """A chunk's rows in pieces that stay near the processor, whole entities each; all at once where the query
    joins or sorts again."""
    if prepared.quick.moves:
        yield rows
        return
    starts = own_rows(_integers(rows[CODE]), _integers(rows[TIME])).known.offsets
    wanted, begin = min(PIECE_ROWS, PIECE_VALUES // rows.num_columns), 0
    while begin < rows.num_rows:
        end = int(starts[min(int(np.searchsorted(starts, begin + wanted)), len(starts) - 1)])
        yield rows.slice(begin, end - begin)
        begin = end


def find_beside(engine: duckdb.DuckDBPyConnection, prepared: Prepared, rows: pa.Table) -> pa.Table:
    """The piece, its ties in order, with all that was asked beside its columns; less the rows that the query
    would drop for their time."""
    quick = prepared.quick
    rows, own = _untied(engine, rows, own_rows(_integers(rows[CODE]), _integers(rows[TIME])), quick.ties)
    asks, asking, places = own, rows, _places(quick, own)
    if quick.after is not None:
        at = np.flatnonzero(own.times > np.datetime64(quick.after, "us").astype(np.int64))
        asks, asking = own.only(at), rows.take(at)
        places = {name: column.take(at) for name, column in places.items()}
    found = {**places, **own_features(rows, asks, quick.asked)}
    for loaded in prepared.loaded:
        keys = _find_keys(engine, loaded, asking, asks.keys, quick.entity)
        found |= their_features(loaded, Asking(loaded.known, keys, asks.times))
    names = [name for name in rows.column_names if name != CODE]
    return pa.table([*(asking[name] for name in names), *found.values()], names=[*names, *found])


def _places(quick: Quick, own: Own) -> dict[str, pa.Array]:
    """Where rows are in the chunk and among those of their entity, where the query asks for it."""
    places, starts = np.arange(len(own.keys)), own.known.offsets[own.keys]
    if f'"{ROW}"' not in quick.sql and f'"{UPTO}"' not in quick.sql:
        return {AT: pa.array(places)}
    return {
        AT: pa.array(places),
        ROW: pa.array(places - starts + 1),
        RANK: pa.array(own.first - starts + 1),
        UPTO: pa.array(_last_at_once(own) - starts + 1),
    }


def _last_at_once(own: Own) -> Ints:
    """Of each row the last one of its key at the same time."""
    firsts = np.flatnonzero(own.first == np.arange(len(own.first)))
    sizes = np.diff(np.append(firsts, len(own.first)))
    return np.repeat(firsts + sizes - 1, sizes)


def _find_keys(
    engine: duckdb.DuckDBPyConnection, loaded: Loaded, rows: pa.Table, owners: Ints, entity: tuple[str, ...]
) -> Ints:
    """The number of each row's key in the other table; `owners` tell which rows are of the same entity."""
    on = loaded.theirs.on
    if not on:
        return np.zeros(rows.num_rows, np.int64)
    if set(on) <= set(entity):
        new = changes(owners)
        firsts = rows.select(on).take(pa.array(np.flatnonzero(new)))
        found: Ints = _look_up(engine, loaded, firsts)[np.cumsum(new) - 1]
        return found
    return _look_up(engine, loaded, rows.select(on))


def _look_up(engine: duckdb.DuckDBPyConnection, loaded: Loaded, keys: pa.Table) -> Ints:
    engine.register("__asking", keys.append_column(AT, pa.array(np.arange(keys.num_rows))))
    text = _numbered("SELECT * FROM __asking", loaded.theirs.on, loaded.keys, f'r."{AT}"')
    pairs = engine.sql(text).to_arrow_table()
    engine.unregister("__asking")
    found = np.full(keys.num_rows, NOWHERE, np.int64)
    found[_integers(pairs[AT])] = _integers(pairs[CODE])
    return found


def in_turn(
    chunks: Iterator[tuple[int, pa.Table]], do: Callable[[int, pa.Table], _Done], threads: int
) -> Iterator[_Done]:
    """`do` with each chunk and its number, some side by side (with 0 threads one after another, here); what
    it gives, in order."""
    if not threads:
        yield from (do(number, chunk) for number, chunk in chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[_Done]] = deque()
        try:
            for number, chunk in chunks:
                running.append(pool.submit(do, number, chunk))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
