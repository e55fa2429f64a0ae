"""What learning gives, whatever the kind of model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = float | int | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A learned model: its ONNX graph (None: naive), and what to tell about it.

    `curve` is [[epoch, training loss, validation loss], ...]; `importance` is per input, summing to 1.
    `predict` names the code that predicts where there is no graph, `environment` its requirements; `metrics`
    are those that it reports itself (`own_NAME`), `not_finite` are reported values that are no numbers. The
    graph takes `inputs` (doubles, see models.Card) and gives the label or probabilities.
    """

    graph: bytes | None = None
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
