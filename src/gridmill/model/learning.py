"""Declarations of trainings and predictions."""

from dataclasses import dataclass
from enum import StrEnum


class ModelKind(StrEnum):
    """Built-in models."""

    LSTM = "lstm"
    GBDT = "gbdt"
    LINEAR = "linear"
    NAIVE = "naive"


class Objective(StrEnum):
    """What the label is."""

    REGRESSION = "regression"
    CLASSIFICATION = "classification"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """Learn `label` of `dataset` from its features; early stopping on the validation split.

    `objective` follows from the label's type when not given. Fields that a model kind does not use are
    refused. Metrics are computed on the validation and test splits.
    """

    dataset: str
    model: ModelKind
    objective: Objective | None = None
    features: tuple[str, ...] = ()
    seed: int = 0
    # lstm
    sequence: int = 48
    hidden: int = 64
    layers: int = 1
    dropout: float = 0.0
    epochs: int = 20
    patience: int = 4
    batch_size: int = 256
    learning_rate: float = 1e-3
    # gbdt
    trees: int = 300
    max_leaves: int = 31
    # linear
    regularization: float = 1.0
    # naive: the feature repeated as the prediction (default: the label column's present value)
    repeat: str | None = None

    def references(self) -> tuple[str, ...]:
        """The dataset."""
        return (self.dataset,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpec:
    """A swarm predicts `split` of `dataset` (all rows when None) with the best of `models`.

    `best_by` names the validation metric (lower is better for errors, higher for auc, accuracy, r2);
    shards are handed to workers made for this job; each row's prediction is written exactly once.
    """

    dataset: str
    models: tuple[str, ...]
    split: str | None = "test"
    best_by: str | None = None
    shards: int | None = None
    workers: int | None = None

    def references(self) -> tuple[str, ...]:
        """The dataset and the candidate models."""
        return (self.dataset, *self.models)
