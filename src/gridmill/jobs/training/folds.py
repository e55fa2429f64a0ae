"""Out-of-fold predictions: each training row is predicted by a model that did not learn from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import InputError
from gridmill.jobs import metrics
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.held_out import HeldOut
from gridmill.jobs.models import Predictor, predict_rows
from gridmill.jobs.partitions import open_partitions
from gridmill.jobs.training.evaluate import naive_values
from gridmill.jobs.training.frame import Frame, row_order
from gridmill.model.training import OPTIONS, FoldsBy, Objective, TrainingSpec

HELD_SHARE = 0.15
"""By time, a fold's model may not look at the validation split, which is later: it ends early by the last
rows before the fold."""
NEVER = np.iinfo(np.int64).max

Learn = Callable[[Frame, JobContext], Predictor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """For each row of a frame its number in the dataset, its time, and when its label was known (both in
    microseconds; without a time 0)."""

    number: Integers
    time: Integers
    known: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """The fold of each training row, and what rows are told apart by."""

    moments: Moments
    numbers: Integers


def plan_folds(frame: Frame, spec: TrainingSpec, context: JobContext) -> Folds:
    """Which row is in which fold. Raises InputError for folds that cannot be: before anything is learned."""
    moments = _moments(frame, spec, context)
    return Folds(moments=moments, numbers=_fold_numbers(frame, spec, moments))


def predict_folds(
    planned: Folds, frame: Frame, spec: TrainingSpec, context: JobContext, learn: Learn
) -> tuple[HeldOut, Mapping[str, float]]:
    """What models of other folds say about each training row, and `folds_NAME` metrics of it."""
    moments, folds = planned.moments, planned.numbers
    rows, count = frame.rows["train"], spec.folds or 0
    width = len(frame.classes) or len(frame.subject.labels)
    predicted = np.full((len(rows), width) if width > 1 or frame.classes else len(rows), np.nan)
    for fold in range(count):
        part, mine = _without(frame, spec, moments, folds, fold), folds == fold
        if part is None:
            print(f"fold {fold + 1} of {count}: {mine.sum()} rows stay without a prediction", flush=True)
            continue
        print(f"fold {fold + 1} of {count}: {len(part.rows['train'])} rows to learn from", flush=True)
        predictor = learn(part, _fold_context(context, fold))
        predicted[mine] = predict_rows(predictor, frame.inputs, frame.starts, rows[mine])
        context.progress(fold + 1, count, "folds")
    order = np.argsort(moments.number[rows])
    number = moments.number[rows]
    held_out = HeldOut(rows=number[order], folds=folds[order], predicted=predicted[order])
    return held_out, _measure(frame, rows, predicted)


def _measure(frame: Frame, rows: Integers, predicted: Floats) -> Mapping[str, float]:
    """`folds_NAME` metrics over the rows that have such a prediction."""
    known = np.isfinite(predicted.reshape(len(rows), -1)).all(axis=1)
    rows, predicted = rows[known], predicted[known]
    if len(rows) == 0:
        return {}
    if frame.objective == Objective.REGRESSION:
        found = metrics.regression(frame.target[rows], predicted, naive_values(frame)[rows])
    else:
        found = metrics.classification(frame.target[rows].astype(int), predicted)
    return {f"folds_{name}": value for name, value in found.items()}


def _keys(frame: Frame, spec: TrainingSpec, context: JobContext) -> pa.Table:
    parts = open_partitions(context.below_root(context.input(spec.dataset).output.uri))
    time = [frame.subject.time] if frame.subject.time else []
    return parts.read([*frame.subject.entity, *time, "split"])


def _moments(frame: Frame, spec: TrainingSpec, context: JobContext) -> Moments:
    table = _keys(frame, spec, context)
    number, time = row_order(table, frame.subject), np.zeros(table.num_rows, np.int64)
    if frame.subject.time:
        column = table[frame.subject.time].cast(pa.timestamp("us")).cast(pa.int64())
        time = pc.fill_null(column, 0).to_numpy()[number]
    if spec.folds_by != FoldsBy.TIME:
        return Moments(number=number, time=time, known=time)
    if not frame.subject.time:
        raise InputError(
            "the dataset has no time to make folds by",
            hint="Use `folds_by: random` or `folds_by: entity`.",
            place="training.folds_by",
        )
    known = _known(frame, time, context.input(spec.dataset).output.details)
    return Moments(number=number, time=time, known=known)


def _known(frame: Frame, time: Integers, details: Mapping[str, Any]) -> Integers:
    """When each row's label was known: so long, or so many rows of the entity, after the row."""
    after = details.get("label_after", {"seconds": details.get("ahead_seconds") or 0.0, "rows": 0})
    if after is None:
        raise InputError(
            "an expression says when the dataset's label (or its row) is known: there are no folds by time",
            hint="Use `folds_by: entity` or `folds_by: random`.",
            place="training.folds_by",
        )
    later = np.arange(len(time)) + int(after["rows"])
    inside = later < len(time)
    later = np.where(inside, later, 0)
    inside &= frame.starts[later] == frame.starts
    known = time[later] + round(float(after["seconds"]) * 1_000_000)
    return np.where(inside, known, NEVER)


