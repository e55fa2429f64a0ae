"""Checks of what a model answers for each class: probabilities, and nothing else that looks like them."""

import numpy as np
import numpy.typing as npt

from gridmill.errors import DataError
from gridmill.jobs.features import Floats, Integers

SUM_TOLERANCE = 1e-3
"""How far a row's probabilities may be from a sum of 1."""
ROUNDING = 1e-6
"""How far a probability may be below 0: 1 - p of a single float p."""
SHOWN = 6


def check_probabilities(found: Floats, rows: Integers) -> None:
    """Raise DataError for a row of [rows, classes] that holds no probabilities; `rows` are their numbers.

    A row that is NaN throughout has no answer, which is for the caller to count.
    """
    with np.errstate(invalid="ignore"):
        total = found.sum(axis=1)
    right = (found.min(axis=1, initial=0.0) >= -ROUNDING) & (np.abs(total - 1) <= SUM_TOLERANCE)
    if right.all():
        return
    wrong = np.flatnonzero(~right & ~np.isnan(found).all(axis=1))
    if len(wrong):
        raise DataError(
            f"the model's probabilities of row {rows[wrong[0]]} are {_shown(found[wrong[0]])}:"
            f" {_problem(found[wrong[0]])} ({len(wrong)} of {len(rows)} rows that were asked for together)",
            hint="Each class needs a probability of at least 0, and those of a row add up to 1 (± 0.001)."
            " Scores become probabilities by a softmax (of two classes: a sigmoid).",
        )


def _shown(row: npt.NDArray[np.float64]) -> str:
    more = ", ..." if len(row) > SHOWN else ""
    return ", ".join(f"{value:.6g}" for value in row[:SHOWN]) + more


def _problem(row: npt.NDArray[np.float64]) -> str:
    if np.isnan(row).any():
        return f"{np.isnan(row).sum()} of {len(row)} are no number"
    if row.min() < -ROUNDING:
        return f"{row.min():.6g} is negative"
    return f"their sum is {row.sum():.6g}, not 1"
