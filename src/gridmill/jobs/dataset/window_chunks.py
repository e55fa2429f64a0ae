"""Cuts sorted rows into chunks that can be computed independently of each other.

A chunk contains complete entities. If an entity is very large, it is cut by time. Each piece of such an
entity also contains the earlier rows that are read by its windows and lags, and the later rows that are read
by its labels. The positions of the cuts depend only on the rows.
"""

from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa

from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import JobPart
from gridmill.errors import DataError
from gridmill.jobs.dataset.key_order import batches_of, integers, moments, numbered, untied
from gridmill.jobs.dataset.window_plan import SortedRows
from gridmill.jobs.dataset.window_ranges import Ints, own_rows
from gridmill.jobs.expressions import CODE, TIME, quote_all

NUMBER, ENTITIES = "__chunk_number", "__entities"
SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBoundaries:
    """The boundaries at which the sorted rows are cut into chunks. `starts` are the numbers of the first
    entity of each chunk, and `rows` is the usual number of rows of a chunk. For an entity that is cut by
    time, at most `history_bytes` of its earlier rows are stored in memory."""

    starts: Ints
    rows: int
    history_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk of sorted rows. `number` is the position of the chunk among all chunks. If an entity is cut by
    time, this object contains only one piece of the chunk, which has the number `piece` (from 0).

    The first `count` rows in `rows` are computed. The rows after the first `count` rows are read only by the
    labels of the computed rows. `history` contains the earlier rows that the computed rows read, in order,
    with the needed columns.
    """

    number: int
    rows: pa.Table
    count: int
    piece: int | None = None
    history: pa.Table | None = None


def cut_chunks(
    engine: duckdb.DuckDBPyConnection, rows: SortedRows, cuts: ChunkBoundaries, part: JobPart | None = None
) -> Iterator[Chunk]:
    """Yield the chunks that a part of the job computes, in order. The chunks do not have the columns that
    `with_keys` adds later, so that less data is sorted.

    Raises DataError if the history of a chunk is too long.
    """
    mine = f' WHERE k."{NUMBER}" % {part.count} = {part.number}' if part is not None else ""
    spare = quote_all((*rows.again, *([rows.time] if rows.time else [])))
    columns = f"r.* EXCLUDE ({', '.join(spare)})" if spare else "r.*"
    text = f'{numbered(rows.rows, rows.entity, ENTITIES, columns)}{mine} ORDER BY "{CODE}", "{TIME}"'
    helper = engine.cursor()  # a second query on `engine` would end the query that is being read
    cutter: _ChunkSplitter | None = None
    for batch in batches_of(engine.sql(text)):
        for number, some in _by_number(pa.Table.from_batches([batch]), cuts.starts):
            if cutter is None or cutter.number != number:
                yield from cutter.close() if cutter is not None else ()
                cutter = _ChunkSplitter(engine=helper, sorted=rows, cuts=cuts, number=number)
            yield from cutter.add(some)
    if cutter is not None:
        yield from cutter.close()


def _by_number(rows: pa.Table, starts: Ints) -> Iterator[tuple[int, pa.Table]]:
    """Yield the sorted rows in tables that are cut where a chunk begins."""
    codes = integers(rows[CODE])
    for begin, end in pairwise(sorted({0, *np.searchsorted(codes, starts).tolist(), len(codes)})):
        number = np.searchsorted(starts, codes[begin], "right") - 1
        yield int(number), rows.slice(begin, end - begin)


def with_keys(
    engine: duckdb.DuckDBPyConnection, sorted_: SortedRows, starts: Ints, number: int, rows: pa.Table
) -> pa.Table:
    """Return the rows of a chunk with the columns that were not sorted with the rows: the columns of the
    entity, and the column of the time."""
    if sorted_.time:
        rows = rows.append_column(sorted_.time, rows[TIME])
    if sorted_.again:
        listed = ", ".join(quote_all(sorted_.again))
        text = f'SELECT {listed} FROM {ENTITIES} WHERE "{NUMBER}" = {number} ORDER BY "{CODE}"'
        keys = engine.sql(text).to_arrow_table().combine_chunks()
        each = keys.take(pa.array(integers(rows[CODE]) - starts[number]))
        rows = pa.table([*rows.columns, *each.columns], names=[*rows.column_names, *sorted_.again])
    return rows


@dataclass(slots=True, kw_only=True)
class _ChunkSplitter:
    """Collects the rows of a chunk.

    If a chunk has more than twice the usual number of rows, it is cut into several pieces.
    """

    engine: duckdb.DuckDBPyConnection
    sorted: SortedRows
    cuts: ChunkBoundaries
    number: int
    waiting: list[pa.Table] = field(default_factory=list)
    count: int = 0
    tried: int = 0
    piece: int = 0
    history: pa.Table | None = None

    def add(self, rows: pa.Table) -> Iterator[Chunk]:
        """Add rows to the chunk, and yield the pieces that are now complete."""
        self.waiting.append(rows)
        self.count += rows.num_rows
        yield from self._pieces(all_there=False)

    def close(self) -> Iterator[Chunk]:
        """Yield the last pieces of the chunk."""
        yield from self._pieces(all_there=True)
        piece = self.piece if self.piece else None
        rows = pa.concat_tables(self.waiting)
        yield Chunk(number=self.number, rows=rows, count=rows.num_rows, piece=piece, history=self.history)

    def _pieces(self, *, all_there: bool) -> Iterator[Chunk]:
        while self.count > 2 * max(self.cuts.rows, 0 if all_there else self.tried):
            rows = pa.concat_tables(self.waiting)
            self.waiting, places = [rows], self._places(rows, all_there=all_there)
            if places is None:
                # the next attempt waits for twice as many rows, so that all attempts together stay cheap
                self.tried = self.count
                return
            at, end = places
            some = rows.slice(0, end)
            yield Chunk(number=self.number, rows=some, count=at, piece=self.piece, history=self.history)
            self.history = self._next_history(some, at, rows)
            self.waiting, self.count = [rows.slice(at)], self.count - at
            self.piece, self.tried = self.piece + 1, 0

    def _places(self, rows: pa.Table, *, all_there: bool) -> tuple[int, int] | None:
        """Return the position at which the next piece begins, and the position after the later rows that the
        current piece reads.

        Return None if the next piece does not exist, or if its rows have not been added yet. All rows of an
        entity with the same time are in the same piece.
        """
        codes, times = integers(rows[CODE]), integers(rows[TIME])
        borders = np.flatnonzero(moments(rows, TIME)[self.cuts.rows :])
        if not len(borders):
            return None
        at = self.cuts.rows + int(borders[0])
        seconds, count = self.sorted.plan.future
        # only as far as the rows of this entity were added, because more rows may follow
        last = int(np.searchsorted(codes, codes[at - 1], "right"))
        mine = times[at:last]
        until = np.searchsorted(mine, times[at - 1] + round(seconds * SECOND), "right")
        end = at + min(len(mine), max(int(until), count))
        if end > at:
            end = at + int(np.searchsorted(mine, times[end - 1], "right"))
        if (seconds or count) and not all_there and end == len(codes):
            return None
        return at, end

    def _next_history(self, rows: pa.Table, at: int, following: pa.Table) -> pa.Table | None:
        """Return the rows before the position `at` that windows and lags of the rows after `at` read."""
        code, time = (int(integers(following[name].slice(at, 1))[0]) for name in (CODE, TIME))
        seconds, count = self.sorted.plan.past
        if code != int(integers(rows[CODE].slice(at - 1, 1))[0]) or not (seconds or count):
            return None
        columns = list(dict.fromkeys((CODE, TIME, *self.sorted.plan.columns)))
        rows = with_keys(self.engine, self.sorted, self.cuts.starts, self.number, rows)
        own = own_rows(integers(rows[CODE]), integers(rows[TIME]))
        rows = untied(self.engine, rows, own, self.sorted.ties).slice(0, at).select(columns)
        if self.history is not None:
            rows = pa.concat_tables([self.history, rows])
        codes, times = integers(rows[CODE]), integers(rows[TIME])
        first = int(np.searchsorted(codes, code, "left"))
        begin = first + int(np.searchsorted(times[first:], time - round(seconds * SECOND), "left"))
        rows = rows.slice(min(begin, max(first, len(codes) - count)))
        if rows.nbytes > self.cuts.history_bytes:
            raise _too_long(rows, self.sorted)
        return rows.combine_chunks()


def _too_long(rows: pa.Table, sorted_: SortedRows) -> DataError:
    seconds, count = sorted_.plan.past
    reach = show_seconds(seconds) if seconds else f"{count} rows"
    one = f"one entity ({', '.join(sorted_.entity)})" if sorted_.entity else "the table (there is no entity)"
    return DataError(
        f"windows and lags read rows of the last {reach}, and {one} has {rows.num_rows:,} rows in that "
        f"time: {show_bytes(rows.nbytes)} of them would be in memory at once",
        hint="Give the job's resource more memory, shorten the windows, or add a column to the entity.",
        place="dataset.windows",
    )
