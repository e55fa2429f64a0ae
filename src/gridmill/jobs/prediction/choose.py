"""Which of several models predicts best, by what training measured on the validation split."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from gridmill.errors import InputError
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.metrics import NAMES, better
from gridmill.jobs.models import Card
from gridmill.model.artifact import Artifact
from gridmill.model.metric import HIGHER_IS_BETTER
from gridmill.model.prediction import KEYS_HINT, OWN_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that could be used, under the name that the declaration gives it."""

    name: str
    artifact: Artifact
    card: Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The one that was chosen, by which metric, and why in words."""

    candidate: Candidate
    metric: str
    why: str


def describe_candidate(candidate: Candidate) -> dict[str, Any]:
    """A candidate for the report, as JSON."""
    return {
        "name": candidate.name,
        "model_id": candidate.artifact.id,
        "kind": candidate.card.kind.value,
        "metrics": dict(candidate.card.metrics),
    }


def choose(candidates: Sequence[Candidate], best_by: str | None) -> Choice:
    """The best candidate; of equal ones the first. Raises InputError when they cannot be compared."""
    first = candidates[0].card
    for candidate in candidates:
        _check_alike(first, candidate)
    metric = _metric(candidates[0], best_by)
    scores = {candidate.name: candidate.card.metrics.get(f"validation_{metric}") for candidate in candidates}
    if len(candidates) == 1 and scores[candidates[0].name] is None:
        name = candidates[0].name
        return Choice(candidate=candidates[0], metric=metric, why=f"{name} is the only candidate")
    known = {name: score for name, score in scores.items() if score is not None and math.isfinite(score)}
    if not known:
        raise InputError(
            f"no model was measured by {metric!r} on a validation split, and {len(candidates)} are named",
            hint="Name one model in `models`, or declare a validation split in the dataset they learn from.",
            place="prediction.best_by",
        )
    best = next(iter(known))
    for name, score in known.items():
        best = name if better(metric, score, known[best]) else best
    chosen = next(candidate for candidate in candidates if candidate.name == best)
    return Choice(candidate=chosen, metric=metric, why=_why(metric, best, known))


def check_keys(candidate: Candidate) -> None:
    """Raise InputError where a column of the result would overwrite one that says which row it is."""
    card = candidate.card
    own = {*OWN_COLUMNS, *probability_columns(card.classes)}
    for name in card.keys:
        if name in own:
            raise InputError(
                f"the dataset's column {name!r} would be overwritten: a prediction of model"
                f" {candidate.name!r} has one of that name",
                hint=KEYS_HINT,
                place="prediction.dataset",
            )


def _check_alike(first: Card, candidate: Candidate) -> None:
    card = candidate.card
    if (card.labels, card.objective) != (first.labels, first.objective):
        raise InputError(
            f"model {candidate.name!r} predicts {card.label!r} ({card.objective}),"
            f" the first one {first.label!r} ({first.objective})",
            hint="Models of one prediction must have the same label and objective.",
            place="prediction.models",
        )


def _metric(candidate: Candidate, best_by: str | None) -> str:
    names = NAMES[candidate.card.objective]
    if best_by is None:
        return names[0]
    if best_by not in names:
        near = get_close_matches(best_by, names, n=1)
        raise InputError(
            f"there is no metric {best_by!r} of {candidate.card.objective}",
            hint=f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names)}.",
            place="prediction.best_by",
        )
    return best_by


def _why(metric: str, best: str, scores: Mapping[str, float]) -> str:
    if len(scores) == 1:
        return f"{best} is the only candidate (validation {metric} {scores[best]:.4g})"
    rank = "highest" if metric in HIGHER_IS_BETTER else "lowest"
    others = ", ".join(f"{name} {score:.4g}" for name, score in scores.items() if name != best)
    return f"{best} has the {rank} validation {metric}: {scores[best]:.4g} ({others})"
