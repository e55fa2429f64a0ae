"""Whether a model has learned from rows that it is to predict, and what is to be done about it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import InputError
from gridmill.jobs.features import has_all_values
from gridmill.jobs.learned_rows import Mask, Seen, seen_rows
from gridmill.jobs.models import Card
from gridmill.jobs.partitions import Partitions
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedAmong:
    """Which predicted rows the model itself has learned from, and which have a truth (`labelled`)."""

    seen: Seen
    labelled: Mask

    def unfit(self, split: str | None) -> Mask:
        """The rows that the model cannot be measured on, because it has learned from them.

        Of the train split none: its metrics are those of learning. Validation rows, which decide when
        learning ends and which settings are best, are unfit in every split but their own. Of a model that
        keeps a sample of its rows the unknown ones are unfit too.
        """
        if split == "train":
            return np.zeros(len(self.labelled), bool)
        unknown = ~self.seen.known if self.seen.known.any() else ~self.seen.known & False
        used = self.seen.train if split == "validation" else self.seen.train | self.seen.validation
        return np.asarray(used | unknown, bool)

    def describe(self, split: str | None) -> dict[str, int]:
        """Counts for the record: predicted rows of the model's train and validation splits, rows that may be
        of either (`unknown`), rows with a truth that are not measured, and those that are."""
        unfit = self.unfit(split)
        return {
            "train": int(self.seen.train.sum()),
            "validation": int((self.seen.validation & ~self.seen.train).sum()),
            "unknown": int((~self.seen.known).sum()),
            "excluded": int((unfit & self.labelled).sum()),
            "measured": int((~unfit & self.labelled).sum()),
        }


def learned_among(
    folder: Path, card: Card, dataset: Artifact, parts: Partitions, table: pa.Table
) -> LearnedAmong:
    """Hold the predicted rows against those that the model in `folder` has learned from. Rows predicted by a
    model of other folds do not count. Raises StorageError."""
    seen = seen_rows(folder, card, dataset, parts, table["row"].to_numpy())
    if "fold" in table.column_names:
        own = np.asarray(pc.is_null(table["fold"]).to_numpy(), bool)
        seen = Seen(train=seen.train & own, validation=seen.validation, known=seen.known)
    labelled = np.zeros(table.num_rows, bool)
    if "truth" in table.column_names:
        labelled = has_all_values(table["truth"])
    return LearnedAmong(seen=seen, labelled=labelled)
