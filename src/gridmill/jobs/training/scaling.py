"""Standardises columns by the training rows, at any scale, and makes missing values harmless."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Floats

AnyFloats = TypeVar("AnyFloats", bound=npt.NDArray[np.floating])
PIECE_CELLS = 4 * 2**20
CONSTANT_STEPS = 4
"""A column whose values all lie within this many floating-point steps counts as constant: such differences
are rounding errors."""
SAFE_EXPONENT, MOST_EXPONENT = 100, 1000
"""Columns whose largest value is beyond 2 ** ±100 are multiplied by a power of two first, which is exact.
Their squares stay in the range of doubles, and their means in that of single floats: ONNX Runtime takes a
smaller mean for 0 and leaves its subtraction out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnScale:
    """Per column the mean and the standard deviation of its values times `scale`, a power of two (1 but for
    values near the limits of doubles)."""

    mean: Floats
    deviation: Floats
    scale: Floats

    @property
    def is_scaled(self) -> bool:
        """Whether any column is multiplied first."""
        return bool((self.scale != 1).any())

    def standardized(self, values: Floats) -> Floats:
        """(values * scale - mean) / deviation of [rows, columns]."""
        with np.errstate(over="ignore"):  # far beyond all of the training rows
            scaled: Floats = values * self.scale if self.is_scaled else values
            return (scaled - self.mean) / self.deviation


def fit_spread(values: Floats, of_constant: float = 1.0) -> ColumnScale:
    """The spread of [rows, columns], missing values left out; a column without any has mean 0, and a constant
    one the deviation `of_constant`.

    Sums are of differences from the column's lowest value: those of the values themselves would lose what
    lies on a large offset.
    """
    pieces, columns = pieces_of(values), values.shape[1]
    low, high = np.full(columns, np.nan), np.full(columns, np.nan)
    for rows in pieces:
        low = np.fmin(low, np.fmin.reduce(values[rows], axis=0))
        high = np.fmax(high, np.fmax.reduce(values[rows], axis=0))
    low, high = np.nan_to_num(low), np.nan_to_num(high)
    largest = np.maximum(np.abs(low), np.abs(high))
    constant = high / 2 - low / 2 <= CONSTANT_STEPS / 2 * np.spacing(largest)
    scale = _scale(largest)
    lowest, count, total, squares = low * scale, *np.zeros((3, columns))
    for rows in pieces:
        some = _above(values[rows], scale, lowest)
        count += (~np.isnan(some)).sum(axis=0)
        total += np.nansum(some, axis=0)
    middle = total / np.maximum(1, count)
    for rows in pieces:
        some = _above(values[rows], scale, lowest)
        some -= middle
        squares += np.nansum(np.square(some, out=some), axis=0)
    deviation = np.sqrt(squares / np.maximum(1, count))
    constant |= deviation == 0
    return ColumnScale(
        mean=lowest + middle, deviation=np.where(constant, of_constant, deviation), scale=scale
    )


def _above(values: Floats, scale: Floats, lowest: Floats) -> Floats:
    if (scale != 1).any():
        values = values * scale
    return values - lowest


def _scale(largest: Floats) -> Floats:
    exponent = np.where(largest > 0, np.frexp(largest)[1], 0)
    shift = np.where(np.abs(exponent) > SAFE_EXPONENT, -exponent, 0)
    scale: Floats = np.ldexp(1.0, np.clip(shift, -MOST_EXPONENT, MOST_EXPONENT))
    return scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """Standardised inputs, at most `limit` deviations from the mean; a missing value becomes the mean (0).

    Inputs that miss values in training get one more input each that says so (1 where missing); `flagged`
    are their numbers. An input that is constant in training is always 0. No training row of less than
    `limit` ** 2 rows is that far from the mean.
    """

    spread: ColumnScale
    flagged: tuple[int, ...]
    limit: float

    @property
    def inputs(self) -> int:
        """How many inputs go in."""
        return len(self.spread.mean)

    @property
    def width(self) -> int:
        """How many inputs come out."""
        return self.inputs + len(self.flagged)

    def apply(self, inputs: Floats) -> Floats:
        """[rows, inputs] to [rows, width]."""
        return self.fill(inputs, np.empty((len(inputs), self.width)))

    def reach(self, inputs: Floats) -> Floats:
        """How many deviations the farthest input of each row is from the mean, at least 1, as [rows, 1], of
        [rows, inputs] or [rows, sequence, inputs]. Rounding errors grow with it."""
        scaled = np.abs(self.apply(inputs.reshape(-1, self.inputs))).reshape(len(inputs), -1)
        values: Floats = np.maximum(1.0, scaled.max(axis=1, keepdims=True))
        return values

    def fill(self, inputs: Floats, scaled: AnyFloats) -> AnyFloats:
        """The same into an array that is there, [rows, width] of any precision; returns it."""
        own = self.inputs
        for rows in pieces_of(inputs):
            some = self.spread.standardized(inputs[rows])
            missing = np.isnan(some)
            np.copyto(some, 0.0, where=missing)
            scaled[rows, :own] = np.clip(some, -self.limit, self.limit, out=some)
            scaled[rows, own:] = missing[:, list(self.flagged)]
        return scaled


def pieces_of(inputs: Floats) -> list[slice]:
    """Some rows at a time: what is computed on the way is as large as these only."""
    step = max(1, PIECE_CELLS // max(1, inputs.shape[1]))
    return [slice(first, first + step) for first in range(0, len(inputs), step)]


def fit_scaler(inputs: Floats, limit: float) -> Scaler:
    """The scaler of these training rows [rows, inputs]."""
    lacking = np.zeros(inputs.shape[1], bool)
    for rows in pieces_of(inputs):
        lacking |= np.isnan(inputs[rows]).any(axis=0)
    flagged = tuple(int(number) for number in np.flatnonzero(lacking))
    return Scaler(spread=_without_constants(fit_spread(inputs, np.inf)), flagged=flagged, limit=limit)


def _without_constants(spread: ColumnScale) -> ColumnScale:
    """With (x - 0) / infinity for constant columns: 0, whatever comes later."""
    constant = np.isinf(spread.deviation)
    mean, scale = np.where(constant, 0.0, spread.mean), np.where(constant, 1.0, spread.scale)
    return ColumnScale(mean=mean, deviation=spread.deviation, scale=scale)
