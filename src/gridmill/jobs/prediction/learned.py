"""Whether a model has learned from rows that it is to predict, and what is to be done about it."""

from enum import StrEnum

from gridmill.errors import InputError
from gridmill.jobs.models import Card
from gridmill.model.artifact import Artifact
from gridmill.model.prediction import PredictionSpec


class Learned(StrEnum):
    """How the rows that the model learned from are predicted."""

    NONE = "none"  # it did not learn from any of these, as far as is known
    HELD_OUT = "held out"  # by models of other folds
    SEEN = "seen"  # by the model itself: what it says is better than it is


def learned_rows(card: Card, name: str, dataset: Artifact, spec: PredictionSpec) -> Learned:
    """What goes for this prediction. Raises InputError where a model with folds cannot tell which rows it
    learned from: they are those of another version of the dataset."""
    if spec.split not in (None, "train"):
        return Learned.NONE
    if card.content and card.content == dataset.fingerprint:
        return Learned.HELD_OUT if card.folds else Learned.SEEN
    if card.folds and card.dataset.partition("@")[0] == dataset.name:
        raise InputError(
            f"model {name!r} learned from {card.dataset}, not from {dataset.id}: which rows it has seen"
            " cannot be told",
            hint="Train it on this version, or predict `split: test`.",
            place="prediction.split",
        )
    return Learned.NONE
