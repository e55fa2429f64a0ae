"""A prediction job: choose the model, cut the split, let the swarm work, check and describe what it made.

This process only forks, waits and counts. Whatever reads data or runs a model does so in a child, because a
process that has used such libraries is no longer safe to fork from, and dead workers are replaced by forks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from gridmill.codec import from_builtins, to_builtins
from gridmill.errors import InputError
from gridmill.jobs.children import in_child
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.features import has_all_values
from gridmill.jobs.foreign import check_trust
from gridmill.jobs.metrics import BEST_BY, check_metric
from gridmill.jobs.models import Card, load_card
from gridmill.jobs.partitions import open_partitions
from gridmill.jobs.prediction.candidates import Candidate
from gridmill.jobs.prediction.choose import Choice, check_keys, choose, describe_candidate
from gridmill.jobs.prediction.cut import Span, check_order, pieces_of, selected_rows, spans_of
from gridmill.jobs.prediction.finish import (
    break_down,
    clear_partial,
    measure,
    read_result,
    sample,
    size_of,
)
from gridmill.jobs.prediction.learned import Learned, learned_among, learned_rows
from gridmill.jobs.prediction.measured import Comparison, check_candidates, compare
from gridmill.jobs.prediction.parallel import ShardDone, add_up
from gridmill.jobs.prediction.parts import Done, take_together, write_done
from gridmill.jobs.prediction.swarm import Shards, run_swarm
from gridmill.jobs.prediction.worker import ShardWork
from gridmill.model.artifact import Artifact, ArtifactKind, Column, Output
from gridmill.model.job import JobSize
from gridmill.model.prediction import PredictionSpec
from gridmill.planning.shards import count_probe_shards, count_shards

ROWS_FILE = "rows.npy"


def run(context: JobContext) -> JobResult:
    """Predict with the best model. Raises InputError, DataError; JobError for a deadly shard."""
    spec = context.order.job.prediction
    if spec is None:
        raise InputError(f"job {context.order.job.name!r} is not a prediction")
    spec.check()
    candidates = _candidates(context, spec)
    check_candidates(candidates)
    for candidate in candidates:
        check_keys(candidate)
    check_metric(spec.best_by, candidates[0].card.objective, BEST_BY)
    begun = in_child(lambda: _begin(context, spec, candidates), "comparing the models", context.work)
    comparison, plan = from_builtins(begun["comparison"], Comparison), begun["plan"]
    choice = choose(candidates, comparison, spec.best_by)
    print(choice.why, flush=True)
    learned = learned_rows(choice.candidate.card, choice.candidate.name, context.input(spec.dataset), spec)
    if learned == Learned.SEEN:
        print(f"the train rows are predicted by {choice.candidate.name}, which learned from them", flush=True)
    if context.order.part is not None:
        write_done(context.output, _do(context, spec, choice, learned, plan))
        return JobResult(size=JobSize(rows=plan["rows"]))
    if context.order.parts:
        folders = [context.below_root(uri) for uri in context.order.parts]
        done = take_together(context.output, folders, choice.candidate.artifact.id)
    else:
        done = _do(context, spec, choice, learned, plan)
    counts = [shard.rows for shard in done.shards]
    found = in_child(lambda: _finish(context, spec, choice, counts), "checking the result", context.work)
    facts = {
        "candidates": [describe_candidate(candidate, comparison) for candidate in candidates],
        "comparison": to_builtins(comparison),
        "shards": len(done.shards),
        "workers": done.workers,
        "worker_deaths": done.deaths,
        "train_rows": learned.value,
        "unknown_rows": sum(shard.unknown for shard in done.shards),
    } | ({"parts": len(context.order.parts)} if context.order.parts else {})
    parallel = add_up(
        done.shards,
        work=f"{choice.candidate.artifact.name} ({choice.candidate.card.kind})",
        workers=done.workers,
        whole_rows=plan["whole_rows"],
        stage_seconds=done.seconds,
    )
    return replace(_result(context, found, facts), parallel=parallel)


def _do(
    context: JobContext, spec: PredictionSpec, choice: Choice, learned: Learned, plan: dict[str, Any]
) -> Done:
    """Let a swarm do the shards, or those of the part that the order is for."""
    shards = [[from_builtins(span, Span) for span in spans] for spans in plan["shards"]]
    workers = max(1, min(_workers(context, spec), len(shards)))
    begin = time.monotonic()
    swarm = run_swarm(
        _work(context, spec, choice, shards, plan["first"], workers, learned),
        len(shards),
        workers,
        _teller(context, plan["rows"]),
    )
    return Done(
        first=plan["first"],
        of=plan["of"],
        shards=tuple(from_builtins(swarm.done[shard]["done"], ShardDone) for shard in range(len(shards))),
        workers=workers,
        deaths=tuple(swarm.deaths),
        seconds=time.monotonic() - begin,
        model=choice.candidate.artifact.id,
    )


def _workers(context: JobContext, spec: PredictionSpec) -> int:
    """Of this attempt: what a part has of its own is settled with its size."""
    return context.order.workers if context.order.part else spec.workers or context.order.workers


def _candidates(context: JobContext, spec: PredictionSpec) -> list[Candidate]:
    found = []
    for name in spec.models:
        artifact = context.input(name)
        if artifact.kind != ArtifactKind.MODEL:
            raise InputError(f"{name!r} is a {artifact.kind}, not a model", place="prediction.models")
        card = load_card(context.below_root(artifact.output.uri))
        check_trust(card, name, spec.trust, "prediction.trust")
        found.append(Candidate(name=name, artifact=artifact, card=card))
    return found


def _begin(context: JobContext, spec: PredictionSpec, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """What needs libraries before the swarm: the comparison of the models, and the shards of the best."""
    comparison = compare(context, spec, candidates)
    plan = _plan(context, spec, choose(candidates, comparison, spec.best_by))
    return {"comparison": to_builtins(comparison), "plan": plan}


def _plan(context: JobContext, spec: PredictionSpec, choice: Choice) -> dict[str, Any]:
    """The shards, or those of a part: they follow from the rows and from all parts' workers."""
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
    choice: Choice,
    shards: list[list[Span]],
    first: int,
    workers: int,
    learned: Learned,
) -> ShardWork:
    return ShardWork(
        dataset=context.below_root(context.input(spec.dataset).output.uri),
        model=context.below_root(choice.candidate.artifact.output.uri),
        output=context.output,
        split=spec.split,
        shards=shards,
        first=first,
        held_out=learned == Learned.HELD_OUT,
        threads=max(1, context.threads // workers),
        python=context.python(choice.candidate.name),
    )


def _teller(context: JobContext, rows: int) -> Callable[[Shards], None]:
    def tell(state: Shards) -> None:
        done = sum(report["done"]["rows"] for report in state.done.values())
        context.progress(done, rows, "rows", note=f"{len(state.done)} shards")

    return tell


def _finish(context: JobContext, spec: PredictionSpec, choice: Choice, counts: list[int]) -> dict[str, Any]:
    card, dataset = choice.candidate.card, context.input(spec.dataset)
    clear_partial(context.output)
    table = read_result(context.output, len(counts), np.load(context.work / ROWS_FILE))
    parts = open_partitions(context.below_root(dataset.output.uri))
    learned = learned_among(
        context.below_root(choice.candidate.artifact.output.uri), card, dataset, parts, table
    )
    ahead = float(dataset.output.details.get("ahead_seconds") or 0.0)
    return {
        "rows": table.num_rows,
        "size_bytes": size_of(context.output),
        "columns": [
            [name, str(kind)] for name, kind in zip(table.schema.names, table.schema.types, strict=True)
        ],
        "metrics": measure(table, parts, card, spec.split, learned.unfit(spec.split)),
        "unpredicted_rows": int((~has_all_values(table["prediction"])).sum()),
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
            "other_label": _other_label(card, dataset) if "truth" not in table.column_names else "",
            "learned_rows": learned.describe(spec.split),
            "breakdown": {
                spec.split or "all": break_down(
                    table.take(np.flatnonzero(~learned.unfit(spec.split))), parts, card
                )
            },
            "sample": sample(table, card, timedelta(seconds=ahead)),
            "ahead_seconds": ahead,
            "time": card.time,
            "entity": list(card.entity),
        },
    }


def _other_label(card: Card, dataset: Artifact) -> str:
    """The dataset's label, where the model predicts another one."""
    label = str(dataset.output.details.get("label") or "")
    return "" if label in card.labels else label


def _result(context: JobContext, found: dict[str, Any], facts: dict[str, Any]) -> JobResult:
    for name, value in found["metrics"].items():
        context.metric(name, value)
    output = Output(
        kind=ArtifactKind.PREDICTION,
        uri=context.order.output_uri,
        rows=found["rows"],
        size_bytes=found["size_bytes"],
        columns=tuple(Column(name=name, type=kind) for name, kind in found["columns"]),
        metrics=found["metrics"],
        details=found["details"] | facts | {"unpredicted_rows": found["unpredicted_rows"]},
    )
    return JobResult(outputs=(output,), metrics=found["metrics"], size=JobSize(rows=found["rows"]))
