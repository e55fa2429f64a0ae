"""Which of several models predicts best, by what was measured on the same rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gridmill.errors import InputError
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.intervals import quantile_columns
from gridmill.jobs.metrics import BEST_BY, better, check_metric
from gridmill.jobs.prediction.candidates import Candidate
from gridmill.jobs.prediction.measured import Comparison
from gridmill.model.amounts import show_number
from gridmill.model.metric import HIGHER_IS_BETTER
from gridmill.model.prediction import KEYS_HINT, OWN_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The one that was chosen, by which metric, and why in words."""

    candidate: Candidate
    metric: str
    why: str


def describe_candidate(candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    """A candidate for the report, as JSON: `measured` is of the rows that all were compared on, `metrics` is
    what its training measured on its own dataset."""
    return {
        "name": candidate.name,
        "model_id": candidate.artifact.id,
        "kind": candidate.card.kind.value,
        "metrics": dict(candidate.card.metrics),
        "measured": dict(comparison.metrics.get(candidate.name, {})),
    }


def choose(candidates: Sequence[Candidate], comparison: Comparison, best_by: str | None) -> Choice:
    """The best candidate; of equal ones the first. Raises InputError when they cannot be compared."""
    metric = check_metric(best_by, candidates[0].card.objective, BEST_BY)
    if len(candidates) == 1:
        return Choice(
            candidate=candidates[0], metric=metric, why=f"{candidates[0].name} is the only candidate"
        )
    scores = {name: found[metric] for name, found in comparison.metrics.items() if metric in found}
    known = {name: score for name, score in scores.items() if math.isfinite(score)}
    if not known:
        raise InputError(
            f"no model was measured by {metric!r} on a validation split, and {len(candidates)} are named",
            hint="Name one model in `models`, or declare a validation split in the dataset.",
            place="prediction.best_by",
        )
    best = next(iter(known))
    for name, score in known.items():
        best = name if better(metric, score, known[best]) else best
    chosen = next(candidate for candidate in candidates if candidate.name == best)
    return Choice(candidate=chosen, metric=metric, why=_why(metric, best, known, comparison))


def check_keys(candidate: Candidate) -> None:
    """Raise InputError where a column of the result would overwrite one that says which row it is."""
    card = candidate.card
    own = {*OWN_COLUMNS, *probability_columns(card.classes), *quantile_columns(card.quantiles)}
    for name in card.keys:
        if name in own:
            raise InputError(
                f"the dataset's column {name!r} would be overwritten: a prediction of model"
                f" {candidate.name!r} has one of that name",
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
