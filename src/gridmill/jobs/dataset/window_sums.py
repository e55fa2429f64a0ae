"""Computes aggregates over ranges of rows, for all ranges together. The results are as exact as if the
values of each range were added separately.

The sum of a range is the difference of two running sums of whole numbers. To get whole numbers, the values
of each key are multiplied by a power of two. The power of two is chosen so that the sum of the longest range
fits into 63 bits. Running sums may overflow, but their differences are correct. The error of a sum is at
most half a unit per value. If a range has tiny values beside a huge value, the error of half a unit could be
visible. For ranges with visible errors, and for ranges with NaN or infinity, blocks of values are added
instead, as in a segment tree.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass
from gridmill.jobs.dataset.window_ranges import NOWHERE, Flags, Ints, RowFrames

Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Floats | Ints
Moments: TypeAlias = tuple[Floats, Floats, Floats]

BITS = 62
TOLERANCE = 1e-12
"""The largest allowed error of a sum, relative to the sum of the absolute values."""
SPREAD_TOLERANCE = 1e-11
"""The largest allowed error of a sum of squared differences, relative to that sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedValues:
    """A number for each row (0 if the row is not `present`), and the range of rows of each key."""

    numbers: Numbers
    present: Flags
    offsets: Ints


def counts(present: Flags, frames: RowFrames) -> Ints:
    """Return the number of existing values in each range."""
    if present.all():
        return frames.lengths
    return _between(_running(present.astype(np.int64)), frames)


def newest(present: Flags, frames: RowFrames) -> Ints:
    """Return for each range the position of its last row that has a value, or NOWHERE if no row has a
    value."""
    last = np.maximum.accumulate(np.where(present, np.arange(len(present)), NOWHERE))
    at = np.append(last, NOWHERE)[frames.high - 1]
    return np.where(at >= frames.low, at, NOWHERE)


def sums(values: KeyedValues, frames: RowFrames) -> Floats:
    """Return the sum of each range. The sum of an empty range is 0."""
    numbers = values.numbers.astype(np.float64, copy=False)
    finite = np.isfinite(numbers)
    whole = bool(finite.all())
    scaled = _scale(numbers if whole else np.where(finite, numbers, 0.0), values.offsets, frames)
    made = scaled.between(frames)
    doubtful = scaled.doubtful(frames, made)
    if not whole:
        doubtful |= _between(_running((~finite).astype(np.int64)), frames) > 0
    result = made * scaled.unit(frames.keys)
    at = np.flatnonzero(doubtful)
    if len(at):
        result[at] = _fold((numbers,), _add, (0.0,), frames.low[at], frames.high[at])[0]
    return result


