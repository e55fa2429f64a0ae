"""Standardising inputs by what the training rows are, with missing values made harmless."""

from dataclasses import dataclass

import numpy as np

from gridmill.jobs.features import Floats


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
        scaled = (inputs - self.mean) / self.deviation
        missing = np.isnan(scaled)
        return np.concatenate([np.where(missing, 0.0, scaled), missing[:, list(self.flagged)]], axis=1)


def fit_scaler(inputs: Floats) -> Scaler:
    """The scaler of these training rows [rows, inputs]."""
    missing = np.isnan(inputs)
    count = np.maximum(1, (~missing).sum(axis=0))
    mean = np.where(missing, 0.0, inputs).sum(axis=0) / count
    spread = np.sqrt((np.where(missing, 0.0, inputs - mean) ** 2).sum(axis=0) / count)
    return Scaler(
        mean=mean,
        deviation=np.where(spread > 1e-12 * np.maximum(1.0, np.abs(mean)), spread, 1.0),
        flagged=tuple(int(number) for number in np.flatnonzero(missing.any(axis=0))),
    )
