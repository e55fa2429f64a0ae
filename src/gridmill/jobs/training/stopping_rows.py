"""Selects the rows for early stopping if the dataset has no validation split: the last training rows."""

from dataclasses import replace

import numpy as np

from gridmill.domain.training import OPTIONS, Objective, TrainingSpec
from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Integers
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.label_times import LabelTimes, read_moments

HELD_SHARE = 0.15
"""The share of the rows that is held out for early stopping."""


def stops_early(spec: TrainingSpec) -> bool:
    """Whether the kind of model ends early by rows that it does not learn from."""
    return "patience" in OPTIONS[spec.model]


def with_stopping_rows(
    frame: SortedFrame, spec: TrainingSpec, context: JobContext
) -> tuple[SortedFrame, str]:
    """The frame to learn from, with the last training rows as validation rows where the model needs some and
    the dataset has none; and what was done, in words. Raises DataError where too little is left."""
    if not stops_early(spec):
        return frame, ""
    if len(frame.rows["validation"]):
        check_stopping_rows(frame, spec)
        return frame, ""
    rows = frame.rows["train"]
    if frame.subject.time is None:
        learned, held = drawn_rows(rows, spec.seed)
        message = f"on {len(held):,} training rows drawn by the seed"
    else:
        learned, held, message = _last_rows(frame, spec, context)
    if not has_weight(frame, held) or not is_learnable(frame, learned):
        raise DataError(
            f"the dataset has no validation split, and a {spec.model} model ends early by the last "
            f"{HELD_SHARE:.0%} of the training rows: the {len(learned):,} rows before these have too little "
            "to learn (the label is the same everywhere, a class is missing, or all weights are 0)",
            hint="Declare a validation split, or use a linear model.",
            place="dataset.split",
        )
    return replace(frame, rows={**frame.rows, "train": learned, "validation": held}), message


def check_stopping_rows(frame: SortedFrame, spec: TrainingSpec) -> None:
    """Raise DataError unless a validation row is of a class of the training rows and has a weight above 0."""
    held = frame.rows["validation"]
    labelled = held if frame.objective == Objective.REGRESSION else held[frame.target[held] >= 0]
    if len(labelled) == 0:
        raise DataError(
            f"all {len(held):,} validation rows are of classes that no training row has, and a {spec.model} "
            "model ends early by the validation rows",
            hint="Declare other splits, so that training rows have these classes.",
            place="dataset.split",
        )
    if not has_weight(frame, labelled):
        raise DataError(
            f"the weights of all {len(labelled):,} validation rows are 0, and a {spec.model} model ends"
            " early by"
            " these rows",
            hint="Give some of them a weight above 0, or use a linear model.",
            place="training.weight" if spec.weight else "training.class_weights",
        )


def has_weight(frame: SortedFrame, rows: Integers) -> bool:
    """Whether any of these rows counts in learning."""
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
        message += f"; {between:,} before them left out, as their labels are known later"
    return learned, held, message


def last_rows(rows: Integers, moments: LabelTimes) -> tuple[Integers, Integers]:
    """The rows to learn from, and those at the end in time to stop by. A row whose label was not known when
    the latter begin is in neither."""
    if len(rows) == 0:
        return rows, rows
    since = np.quantile(moments.time[rows], 1 - HELD_SHARE, method="lower")
    return rows[moments.known[rows] < since], rows[moments.time[rows] >= since]


def drawn_rows(rows: Integers, seed: int) -> tuple[Integers, Integers]:
    """The same without a time."""
    held = np.random.default_rng(seed).random(len(rows)) < HELD_SHARE
    return rows[~held], rows[held]


def is_learnable(frame: SortedFrame, rows: Integers) -> bool:
    """Whether there are differences to learn: of classes all of them."""
    if len(rows) < 2 or not has_weight(frame, rows):
        return False
    target = frame.target[rows]
    if frame.classes:
        return len(np.unique(target)) == len(frame.classes)
    return bool((target != target[0]).any())
