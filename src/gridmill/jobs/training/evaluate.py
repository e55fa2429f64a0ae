"""Measures a model on the validation and test splits, with the files that are stored for the model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gridmill.domain.training import Objective
from gridmill.errors import DataError
from gridmill.jobs import metrics
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.metrics import by_class, by_label
from gridmill.jobs.model_files import Predictor, predict_rows
from gridmill.jobs.training.data import SortedFrame

SPLITS = ("validation", "test")


Answers = Mapping[str, Floats]
"""The predictions of a model for the rows with labels, by split."""


def answer(predictor: Predictor, frame: SortedFrame, splits: Sequence[str] = SPLITS) -> Answers:
    """Return the predictions to measure, for each split that has rows with labels. Raises DataError."""
    result = {}
    for split in splits:
        rows = frame.rows[split]
        if len(rows):
            result[split] = predict_rows(predictor, frame.inputs, frame.starts, rows)
            _check_numbers(result[split], split)
    return result


def evaluate(predictor: Predictor, frame: SortedFrame, splits: Sequence[str] = SPLITS) -> dict[str, float]:
    """Return the metrics `SPLIT_NAME` for each split that has rows with labels."""
    return measure(frame, answer(predictor, frame, splits))


def measure(frame: SortedFrame, answers: Answers, threshold: float | None = None) -> dict[str, float]:
    """Return the metrics `SPLIT_NAME` of the predictions of a model."""
    result: dict[str, float] = {}
    for split, predicted in answers.items():
        numbers = measure_rows(frame, frame.rows[split], predicted, threshold)
        result |= {f"{split}_{name}": value for name, value in numbers.items()}
    return result


def measure_rows(
    frame: SortedFrame, rows: Integers, predicted: Floats, threshold: float | None = None
) -> dict[str, float]:
    """Return the metrics of the predictions for these rows."""
    if frame.objective == Objective.REGRESSION:
        spread = np.array(label_spreads(frame))
        return metrics.regression(frame.target[rows], predicted, naive_values(frame)[rows], spread)
    return metrics.classification(frame.target[rows].astype(int), predicted, threshold)


def break_down(frame: SortedFrame, answers: Answers, threshold: float | None = None) -> dict[str, Any]:
    """Return for each split the metrics of each label if there are several labels, or the metrics of each
    class."""
    result: dict[str, Any] = {}
    for split, predicted in answers.items():
        rows = frame.rows[split]
        if frame.objective == Objective.CLASSIFICATION:
            result[split] = by_class(frame.classes, frame.target[rows].astype(int), predicted, threshold)
        elif frame.target.ndim > 1:
            naive = naive_values(frame)[rows]
            result[split] = by_label(frame.subject.labels, frame.target[rows], predicted, naive)
    return result


def _check_numbers(predicted: Floats, split: str) -> None:
    """Raise DataError if the model does not predict numbers for some rows, because then it cannot be
    measured."""
    none = ~np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1)
    if none.any():
        raise DataError(
            f"the model predicted no number for {none.sum()} of {len(predicted)} rows of the {split} split",
            hint="The predictions of these rows are NaN or infinite. Check that the model accepts "
            "missing inputs.",
            place="training",
        )


def calibration_curve(frame: SortedFrame, answers: Answers) -> list[list[float]]:
    """Return the calibration of a model, which shows how often an event with some predicted probability
    occurs.

    The calibration is measured on the test split, or on the validation split if there is no test split. The
    calibration is empty for regression.
    """
    split = next((name for name in ("test", "validation") if name in answers), None)
    if frame.objective == Objective.REGRESSION or split is None:
        return []
    return metrics.calibration(frame.target[frame.rows[split]].astype(int), answers[split])


def naive_values(frame: SortedFrame) -> Floats:
    """Return the baseline for the metric skill: the present value of the label column, or the mean of the
    training rows if this value is missing."""
    usual = np.array(usual_labels(frame))
    return np.where(np.isnan(frame.present), usual if len(usual) > 1 else usual[0], frame.present)


def usual_labels(frame: SortedFrame) -> tuple[float, ...]:
    """Return the mean of each label over the training rows. For classes, the result is the mean of the class
    numbers, and no other code uses it."""
    means = np.atleast_1d(frame.target[frame.rows["train"]].mean(axis=0))
    return tuple(float(mean) for mean in means)


def label_spreads(frame: SortedFrame) -> tuple[float, ...]:
    """Return for each label the number by which its errors are divided before the errors of several labels
    are combined.

    The errors of a label are divided by its standard deviation over the training rows, or by 1 if all labels
    have the same unit.
    """
    if frame.subject.has_one_unit:
        return (1.0,) * len(frame.subject.labels)
    return tuple(float(one) for one in np.atleast_1d(frame.target[frame.rows["train"]].std(axis=0)))
