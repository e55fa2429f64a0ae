"""Several models as one: their mean, a mean weighted by how well each did, or a vote."""

import shutil

import numpy as np

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Encoding
from gridmill.jobs.models import Card, load_card, member_folder
from gridmill.jobs.training.fitted import Fitted
from gridmill.jobs.training.frame import Frame
from gridmill.model.training import Combine, Objective, TrainingSpec


def read_members(context: JobContext, spec: TrainingSpec) -> tuple[Card, ...]:
    """The members' cards. Raises InputError for models that do not go together."""
    cards: list[Card] = []
    for name in spec.models:
        card = load_card(context.below_root(context.input(name).output.uri))
        if card.predict or card.weights:
            what = "its own code" if card.predict else "others itself"
            raise InputError(
                f"model {name!r} predicts by {what}: it cannot be in an ensemble", place="training.models"
            )
        first = cards[0] if cards else card
        if _answers(card) != _answers(first):
            raise InputError(
                f"model {name!r} predicts {card.label!r} ({card.objective}), the first one {first.label!r}"
                f" ({first.objective})",
                hint="Models of an ensemble must have the same label, and the same classes.",
                place="training.models",
            )
        cards.append(card)
    return tuple(cards)


def _answers(card: Card) -> tuple[object, ...]:
    return card.labels, card.objective, card.classes, card.class_type


def encodings_of(cards: tuple[Card, ...]) -> tuple[Encoding, ...]:
    """The inputs of all members, each once."""
    return tuple(dict.fromkeys(encoding for card in cards for encoding in card.encodings))


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Copy the members, so that the ensemble lives on without them, and weigh them."""
    cards = read_members(context, spec)
    if spec.combine == Combine.VOTE and frame.objective != Objective.CLASSIFICATION:
        raise InputError("numbers cannot be voted on", hint="Use mean or weighted.", place="training.combine")
    for number, name in enumerate(spec.models):
        source = context.below_root(context.input(name).output.uri)
        shutil.copytree(source, member_folder(context.output, number), dirs_exist_ok=True)
    weights = _weights(cards, spec)
    lengths = [card.sequence for card in cards if card.sequence is not None]
    for name, weight in zip(spec.models, weights, strict=True):
        print(f"{name}: weight {weight:.3f}", flush=True)
    return Fitted(
        weights_of_members=weights,
        vote=spec.combine == Combine.VOTE,
        sequence=max(lengths, default=None),
        importance=dict(zip(spec.models, weights, strict=True)),
        options={"combine": spec.combine.value, "models": ", ".join(spec.models)},
    )


def _weights(cards: tuple[Card, ...], spec: TrainingSpec) -> tuple[float, ...]:
    """Alike, or by one over the validation mse (for classes: log_loss)."""
    if spec.combine != Combine.WEIGHTED:
        return (1 / len(cards),) * len(cards)
    name = "validation_mse" if cards[0].objective == Objective.REGRESSION else "validation_log_loss"
    worth = np.array([1 / max(card.metrics.get(name, np.inf), 1e-12) for card in cards])
    if not worth.sum():
        raise InputError(f"no member was measured by {name}, to weigh it", place="training.combine")
    return tuple(float(one) for one in worth / worth.sum())
