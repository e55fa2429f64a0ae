"""Explains a model by residuals and permutation importance, in limited time and memory.

Residuals and permutation importance are measured with the files of the model, on rows on which the model was
not trained. Residuals and permutation importance are stored in the details of the version.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from gridmill.domain.training import ModelKind, Objective
from gridmill.errors import GridmillError
from gridmill.jobs import metrics
from gridmill.jobs.features import Floats, Integers, windows
from gridmill.jobs.model_files import CHUNK_NUMBERS, Predictor
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.evaluate import Answers

MOST_ROWS, FEWEST_ROWS = 2000, 200
"""The largest and the smallest number of rows on which permutation importance is measured."""
MOST_NUMBERS = 1_000_000
"""The largest number of input values in the rows that are used to measure permutation importance (8 MB).
Fewer rows are used for datasets with many columns and for long sequences."""
SHARE_OF_TIME, LEAST_SECONDS, MOST_SECONDS = 0.02, 0.1, 10.0
"""The time limit for measuring permutation importance: the fraction SHARE_OF_TIME of the time that the
training has taken, but at least LEAST_SECONDS and at most MOST_SECONDS."""
BINS, SAMPLE, LABELS = 30, 200, 4


def permutation_importance(
    predictor: Predictor, frame: SortedFrame, seed: int, spent_seconds: float
) -> dict[str, Any]:
    """Measure permutation importance. The permutation importance of a feature is the increase of the loss if
    the values of this feature are shuffled among the rows.

    The values of each feature are shuffled once, with a fixed seed. The loss is the rmse in standard
    deviations of the labels, or the log_loss. All inputs of a feature (for example the categories of a text
    column) are shuffled together. In a sequence model, the complete history of a row is shuffled. If nothing
    was measured, `skipped` contains the reason.
    """
    split = next((name for name in ("validation", "test") if len(frame.rows[name]) >= 2), "")
    if predictor.card.kind == ModelKind.NAIVE:
        return {}
    if not split:
        return {"skipped": "there are no validation or test rows"}
    try:
        return _measured(predictor, frame, split, seed, spent_seconds)
    except GridmillError as error:  # a user's own code may reject shuffled rows, but the model is still valid
        return {"skipped": f"the model fails to predict shuffled rows: {error.message}"}


def _measured(
    predictor: Predictor, frame: SortedFrame, split: str, seed: int, spent_seconds: float
) -> dict[str, Any]:
    limit = min(MOST_SECONDS, max(LEAST_SECONDS, SHARE_OF_TIME * spent_seconds))
    sample = _ShuffleSample(predictor, frame, split, seed)
    began = time.monotonic()
    base = sample.loss()
    took = time.monotonic() - began
    groups = _groups(frame)
    if took * (len(groups) + 1) > limit:
        sample.shrink(limit / (took * (len(groups) + 1)))
        base = sample.loss()
    importance: dict[str, float] = {}
    for name, inputs in groups.items():
        if time.monotonic() - began > limit:
            break
        importance[name] = sample.loss(inputs) - base
    return {
        "metric": "rmse in deviations of the label" if sample.regression else "log_loss",
        "split": split,
        "rows": sample.count,
        "seed": seed,
        "limit_seconds": round(limit, 3),
        "not_measured": len(groups) - len(importance),
        "features": {name: float(f"{value:.6g}") for name, value in importance.items() if np.isfinite(value)},
        **({} if importance else {"skipped": f"the time limit of {limit:.2g} s was reached"}),
    }


def _groups(frame: SortedFrame) -> Mapping[str, Integers]:
    """Return the positions of the inputs of each feature."""
    groups: dict[str, list[int]] = {}
    place = 0
    for encoding in frame.encodings:
        groups.setdefault(encoding.column, []).extend(range(place, place + len(encoding.inputs)))
        place += len(encoding.inputs)
    return {name: np.array(places, np.int64) for name, places in groups.items()}


class _ShuffleSample:
    """Computes the loss on a sample of rows, in which the inputs of a feature are shuffled."""

    def __init__(self, predictor: Predictor, frame: SortedFrame, split: str, seed: int) -> None:
        self._predictor, self._frame, self._random = predictor, frame, np.random.default_rng(seed)
        self.regression = frame.objective == Objective.REGRESSION
        rows = frame.rows[split]
        labelled = rows if self.regression else rows[frame.target[rows] >= 0]
        numbers = frame.inputs.shape[1] * (predictor.card.sequence or 1)
        most = max(2, min(MOST_ROWS, MOST_NUMBERS // max(1, numbers)))
        self._take(
            np.sort(self._random.choice(labelled, most, replace=False)) if len(labelled) > most else labelled
        )

    def _take(self, rows: Integers) -> None:
        length = self._predictor.card.sequence
        frame = self._frame
        self._inputs = frame.inputs[rows if length is None else windows(rows, frame.starts, length)]
        self._rows, self.count = rows, len(rows)
        spread = frame.target[frame.rows["train"]].std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)

    def shrink(self, share: float) -> None:
        """Reduce the number of rows in the sample."""
        fewer = min(self.count, max(FEWEST_ROWS, int(self.count * share)))
        self._take(self._rows[:: max(1, -(-self.count // fewer))])

    def loss(self, shuffled: Integers | None = None) -> float:
        """Return the loss if the values of these inputs are shuffled."""
        inputs = self._inputs
        if shuffled is not None:
            inputs = inputs.copy()
            inputs[..., shuffled] = inputs[self._random.permutation(self.count)][..., shuffled]
        chunk = max(1, CHUNK_NUMBERS // max(1, inputs[0].size))
        parts = [self._predictor.predict(inputs[at : at + chunk]) for at in range(0, self.count, chunk)]
        predicted, truth = np.concatenate(parts), self._frame.target[self._rows]
        if self.regression:
            return float(np.sqrt(np.mean(((predicted.reshape(truth.shape) - truth) / self._spread) ** 2)))
        return float(metrics.classification(truth.astype(int), predicted, None)["log_loss"])


def residuals(frame: SortedFrame, answers: Answers, seed: int) -> dict[str, Any]:
    """Return a histogram of prediction minus truth, quantiles, and a sample of predictions and true values,
    for the first labels. The result is empty for a classification.

    Residuals are measured on the test split, or on the validation split if there is no test split. The
    histogram covers the middle 99 % of the rows. The first and the last bin of the histogram also include
    the rows outside of this range.
    """
    split = next((name for name in ("test", "validation") if name in answers), None)
    if frame.objective != Objective.REGRESSION or split is None:
        return {}
    rows = frame.rows[split]
    truth = frame.target[rows].reshape(len(rows), -1)
    predicted = answers[split].reshape(len(rows), -1)
    random = np.random.default_rng(seed)
    some = np.sort(random.choice(len(rows), min(SAMPLE, len(rows)), replace=False))
    labels = [
        _of_label(name, truth[:, n], predicted[:, n], some)
        for n, name in enumerate(frame.subject.labels[:LABELS])
    ]
    return {"split": split, "labels": [label for label in labels if label]}


def _of_label(name: str, truth: Floats, predicted: Floats, some: Integers) -> dict[str, Any]:
    errors = predicted - truth
    if not np.isfinite(errors).all():
        return {}
    low, high = np.quantile(errors, [0.005, 0.995])
    if not low < high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(errors, low, high), bins=BINS, range=(low, high))
    return {
        "label": name,
        "rows": len(errors),
        "mean": _short(errors.mean()),
        "quantiles": [_short(value) for value in np.quantile(errors, [0.05, 0.5, 0.95])],
        "edges": [_short(edge) for edge in edges],
        "counts": [int(count) for count in counts],
        "sample": [[_short(truth[at]), _short(predicted[at])] for at in some],
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
