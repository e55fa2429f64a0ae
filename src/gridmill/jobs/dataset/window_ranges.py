"""Computes which rows a window covers, as ranges of rows sorted by key and time. Works on numbers only."""

from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
NOWHERE = -1
"""The key of a row without a key."""
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class KeyedTimes:
    """Rows in the order of key and time: `offsets[k]` up to `offsets[k + 1]` are those of key k, and there is
    at least one of each. `times` are microseconds. `on_disk`: these are in a file."""

    offsets: Ints
    times: Ints
    on_disk: bool = False

    @cached_property
    def _span(self) -> tuple[int, int]:
        return int(self.times.min()), int(self.times.max())

    @cached_property
    def _places(self) -> Ints:
        """Key and time of each row as one number."""
        first, last = self._span
        starts = np.arange(len(self.offsets) - 1) * (last - first + 2) - first
        return np.repeat(starts, np.diff(self.offsets)) + self.times

    def find(self, keys: Ints, times: Ints, side: Literal["left", "right"]) -> Ints:
        """Of each key and time the first row that is at that time or later ("left"), or later ("right").

        Any time will do; of NOWHERE it is row 0.
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
        """The same where key and time do not fit into one number: by bisection, all rows at once."""
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
    """Of each row that asks, the rows from `low` up to, not including, `high`, all of key `keys`."""

    low: Ints
    high: Ints
    keys: Ints

    @property
    def lengths(self) -> Ints:
        """How many rows each has."""
        return self.high - self.low


@dataclass(frozen=True, kw_only=True)
class OwnRows:
    """The rows that look at the earlier rows of their own key, and when they are."""

    known: KeyedTimes
    keys: Ints
    times: Ints
    first: Ints
    """Of each row the first one of its key at the same time: what lies before it was known."""

    def only(self, places: Ints) -> "OwnRows":
        """Those of the rows that are at these places."""
        return OwnRows(
            known=self.known, keys=self.keys[places], times=self.times[places], first=self.first[places]
        )

    def before(self, seconds: float) -> RowFrames:
        """The rows known in that time before."""
        low = self.known.find(self.keys, self.times - _microseconds(seconds), "left")
        return RowFrames(low=low, high=self.first, keys=self.keys)

    def at(self, seconds: float) -> RowFrames:
        """The rows exactly that time later."""
        times = self.times + _microseconds(seconds)
        low, high = (self.known.find(self.keys, times, side) for side in _SIDES)
        return RowFrames(low=low, high=high, keys=self.keys)

    def next(self, rows: int) -> RowFrames:
        """The next `rows` rows after those at the same time."""
        high = np.minimum(self._after + rows, self.known.offsets[self.keys + 1])
        return RowFrames(low=self._after, high=high, keys=self.keys)

    def ahead(self, step: int) -> Ints:
        """The row `step` after those at the same time; NOWHERE where there is none."""
        at = self._after + step - 1
        return np.where(at < self.known.offsets[self.keys + 1], at, NOWHERE)

    @cached_property
    def _after(self) -> Ints:
        """Of each row the one after the last of its key at the same time."""
        return self.known.find(self.keys, self.times, "right")

    def newest(self, rows: int) -> RowFrames:
        """The last `rows` rows known before."""
        return RowFrames(
            low=np.maximum(self.first - rows, self.known.offsets[self.keys]), high=self.first, keys=self.keys
        )

    def back(self, step: int) -> Ints:
        """The row `step` before those at the same time; NOWHERE where there is none."""
        at = self.first - step
        return np.where(at >= self.known.offsets[self.keys], at, NOWHERE)


def own_rows(codes: Ints, times: Ints) -> OwnRows:
    """Of rows sorted by code and time."""
    places = np.arange(len(codes))
    new = changes(codes)
    keyed_times = KeyedTimes(offsets=np.append(places[new], len(codes)), times=times)
    first = np.maximum.accumulate(np.where(new | changes(times), places, 0))
    return OwnRows(known=keyed_times, keys=np.cumsum(new) - 1, times=times, first=first)


@dataclass(frozen=True, kw_only=True)
class QueryRows:
    """Rows with a key and a time each that look at the rows of another table."""

    known: KeyedTimes
    keys: Ints
    times: Ints

    def before(self, seconds: float) -> RowFrames:
        """The rows known in that time before."""
        low = self.known.find(self.keys, self.times - _microseconds(seconds), "left")
        return RowFrames(low=low, high=self._high, keys=self.keys)

    def ahead(self, seconds: float) -> RowFrames:
        """The rows known later, up to that time."""
        low = self.known.find(self.keys, self.times, "right")
        high = self.known.find(self.keys, self.times + _microseconds(seconds), "right")
        return RowFrames(low=low, high=high, keys=self.keys)

    def last(self, rows: int) -> RowFrames:
        """The last `rows` rows known before."""
        return RowFrames(low=np.maximum(self._high - rows, self._start), high=self._high, keys=self.keys)

    def back(self, step: int) -> Ints:
        """The row `step` before the time (1: the last one known); NOWHERE where there is none."""
        at = self._high - step
        return np.where((self.keys != NOWHERE) & (at >= self._start), at, NOWHERE)

    @cached_property
    def _high(self) -> Ints:
        """Of each row the first one of its key that is not known before."""
        return self.known.find(self.keys, self.times, "left")

    @cached_property
    def _start(self) -> Ints:
        return np.where(self.keys == NOWHERE, 0, self.known.offsets[self.keys])

    def newest(self, back_seconds: float | None, within_seconds: float | None) -> Ints:
        """The last row known before the time (or known `back_seconds` before it), and not more than
        `within_seconds` old; NOWHERE where there is none."""
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
    """Where a value is not the one before it; the first always."""
    changed = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def cut_frames(keyed_times: KeyedTimes, frames: RowFrames, low: int, high: int) -> tuple[Ints, RowFrames]:
    """The offsets and frames of the rows from `low` up to `high` alone, at least one; each frame lies within
    them or is empty."""
    first = int(np.searchsorted(keyed_times.offsets, low, "right")) - 1
    last = int(np.searchsorted(keyed_times.offsets, high, "left"))
    offsets = np.clip(keyed_times.offsets[first : last + 1], low, high) - low
    empty = frames.high <= frames.low
    begin = np.where(empty, 0, frames.low - low)
    end = np.where(empty, 0, frames.high - low)
    return offsets, RowFrames(low=begin, high=end, keys=np.clip(frames.keys - first, 0, last - first - 1))
