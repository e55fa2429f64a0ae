"""The prediction job chooses the model, cuts the split into shards, runs the workers, and checks and
describes the result.

The chosen model is the best of the candidates, which are measured on the same rows. The job checks whether
the model was trained on rows that the job predicts. If the job must predict rows on which the model was
trained, the declaration determines how the job predicts these rows.

The process of the job only forks child processes, waits for them and counts their results. All code that
reads data or runs a model runs in a child process. The reason is that a process cannot fork safely after it
has used the libraries for data and models, and this process must fork again if a worker dies.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from gridmill.codec import from_builtins, to_builtins
from gridmill.domain.amounts import show_number
from gridmill.domain.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.domain.footprint import count_probe_shards, count_shards
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobSize
from gridmill.domain.metrics import HIGHER_IS_BETTER
from gridmill.domain.prediction import KEYS_HINT, OWN_COLUMNS, PredictionSpec
from gridmill.domain.promotion import PROMOTION, PromotionMeasurement
from gridmill.errors import InputError
from gridmill.jobs.child_processes import in_child
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.dataset_reader import Partitions, open_partitions
from gridmill.jobs.features import Integers
from gridmill.jobs.intervals import quantile_columns
from gridmill.jobs.metrics import BEST_BY, better, check_metric
from gridmill.jobs.model_files import ModelCard, load_card
from gridmill.jobs.prediction.batch_metrics import measure_result
from gridmill.jobs.prediction.candidates import Candidate, Comparison, check_candidates, compare
from gridmill.jobs.prediction.finish import (
    FinishedShards,
    ResultSummary,
    clear_partial,
    sample,
    size_of,
    summarize,
    take_together,
    write_done,
)
from gridmill.jobs.prediction.promotion import check_alias_of, measure_promotion
from gridmill.jobs.prediction.shards import RowRange, check_order, pieces_of, selected_rows, spans_of
from gridmill.jobs.prediction.swarm import ShardDone, ShardQueue, add_up, run_swarm
from gridmill.jobs.prediction.worker import ShardWork
from gridmill.jobs.subprocess_model import check_trust
from gridmill.jobs.training_rows import Mask, RowUse, seen_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The model that the prediction uses, the metric by which it was chosen, and the reason as text."""

    candidate: Candidate
    metric: str
    why: str


