"""The result of a training, for every kind of model."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Floats
from gridmill.jobs.metrics import NAMES
from gridmill.jobs.model_files import ModelCard

Scalar = float | int | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The trained model in memory, whose predictions are compared with the predictions of the stored files.

    `predict` has the arguments and results of Predictor.predict, but accepts no infinite inputs. `tolerance`
    returns the allowed difference of the predictions of the files for the same inputs, in the shape [rows or
    1, outputs or 1].
    """

    predict: Callable[[Floats], Floats]
    tolerance: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A trained model: its ONNX graph, and facts about it.

    `curve` is the learning curve [[epoch, training loss, validation loss], ...]. `importance` contains a
    number for each input, with the sum 1. The graph takes `inputs` (doubles, see ModelCard) and returns the
    label or probabilities. If the model has no graph, `predict` names the code that predicts, and
    `environment` contains the requirements of this code. `metrics` are the metrics that the code of the user
    reported (`own_NAME`). `not_finite` are the reported values that were NaN or infinite. If the model
    exists only as files and not in memory, `trained` is None.
    """

    graph: bytes | None = None
    trained: TrainedModel | None = None
    predict: str = ""
    environment: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    not_finite: Mapping[str, str] = field(default_factory=dict)
    weights: bytes | None = None
    weights_of_members: tuple[float, ...] = ()
    vote: bool = False
    sequence: int | None = None
    presents: tuple[int | None, ...] = ()
    constant: tuple[float, ...] = ()
    curve: tuple[tuple[float, float, float], ...] = ()
    importance: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()


def card_details(card: ModelCard) -> dict[str, Any]:
    """Return the details of a version that its model card has, for every way in which a model is made."""
    return {
        "model": card.kind.value,
        "objective": card.objective.value,
        "best_by": NAMES[card.objective][0],
        "label": card.label,
        "labels": list(card.labels),
        "classes": list(card.classes),
        "class_type": card.class_type if card.classes else None,
        "features": [encoding.column for encoding in card.encodings],
        "feature_types": {encoding.column: encoding.type for encoding in card.encodings},
        "inputs": len(card.inputs),
        "sequence": card.sequence,
    }
