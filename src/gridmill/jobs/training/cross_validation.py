"""Cross-validation: each training row is predicted by a model that was not trained on this row."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import FoldsBy, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.model_files import Predictor, predict_rows
from gridmill.jobs.out_of_fold import OutOfFoldModel
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.evaluate import measure_rows
from gridmill.jobs.training.label_times import LabelTimes, read_moments
from gridmill.jobs.training.stopping_rows import drawn_rows, has_weight, is_learnable, last_rows, stops_early

Learn = Callable[[SortedFrame, JobContext], Predictor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """The fold of each training row, and the columns that identify rows."""

    moments: LabelTimes
    numbers: Integers


def plan_folds(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> Folds:
    """Assign the training rows to folds. Raises InputError for impossible folds before any model is
    trained."""
    moments = read_moments(frame, spec, context, by_time=spec.folds_by == FoldsBy.TIME)
    return Folds(moments=moments, numbers=_fold_numbers(frame, spec, moments))


def predict_folds(
    planned: Folds,
    frame: SortedFrame,
    spec: TrainingSpec,
    context: JobContext,
    learn: Learn,
    threshold: float | None = None,
) -> tuple[OutOfFoldModel, Mapping[str, float]]:
    """Return predictions for each training row by models that were trained without its fold, and the metrics
    `folds_NAME` of these predictions, with the `threshold` of the model."""
    moments, folds = planned.moments, planned.numbers
    rows, count = frame.rows["train"], spec.folds or 0
    width = len(frame.classes) or len(frame.subject.labels)
    predicted = np.full((len(rows), width) if width > 1 or frame.classes else len(rows), np.nan)
    for fold in range(count):
        part, mine = _without(frame, spec, moments, folds, fold), folds == fold
        if part is None:
            print(f"fold {fold + 1} of {count}: {mine.sum()} rows get no prediction", flush=True)
            continue
        print(f"fold {fold + 1} of {count}: {len(part.rows['train'])} training rows", flush=True)
        predictor = learn(part, _fold_context(context, fold))
        predicted[mine] = predict_rows(predictor, frame.inputs, frame.starts, rows[mine])
        context.progress(fold + 1, count, "folds")
    order = np.argsort(moments.number[rows])
    number = moments.number[rows]
    held_out = OutOfFoldModel(rows=number[order], folds=folds[order], predicted=predicted[order])
    return held_out, _measure(frame, rows, predicted, threshold)


def _measure(
    frame: SortedFrame, rows: Integers, predicted: Floats, threshold: float | None
) -> Mapping[str, float]:
    """Return the metrics `folds_NAME` over the rows that have a prediction."""
    is_predicted = np.isfinite(predicted.reshape(len(rows), -1)).all(axis=1)
    rows, predicted = rows[is_predicted], predicted[is_predicted]
    if len(rows) == 0:
        return {}
    scores = measure_rows(frame, rows, predicted, threshold)
    return {f"folds_{name}": value for name, value in scores.items()}


def _fold_numbers(frame: SortedFrame, spec: TrainingSpec, moments: LabelTimes) -> Integers:
    """Return the fold of each training row. Raises InputError if there are too few rows, times or entities
    for the folds."""
    rows, count = frame.rows["train"], spec.folds or 0
    match spec.folds_by:
        case FoldsBy.RANDOM:
            fold_of_row = np.random.default_rng(spec.seed).permutation(len(rows)) % count
        case FoldsBy.ENTITY:
            entities, which = np.unique(frame.starts[rows], return_inverse=True)
            fold_of_row = (np.random.default_rng(spec.seed).permutation(len(entities)) % count)[which]
        case _:
            time = moments.time[rows]
            edges = np.quantile(time, np.arange(1, count) / count, method="higher")
            fold_of_row = np.searchsorted(edges, time, side="right")
    if len(np.unique(fold_of_row)) < count:
        what = {FoldsBy.RANDOM: "rows", FoldsBy.ENTITY: "entities", FoldsBy.TIME: "times"}[spec.folds_by]
        raise InputError(f"the training split has too few {what} for {count} folds", place="training.folds")
    return fold_of_row.astype(np.int64)


def _without(
    frame: SortedFrame, spec: TrainingSpec, moments: LabelTimes, folds: Integers, fold: int
) -> SortedFrame | None:
    """Return the frame with the training rows that the model for this fold may use. Return None if there are
    too few rows."""
    rows, held = frame.rows["train"], frame.rows["validation"]
    if spec.folds_by != FoldsBy.TIME:
        learned = rows[folds != fold]
    else:
        begin = moments.time[rows[folds == fold]].min()
        learned = rows[moments.known[rows] < begin]
        held = rows[:0]
    if len(held) == 0 and stops_early(spec):
        dated = frame.subject.time is not None
        learned, held = last_rows(learned, moments) if dated else drawn_rows(learned, spec.seed)
    if not is_learnable(frame, learned) or (stops_early(spec) and not has_weight(frame, held)):
        return None
    return replace(frame, rows={"train": learned, "validation": held, "test": rows[:0]})


def _fold_context(context: JobContext, fold: int) -> JobContext:
    """Return a context for training on a fold, which reports no progress and has its own folder for
    checkpoints."""
    uri = context.order.checkpoint_uri
    order = replace(context.order, checkpoint_uri=f"{uri}/fold-{fold}" if uri else "")
    return replace(context, order=order, events_fd=None)
