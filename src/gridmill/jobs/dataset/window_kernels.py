"""Computes windows, lags and as-of joins with vectors: each computation finds the values of other rows for
all rows together, as arrays.

The results are in the order of the rows that request values. Values of any type are ranked so that they can
be compared as numbers: each value becomes its position among the sorted distinct values.

Counts of distinct values in ranges are exact, and are computed for all ranges together. Within a range, a
value is counted at its first occurrence. At the first occurrence of a value within a range, its previous
occurrence is before the range. The number of distinct values in a range is therefore the number of rows in
the range whose value has its previous occurrence before the beginning of the range. A wavelet matrix
computes this number: it sorts the rows by the bits of the previous position, one bit after another, and
updates the bounds of each range for each bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gridmill.domain.dataset import Aggregate
from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.window_plan import LaterRow, NextRows, OtherTable, WindowAggregate, WindowPlan
from gridmill.jobs.dataset.window_ranges import (
    NOWHERE,
    Flags,
    Ints,
    KeyedTimes,
    OwnRows,
    QueryRows,
    RowFrames,
    cut_frames,
)
from gridmill.jobs.dataset.window_sums import KeyedValues, Numbers, counts, extremes, newest, squares, sums

Number: TypeAlias = np.int32 | np.int64


def distinct(codes: Ints, frames: RowFrames) -> Ints:
    """Return the number of different codes in each range. The code NOWHERE is not counted. Each range
    contains only rows with the same key."""
    count = len(codes)
    kind: type[Number] = np.int32 if count < 2**31 - 3 else np.int64
    number = _typed(np.where(codes == NOWHERE, count + 1, _earlier(codes) + 1), kind)
    low, high = _typed(frames.low, kind), _typed(np.maximum(frames.high, frames.low), kind)
    than = _typed(frames.low + 1, kind)
    result = np.zeros(len(low), np.int64)
    for bit in reversed(range(int(count + 2).bit_length())):
        ones = (number >> bit & 1).astype(np.bool_)
        zeros = _running_zeros(ones, kind)
        low_zeros, high_zeros = zeros[low], zeros[high]
        above = (than >> bit & 1).astype(np.bool_)
        result += np.where(above, high_zeros - low_zeros, 0)
        low = np.where(above, low - low_zeros + zeros[-1], low_zeros)
        high = np.where(above, high - high_zeros + zeros[-1], high_zeros)
        number = np.concatenate((number[~ones], number[ones]))
    return result


def _typed(numbers: Ints, kind: type[Number]) -> NDArray[Number]:
    made: NDArray[Number] = numbers.astype(kind)
    return made


def _earlier(codes: Ints) -> Ints:
    """Return for each row the position of the last earlier row with the same code, or NOWHERE if there is no
    such row."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    result = np.full(len(codes), NOWHERE, np.int64)
    result[order[1:]] = np.where(same, order[:-1], NOWHERE)
    return result


def _running_zeros(ones: Flags, kind: type[Number]) -> NDArray[Number]:
    result = np.zeros(len(ones) + 1, kind)
    np.cumsum(~ones, out=result[1:])
    return result


Rank: TypeAlias = Callable[[pa.Array], "RankedValues"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedValues:
    """The position of each value among the sorted distinct values `values`. The position of a missing value
    is NOWHERE."""

    places: Ints
    values: pa.Array


def rank(column: pa.Array, engine: duckdb.DuckDBPyConnection) -> RankedValues:
    """Return the rank of each value in the order of SQL: texts are sorted by their bytes in UTF-8, NaN is
    last, and 0.0 equals -0.0."""
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return _by_query(column, engine)
    if pa.types.is_dictionary(column.type):
        # without sorting, because DuckDB sorts an ENUM by the position of its value in the type
        return RankedValues(places=_numbers(column.indices), values=column.dictionary)
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))
    coded = column.dictionary_encode()
    order = pc.array_sort_indices(coded.dictionary).to_numpy()
    places = np.empty(len(order) + 1, np.int64)
    places[order], places[NOWHERE] = np.arange(len(order)), NOWHERE
    return RankedValues(places=places[_numbers(coded.indices)], values=coded.dictionary.take(pa.array(order)))


