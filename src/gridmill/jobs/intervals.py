"""Quantiles of forecasts. A quantile of a forecast is the prediction plus the same quantile of the errors on
the validation split.

The method to compute the quantiles is split conformal prediction (Lei and others 2018, "Distribution-free
predictive inference for regression"). The quantile q of n errors is the error with the rank (n + 1) q,
rounded away from the middle. If new rows have the same distribution as the validation rows, the interval
contains at least the promised fraction of them.
"""

import math
from collections.abc import Sequence

import numpy as np

from gridmill.errors import InputError
from gridmill.jobs.features import Floats

Offsets = tuple[tuple[float, ...], ...]
"""The value that is added to the prediction, for each quantile and label."""


def quantile_columns(levels: Sequence[float]) -> tuple[str, ...]:
    """Return the names of the columns of a prediction that hold the quantiles, such as `prediction_q10` and
    `prediction_q97.5`."""
    return tuple(f"prediction_q{100 * level:.10g}" for level in levels)


def error_quantiles(truth: Floats, predicted: Floats, levels: Sequence[float]) -> Offsets:
    """Return the offsets of the quantiles, computed from the true and predicted values in the shape [rows]
    or [rows, labels]. Raises InputError if there are too few rows for a quantile."""
    errors = np.sort((truth - predicted).reshape(len(truth), -1), axis=0)
    return tuple(tuple(map(float, errors[_rank(level, len(errors)) - 1])) for level in levels)


def _rank(level: float, rows: int) -> int:
    """Return the rank of the quantile, from 1 to `rows`."""
    place = round((rows + 1) * level, 9)
    rank = math.ceil(place) if level > 0.5 else math.floor(place) if level < 0.5 else round(place)
    if not 1 <= rank <= rows:
        least = math.ceil(round(1 / min(level, 1 - level), 9)) - 1
        raise InputError(
            f"the quantile {level:g} needs at least {least} validation rows with a label; there are {rows}",
            hint="Use quantiles closer to 0.5, or a longer validation split.",
            place="training.quantiles",
        )
    return rank


def quantiles_of(predicted: Floats, offsets: Offsets) -> list[Floats]:
    """Return the values of each quantile, in the shape of the prediction."""
    return [predicted + (np.array(offset) if predicted.ndim > 1 else offset[0]) for offset in offsets]


def measure_quantiles(
    truth: Floats, quantiles: Sequence[Floats], levels: Sequence[float], spread: Floats | None = None
) -> dict[str, float]:
    """Return the metrics `pinball` and `coverage` of quantiles.

    `pinball` is the mean pinball loss over rows, labels and quantiles. If there are several labels, each
    loss is divided by the `spread` of its label. `coverage` is the fraction of true values between the
    lowest and the highest quantile. The metric `coverage` exists if there are at least two quantiles.
    """
    scale = 1.0 if spread is None or truth.ndim == 1 else np.where(spread > 0, spread, 1.0)
    above = [(truth - quantile) / scale for quantile in quantiles]
    losses = [
        np.maximum(level * error, (level - 1) * error) for level, error in zip(levels, above, strict=True)
    ]
    result = {"pinball": float(np.mean(losses))}
    if len(levels) > 1:
        result["coverage"] = float(np.mean((truth >= quantiles[0]) & (truth <= quantiles[-1])))
    return result
