"""How long a network learns, and in what steps: as declared, else by the number of rows it learns from."""

import math
from dataclasses import dataclass

from gridmill.model.training import LARGEST_BATCH, ModelKind, TrainingSpec

STEPS = {ModelKind.LSTM: 1000, ModelKind.MLP: 2000}
"""The fewest steps of the optimizer that a network makes by default. With fewer, on a few hundred rows, it
still predicts little more than the mean."""
FEWEST_EPOCHS, MOST_EPOCHS = 20, 500
BATCHES_PER_EPOCH = 16
SMALLEST_BATCH = 16
FEWEST_PATIENCE, PATIENCE_SHARE = 4, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """`epochs` over all rows at the most, in batches of `batch_size` rows; it ends after `patience` epochs
    without a better loss."""

    epochs: int
    batch_size: int
    patience: int


def course_of(spec: TrainingSpec, rows: int) -> Course:
    """The declared course; what is not declared follows from the number of training rows.

    A batch is the largest power of two with which an epoch has at least 16 batches, between 16 and 256 rows.
    The epochs make at least so many steps as `STEPS` has, but are never under 20 or over 500. The patience
    is a fifth of the epochs: the learning rate falls until the last one.
    """
    batch_size = spec.batch_size or _batch_size(rows)
    steps = math.ceil(max(1, rows) / batch_size)
    epochs = spec.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, math.ceil(STEPS[spec.model] / steps)))
    patience = spec.patience or max(FEWEST_PATIENCE, math.ceil(PATIENCE_SHARE * epochs))
    return Course(epochs=epochs, batch_size=batch_size, patience=patience)


def _batch_size(rows: int) -> int:
    most = max(1, rows // BATCHES_PER_EPOCH)
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, 1 << (most.bit_length() - 1)))