def _fold_numbers(frame: Frame, spec: TrainingSpec, moments: Moments) -> Integers:
    """For each training row its fold. Raises InputError where there are too few rows, times or entities."""
    rows, count = frame.rows["train"], spec.folds or 0
    match spec.folds_by:
        case FoldsBy.RANDOM:
            found = np.random.default_rng(spec.seed).permutation(len(rows)) % count
        case FoldsBy.ENTITY:
            entities, which = np.unique(frame.starts[rows], return_inverse=True)
            found = (np.random.default_rng(spec.seed).permutation(len(entities)) % count)[which]
        case _:
            time = moments.time[rows]
            edges = np.quantile(time, np.arange(1, count) / count, method="higher")
            found = np.searchsorted(edges, time, side="right")
    if len(np.unique(found)) < count:
        what = {FoldsBy.RANDOM: "rows", FoldsBy.ENTITY: "entities", FoldsBy.TIME: "times"}[spec.folds_by]
        raise InputError(f"there are too few {what} in training for {count} folds", place="training.folds")
    return found.astype(np.int64)


def _without(frame: Frame, spec: TrainingSpec, moments: Moments, folds: Integers, fold: int) -> Frame | None:
    """The frame whose training rows are those that may be learned from for that fold; None for too few."""
    rows, held = frame.rows["train"], frame.rows["validation"]
    if spec.folds_by != FoldsBy.TIME:
        learned = rows[folds != fold]
    else:
        begin = moments.time[rows[folds == fold]].min()
        learned = rows[moments.known[rows] < begin]
        held = learned
        if "patience" in OPTIONS[spec.model] and len(learned):
            since = np.quantile(moments.time[learned], 1 - HELD_SHARE, method="lower")
            held, learned = learned[moments.time[learned] >= since], learned[moments.known[learned] < since]
    if len(held) == 0 or not _is_learnable(frame, learned):
        return None
    return replace(frame, rows={"train": learned, "validation": held, "test": rows[:0]})


def _is_learnable(frame: Frame, rows: Integers) -> bool:
    """Whether there are differences to learn: of classes all of them."""
    if len(rows) < 2:
        return False
    target = frame.target[rows]
    if frame.classes:
        return len(np.unique(target)) == len(frame.classes)
    return bool((target != target[0]).any())


def _fold_context(context: JobContext, fold: int) -> JobContext:
    """Silent, with checkpoints of its own."""
    uri = context.order.checkpoint_uri
    order = replace(context.order, checkpoint_uri=f"{uri}/fold-{fold}" if uri else "")
    return replace(context, order=order, events_fd=None)
