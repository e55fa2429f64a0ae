"""What a model is told apart by: what it predicts, the rows it has learned from, those it was measured on."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Integers
from gridmill.jobs.learned_rows import Hashes, dataset_hashes, distinct, note_learned
from gridmill.jobs.models import Card
from gridmill.jobs.partitions import Partitions, open_partitions
from gridmill.jobs.signatures import dataset_signature
from gridmill.jobs.training.frame import Frame, row_order
from gridmill.model.training import Combine, ModelKind, TrainingSpec


def identify(
    card: Card, frame: Frame, measured: Frame, spec: TrainingSpec, context: JobContext
) -> tuple[Card, Mapping[str, str]]:
    """The card with its signature and the rows learned from, whose hashes are written beside it; per split of
    `measured` also a text that is the same for all models measured on the same rows and labels."""
    artifact = context.input(spec.dataset)
    parts = open_partitions(context.below_root(artifact.output.uri))
    columns, hashes = _hashes(parts, card, frame)
    order = row_order(parts.read([*card.keys, "split"]), frame.subject)
    hashes = hashes[order]
    card = replace(card, signature=dataset_signature(artifact.output.details, parts.schema))
    if spec.file is None:  # what a finished model has learned from is not known
        train, validation = _used(frame, spec)
        card = replace(card, learned=note_learned(context.output, hashes, columns, train, validation))
    return card, {split: _measured_on(hashes, measured, card, split) for split in ("validation", "test")}


def _hashes(parts: Partitions, card: Card, frame: Frame) -> tuple[tuple[str, ...], Hashes]:
    """The columns that tell rows apart: the keys; everything known of a row where several have the same."""
    hashes = dataset_hashes(parts, card.keys)
    if card.keys and len(distinct(hashes)) == parts.rows:
        return card.keys, hashes
    names = dict.fromkeys((*card.keys, *frame.subject.features, *card.labels))
    return tuple(names), dataset_hashes(parts, tuple(names))


def _used(frame: Frame, spec: TrainingSpec) -> tuple[Integers, Integers]:
    """The rows learned from, and those that decided anything. An ensemble learns nothing but its weights; the
    rows of its members are in their own folders."""
    train, validation = frame.rows["train"], frame.rows["validation"]
    if spec.model != ModelKind.ENSEMBLE:
        return train, validation
    decides = spec.combine == Combine.WEIGHTED or spec.threshold_by is not None or spec.quantiles
    return train[:0], validation if decides else validation[:0]


def _measured_on(hashes: Hashes, frame: Frame, card: Card, split: str) -> str:
    rows = frame.rows[split]
    if len(rows) == 0:
        return ""
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    found = hashlib.blake2b(repr((card.labels, card.classes)).encode(), digest_size=8)
    found.update(np.ascontiguousarray(hashes[rows]).tobytes())
    found.update(np.ascontiguousarray(frame.target[rows]).tobytes())
    return found.hexdigest()