def describe_candidate(candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    """Return the facts about a candidate for the report, as JSON.

    `measured` contains the metrics on the rows on which all candidates are compared. `metrics` contains the
    metrics that the training of the candidate measured on its own dataset.
    """
    return {
        "name": candidate.name,
        "model_id": candidate.artifact.id,
        "kind": candidate.card.kind.value,
        "metrics": dict(candidate.card.metrics),
        "measured": dict(comparison.metrics.get(candidate.name, {})),
    }


def choose(candidates: Sequence[Candidate], comparison: Comparison, best_by: str | None) -> ModelChoice:
    """Return the best candidate. If several candidates are equally good, return the first of them. Raises
    InputError if the candidates cannot be compared."""
    metric = check_metric(best_by, candidates[0].card.objective, BEST_BY)
    if len(candidates) == 1:
        return ModelChoice(
            candidate=candidates[0], metric=metric, why=f"{candidates[0].name} is the only candidate"
        )
    scores = {name: metrics[metric] for name, metrics in comparison.metrics.items() if metric in metrics}
    finite_scores = {name: score for name, score in scores.items() if math.isfinite(score)}
    if not finite_scores:
        raise InputError(
            f"`models` names {len(candidates)} models, but none has a {metric!r} of a validation split by "
            "which they can be compared",
            hint="Name one model in `models`, or declare a validation split in the dataset and train the "
            "models again.",
            place="prediction.best_by",
        )
    best = next(iter(finite_scores))
    for name, score in finite_scores.items():
        best = name if better(metric, score, finite_scores[best]) else best
    chosen = next(candidate for candidate in candidates if candidate.name == best)
    return ModelChoice(candidate=chosen, metric=metric, why=_why(metric, best, finite_scores, comparison))


def check_keys(candidate: Candidate) -> None:
    """Raise InputError if a column that identifies a row has the name of another column of the
    prediction."""
    card = candidate.card
    own = {*OWN_COLUMNS, *probability_columns(card.classes), *quantile_columns(card.quantiles)}
    for name in card.keys:
        if name in own:
            raise InputError(
                f"column {name!r} of the dataset would be overwritten: a prediction of model "
                f"{candidate.name!r} writes a column of the same name",
                hint=KEYS_HINT,
                place="prediction.dataset",
            )


def _why(metric: str, best: str, scores: Mapping[str, float], comparison: Comparison) -> str:
    rank = "highest" if metric in HIGHER_IS_BETTER else "lowest"
    others = ", ".join(f"{name} {show_number(score)}" for name, score in scores.items() if name != best)
    on = f" on the same {comparison.rows:,} rows" if comparison.rows else ""
    out = "".join(f"; {name} is not compared: {why}" for name, why in comparison.left_out.items())
    if not others:
        return (
            f"{best} is the only candidate that could be compared: {metric} {show_number(scores[best])}{out}"
        )
    return f"{best} has the {rank} validation {metric}{on}: {show_number(scores[best])} ({others}){out}"


class LearnedRowPolicy(StrEnum):
    """The rule by which the job predicts rows on which the model was trained."""

    NONE = "none"
    """As far as is known, the model was trained on none of these rows."""
    HELD_OUT = "held out"
    """The rows of each fold are predicted by a model that was trained on other folds."""
    SEEN = "seen"
    """The model itself predicts the rows on which it was trained, so the metrics are too good."""


def learned_rows(card: ModelCard, name: str, dataset: Artifact, spec: PredictionSpec) -> LearnedRowPolicy:
    """Return the rule by which this prediction predicts training rows of the model.

    Raises InputError if a model with folds was trained on another version of the dataset, because then its
    training rows are unknown.
    """
    if spec.split not in (None, "train"):
        return LearnedRowPolicy.NONE
    if card.content and card.content == dataset.fingerprint:
        return LearnedRowPolicy.HELD_OUT if card.folds else LearnedRowPolicy.SEEN
    if card.folds and card.dataset.partition("@")[0] == dataset.name:
        raise InputError(
            f"model {name!r} was trained on {card.dataset}, not on {dataset.id}: it is unknown on which "
            "rows the model was trained",
            hint="Train the model on this version of the dataset, or predict with `split: test`.",
            place="prediction.split",
        )
    return LearnedRowPolicy.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRows:
    """Shows for each predicted row whether the model itself was trained on the row, and whether the row has
    a true value (`labelled`)."""

    seen: RowUse
    labelled: Mask

    def unfit(self, split: str | None) -> Mask:
        """Return the rows on which the model cannot be measured, because the model was trained on them.

        If the train split is predicted, no row is excluded, because the metrics of the train split are
        metrics on training rows by definition. Validation rows influence early stopping and the best
        settings. Validation rows are excluded in every split except the validation split. If the model
        stores only a sample of its training rows, rows that may be training rows are excluded too.
        """
        if split == "train":
            return np.zeros(len(self.labelled), bool)
        unknown = ~self.seen.known if self.seen.known.any() else ~self.seen.known & False
        used = self.seen.train if split == "validation" else self.seen.train | self.seen.validation
        return np.asarray(used | unknown, bool)

    def describe(self, split: str | None) -> dict[str, int]:
        """Return the numbers of rows for the record of the prediction.

        The numbers are: predicted rows that belong to the train and validation splits of the model, rows
        that could belong to one of these splits (`unknown`), rows with a true value that are not measured,
        and measured rows.
        """
        unfit = self.unfit(split)
        return {
            "train": int(self.seen.train.sum()),
            "validation": int((self.seen.validation & ~self.seen.train).sum()),
            "unknown": int((~self.seen.known).sum()),
            "excluded": int((unfit & self.labelled).sum()),
            "measured": int((~unfit & self.labelled).sum()),
        }


def learned_among(
    folder: Path,
    card: ModelCard,
    dataset: Artifact,
    parts: Partitions,
    rows: Integers,
    summary: ResultSummary,
) -> LearnedRows:
    """Compare the predicted rows with the training rows of the model in `folder`.

    Rows that are predicted by a model of another fold do not count as training rows. Raises StorageError.
    """
    seen = seen_rows(folder, card, dataset, parts, rows)
    seen = RowUse(train=seen.train & ~summary.held_out, validation=seen.validation, known=seen.known)
    return LearnedRows(seen=seen, labelled=summary.labelled)


ROWS_FILE = "rows.npy"


def run(context: JobContext) -> JobResult:
    """Predict the rows of the dataset with the best model. Raises InputError and DataError. Raises JobError
    if the workers of a shard die repeatedly."""
    spec = context.order.job.prediction
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is not a prediction")
    spec.check()
    candidates = _candidates(context, spec)
    check_candidates(candidates)
    for candidate in candidates:
        check_keys(candidate)
    check_metric(spec.best_by, candidates[0].card.objective, BEST_BY)
    check_alias_of(spec, candidates[0])
    begun = in_child(lambda: _begin(context, spec, candidates), "comparing the models", context.work)
    comparison, plan = from_builtins(begun["comparison"], Comparison), begun["plan"]
    choice = choose(candidates, comparison, spec.best_by)
    print(choice.why, flush=True)
    learned = learned_rows(choice.candidate.card, choice.candidate.name, context.input(spec.dataset), spec)
    if learned == LearnedRowPolicy.SEEN:
        print(f"{choice.candidate.name} predicts the train rows, on which it was trained", flush=True)
    if context.order.part is not None:
        write_done(context.output, _do(context, spec, choice, learned, plan))
        return JobResult(size=JobSize(rows=plan["rows"]))
    if context.order.parts:
        folders = [context.below_root(uri) for uri in context.order.parts]
        done = take_together(context.output, folders, choice.candidate.artifact.id)
    else:
        done = _do(context, spec, choice, learned, plan)
    counts = [shard.rows for shard in done.shards]
    outcome = in_child(lambda: _finish(context, spec, choice, counts), "checking the result", context.work)
    facts = {
        "candidates": [describe_candidate(candidate, comparison) for candidate in candidates],
        "comparison": to_builtins(comparison),
        "shards": len(done.shards),
        "workers": done.workers,
        "worker_deaths": done.deaths,
        "train_rows": learned.value,
        "unknown_rows": sum(shard.unknown for shard in done.shards),
    } | ({"parts": len(context.order.parts)} if context.order.parts else {})
    if begun["promotion"] is not None:
        facts[PROMOTION] = begun["promotion"]
    parallel = add_up(
        done.shards,
        work=f"{choice.candidate.artifact.name} ({choice.candidate.card.kind})",
        workers=done.workers,
        whole_rows=plan["whole_rows"],
        stage_seconds=done.seconds,
    )
    return replace(_result(context, outcome, facts), parallel=parallel)


def _do(
    context: JobContext,
    spec: PredictionSpec,
    choice: ModelChoice,
    learned: LearnedRowPolicy,
    plan: dict[str, Any],
) -> FinishedShards:
    """Predict all shards in worker processes. In a part of the job, predict only the shards of the part."""
    shards = [[from_builtins(span, RowRange) for span in spans] for spans in plan["shards"]]
    workers = max(1, min(_workers(context, spec), len(shards)))
    begin = time.monotonic()
    swarm = run_swarm(
        _work(context, spec, choice, shards, plan["first"], workers, learned),
        len(shards),
        workers,
        _teller(context, plan["rows"]),
    )
    return FinishedShards(
        first=plan["first"],
        of=plan["of"],
        shards=tuple(from_builtins(swarm.done[shard]["done"], ShardDone) for shard in range(len(shards))),
        workers=workers,
        deaths=tuple(swarm.deaths),
        seconds=time.monotonic() - begin,
        model=choice.candidate.artifact.id,
    )


def _workers(context: JobContext, spec: PredictionSpec) -> int:
    """Return the number of workers. If the job runs in parts, the number of workers of a part comes from the
    order that the part received. Otherwise the declared number of workers is returned."""
    return context.order.workers if context.order.part else spec.workers or context.order.workers


def _candidates(context: JobContext, spec: PredictionSpec) -> list[Candidate]:
    return [_candidate(context, spec, name) for name in spec.models]


def _candidate(context: JobContext, spec: PredictionSpec, name: str) -> Candidate:
    artifact = context.input(name)
    if artifact.kind != ArtifactKind.MODEL:
        raise InputError(f"{name!r} is a {artifact.kind}, not a model", place="prediction.models")
    card = load_card(context.below_root(artifact.output.uri))
    check_trust(card, name, spec.trust, "prediction.trust")
    return Candidate(name=name, artifact=artifact, card=card)


def _measured(context: JobContext, spec: PredictionSpec, candidate: Candidate) -> PromotionMeasurement | None:
    """Compare the model with the version that the alias names. A part of a job compares nothing, because the
    attempt that combines the parts does."""
    if spec.promote is None or context.order.part is not None:
        return None
    alias = spec.promote.alias
    has_version = any(entry.name == alias for entry in context.order.inputs)
    serving = _candidate(context, spec, alias) if has_version else None
    return measure_promotion(context, spec, spec.promote, candidate, serving)


def _begin(context: JobContext, spec: PredictionSpec, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Compare the models, and cut the rows into shards for the best model. The comparison of the models
    needs heavy libraries and runs before the workers start."""
    comparison = compare(context, spec, candidates)
    plan = _plan(context, spec, choose(candidates, comparison, spec.best_by))
    measured = _measured(context, spec, candidates[0])
    return {
        "comparison": to_builtins(comparison),
        "plan": plan,
        "promotion": to_builtins(measured) if measured is not None else None,
    }


def _plan(context: JobContext, spec: PredictionSpec, choice: ModelChoice) -> dict[str, Any]:
    """Return the plan with all shards of the job, or with the shards of a part of the job. The shards depend
    on the rows and on the total number of workers in all parts of the job."""
    part, workers = context.order.part, _workers(context, spec)
    count = part.count if part else 1
    parts = open_partitions(context.below_root(context.input(spec.dataset).output.uri))
    check_order(parts, choice.candidate.card)
    rows = selected_rows(parts, spec.split)
    share = context.order.share
    whole = count_shards(len(rows), workers * count, spec.shards, len(choice.candidate.card.inputs))
    shards = whole if share >= 1 else min(whole, count_probe_shards(len(rows), workers))
    number = part.number if part else 0
    first, stop = number * shards // count, (number + 1) * shards // count
    pieces = pieces_of(rows, shards, share)[first:stop]
    taken = np.concatenate([rows[:0], *pieces])
    np.save(context.work / ROWS_FILE, taken)
    spans = [spans_of(piece) for piece in pieces]
    return {
        "rows": len(taken),
        "whole_rows": len(rows),
        "first": first,
        "of": shards,
        "shards": to_builtins(spans),
    }


def _work(
    context: JobContext,
    spec: PredictionSpec,
    choice: ModelChoice,
    shards: list[list[RowRange]],
    first: int,
    workers: int,
    learned: LearnedRowPolicy,
) -> ShardWork:
    return ShardWork(
        dataset=context.below_root(context.input(spec.dataset).output.uri),
        model=context.below_root(choice.candidate.artifact.output.uri),
        output=context.output,
        split=spec.split,
        shards=shards,
        first=first,
        held_out=learned == LearnedRowPolicy.HELD_OUT,
        threads=max(1, context.threads // workers),
        python=context.python(choice.candidate.name),
    )


def _teller(context: JobContext, rows: int) -> Callable[[ShardQueue], None]:
    def tell(state: ShardQueue) -> None:
        done = sum(report["done"]["rows"] for report in state.done.values())
        context.progress(done, rows, "rows", note=f"{len(state.done)} shards")

    return tell


def _finish(
    context: JobContext, spec: PredictionSpec, choice: ModelChoice, counts: list[int]
) -> dict[str, Any]:
    card, dataset = choice.candidate.card, context.input(spec.dataset)
    clear_partial(context.output)
    rows = np.load(context.work / ROWS_FILE)
    summary = summarize(context.output, len(counts), rows, card.entity)
    parts = open_partitions(context.below_root(dataset.output.uri))
    learned = learned_among(
        context.below_root(choice.candidate.artifact.output.uri), card, dataset, parts, rows, summary
    )
    measured = measure_result(context.output, len(counts), parts, card, ~learned.unfit(spec.split))
    ahead = float(dataset.output.details.get("ahead_seconds") or 0.0)
    return {
        "rows": summary.rows,
        "size_bytes": size_of(context.output),
        "columns": [
            [name, str(kind)] for name, kind in zip(summary.schema.names, summary.schema.types, strict=True)
        ],
        "metrics": {f"{spec.split or 'all'}_{name}": value for name, value in measured.metrics.items()},
        "unpredicted_rows": summary.unpredicted,
        "details": {
            "model": choice.candidate.name,
            "kind": card.kind.value,
            "best_by": choice.metric,
            "why": choice.why,
            "objective": card.objective.value,
            "label": card.label,
            "model_id": choice.candidate.artifact.id,
            "dataset": dataset.id,
            "split": spec.split,
            "other_label": _other_label(card, dataset) if "truth" not in summary.schema.names else "",
            "learned_rows": learned.describe(spec.split),
            "breakdown": {spec.split or "all": measured.breakdown},
            "sample": sample(summary.head, card, timedelta(seconds=ahead)),
            "ahead_seconds": ahead,
            "time": card.time,
            "entity": list(card.entity),
        },
    }


def _other_label(card: ModelCard, dataset: Artifact) -> str:
    """Return the label of the dataset if the model predicts a different label, otherwise an empty text."""
    label = str(dataset.output.details.get("label") or "")
    return "" if label in card.labels else label


def _result(context: JobContext, outcome: dict[str, Any], facts: dict[str, Any]) -> JobResult:
    for name, value in outcome["metrics"].items():
        context.metric(name, value)
    output = Output(
        kind=ArtifactKind.PREDICTION,
        uri=context.order.output_uri,
        rows=outcome["rows"],
        size_bytes=outcome["size_bytes"],
        columns=tuple(Column(name=name, type=kind) for name, kind in outcome["columns"]),
        metrics=outcome["metrics"],
        details=outcome["details"] | facts | {"unpredicted_rows": outcome["unpredicted_rows"]},
    )
    return JobResult(outputs=(output,), metrics=outcome["metrics"], size=JobSize(rows=outcome["rows"]))
