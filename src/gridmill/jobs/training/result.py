"""The result of learning, for every kind of model."""

from collections.abc import Callable, Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Floats

Scalar = float | int | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The model in memory, for comparison with its files.

    `predict` takes and gives what Predictor does, but no infinite inputs. `tolerance` says by how much the
    files may differ from it, [rows or 1, answers or 1], for the same inputs.
    """

    predict: Callable[[Floats], Floats]
    tolerance: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A learned model: its ONNX graph, and what to tell about it.

    `curve` is [[epoch, training loss, validation loss], ...]; `importance` is per input, summing to 1.
    `predict` names the code that predicts where there is no graph, `environment` its requirements; `metrics`
    are those that it reports itself (`own_NAME`), `not_finite` are reported values that are no numbers. The
    graph takes `inputs` (doubles, see models.Card) and gives the label or probabilities. `trained` is None
    where only files came out.
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
