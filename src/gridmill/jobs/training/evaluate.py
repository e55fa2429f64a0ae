"""How good a model is on the validation and test splits, measured on the files that will be used."""

from collections.abc import Sequence

import numpy as np

from gridmill.errors import DataError
from gridmill.jobs import metrics
from gridmill.jobs.features import Floats
from gridmill.jobs.models import Predictor, predict_rows
from gridmill.jobs.training.frame import Frame
from gridmill.model.training import Objective

SPLITS = ("validation", "test")


def evaluate(predictor: Predictor, frame: Frame, splits: Sequence[str] = SPLITS) -> dict[str, float]:
    """`SPLIT_NAME` metrics; a split without labelled rows has none."""
    found: dict[str, float] = {}
    for split in splits:
        rows = frame.rows[split]
        if len(rows) == 0:
            continue
        predicted = predict_rows(predictor, frame.inputs, frame.starts, rows)
        _check_numbers(predicted, split)
        if frame.objective == Objective.REGRESSION:
            naive = naive_values(frame)[rows]
            numbers = metrics.regression(frame.target[rows], predicted, naive)
        else:
            numbers = metrics.classification(frame.target[rows].astype(int), predicted)
        found |= {f"{split}_{name}": value for name, value in numbers.items()}
    return found


def _check_numbers(predicted: Floats, split: str) -> None:
    """Raise DataError where the model says nothing of some rows: it cannot be measured."""
    none = ~np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1)
    if none.any():
        raise DataError(
            f"the model gave no number for {none.sum()} of {len(predicted)} rows of the {split} split",
            hint="What it predicts is NaN or infinite there; does it take missing inputs?",
            place="training",
        )


def calibration_curve(predictor: Predictor, frame: Frame) -> list[list[float]]:
    """How often what is said with some probability comes true, on the test split (else the validation one);
    nothing for numbers."""
    rows = frame.rows["test"] if len(frame.rows["test"]) else frame.rows["validation"]
    if frame.objective == Objective.REGRESSION or len(rows) == 0:
        return []
    predicted = predict_rows(predictor, frame.inputs, frame.starts, rows)
    return metrics.calibration(frame.target[rows].astype(int), predicted)


def naive_values(frame: Frame) -> Floats:
    """What skill is measured against: the present value of the label column, else the training mean."""
    usual = np.array(usual_labels(frame))
    return np.where(np.isnan(frame.present), usual if len(usual) > 1 else usual[0], frame.present)


def usual_labels(frame: Frame) -> tuple[float, ...]:
    """Per label its mean over the training rows (of a class: of its number, which nobody reads)."""
    means = np.atleast_1d(frame.target[frame.rows["train"]].mean(axis=0))
    return tuple(float(mean) for mean in means)
