"""The training job reads the dataset, trains a model, measures the stored model, and reports the result.

The card of a model records the signature of its predictions, the rows on which it was trained, and the rows
on which it was measured. Several processes can train a network together. Each process that trains the
network runs this module, and only rank 0 reports or writes.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.job import JobSize
from gridmill.domain.training import Combine, ModelKind, Objective, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.features import Encoding, Integers
from gridmill.jobs.golden_rows import save_golden
from gridmill.jobs.metrics import SEARCH_METRIC, check_metric
from gridmill.jobs.model_files import (
    GraphPredictor,
    ModelCard,
    Predictor,
    graph_facts,
    load_graph_of,
    load_model,
    make_predictor,
    save_card,
    save_model,
)
from gridmill.jobs.out_of_fold import OutOfFoldModel, save_held_out
from gridmill.jobs.packages import recorded_packages
from gridmill.jobs.signatures import dataset_signature, model_signature
from gridmill.jobs.subprocess_model import CodePredictor
from gridmill.jobs.training.check_files import check_alike, check_stored, sample_rows
from gridmill.jobs.training.cross_validation import Folds, plan_folds, predict_folds
from gridmill.jobs.training.data import SortedFrame, read_frame, row_order
from gridmill.jobs.training.ensemble import encodings_of, measurable, read_members
from gridmill.jobs.training.evaluate import (
    Answers,
    answer,
    break_down,
    calibration_curve,
    label_spreads,
    measure,
    usual_labels,
)
from gridmill.jobs.training.explain import permutation_importance, residuals
from gridmill.jobs.training.imported import import_model
from gridmill.jobs.training.onnx_graph import with_metadata
from gridmill.jobs.training.result import FittedModel, card_details
from gridmill.jobs.training.stopping_rows import with_stopping_rows
from gridmill.jobs.training.thresholds import check_decisions, decided, measure_intervals
from gridmill.jobs.training_rows import Hashes, dataset_hashes, distinct, note_learned
from gridmill.jobs.training_statistics import save_statistics, spread_rows, statistics_of

if TYPE_CHECKING:
    from gridmill.jobs.training.mlflow import MlflowRun
    from gridmill.jobs.training.tuning import TryOut, TuningResult


def identify(
    card: ModelCard, frame: SortedFrame, measured: SortedFrame, spec: TrainingSpec, context: JobContext
) -> tuple[ModelCard, Mapping[str, str]]:
    """Return the model card with its signature and the description of its training rows. The hashes of the
    training rows are written into the same folder.

    For each split in `measured`, the card also contains a text that identifies the measured rows. This text
    is equal for all models that were measured on the same rows and labels.
    """
    artifact = context.input(spec.dataset)
    parts = open_partitions(context.below_root(artifact.output.uri))
    columns, hashes = _hashes(parts, card, frame)
    order = row_order(parts.read([*card.keys, "split"]), frame.subject)
    hashes = hashes[order]
    card = replace(card, signature=dataset_signature(artifact.output.details, parts.schema))
    if spec.file is None:  # not for an imported model, because its training rows are unknown
        train, validation = _used(frame, spec)
        card = replace(card, learned=note_learned(context.output, hashes, columns, train, validation))
    return card, {split: _measured_on(hashes, measured, card, split) for split in ("validation", "test")}


def _hashes(parts: Partitions, card: ModelCard, frame: SortedFrame) -> tuple[tuple[str, ...], Hashes]:
    """Return the columns that identify a row, which are the keys. If several rows have the same keys, return
    all columns."""
    hashes = dataset_hashes(parts, card.keys)
    if card.keys and len(distinct(hashes)) == parts.rows:
        return card.keys, hashes
    names = dict.fromkeys((*card.keys, *frame.subject.features, *card.labels))
    return tuple(names), dataset_hashes(parts, tuple(names))


def _used(frame: SortedFrame, spec: TrainingSpec) -> tuple[Integers, Integers]:
    """Return the training rows, and the rows that influenced any decision of the training.

    An ensemble has no training rows of its own. Validation rows are returned for an ensemble only if its
    weights, threshold or quantiles were computed from them. The training rows of its members are recorded in
    the folders of the members.
    """
    train, validation = frame.rows["train"], frame.rows["validation"]
    if spec.model != ModelKind.ENSEMBLE:
        return train, validation
    decides = spec.combine == Combine.WEIGHTED or spec.threshold_by is not None or spec.quantiles
    return train[:0], validation if decides else validation[:0]


def _save_golden(predictor: Predictor, frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> None:
    parts = open_partitions(context.below_root(context.input(spec.dataset).output.uri))
    order = row_order(parts.read([*predictor.card.keys, "split"]), frame.subject)
    split = "validation" if len(frame.rows["validation"]) else "train"
    save_golden(context.output, predictor, parts, order, frame.starts, frame.rows[split])


def _save_statistics(card: ModelCard, frame: SortedFrame, answers: Answers, context: JobContext) -> None:
    """Store the distributions of the training rows and of the predictions. The predictions are those of the
    validation split if there are any, because a model predicts its training rows too well."""
    predicted = answers.get("validation", answers.get("train"))
    inputs = frame.inputs[frame.rows["train"]]
    if predicted is None or not len(inputs):
        return
    sample, others = inputs[spread_rows(len(inputs))], predicted[spread_rows(len(predicted))]
    save_statistics(context.output, statistics_of(card, sample, others))


def _measured_on(hashes: Hashes, frame: SortedFrame, card: ModelCard, split: str) -> str:
    rows = frame.rows[split]
    if len(rows) == 0:
        return ""
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    digest = hashlib.blake2b(repr((card.labels, card.classes)).encode(), digest_size=8)
    digest.update(np.ascontiguousarray(hashes[rows]).tobytes())
    digest.update(np.ascontiguousarray(frame.target[rows]).tobytes())
    return digest.hexdigest()


MODULES: Mapping[ModelKind, str] = {
    kind: f"gridmill.jobs.training.{kind}" for kind in ModelKind
}  # by name, so that a linear model does not import torch


def run(context: JobContext) -> JobResult:
    """Train the model of the job. Raises InputError and DataError if no model can be trained."""
    spec = context.order.job.training
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is not a training")
    spec.check()
    if not spec.dataset:
        return import_model(context, spec)
    # no process group for a script, because a script connects its ranks itself
    if context.order.job.gang < 2 or spec.model == ModelKind.CUSTOM:
        return _train(context, spec)
    # imported here, because it loads PyTorch, which other models do not need
    from gridmill.jobs.training import ddp

    with ddp.joined(context):
        if os.environ["RANK"] == "0":
            return _train(context, spec)
        return _help(replace(context, events_fd=None), spec)


def _help(context: JobContext, spec: TrainingSpec) -> JobResult:
    """Do the work of the ranks other than rank 0, which train the same models as rank 0, in the same
    order."""
    frame, folds = _prepare(context, spec)
    _fit(frame, spec, context)
    if folds is not None:
        _held_out(folds, frame, spec, context)
    return JobResult()


def _prepare(
    context: JobContext, spec: TrainingSpec, encodings: tuple[Encoding, ...] | None = None
) -> tuple[SortedFrame, Folds | None]:
    """Read the dataset and its folds.

    In a gang, InputError and DataError are raised in all ranks before any rank waits for another rank.
    """
    frame = read_frame(context, spec, encodings)
    check_decisions(frame, spec)
    return frame, plan_folds(frame, spec, context) if spec.folds else None


def _train(context: JobContext, spec: TrainingSpec) -> JobResult:
    if spec.track is None or context.rank:
        return _learn(context, spec)
    # imported here, because it loads httpx, which only tracked trainings need
    from gridmill.jobs.training import mlflow

    with mlflow.tracking(spec, context) as tracker:
        return _learn(tracker.context, spec, tracker)


def _learn(context: JobContext, spec: TrainingSpec, tracker: "MlflowRun | None" = None) -> JobResult:
    began = time.monotonic()
    found_best = _search(context, spec) if spec.search else None
    if found_best is not None:
        spec = found_best.spec
    encodings = encodings_of(read_members(context, spec)) if spec.model == ModelKind.ENSEMBLE else None
    frame, folds = _prepare(context, spec, encodings)
    fitted = _fit(frame, spec, context)
    if context.rank:
        return JobResult()  # no output, because the model is the output of the script's rank 0
    card = _card(frame, spec, fitted, context.input(spec.dataset))
    save_model(context.output, card, _described(fitted, card), fitted.weights)
    predictor = _stored(card, context)
    file_check = _check_files(predictor, fitted, frame, context)
    fit = measurable(frame, spec, context) if spec.model == ModelKind.ENSEMBLE else frame
    answers = answer(predictor, fit)
    card = decided(card, fit, spec, answers)
    if spec.threshold_by is not None:
        print(
            f"threshold {card.threshold:.4g}: the best {spec.threshold_by} on the validation split",
            flush=True,
        )
    metrics = {**fitted.metrics, **measure(fit, answers, card.threshold)}
    metrics |= measure_intervals(card, fit, answers)
    held_out, measured = _held_out(folds, frame, spec, context, card.threshold) if folds else (None, {})
    metrics |= measured
    card = _with_packages(replace(card, metrics=metrics), predictor)
    card, measured_on = identify(card, frame, fit, spec, context)
    save_card(context.output, card)
    _save_golden(predictor, frame, spec, context)
    _save_statistics(card, frame, answers, context)
    if held_out:
        save_held_out(context.output, held_out)
    for name, value in metrics.items():
        context.metric(name, value)
    run_id = tracker.finish(card, found_best) if tracker else None
    details = {
        **_details(card, frame, fitted, spec),
        "calibration": calibration_curve(fit, answers),
        "breakdown": break_down(fit, answers, card.threshold),
        "residuals": residuals(fit, answers, spec.seed),
        "permutation": permutation_importance(predictor, fit, spec.seed, time.monotonic() - began),
        "not_measured": _fewer(frame, fit),
        "file_check": file_check,
        "mlflow_run": run_id,
        "measured_on": measured_on,
    }
    return _result(card, frame, spec, context, details | (_searched(found_best) if found_best else {}))


def _result(
    card: ModelCard, frame: SortedFrame, spec: TrainingSpec, context: JobContext, details: Mapping[str, Any]
) -> JobResult:
    """Return the model as the output of the job, after all files of the model are written."""
    files = [path for path in context.output.rglob("*") if path.is_file()]
    about: dict[str, Any] = {
        "files": sorted(path.name for path in files if path.parent == context.output),
        "predicts": model_signature(card).text,
    }
    if card.environment:
        about |= {"requirements": spec.environment, "bundle": context.order.bundle, "locked": card.locked}
    output = Output(
        kind=ArtifactKind.MODEL,
        uri=context.order.output_uri,
        rows=card.rows,
        size_bytes=sum(path.stat().st_size for path in files),
        metrics=card.metrics,
        details={**details, **about},
    )
    size = JobSize(rows=len(frame.target), columns=frame.inputs.shape[1])
    return JobResult(outputs=(output,), metrics=card.metrics, size=size)


def _decisions(card: ModelCard) -> dict[str, Any]:
    """Return the threshold and the quantiles for the settings of the version."""
    settings = {
        "threshold": card.threshold,
        "quantiles": ", ".join(f"{quantile:g}" for quantile in card.quantiles),
    }
    return {name: value for name, value in settings.items() if value not in (None, "")}


def _stored(card: ModelCard, context: JobContext) -> Predictor:
    """Load the stored model in the same way as a prediction loads it.

    The code of the script has just run in this job, so no further declaration of trust is needed.
    """
    if card.predict:
        return CodePredictor(card=card, folder=context.output, python=context.python())
    return load_model(context.output, context.threads)


def _with_packages(card: ModelCard, predictor: Predictor) -> ModelCard:
    """Return the card with the packages of the code that predicts, if the model has code of its own."""
    if not isinstance(predictor, CodePredictor):
        return card
    found = predictor.packages()
    locked = tuple(f"{name}=={number}" for name, number in sorted(found.installed.items()))
    return replace(
        card,
        versions={"gridmill": card.versions["gridmill"], **found.loaded},
        locked=locked if card.environment else (),
    )


def _described(fitted: FittedModel, card: ModelCard) -> bytes | None:
    """Return the graph with metadata about its inputs and outputs. If the graph is a file of the user, it is
    not changed."""
    if fitted.graph is None or fitted.trained is None:
        return fitted.graph
    return with_metadata(fitted.graph, graph_facts(card))


def _check_files(
    predictor: Predictor, fitted: FittedModel, frame: SortedFrame, context: JobContext
) -> dict[str, float]:
    """Check the files of the model. Raises InternalError if the files do not predict the same as the trained
    model, and InputError if files of the user predict differently when they are called again."""
    length = predictor.card.sequence
    if fitted.trained is None:  # only rows of one split, for which user code runs anyway
        split = "validation" if len(frame.rows["validation"]) else "train"
        return check_alike(predictor, sample_rows(frame, length, split))
    predictors = [predictor]
    if fitted.graph is not None and not isinstance(predictor, GraphPredictor):
        predictors.append(load_graph_of(context.output, predictor.card, context.threads))
    return check_stored(predictors, fitted.trained, sample_rows(frame, length))


def _weights(spec: TrainingSpec) -> dict[str, Any]:
    """Return the weights of rows and classes for the settings of the version."""
    classes = ", ".join(f"{name}: {one:g}" for name, one in spec.class_weights.items())
    settings = {"weight": spec.weight, "class_weight": spec.class_weight, "class_weights": classes}
    return {name: value for name, value in settings.items() if value}


def _fewer(frame: SortedFrame, fit: SortedFrame) -> dict[str, int]:
    """Return for each split the number of rows that are not measured, because the model was trained on
    them."""
    counts = {split: len(rows) - len(fit.rows[split]) for split, rows in frame.rows.items()}
    return {split: count for split, count in counts.items() if count}


def _fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    fit: Callable[[SortedFrame, TrainingSpec, JobContext], FittedModel] = import_module(
        MODULES[spec.model]
    ).fit
    frame, stopping_text = with_stopping_rows(frame, spec, context)
    if not stopping_text:
        return fit(frame, spec, context)
    if context.events_fd is not None:
        print(f"the dataset has no validation split: early stopping {stopping_text}", flush=True)
    fitted = fit(frame, spec, context)
    return replace(fitted, options={**fitted.options, "early_stopping": stopping_text})


def _search(context: JobContext, spec: TrainingSpec) -> "TuningResult":
    """Find the best settings by a hyperparameter search. Each trial is measured on the validation split, in
    the same way as a model."""
    search = spec.search
    assert search is not None

    def make() -> "tuple[Objective, TryOut]":
        frame, _ = _prepare(context, spec)
        # imported here, because it loads Optuna, which only tunings need
        from gridmill.jobs.training import study

        metric = check_metric(search.metric, frame.objective, SEARCH_METRIC)
        if len(frame.rows["validation"]) == 0:
            raise InputError(
                "a search compares its trials on the validation split, but the dataset has none",
                hint="Add `validation: 0.15` (or `validation_from`) to the dataset's `split`.",
                place="training.search",
            )

        def attempt(settings: TrainingSpec, trial: JobContext) -> float:
            fitted = _fit(frame, settings, trial)
            card = _card(frame, settings, fitted)
            answers = answer(_predictor(card, fitted, trial), frame, ("validation",))
            measured = measure(frame, answers, decided(card, frame, settings, answers).threshold)
            value: float = study.value_of(metric, measured)
            return value

        return frame.objective, attempt

    # imported here, because it loads Optuna, which only tunings need
    from gridmill.jobs.training import tuning

    tuning_result: TuningResult = tuning.find_best(spec, search, context, make)
    print(f"trial {tuning_result.best} is the best of {len(tuning_result.trials)}", flush=True)
    return tuning_result


def _searched(tuning_result: "TuningResult") -> dict[str, Any]:
    return {
        "search": {"metric": tuning_result.metric, "best": tuning_result.best, "trials": tuning_result.trials}
    }


def _predictor(card: ModelCard, fitted: FittedModel, context: JobContext) -> Predictor:
    """Return the predictor that measures a trial or a fold without files."""
    if card.predict:
        return CodePredictor(card=card, folder=context.output, python=context.python())
    return make_predictor(card, fitted.graph, context.threads)


def _held_out(
    folds: Folds, frame: SortedFrame, spec: TrainingSpec, context: JobContext, threshold: float | None = None
) -> tuple[OutOfFoldModel, Mapping[str, float]]:
    def learn(part: SortedFrame, own: JobContext) -> Predictor:
        fitted = _fit(part, spec, own)
        return _predictor(_card(part, spec, fitted), fitted, own)

    return predict_folds(folds, frame, spec, context, learn, threshold)


def _card(
    frame: SortedFrame, spec: TrainingSpec, fitted: FittedModel, dataset: Artifact | None = None
) -> ModelCard:
    folds = {"folds": spec.folds, "folds_by": spec.folds_by.value} if spec.folds else {}
    return ModelCard(
        kind=spec.model,
        objective=frame.objective,
        labels=frame.subject.labels,
        label_columns=frame.subject.label_columns,
        encodings=frame.encodings,
        classes=frame.classes,
        class_type=frame.class_type,
        weights=fitted.weights_of_members,
        vote=fitted.vote,
        predict=fitted.predict,
        environment=fitted.environment,
        sequence=fitted.sequence,
        presents=fitted.presents,
        constant=fitted.constant,
        usual=usual_labels(frame),
        spread=label_spreads(frame),
        options={**fitted.options, **folds},
        seed=spec.seed,
        dataset=dataset.id if dataset else "",
        content=dataset.fingerprint if dataset else "",
        folds=spec.folds or 0,
        entity=frame.subject.entity,
        time=frame.subject.time,
        rows=len(frame.rows["train"]),
        versions=recorded_packages(fitted.libraries),
    )


def _details(card: ModelCard, frame: SortedFrame, fitted: FittedModel, spec: TrainingSpec) -> dict[str, Any]:
    return {
        **card_details(card),
        "predict": card.predict,
        "environment": card.environment,
        "dataset": card.dataset,
        "options": {**card.options, **_decisions(card), **_weights(spec)},
        "seed": card.seed,
        "packages": dict(card.versions),
        "rows": {split: len(rows) for split, rows in frame.rows.items()},
        "unlabelled": dict(frame.unlabelled),
        "missing_labels": dict(frame.missing_labels),
        "unseen_classes": dict(frame.unseen_classes),
        "infinite": dict(frame.infinite),
        "own_not_finite": dict(fitted.not_finite),
        "left_out": dict(frame.left_out),
        "grouped": {name: list(group_counts) for name, group_counts in frame.grouped.items()},
        "curve": [list(point) for point in fitted.curve],
        "importance": dict(sorted(fitted.importance.items(), key=lambda item: -item[1])),
    }
