"""Computes the rows that a window covers, as ranges of rows sorted by key and time. This module works only
with numbers."""

from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
NOWHERE = -1
"""The key of a row that has no key, and the position of a row that does not exist."""
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class KeyedTimes:
    """Rows sorted by key and time: the rows of key k are `offsets[k]` up to `offsets[k + 1]`, at least one
    per key.

    `times` are microseconds. `on_disk` means that the arrays are in a file.
    """

    offsets: Ints
    times: Ints
    on_disk: bool = False

    @cached_property
    def _span(self) -> tuple[int, int]:
        return int(self.times.min()), int(self.times.max())

    @cached_property
    def _places(self) -> Ints:
        """Key and time of each row, combined into one number."""
        first, last = self._span
        starts = np.arange(len(self.offsets) - 1) * (last - first + 2) - first
        return np.repeat(starts, np.diff(self.offsets)) + self.times

    def find(self, keys: Ints, times: Ints, side: Literal["left", "right"]) -> Ints:
        """Return for each key and time the first row at that time or later ("left"), or the first row later
        than it ("right").

        Any time is allowed. For the key NOWHERE the result is row 0.
        """
        if not len(self.times):
            return np.zeros(len(keys), np.int64)
        if self.on_disk:
            return self._halve(keys, times, side)
        first, last = self._span
        span = last - first + 2
        if (len(self.offsets) + 1) * span >= 2**63:
            return self._halve(keys, times, side)
        clipped = np.clip(times, first - (side == "right"), last + 1) - first
        positions = np.searchsorted(self._places, keys * span + clipped, side)
        return np.where(keys == NOWHERE, 0, positions)

    def _halve(self, keys: Ints, times: Ints, side: Literal["left", "right"]) -> Ints:
        """Return the result of `find` by bisection, for all rows at once. It is used if key and time do not
        fit into one number."""
        has_key = keys != NOWHERE
        low, high = (np.where(has_key, self.offsets[keys + more], 0) for more in (0, 1))
        while (open_ := low < high).any():
            middle = (low + high) // 2
            at = self.times[np.minimum(middle, len(self.times) - 1)]
            before = open_ & ((at < times) if side == "left" else (at <= times))
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFrames:
    """For each requesting row a range of rows: from `low` up to `high` (exclusive). All rows of a range have
    the key in `keys`."""

    low: Ints
    high: Ints
    keys: Ints

    @property
    def lengths(self) -> Ints:
        """The number of rows in each range."""
        return self.high - self.low


