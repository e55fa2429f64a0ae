"""Computes the decision threshold and the error quantiles of a model from its validation predictions, and
stores both with the model."""

from dataclasses import replace

import numpy as np

from gridmill.domain.training import Objective, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.intervals import Offsets, error_quantiles, measure_quantiles, quantiles_of
from gridmill.jobs.metrics import best_threshold
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.evaluate import Answers

SPLIT = "validation"


def check_decisions(frame: SortedFrame, spec: TrainingSpec) -> None:
    """Raise InputError if the threshold or the quantiles are impossible for the label or the dataset. This
    check runs before training."""
    thresholds = spec.threshold is not None or spec.threshold_by is not None
    name = "threshold" if spec.threshold is not None else "threshold_by"
    if thresholds and len(frame.classes) != 2:
        what = f"{len(frame.classes)} classes" if frame.classes else "numbers"
        raise InputError(
            f"a threshold separates two classes, but the label has {what}", place=f"training.{name}"
        )
    if spec.quantiles and frame.objective != Objective.REGRESSION:
        raise InputError(
            "quantiles need a numeric label, but the label has classes", place="training.quantiles"
        )
    if (spec.quantiles or spec.threshold_by) and len(frame.rows[SPLIT]) == 0:
        raise InputError(
            "the dataset has no validation rows to compute the threshold or the quantiles on",
            hint="Declare a validation split in the dataset.",
            place="training.quantiles" if spec.quantiles else "training.threshold_by",
        )
    if spec.threshold_by and not (frame.target[frame.rows[SPLIT]] == 1).any():
        raise InputError(
            f"no validation row is of class {frame.classes[1]!r}: {spec.threshold_by} cannot be computed "
            "to choose the threshold",
            hint="Choose a validation split with rows of this class, or write `threshold: 0.5`.",
            place="training.threshold_by",
        )


def decided(card: ModelCard, frame: SortedFrame, spec: TrainingSpec, answers: Answers) -> ModelCard:
    """Return the model card with its threshold and the quantiles of its errors. Raises InputError if there
    are too few validation rows."""
    threshold = spec.threshold
    if spec.threshold_by is not None:
        threshold = best_threshold(frame.target[frame.rows[SPLIT]].astype(int), answers[SPLIT])
    offsets: Offsets = ()
    if spec.quantiles:
        offsets = error_quantiles(frame.target[frame.rows[SPLIT]], answers[SPLIT], spec.quantiles)
    return replace(card, threshold=threshold, quantiles=spec.quantiles, offsets=offsets)


def measure_intervals(card: ModelCard, frame: SortedFrame, answers: Answers) -> dict[str, float]:
    """Return the metrics `test_pinball` and `test_coverage`.

    On the validation rows these metrics would have no meaning, because the quantiles are computed from these
    rows.
    """
    if not card.quantiles or "test" not in answers:
        return {}
    scores = measure_quantiles(
        frame.target[frame.rows["test"]],
        quantiles_of(answers["test"], card.offsets),
        card.quantiles,
        np.array(card.spread),
    )
    return {f"test_{name}": value for name, value in scores.items()}
