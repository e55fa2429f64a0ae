"""Standardising inputs by what the training rows are, with missing values made harmless."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gridmill.jobs.features import Floats

AnyFloats = TypeVar("AnyFloats", bound=npt.NDArray[np.floating])
PIECE_CELLS = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """(x - mean) / deviation; a missing value becomes the mean (0).

    Inputs that miss values in training get one more input each that says so (1 where missing); `flagged`
    are their numbers. A constant input has deviation 1 and so becomes 0.
    """

    mean: Floats
    deviation: Floats
    flagged: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many inputs come out."""
        return len(self.mean) + len(self.flagged)

    def apply(self, inputs: Floats) -> Floats:
        """[rows, inputs] to [rows, width]."""
        return self.fill(inputs, np.empty((len(inputs), self.width)))

    def fill(self, inputs: Floats, scaled: AnyFloats) -> AnyFloats:
        """The same into an array that is there, [rows, width] of any precision; returns it."""
        own = len(self.mean)
        for rows in _pieces(inputs):
            some = (inputs[rows] - self.mean) / self.deviation
            missing = np.isnan(some)
            scaled[rows, :own] = np.where(missing, 0.0, some)
            scaled[rows, own:] = missing[:, list(self.flagged)]
        return scaled


def _pieces(inputs: Floats) -> list[slice]:
    """Some rows at a time: what is computed on the way is as large as these only."""
    step = max(1, PIECE_CELLS // max(1, inputs.shape[1]))
    return [slice(first, first + step) for first in range(0, len(inputs), step)]


def fit_scaler(inputs: Floats) -> Scaler:
    """The scaler of these training rows [rows, inputs]."""
    pieces, none = _pieces(inputs), np.zeros(inputs.shape[1])
    lacking = sum((np.isnan(inputs[rows]).sum(axis=0) for rows in pieces), none)
    count = np.maximum(1, len(inputs) - lacking)
    mean = sum((np.nansum(inputs[rows], axis=0) for rows in pieces), none) / count
    squares = sum((np.nansum((inputs[rows] - mean) ** 2, axis=0) for rows in pieces), none)
    spread = np.sqrt(squares / count)
    return Scaler(
        mean=mean,
        deviation=np.where(spread > 1e-12 * np.maximum(1.0, np.abs(mean)), spread, 1.0),
        flagged=tuple(int(number) for number in np.flatnonzero(lacking)),
    )
