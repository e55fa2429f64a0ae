"""Features found beside the query: arrays in the order of a chunk's rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.dataset.aggregates import Numbers, Values, counts, extremes, newest, squares, sums
from gridmill.jobs.dataset.asked import Asked, Newest, Over, Theirs
from gridmill.jobs.dataset.frames import NOWHERE, Asking, Flags, Frames, Ints, Known, Own
from gridmill.model.dataset import Aggregate


@dataclass(frozen=True, slots=True)
class Loaded:
    """Another table's rows, by key and time known; and where their keys are found."""

    theirs: Theirs
    known: Known
    rows: pa.Table
    keys: str
    """The table of `on` and the number of each key."""


def own_features(rows: pa.Table, own: Own, asked: Asked) -> Mapping[str, pa.Array]:
    """Windows and lags over the rows of the same entity."""
    found = dict(_aggregated(asked.overs, rows, own.known, own))
    for back in asked.backs:
        found[back.name] = _take(rows[back.column], own.back(back.step))
    return found


def their_features(loaded: Loaded, asking: Asking) -> Mapping[str, pa.Array]:
    """Windows over another table's rows, and its newest ones."""
    found = dict(_aggregated(loaded.theirs.overs, loaded.rows, loaded.known, asking))
    for one in loaded.theirs.newest:
        found |= _newest(one, loaded.rows, asking)
    return found


def _newest(one: Newest, rows: pa.Table, asking: Asking) -> Mapping[str, pa.Array]:
    at = asking.newest(one.back_seconds, one.within_seconds)
    found = {name: _take(rows[column], at) for name, column in one.columns.items()}
    return {name: pc.fill_null(made, 0) if name in one.zeros else made for name, made in found.items()}


def _take(column: pa.ChunkedArray, at: Ints) -> pa.Array:
    return _whole(column).take(pa.array(at, mask=at == NOWHERE))


def _aggregated(
    overs: tuple[Over, ...] | list[Over], rows: pa.Table, known: Known, asks: Own | Asking
) -> Iterator[tuple[str, pa.Array]]:
    spans: dict[tuple[float | None, int | None], Frames] = {}
    columns: dict[str, tuple[pa.Array, Flags]] = {}
    sums_: dict[tuple[str, float | None, int | None], Numbers] = {}
    for over in overs:
        span = over.seconds, over.rows
        frames = spans.setdefault(span, _frames(asks, over)) if span not in spans else spans[span]
        if over.column not in columns:
            column = _whole(rows[over.column])
            columns[over.column] = column, np.asarray(column.is_valid())
        column, there = columns[over.column]
        yield over.name, _aggregate(over, column, there, known.offsets, frames, sums_)


def _frames(asks: Own | Asking, over: Over) -> Frames:
    if over.rows is not None:
        assert isinstance(asks, Own)
        return asks.newest(over.rows)
    return asks.before(over.seconds or 0.0)


def _aggregate(
    over: Over,
    column: pa.Array,
    there: Flags,
    offsets: Ints,
    frames: Frames,
    kept: dict[tuple[str, float | None, int | None], Numbers],
) -> pa.Array:
    if over.aggregate == Aggregate.LAST:
        return _take(pa.chunked_array([column]), newest(there, frames))
    count = counts(there, frames)
    match over.aggregate:
        case Aggregate.COUNT:
            return pa.array(count, pa.int64())
        case Aggregate.MIN | Aggregate.MAX:
            values = Values(_ordered(column), there, offsets)
            made = extremes(values, frames, largest=over.aggregate == Aggregate.MAX)
            return pa.array(made, mask=count == 0).cast(_bits(column.type)).view(column.type)
    values = Values(_floats(column), there, offsets)
    if over.aggregate == Aggregate.STD:
        with np.errstate(invalid="ignore"):
            made = np.sqrt(squares(values, frames, count) / np.maximum(count - 1, 1))
        return pa.array(made, mask=count < 2)
    key = over.column, over.seconds, over.rows
    if key not in kept:
        kept[key] = sums(values, frames)
    made = kept[key] if over.aggregate == Aggregate.SUM else kept[key] / np.maximum(count, 1)
    return pa.array(made, mask=count == 0)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _floats(column: pa.Array) -> Numbers:
    """Numbers as computed with; 0 where there is none."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return _plain(column.cast(pa.float64(), safe=False))


def _ordered(column: pa.Array) -> Numbers:
    """Numbers, or times as whole numbers, that can be compared; 0 where there is none."""
    if pa.types.is_floating(column.type):
        return _plain(column.cast(pa.float64()))
    return _plain(column.view(_bits(column.type)).cast(pa.int64()))


def _bits(kind: pa.DataType) -> pa.DataType:
    """The plain number that a time is kept as."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _plain(column: pa.Array) -> Numbers:
    numbers: Numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return numbers
