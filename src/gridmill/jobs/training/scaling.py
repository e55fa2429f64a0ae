"""Standardises columns by the mean and deviation of the training rows, at any scale, and replaces missing
values."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Floats

AnyFloats = TypeVar("AnyFloats", bound=npt.NDArray[np.floating])
PIECE_CELLS = 4 * 2**20
CONSTANT_STEPS = 4
"""If all values of a column lie within this number of floating-point steps, the column counts as constant,
because such differences are rounding errors."""
SAFE_EXPONENT, MOST_EXPONENT = 100, 1000
"""If the largest value of a column is beyond 2 ** ±100, the column is first multiplied by a power of two,
which causes no rounding error.

After the multiplication by a power of two, the squares stay in the range of doubles, and the means stay in
the range of 32-bit floats. ONNX Runtime would treat a smaller mean as 0 and remove the subtraction of the
mean.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnScale:
    """For each column, the mean and the standard deviation of its values after they are multiplied by
    `scale`.

    `scale` is a power of two. `scale` is 1 except for values near the limits of doubles.
    """

    mean: Floats
    deviation: Floats
    scale: Floats

    @property
    def is_scaled(self) -> bool:
        """Return whether any column is multiplied before it is standardised."""
        return bool((self.scale != 1).any())

    def standardized(self, values: Floats) -> Floats:
        """Return (values * scale - mean) / deviation for values in the shape [rows, columns]."""
        # no warning, because values far from the training rows may overflow
        with np.errstate(over="ignore"):
            scaled: Floats = values * self.scale if self.is_scaled else values
            return (scaled - self.mean) / self.deviation


def fit_spread(values: Floats, of_constant: float = 1.0) -> ColumnScale:
    """Return the scale of values [rows, columns], ignoring missing values.

    A column without any value gets the mean 0, and a constant column gets the deviation `of_constant`. The
    function sums the differences of the values from the lowest value of the column. Sums of the values
    themselves would lose small differences if the values have a large offset.
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
    """Standardises inputs, and limits them to `limit` deviations from the mean. A missing value becomes 0,
    which is the mean of the scaled inputs.

    If an input has missing values in training, it gets an additional input (1 if the value is missing).
    `flagged` are the numbers of the inputs with missing values. If an input is constant in training, its
    scaled value is always 0. If there are fewer than `limit` ** 2 training rows, no training row can be
    `limit` deviations from the mean.
    """

    spread: ColumnScale
    flagged: tuple[int, ...]
    limit: float

    @property
    def inputs(self) -> int:
        """Return the number of raw inputs."""
        return len(self.spread.mean)

    @property
    def width(self) -> int:
        """Return the number of scaled inputs."""
        return self.inputs + len(self.flagged)

    def apply(self, inputs: Floats) -> Floats:
        """Convert raw inputs [rows, inputs] to scaled inputs [rows, width]."""
        return self.fill(inputs, np.empty((len(inputs), self.width)))

    def reach(self, inputs: Floats) -> Floats:
        """Return for each row the distance of its farthest input from the mean in standard deviations, at
        least 1, in the shape [rows, 1].

        The inputs have the shape [rows, inputs] or [rows, sequence, inputs]. The distance of an input from
        its mean is needed because rounding errors grow with this distance.
        """
        scaled = np.abs(self.apply(inputs.reshape(-1, self.inputs))).reshape(len(inputs), -1)
        values: Floats = np.maximum(1.0, scaled.max(axis=1, keepdims=True))
        return values

    def fill(self, inputs: Floats, scaled: AnyFloats) -> AnyFloats:
        """Write the result of `apply` into an existing array [rows, width] of any precision, and return this
        array."""
        own = self.inputs
        for rows in pieces_of(inputs):
            some = self.spread.standardized(inputs[rows])
            missing = np.isnan(some)
            np.copyto(some, 0.0, where=missing)
            scaled[rows, :own] = np.clip(some, -self.limit, self.limit, out=some)
            scaled[rows, own:] = missing[:, list(self.flagged)]
        return scaled


def pieces_of(inputs: Floats) -> list[slice]:
    """Return slices of the rows that are processed one after another, so that temporary arrays stay
    small."""
    step = max(1, PIECE_CELLS // max(1, inputs.shape[1]))
    return [slice(first, first + step) for first in range(0, len(inputs), step)]


def fit_scaler(inputs: Floats, limit: float) -> Scaler:
    """Return the scaler for these training rows [rows, inputs]."""
    lacking = np.zeros(inputs.shape[1], bool)
    for rows in pieces_of(inputs):
        lacking |= np.isnan(inputs[rows]).any(axis=0)
    flagged = tuple(int(number) for number in np.flatnonzero(lacking))
    return Scaler(spread=_without_constants(fit_spread(inputs, np.inf)), flagged=flagged, limit=limit)


def _without_constants(spread: ColumnScale) -> ColumnScale:
    """Change the scale of constant columns to (x - 0) / infinity, so that the result is 0 for all later
    values."""
    constant = np.isinf(spread.deviation)
    mean, scale = np.where(constant, 0.0, spread.mean), np.where(constant, 1.0, spread.scale)
    return ColumnScale(mean=mean, deviation=spread.deviation, scale=scale)
