"""Selects the rows for early stopping if the dataset has no validation split. The rows for early stopping
are the last training rows."""

from dataclasses import replace

import numpy as np

from gridmill.domain.training import OPTIONS, Objective, TrainingSpec
from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Integers
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.label_times import LabelTimes, read_moments

HELD_SHARE = 0.15
"""The fraction of the rows that is held out for early stopping."""


def stops_early(spec: TrainingSpec) -> bool:
    """Return whether the kind of model uses early stopping, which needs rows on which the model is not
    trained."""
    return "patience" in OPTIONS[spec.model]


def with_stopping_rows(
    frame: SortedFrame, spec: TrainingSpec, context: JobContext
) -> tuple[SortedFrame, str]:
    """Return the frame for training, and a text about the rows for early stopping.

    If the model needs validation rows and the dataset has none, the last training rows become validation
    rows, and the text describes this. Raises DataError if too few rows remain.
    """
    if not stops_early(spec):
        return frame, ""
    if len(frame.rows["validation"]):
        check_stopping_rows(frame, spec)
        return frame, ""
    rows = frame.rows["train"]
    if frame.subject.time is None:
        learned, held = drawn_rows(rows, spec.seed)
        message = f"on {len(held):,} training rows, drawn at random"
    else:
        learned, held, message = _last_rows(frame, spec, context)
    if not has_weight(frame, held) or not is_learnable(frame, learned):
        raise DataError(
            f"the dataset has no validation split, so that early stopping of a {spec.model} model uses "
            f"the last {HELD_SHARE:.0%} of the training rows; but the {len(learned):,} rows before these "
            "are not enough to train on (the label is the same everywhere, a class is missing, or all "
            "weights are 0)",
            hint="Declare a validation split, or use a linear model.",
            place="dataset.split",
        )
    return replace(frame, rows={**frame.rows, "train": learned, "validation": held}), message


def check_stopping_rows(frame: SortedFrame, spec: TrainingSpec) -> None:
    """Raise DataError if no validation row has both a class of the training rows and a weight above 0."""
    held = frame.rows["validation"]
    labelled = held if frame.objective == Objective.REGRESSION else held[frame.target[held] >= 0]
    if len(labelled) == 0:
        raise DataError(
            f"all {len(held):,} validation rows have classes that no training row has, but early stopping "
            f"of a {spec.model} model uses the validation rows",
            hint="Declare other splits, so that training rows have these classes.",
            place="dataset.split",
        )
    if not has_weight(frame, labelled):
        raise DataError(
            f"the weights of all {len(labelled):,} validation rows are 0, but early stopping of a "
            f"{spec.model} model uses these rows",
            hint="Give some of them a weight above 0, or use a linear model.",
            place="training.weight" if spec.weight else "training.class_weights",
        )


def has_weight(frame: SortedFrame, rows: Integers) -> bool:
    """Return whether any of these rows has a weight above 0."""
    weights = frame.weights_of(rows)
    return len(rows) > 0 and (weights is None or bool((weights > 0).any()))


def _last_rows(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> tuple[Integers, Integers, str]:
    rows = frame.rows["train"]
    dated = context.input(spec.dataset).output.details.get("label_after", {}) is not None
    moments = read_moments(frame, spec, context, by_time=dated)
    learned, held = last_rows(rows, moments)
    begin = (
        str(np.datetime64(int(moments.time[held].min()), "us"))[:-10].replace("T", " ") if len(held) else ""
    )
    message = f"on the last {len(held):,} training rows, from {begin}"
    if between := len(rows) - len(learned) - len(held):
        message += f"; {between:,} rows before them are left out, as their labels are known later"
    return learned, held, message


def last_rows(rows: Integers, moments: LabelTimes) -> tuple[Integers, Integers]:
    """Return the rows for training, and the last rows in time for early stopping.

    If the label of a row is not known when the rows for early stopping begin, the row is used neither for
    training nor for early stopping.
    """
    if len(rows) == 0:
        return rows, rows
    since = np.quantile(moments.time[rows], 1 - HELD_SHARE, method="lower")
    return rows[moments.known[rows] < since], rows[moments.time[rows] >= since]


def drawn_rows(rows: Integers, seed: int) -> tuple[Integers, Integers]:
    """Return the rows for training, and randomly drawn rows for early stopping. For data without a time, the
    rows for early stopping are drawn at random."""
    held = np.random.default_rng(seed).random(len(rows)) < HELD_SHARE
    return rows[~held], rows[held]


def is_learnable(frame: SortedFrame, rows: Integers) -> bool:
    """Return whether a model can learn from the rows. For this, the labels must differ, and in a
    classification every class must occur."""
    if len(rows) < 2 or not has_weight(frame, rows):
        return False
    target = frame.target[rows]
    if frame.classes:
        return len(np.unique(target)) == len(frame.classes)
    return bool((target != target[0]).any())