@dataclass(frozen=True, kw_only=True)
class OwnRows:
    """Rows that read earlier or later rows of their own key. It also has the times of all rows."""

    known: KeyedTimes
    keys: Ints
    times: Ints
    first: Ints
    """For each row the first row of its key at the same time. The rows of the key before that row are
    known."""

    def only(self, places: Ints) -> "OwnRows":
        """The rows at these positions."""
        return OwnRows(
            known=self.known, keys=self.keys[places], times=self.times[places], first=self.first[places]
        )

    def before(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that became known in this time before the row."""
        low = self.known.find(self.keys, self.times - _microseconds(seconds), "left")
        return RowFrames(low=low, high=self.first, keys=self.keys)

    def at(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that are exactly this time later."""
        times = self.times + _microseconds(seconds)
        low, high = (self.known.find(self.keys, times, side) for side in _SIDES)
        return RowFrames(low=low, high=high, keys=self.keys)

    def next(self, rows: int) -> RowFrames:
        """Return for each row the range of the next `rows` rows after the rows at the same time."""
        high = np.minimum(self._after + rows, self.known.offsets[self.keys + 1])
        return RowFrames(low=self._after, high=high, keys=self.keys)

    def ahead(self, step: int) -> Ints:
        """Return the row that is `step` rows after the rows at the same time; NOWHERE if there is none."""
        at = self._after + step - 1
        return np.where(at < self.known.offsets[self.keys + 1], at, NOWHERE)

    @cached_property
    def _after(self) -> Ints:
        """For each row the row after the last row of its key at the same time."""
        return self.known.find(self.keys, self.times, "right")

    def newest(self, rows: int) -> RowFrames:
        """Return for each row the range of the last `rows` rows that are known before it."""
        return RowFrames(
            low=np.maximum(self.first - rows, self.known.offsets[self.keys]), high=self.first, keys=self.keys
        )

    def back(self, step: int) -> Ints:
        """Return the row that is `step` rows before the rows at the same time; NOWHERE if there is none."""
        at = self.first - step
        return np.where(at >= self.known.offsets[self.keys], at, NOWHERE)


def own_rows(codes: Ints, times: Ints) -> OwnRows:
    """Ranges over rows sorted by code and time."""
    places = np.arange(len(codes))
    new = changes(codes)
    keyed_times = KeyedTimes(offsets=np.append(places[new], len(codes)), times=times)
    first = np.maximum.accumulate(np.where(new | changes(times), places, 0))
    return OwnRows(known=keyed_times, keys=np.cumsum(new) - 1, times=times, first=first)


@dataclass(frozen=True, kw_only=True)
class QueryRows:
    """Rows, each with a key and a time, that read the rows of another table."""

    known: KeyedTimes
    keys: Ints
    times: Ints

    def before(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that became known in this time before the row."""
        low = self.known.find(self.keys, self.times - _microseconds(seconds), "left")
        return RowFrames(low=low, high=self._high, keys=self.keys)

    def ahead(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that become known after it, within this time."""
        low = self.known.find(self.keys, self.times, "right")
        high = self.known.find(self.keys, self.times + _microseconds(seconds), "right")
        return RowFrames(low=low, high=high, keys=self.keys)

    def last(self, rows: int) -> RowFrames:
        """Return for each row the range of the last `rows` rows that are known before it."""
        return RowFrames(low=np.maximum(self._high - rows, self._start), high=self._high, keys=self.keys)

    def back(self, step: int) -> Ints:
        """Return the row that is `step` rows before the time (1 is the last known row); NOWHERE if there is
        none."""
        at = self._high - step
        return np.where((self.keys != NOWHERE) & (at >= self._start), at, NOWHERE)

    @cached_property
    def _high(self) -> Ints:
        """For each row the first row of its key that is not known before it."""
        return self.known.find(self.keys, self.times, "left")

    @cached_property
    def _start(self) -> Ints:
        return np.where(self.keys == NOWHERE, 0, self.known.offsets[self.keys])

    def newest(self, back_seconds: float | None, within_seconds: float | None) -> Ints:
        """Return the last row that is known before the time, or before `back_seconds` earlier.

        NOWHERE if there is none, or if it is older than `within_seconds`.
        """
        if back_seconds is None:
            at = self._high - 1
        else:
            at = self.known.find(self.keys, self.times - _microseconds(back_seconds), "right") - 1
        has_row = (self.keys != NOWHERE) & (at >= self._start)
        if within_seconds is not None and len(self.known.times):
            has_row &= self.known.times[at] >= self.times - _microseconds(within_seconds)
        return np.where(has_row, at, NOWHERE)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def changes(values: Ints) -> Flags:
    """Return the positions of values that differ from the value before. The first position is always
    included."""
    changed = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def cut_frames(keyed_times: KeyedTimes, frames: RowFrames, low: int, high: int) -> tuple[Ints, RowFrames]:
    """Return the offsets and ranges, restricted to the rows from `low` up to `high` (at least one row).

    Each range is within these rows or empty.
    """
    first = int(np.searchsorted(keyed_times.offsets, low, "right")) - 1
    last = int(np.searchsorted(keyed_times.offsets, high, "left"))
    offsets = np.clip(keyed_times.offsets[first : last + 1], low, high) - low
    empty = frames.high <= frames.low
    begin = np.where(empty, 0, frames.low - low)
    end = np.where(empty, 0, frames.high - low)
    return offsets, RowFrames(low=begin, high=end, keys=np.clip(frames.keys - first, 0, last - first - 1))