def squares(values: KeyedValues, frames: RowFrames, count: Ints) -> Floats:
    """Return for each range the sum of the squared differences of its values from their mean. `count` is the
    number of values in each range."""
    numbers = values.numbers.astype(np.float64, copy=False)
    finite = np.isfinite(numbers) & values.present
    middle = _middle(np.where(finite, numbers, 0.0), finite, values.offsets)
    away = np.where(finite, numbers - middle, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        power = away * away
    if not np.isfinite(power).all():
        return _spread(values, frames)
    first, second = (_scale(part, values.offsets, frames) for part in (away, power))
    one, two = (part.between(frames) * part.unit(frames.keys) for part in (first, second))
    lost = 0.5 * frames.lengths
    offset = np.abs(one) / np.maximum(count, 1)
    result = np.maximum(two - one * offset * np.sign(one), 0.0)
    error = lost * (second.unit(frames.keys) + 2 * offset * first.unit(frames.keys)) + 4e-16 * two
    doubtful = (error > SPREAD_TOLERANCE * result) & (count > 1)
    if not (finite | ~values.present).all():
        doubtful |= _between(_running((~finite & values.present).astype(np.int64)), frames) > 0
    at = np.flatnonzero(doubtful)
    if len(at):
        result[at] = _spread(
            values, RowFrames(low=frames.low[at], high=frames.high[at], keys=frames.keys[at])
        )
    return result


def extremes(values: KeyedValues, frames: RowFrames, *, largest: bool) -> Numbers:
    """Return the smallest or the largest value of each range. The result for an empty range is an arbitrary
    number.

    NaN is larger than all other numbers.
    """
    numbers: NDArray[Any] = _neutral(values, largest=largest)
    pick: Callable[..., NDArray[Any]] = np.maximum if largest else np.fmin
    length, level = frames.lengths, 0
    result = np.zeros_like(numbers, shape=len(length))
    while True:
        mine = np.flatnonzero((length >= 1 << level) & (length < 2 << level))
        if len(mine):
            low, high = frames.low[mine], frames.high[mine] - (1 << level)
            result[mine] = pick(numbers[low], numbers[high])
        if not len(length) or length.max() < 2 << level:
            return result
        numbers = pick(numbers[: -(1 << level)], numbers[1 << level :])
        level += 1


def _neutral(values: KeyedValues, *, largest: bool) -> Numbers:
    if values.present.all():
        return values.numbers
    limits = np.iinfo(np.int64)
    if values.numbers.dtype == np.float64:
        nothing = -np.inf if largest else np.nan
    else:
        nothing = limits.min if largest else limits.max
    numbers: Numbers = np.where(values.present, values.numbers, nothing)
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningSums:
    """Running sums of the values, and of their absolute values, in whole numbers of units. `units` contains
    the unit of each key."""

    running: Ints
    absolute: Ints | None
    lossy: Flags | None
    """For each value, this field is true if the value is not a whole number of units. The field is None if
    all values are whole numbers of units."""
    units: Floats

    def unit(self, keys: Ints) -> Floats:
        return self.units[keys]

    def between(self, frames: RowFrames) -> Ints:
        return _between(self.running, frames)

    def doubtful(self, frames: RowFrames, made: Ints) -> Flags:
        """Return the ranges in which an error of half a unit per value could be visible."""
        if self.lossy is None:
            return np.zeros(len(made), np.bool_)
        whole = made if self.absolute is None else _between(self.absolute, frames)
        doubtful: Flags = 0.5 * frames.lengths > TOLERANCE * whole
        at = np.flatnonzero(doubtful)
        if len(at):
            lossy = _running(self.lossy.astype(np.int64))
            doubtful[at] = lossy[frames.high[at]] > lossy[frames.low[at]]
        return doubtful


def _scale(numbers: Floats, offsets: Ints, frames: RowFrames) -> _RunningSums:
    if not len(numbers):
        none = np.zeros(1, np.int64)
        return _RunningSums(running=none, absolute=None, lossy=None, units=np.ones(max(1, len(offsets) - 1)))
    absolute = np.abs(numbers)
    longest = int(frames.lengths.max(initial=1))
    rows = np.minimum(np.diff(offsets), max(1, longest))
    highest = np.frexp(np.maximum.reduceat(absolute, offsets[:-1]))[1]
    shift = np.clip(BITS - np.ceil(np.log2(rows + 1)).astype(np.int64) - highest, -1000, 1000)
    size = np.diff(offsets)
    exact = numbers * np.repeat(np.exp2(shift), size)
    whole = np.rint(exact)
    running = _running(whole.astype(np.int64))
    signed = bool((numbers < 0).any())
    lossy = whole != exact
    return _RunningSums(
        running=running,
        absolute=_running(np.abs(whole).astype(np.int64)) if signed else None,
        lossy=lossy if lossy.any() else None,
        units=np.exp2(-shift),
    )


def _running(numbers: Ints) -> Ints:
    result = np.empty(len(numbers) + 1, np.int64)
    result[0] = 0
    np.cumsum(numbers, out=result[1:])
    return result


def _between(running: Ints, frames: RowFrames) -> Ints:
    numbers: Ints = running[frames.high] - running[frames.low]
    return numbers


def _middle(numbers: Floats, present: Flags, offsets: Ints) -> Floats:
    """Return for each row a value close to the mean of its key."""
    if not len(numbers):
        return numbers
    count = np.maximum(np.add.reduceat(present.astype(np.float64), offsets[:-1]), 1)
    size = np.diff(offsets)
    share = numbers / np.repeat(count, size)
    return np.repeat(np.add.reduceat(share, offsets[:-1]), size)


def _fold(
    rows: tuple[Floats, ...],
    merge: Callable[..., tuple[Floats, ...]],
    nothing: tuple[float, ...],
    low: Ints,
    high: Ints,
) -> tuple[Floats, ...]:
    """Return the merged values of all rows of each range. The method merges blocks of values. The blocks of
    each level are twice as large as the blocks of the previous level."""
    left, right = ([np.full(len(low), one) for one in nothing] for _ in range(2))
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        for at, mine in ((low, left), (high - 1, right)):
            ends = np.flatnonzero(open_ & (at & 1 == (1 if mine is left else 0)))
            inside, outside = [part[at[ends]] for part in rows], [part[ends] for part in mine]
            merged = merge(*outside, *inside) if mine is left else merge(*inside, *outside)
            for part, values in zip(mine, merged, strict=True):
                part[ends] = values
        low, high = (low + 1) >> 1, high >> 1
        rows = _next_level(rows, merge, nothing)
    return merge(*left, *right)


def _next_level(
    rows: tuple[Floats, ...], merge: Callable[..., tuple[Floats, ...]], nothing: tuple[float, ...]
) -> tuple[Floats, ...]:
    if len(rows[0]) % 2:
        rows = tuple(np.append(part, one) for part, one in zip(rows, nothing, strict=True))
    return merge(*(part[0::2] for part in rows), *(part[1::2] for part in rows))


def _add(one: Floats, other: Floats) -> tuple[Floats]:
    return (one + other,)


def _spread(values: KeyedValues, frames: RowFrames) -> Floats:
    numbers = values.numbers.astype(np.float64, copy=False)
    rows = (values.present.astype(np.float64), numbers, np.where(np.isfinite(numbers), 0.0, np.nan))
    return _fold(rows, _merge, (0.0, 0.0, 0.0), frames.low, frames.high)[2]


def _merge(
    count: Floats, mean: Floats, power: Floats, more: Floats, other: Floats, further: Floats
) -> Moments:
    """Return the count, mean and sum of squared differences of the union of two sets, by the method of Chan,
    Golub and LeVeque."""
    both = count + more
    share = np.divide(more, both, out=np.zeros_like(both), where=both > 0)
    with np.errstate(over="ignore", invalid="ignore"):
        away = np.where((count > 0) & (more > 0), other - mean, 0.0)
        middle = np.where(count > 0, mean + away * share, other)
        return both, middle, power + further + away * away * count * share
