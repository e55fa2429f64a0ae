"""Computes the rows that a window covers, as ranges of rows that are sorted by key and time. This module
reads only numbers, not the values of the rows."""

from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
NOWHERE = -1
"""The number NOWHERE is the key of a row that has no key, and the position of a row that does not exist."""
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class KeyedTimes:
    """Rows sorted by key and time. The rows of key k have the positions from `offsets[k]` up to `offsets[k +
    1]` (exclusive). Each key has at least one row.

    `times` are microseconds. `on_disk` means that the arrays are stored in a file.
    """

    offsets: Ints
    times: Ints
    on_disk: bool = False

    @cached_property
    def _span(self) -> tuple[int, int]:
        return int(self.times.min()), int(self.times.max())

    @cached_property
    def _places(self) -> Ints:
        """Return the key and the time of each row, combined into a single number."""
        first, last = self._span
        starts = np.arange(len(self.offsets) - 1) * (last - first + 2) - first
        return np.repeat(starts, np.diff(self.offsets)) + self.times

    def find(self, keys: Ints, times: Ints, side: Literal["left", "right"]) -> Ints:
        """Return for each key and time the position of the first row at that time or later (side "left"), or
        of the first row later than that time (side "right").

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
        """Return the result of `find`, computed by bisection for all rows together. `find` calls this method
        if key and time do not fit into a single number."""
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
    """For each requesting row, a range of rows from `low` up to `high` (exclusive). `keys` contains the key
    that all rows of a range have."""

    low: Ints
    high: Ints
    keys: Ints

    @property
    def lengths(self) -> Ints:
        """Return the number of rows in each range."""
        return self.high - self.low


@dataclass(frozen=True, kw_only=True)
class OwnRows:
    """Rows that read earlier or later rows with the same key. `times` contains the times of these rows."""

    known: KeyedTimes
    keys: Ints
    times: Ints
    first: Ints
    """For each row, the position of the first row with the same key and the same time. Earlier rows with the
    same key are known at the time of the row."""

    def only(self, places: Ints) -> "OwnRows":
        """Return an object for only the rows at these positions."""
        return OwnRows(
            known=self.known, keys=self.keys[places], times=self.times[places], first=self.first[places]
        )

    def before(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that became known within `seconds` before the row."""
        low = self.known.find(self.keys, self.times - _microseconds(seconds), "left")
        return RowFrames(low=low, high=self.first, keys=self.keys)

    def at(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that are exactly `seconds` later."""
        times = self.times + _microseconds(seconds)
        low, high = (self.known.find(self.keys, times, side) for side in _SIDES)
        return RowFrames(low=low, high=high, keys=self.keys)

    def next(self, rows: int) -> RowFrames:
        """Return for each row the range of the next `rows` rows that have a later time."""
        high = np.minimum(self._after + rows, self.known.offsets[self.keys + 1])
        return RowFrames(low=self._after, high=high, keys=self.keys)

    def ahead(self, step: int) -> Ints:
        """Return for each row the position of the row `step` positions after the rows with the same time, or
        NOWHERE if there is no such row."""
        at = self._after + step - 1
        return np.where(at < self.known.offsets[self.keys + 1], at, NOWHERE)

    @cached_property
    def _after(self) -> Ints:
        """Return for each row the position after the last row with the same key and the same time."""
        return self.known.find(self.keys, self.times, "right")

    def newest(self, rows: int) -> RowFrames:
        """Return for each row the range of the last `rows` rows that are known before the row."""
        return RowFrames(
            low=np.maximum(self.first - rows, self.known.offsets[self.keys]), high=self.first, keys=self.keys
        )

    def back(self, step: int) -> Ints:
        """Return for each row the position of the row `step` positions before the rows with the same time,
        or NOWHERE if there is no such row."""
        at = self.first - step
        return np.where(at >= self.known.offsets[self.keys], at, NOWHERE)


def own_rows(codes: Ints, times: Ints) -> OwnRows:
    """Return an OwnRows object for rows that are sorted by code and time."""
    places = np.arange(len(codes))
    new = changes(codes)
    keyed_times = KeyedTimes(offsets=np.append(places[new], len(codes)), times=times)
    first = np.maximum.accumulate(np.where(new | changes(times), places, 0))
    return OwnRows(known=keyed_times, keys=np.cumsum(new) - 1, times=times, first=first)


@dataclass(frozen=True, kw_only=True)
class QueryRows:
    """Rows that have a key and a time, and that read the rows of another table."""

    known: KeyedTimes
    keys: Ints
    times: Ints

    def before(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that became known within `seconds` before the row."""
        low = self.known.find(self.keys, self.times - _microseconds(seconds), "left")
        return RowFrames(low=low, high=self._high, keys=self.keys)

    def ahead(self, seconds: float) -> RowFrames:
        """Return for each row the range of rows that become known within `seconds` after the row."""
        low = self.known.find(self.keys, self.times, "right")
        high = self.known.find(self.keys, self.times + _microseconds(seconds), "right")
        return RowFrames(low=low, high=high, keys=self.keys)

    def last(self, rows: int) -> RowFrames:
        """Return for each row the range of the last `rows` rows that are known before the row."""
        return RowFrames(low=np.maximum(self._high - rows, self._start), high=self._high, keys=self.keys)

    def back(self, step: int) -> Ints:
        """Return for each row the position of the `step`-th last row that is known before its time, or
        NOWHERE if there is no such row."""
        at = self._high - step
        return np.where((self.keys != NOWHERE) & (at >= self._start), at, NOWHERE)

    @cached_property
    def _high(self) -> Ints:
        """Return for each row the position of the first row with the same key that is not known before the
        row."""
        return self.known.find(self.keys, self.times, "left")

    @cached_property
    def _start(self) -> Ints:
        return np.where(self.keys == NOWHERE, 0, self.known.offsets[self.keys])

    def newest(self, back_seconds: float | None, within_seconds: float | None) -> Ints:
        """Return for each row the last row that is known before its time. With `back_seconds`, the last row
        must be known already `back_seconds` earlier.

        The result is NOWHERE if no row is known, or if the last known row is older than `within_seconds`.
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
    """Return the positions of values that differ from the previous value. The first position is always
    included."""
    changed = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def cut_frames(keyed_times: KeyedTimes, frames: RowFrames, low: int, high: int) -> tuple[Ints, RowFrames]:
    """Return the offsets and ranges, restricted to the rows from `low` up to `high` (at least one row).

    Each range in the result is empty or contains only rows from `low` up to `high`.
    """
    first = int(np.searchsorted(keyed_times.offsets, low, "right")) - 1
    last = int(np.searchsorted(keyed_times.offsets, high, "left"))
    offsets = np.clip(keyed_times.offsets[first : last + 1], low, high) - low
    empty = frames.high <= frames.low
    begin = np.where(empty, 0, frames.low - low)
    end = np.where(empty, 0, frames.high - low)
    return offsets, RowFrames(low=begin, high=end, keys=np.clip(frames.keys - first, 0, last - first - 1))