def _numbers(indices: pa.Array) -> Ints:
    numbers: Ints = indices.cast(pa.int64()).fill_null(NOWHERE).to_numpy()
    return numbers


def _by_query(column: pa.Array, engine: duckdb.DuckDBPyConnection) -> RankedValues:
    """Return the ranks of values that Arrow cannot compare. DuckDB computes these ranks."""
    engine.register("__ranked", pa.table({"v": column, "__at": pa.array(np.arange(len(column)))}))
    text = "SELECT __at, dense_rank() OVER (ORDER BY v) - 1 AS place FROM __ranked WHERE v IS NOT NULL"
    table = engine.sql(text).to_arrow_table()
    engine.unregister("__ranked")
    at, place = (table[name].to_numpy() for name in ("__at", "place"))
    places = np.full(len(column), NOWHERE, np.int64)
    places[at] = place
    _, firsts = np.unique(place, return_index=True)
    return RankedValues(places=places, values=column.take(pa.array(at[firsts])))


SLICE_ROWS = 4_194_304
"""The number of rows of another table that are processed together, unless a window is longer."""
Span = tuple[float | None, int | None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """The rows of another table, sorted by key and by the time at which they are known. The class also has a
    table of the keys with their numbers."""

    plan: OtherTable
    times: KeyedTimes
    rows: pa.Table
    keys: str


def own_features(rows: pa.Table, own: OwnRows, plan: WindowPlan, rank: Rank) -> Mapping[str, pa.Array]:
    """Compute windows and lags over rows of the same entity, and labels that are later values of the
    entity."""
    spans = {_span(over): _own_frames(own, over) for over in plan.aggregates}
    result = dict(_aggregated(plan.aggregates, rows, own.known.offsets, spans, rank))
    for back in plan.lags:
        result[back.name] = _take(rows[back.column], own.back(back.step))
    if plan.later is not None:
        result |= _later(plan.later, rows, own)
    if plan.next_rows is not None:
        result |= _following(plan.next_rows, rows, own)
    return result


def their_features(loaded: LoadedTable, asking: QueryRows, rank: Rank) -> Mapping[str, pa.Array]:
    """Compute windows and lags over the rows of another table, and values of the newest rows of that
    table."""
    theirs = loaded.plan
    spans = {_span(over): _their_frames(asking, over) for over in theirs.aggregates}
    places = {back.name: (back.column, asking.back(back.step)) for back in theirs.lags}
    for one in theirs.newest:
        at = asking.newest(one.back_seconds, one.within_seconds)
        places |= {name: (column, at) for name, column in one.columns.items()}
    parts = list(_sliced(loaded, len(asking.keys), spans, places, rank))
    if len(parts) == 1:
        return parts[0][1]
    order = pa.array(np.argsort(np.concatenate([rows for rows, _ in parts])))
    return {
        name: pa.concat_arrays([features[name] for _, features in parts]).take(order)
        for name in (parts[0][1] if parts else ())
    }


def _sliced(
    loaded: LoadedTable,
    count: int,
    spans: Mapping[Span, RowFrames],
    places: Mapping[str, tuple[str, Ints]],
    rank: Rank,
) -> Iterator[tuple[Ints, Mapping[str, pa.Array]]]:
    """Compute the features range by range of the other table. Yield the requesting rows of each range with
    their results."""
    ranges = [(frame.low, frame.high) for frame in spans.values()]
    ranges += [(at, np.where(at == NOWHERE, at, at + 1)) for _, at in places.values()]
    low, high = _reach(count, ranges)
    for rows in _grouped(low, high):
        begin, end = _bounds(low[rows], high[rows], loaded.rows.num_rows)
        some = loaded.rows.slice(begin, end - begin)
        whole = len(rows) == count
        cut = {
            span: cut_frames(loaded.times, frames if whole else _only(frames, rows), begin, end)
            for span, frames in spans.items()
        }
        offsets = next((offsets for offsets, _ in cut.values()), np.zeros(1, np.int64))
        frames = {span: made for span, (_, made) in cut.items()}
        features = dict(_aggregated(loaded.plan.aggregates, some, offsets, frames, rank))
        for name, (column, at) in places.items():
            mine = at if whole else at[rows]
            features[name] = _take(some[column], np.where(mine == NOWHERE, NOWHERE, mine - begin))
        yield rows, features


def _reach(count: int, ranges: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return for each requesting row the position of the first row that it reads, and the position after the
    last row that it reads.

    If a requesting row reads no row, both positions are equal.
    """
    least, most = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    for low, high in ranges:
        is_filled = high > low
        least = np.where(is_filled, np.minimum(least, low), least)
        most = np.where(is_filled, np.maximum(most, high), most)
    return np.minimum(least, most), most


def _grouped(low: Ints, high: Ints) -> Iterator[Ints]:
    """Yield groups of requesting rows. The rows of a group read rows that are close to each other."""
    is_filled = high > low
    if not is_filled.any() or high.max() - low[is_filled].min() <= SLICE_ROWS:
        yield np.arange(len(high))
        return
    pieces = high // SLICE_ROWS
    order = np.argsort(pieces, kind="stable")
    ends = np.flatnonzero(np.diff(pieces[order])) + 1
    yield from np.split(order, ends)


def _bounds(low: Ints, high: Ints, total: int) -> tuple[int, int]:
    """Return the range of rows that is read by these requests. If the table has rows, the range contains at
    least one row."""
    is_filled = high > low
    if not is_filled.any():
        return 0, min(1, total)
    return int(low[is_filled].min()), int(high.max())


def _only(frames: RowFrames, rows: Ints) -> RowFrames:
    return RowFrames(low=frames.low[rows], high=frames.high[rows], keys=frames.keys[rows])


def _span(over: WindowAggregate) -> Span:
    return over.seconds, over.rows, over.ahead


def _own_frames(own: OwnRows, over: WindowAggregate) -> RowFrames:
    return own.newest(over.rows) if over.rows is not None else own.before(over.seconds or 0.0)


def _their_frames(asking: QueryRows, over: WindowAggregate) -> RowFrames:
    if over.rows is not None:
        return asking.last(over.rows)
    return asking.ahead(over.seconds or 0.0) if over.ahead else asking.before(over.seconds or 0.0)


def _later(later: LaterRow, rows: pa.Table, own: OwnRows) -> Mapping[str, pa.Array]:
    if later.step is not None:
        at = own.ahead(later.step)
    else:
        is_valid = np.asarray(_whole(rows[later.column]).is_valid())
        at = newest(is_valid, own.at(later.seconds or 0.0))
    return {name: _take(rows[column], at) for name, column in later.columns.items()}


def _following(following: NextRows, rows: pa.Table, own: OwnRows) -> Mapping[str, pa.Array]:
    steps = {step: own.ahead(step) for step in range(1, following.rows + 1)}
    made = {name: _number(rows[column], steps[step]) for name, (column, step) in following.names.items()}
    whole = np.ones(len(own.keys), np.bool_)
    for column in made.values():
        whole &= np.asarray(column.is_valid())
    none = pa.array(~whole)
    made = {name: pc.if_else(none, pa.scalar(None, pa.float64()), column) for name, column in made.items()}
    times = _whole(rows[following.known_column])
    last = WindowAggregate(name="", aggregate=Aggregate.MAX, column="")
    frames, is_valid = own.next(following.rows), np.asarray(times.is_valid())
    latest_time = _extreme(
        last, _Column(times, is_valid), own.known.offsets, frames, counts(is_valid, frames)
    )
    return {**made, following.whole: pa.array(whole, mask=~whole), following.known: latest_time}


def _number(column: pa.ChunkedArray, at: Ints) -> pa.Array:
    """Return the numbers at the given positions. In the result, NaN becomes a missing value."""
    values = _take(column, at)
    values = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    values = values.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _take(column: pa.ChunkedArray, at: Ints) -> pa.Array:
    return _whole(column).take(pa.array(at, mask=at == NOWHERE))


@dataclass(slots=True)
class _Column:
    """The values of a column, a flag for each value that shows whether the value exists, and a cache of
    arrays that are computed from them."""

    values: pa.Array
    present: Flags
    sums: dict[Span, Numbers] = field(default_factory=dict)
    ranked: RankedValues | None = None

    def rank(self, rank: Rank) -> RankedValues:
        self.ranked = self.ranked or rank(self.values)
        return self.ranked


def _aggregated(
    overs: Sequence[WindowAggregate],
    rows: pa.Table,
    offsets: Ints,
    spans: Mapping[Span, RowFrames],
    rank: Rank,
) -> Iterator[tuple[str, pa.Array]]:
    columns: dict[str, _Column] = {}
    for over in overs:
        if over.column not in columns:
            values = _whole(rows[over.column])
            columns[over.column] = _Column(values, np.asarray(values.is_valid()))
        yield over.name, _aggregate(over, columns[over.column], offsets, spans[_span(over)], rank)


def _aggregate(
    over: WindowAggregate, column: _Column, offsets: Ints, frames: RowFrames, rank: Rank
) -> pa.Array:
    if over.aggregate == Aggregate.LAST:
        return _take(pa.chunked_array([column.values]), newest(column.present, frames))
    if over.aggregate == Aggregate.DISTINCT:
        return pa.array(distinct(column.rank(rank).places, frames), pa.int64())
    count = counts(column.present, frames)
    if over.aggregate == Aggregate.COUNT:
        return pa.array(count, pa.int64())
    if over.aggregate in (Aggregate.MIN, Aggregate.MAX):
        if _is_ordered(column.values.type):
            return _extreme(over, column, offsets, frames, count)
        return _ranked_extreme(over, column.rank(rank), offsets, frames, count)
    values = KeyedValues(numbers=_floats(column.values), present=column.present, offsets=offsets)
    if over.aggregate == Aggregate.STD:
        with np.errstate(invalid="ignore"):
            made = np.sqrt(squares(values, frames, count) / np.maximum(count - 1, 1))
        return pa.array(made, mask=count < 2)
    total = column.sums.setdefault(_span(over), sums(values, frames))
    made = total if over.aggregate == Aggregate.SUM else total / np.maximum(count, 1)
    return pa.array(made, mask=count == 0)


def _extreme(
    over: WindowAggregate, column: _Column, offsets: Ints, frames: RowFrames, count: Ints
) -> pa.Array:
    kind = column.values.type
    values = KeyedValues(numbers=_ordered(column.values), present=column.present, offsets=offsets)
    made = extremes(values, frames, largest=over.aggregate == Aggregate.MAX)
    return pa.array(made, mask=count == 0).cast(_bits(kind)).view(kind)


def _ranked_extreme(
    over: WindowAggregate, ranked: RankedValues, offsets: Ints, frames: RowFrames, count: Ints
) -> pa.Array:
    values = KeyedValues(numbers=ranked.places, present=ranked.places != NOWHERE, offsets=offsets)
    made = extremes(values, frames, largest=over.aggregate == Aggregate.MAX)
    return ranked.values.take(pa.array(made, mask=count == 0))


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether values of this type are numbers of at most 64 bits, or times that are stored as such
    numbers."""
    whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return bool(
        whole or pa.types.is_floating(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _floats(column: pa.Array) -> Numbers:
    """Return the values as numbers for computations, with 0 for missing values."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return _plain(column.cast(pa.float64(), safe=False))


def _ordered(column: pa.Array) -> Numbers:
    """Return the values for comparisons, as numbers or as times in whole numbers, with 0 for missing
    values."""
    if pa.types.is_floating(column.type):
        return _plain(column.cast(pa.float64()))
    return _plain(column.view(_bits(column.type)).cast(pa.int64()))


def _bits(kind: pa.DataType) -> pa.DataType:
    """Return the type of the whole numbers that represent times of this type."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _plain(column: pa.Array) -> Numbers:
    numbers: Numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return numbers
