"""Finds the models that a prediction can use, and measures these models on the same validation rows of the
dataset that is predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import count_shards
from gridmill.domain.frozen import dataclass
from gridmill.domain.prediction import PredictionSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.features import Integers, has_all_values
from gridmill.jobs.metrics import NAMES
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.prediction.finish import metrics_of
from gridmill.jobs.prediction.shards import check_order, of_split, pieces_of, spans_of
from gridmill.jobs.prediction.worker import ShardWork
from gridmill.jobs.signatures import check_same, dataset_signature, model_signature
from gridmill.jobs.training_rows import LEAST_SHARE, Mask, seen_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that the prediction could use. `name` is the name of the model in the declaration."""

    name: str
    artifact: Artifact
    card: ModelCard


SPLIT = "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing the candidates of a prediction.

    `metrics` contains the metrics of each candidate by name. All candidates are measured on the same rows.
    `rows` is the number of these rows. The candidates are measured on some of the `labelled` validation rows
    that have labels. `learned` contains for each candidate the number of validation rows on which it was
    trained. Candidates are not measured on validation rows on which any of them was trained. `unknown` are
    the candidates whose training rows are unknown. `left_out` contains the reason why a candidate is not
    compared. If `rows` is 0, this job measured no candidate. If `stored` is true, the metrics come from the
    training jobs, which measured the candidates on the same rows.
    """

    rows: int = 0
    labelled: int = 0
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    learned: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False


def check_candidates(candidates: Sequence[Candidate]) -> None:
    """Raise InputError if a candidate predicts something other than the first candidate. The message of the
    error contains the names of both candidates."""
    first = candidates[0]
    for other in candidates[1:]:
        names = (f"model {first.name!r}", f"model {other.name!r}")
        check_same(model_signature(first.card), model_signature(other.card), names, "prediction.models")


def compare(context: JobContext, spec: PredictionSpec, candidates: Sequence[Candidate]) -> Comparison:
    """Measure the candidates of a prediction. If there is only a single candidate, it is only checked
    against the dataset. Raises InputError, DataError."""
    dataset = context.input(spec.dataset)
    parts = open_partitions(context.below_root(dataset.output.uri))
    for candidate in candidates:
        check_dataset(candidate, dataset, parts)
    if len(candidates) == 1:
        return Comparison()
    rows = labelled_rows(parts, candidates[0].card, SPLIT)
    if len(rows) == 0:
        return _stored(candidates, dataset)
    tables = {one.name: predicted(context, SPLIT, one, dataset, parts, rows) for one in candidates}
    return _compared(context, candidates, dataset, parts, rows, tables)


def check_dataset(candidate: Candidate, dataset: Artifact, parts: Partitions) -> None:
    """Raise InputError if the candidate predicts another label than that of the dataset, and DataError if the
    dataset lacks a column that the candidate needs."""
    mine, dataset_of_model = (
        model_signature(candidate.card),
        dataset_signature(dataset.output.details, parts.schema),
    )
    if dataset_of_model is not None and set(candidate.card.labels) & set(dataset_of_model.labels):
        check_same(
            mine,
            dataset_of_model,
            (f"model {candidate.name!r}", f"dataset {dataset.id}"),
            "prediction.models",
        )
    names = set(parts.schema.names)
    missing = [encoding.column for encoding in candidate.card.encodings if encoding.column not in names]
    if missing:
        raise DataError(
            f"model {candidate.name!r} needs column {missing[0]!r}, which dataset {dataset.id} does not have",
            place="prediction.models",
        )


def labelled_rows(parts: Partitions, card: ModelCard, split: str | None) -> Integers:
    """Return the rows of a split that have every label. If `split` is None, the rows of all splits are
    returned. The result is empty if the dataset has no split or no label."""
    names = set(parts.schema.names)
    if (split is not None and "split" not in names) or not set(card.labels) <= names:
        return np.zeros(0, np.int64)
    table = parts.read([*card.labels, *(["split"] if split is not None else [])])
    selected = of_split(table["split"], split) if split is not None else np.ones(table.num_rows, bool)
    for name in card.labels:
        selected &= np.asarray(pc.is_valid(table[name]).to_numpy(), bool)
        if pa.types.is_floating(table[name].type):
            selected &= np.asarray(pc.fill_null(pc.is_finite(table[name]), False).to_numpy(), bool)
    return np.flatnonzero(selected).astype(np.int64)


def _stored(candidates: Sequence[Candidate], dataset: Artifact) -> Comparison:
    """Return the metrics that the training jobs stored, if all training jobs measured the same rows."""
    cards = [candidate.card for candidate in candidates]
    if any(not card.content or card.content != cards[0].content for card in cards):
        made = ", ".join(
            f"{candidate.name!r} on {candidate.card.dataset or 'an unknown dataset'}"
            for candidate in candidates
        )
        raise InputError(
            f"the models cannot be compared: dataset {dataset.id} has no validation rows with a label, "
            f"and the models were measured on different validation rows ({made})",
            hint="Name one model, or declare a label and `split: {validation: ...}` in the dataset.",
            place="prediction.models",
        )
    prefix = f"{SPLIT}_"
    metrics = {
        candidate.name: {
            name: candidate.card.metrics[f"{prefix}{name}"]
            for name in NAMES[candidate.card.objective]
            if f"{prefix}{name}" in candidate.card.metrics
        }
        for candidate in candidates
    }
    return Comparison(metrics=metrics, stored=True)


def predicted(
    context: JobContext,
    split: str | None,
    candidate: Candidate,
    dataset: Artifact,
    parts: Partitions,
    rows: Integers,
) -> pa.Table:
    """Return the predictions of a candidate for these rows, with the columns `row`, `truth`, `prediction`
    and probabilities."""
    check_order(parts, candidate.card)
    work = ShardWork(
        dataset=context.below_root(dataset.output.uri),
        model=folder_of(context, candidate),
        output=context.work,
        split=split,
        shards=(),
        threads=context.threads,
        python=context.python(candidate.name),
    )
    pieces = pieces_of(rows, count_shards(len(rows), 1, None, len(candidate.card.inputs)))
    table = pa.concat_tables([work.predict(span)[0] for piece in pieces for span in spans_of(piece)])
    place = np.searchsorted(table["row"].to_numpy(), rows)
    return table.take(pa.array(place))


def folder_of(context: JobContext, candidate: Candidate) -> Path:
    """Return the folder with the files of a candidate."""
    return context.below_root(candidate.artifact.output.uri)


def _compared(
    context: JobContext,
    candidates: Sequence[Candidate],
    dataset: Artifact,
    parts: Partitions,
    rows: Integers,
    tables: Mapping[str, pa.Table],
) -> Comparison:
    seen = {
        one.name: seen_rows(folder_of(context, one), one.card, dataset, parts, rows) for one in candidates
    }
    train = {name: one.train for name, one in seen.items()}
    is_known = np.logical_and.reduce([one.known for one in seen.values() if one.known.any()] or [rows >= 0])
    left_out = {
        name: f"the model predicted no number for {none} of {len(rows)} validation rows"
        for name, table in tables.items()
        if (none := int((~has_all_values(table["prediction"])).sum()))
    }
    kept = _kept(train, is_known, left_out)
    if not kept.any():
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise InputError(
            f"the models cannot be compared on the validation rows of {dataset.id}: {reasons}",
            hint="Train the models on this version of the dataset, or name one model.",
            place="prediction.models",
        )
    first, place = candidates[0].card, np.flatnonzero(kept)
    for one in candidates:
        _check_classes(one, dataset, tables[one.name])
    return Comparison(
        rows=len(place),
        labelled=len(rows),
        metrics={
            one.name: metrics_of(tables[one.name].take(pa.array(place)), parts, one.card, first)
            for one in candidates
            if one.name not in left_out
        },
        learned={name: int(mask.sum()) for name, mask in train.items() if mask.any()},
        unknown=tuple(name for name, one in seen.items() if not one.known.any()),
        left_out=left_out,
    )


def _kept(train: Mapping[str, Mask], mask: Mask, left_out: dict[str, str]) -> Mask:
    """Return the rows on which no candidate was trained.

    If fewer rows remain than the comparison needs, the candidate that was trained on the most of the rows is
    left out and recorded. Candidates are left out until enough rows remain.
    """
    while True:
        staying = [name for name in train if name not in left_out]
        if not staying:
            return np.zeros(len(mask), bool)
        kept: Mask = mask & ~np.logical_or.reduce([train[name] for name in staying])
        if kept.sum() >= max(1.0, LEAST_SHARE * mask.sum()):
            return kept
        most = max(staying, key=lambda name: int(train[name].sum()))
        left_out[most] = (
            f"the model was trained on {int(train[most].sum())} of the {len(mask)} validation rows"
        )


def _check_classes(candidate: Candidate, dataset: Artifact, table: pa.Table) -> None:
    if candidate.card.classes and not (candidate.card.classified.numbers(table["truth"]) >= 0).any():
        names = ", ".join(map(str, pc.unique(table["truth"]).to_pylist()[:5]))
        raise InputError(
            f"model {candidate.name!r} predicts {', '.join(candidate.card.classes[:5])}, but no "
            f"validation row of {dataset.id} has one of these classes (they have {names})",
            place="prediction.models",
        )
