"""The naive baseline repeats a known value, or predicts the mean or the fractions of the classes.

Every useful model must be better than this baseline. A model can also learn the change from the present
value. A model that learns the change learns only the difference from the naive prediction.
"""

import numpy as np
import numpy.typing as npt

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import suggestion
from gridmill.domain.training import Objective, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.onnx_graph import GraphBuilder
from gridmill.jobs.training.result import FittedModel, Scalar, TrainedModel
from gridmill.jobs.training.scaling import fit_spread


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineInputs:
    """The base to which the outputs of a model are added to get predictions. For each label, the base is the
    value of an input, or a replacement value if the input is missing.

    If a label has no such input, its input is None and its replacement value is 0. If this object has no
    labels, nothing is added to the outputs.
    """

    presents: tuple[int | None, ...] = ()
    fallback: tuple[float, ...] = ()

    @property
    def used(self) -> bool:
        """Return whether a base must be added to the outputs of the model."""
        return any(present is not None for present in self.presents)

    @property
    def _picked(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return for each label the number of its input, and whether it has no input."""
        picked = np.array([present or 0 for present in self.presents], np.int64)
        return picked, np.array([present is None for present in self.presents])

    def values(self, inputs: Floats) -> Floats:
        """Return the base in the shape [rows], or [rows, labels] for several labels, from inputs [rows,
        inputs]."""
        if not self.used:
            return np.zeros((len(inputs), len(self.presents)) if len(self.presents) > 1 else len(inputs))
        picked, none = self._picked
        present = inputs[:, picked]
        values: Floats = np.where(np.isnan(present) | none, np.array(self.fallback), present)
        return values if len(self.presents) > 1 else values[:, 0]

    def add_to(self, graph: GraphBuilder, value: str, newest: str) -> str:
        """Add nodes to a graph that add the base to the value. The result has the shape [rows] or [rows,
        labels]. `newest` are the inputs [rows, inputs] of the predicted rows themselves."""
        if not self.used:
            return value
        base_values = self.values_in(graph, newest)
        return graph.add("Add", value, base_values if len(self.presents) > 1 else graph.flat(base_values))

    def values_in(self, graph: GraphBuilder, newest: str) -> str:
        """Add nodes to a graph that compute the base [rows, labels]."""
        picked, none = self._picked
        present = graph.add("Gather", newest, graph.constant(picked, np.int64), axis=1)
        missing = graph.add("Or", graph.add("IsNaN", present), graph.constant(none, np.bool_))
        return graph.add("Where", missing, graph.constant(self.fallback), present)


def fit_base(frame: SortedFrame, wanted: bool) -> BaselineInputs:
    """Return the base to which the outputs of a model are added to get predictions.

    The base is empty if `wanted` is false, for classes, or if no present value of a label is a feature.
    """
    presents = frame.present_inputs
    if not wanted or frame.objective == Objective.CLASSIFICATION:
        return BaselineInputs(presents=(None,) * len(presents), fallback=(0.0,) * len(presents))
    return BaselineInputs(presents=presents, fallback=tuple(_mean(frame, present) for present in presents))


def _mean(frame: SortedFrame, present: int | None) -> float:
    if present is None:
        return 0.0
    values = frame.inputs[frame.rows["train"], present]
    finite = values[~np.isnan(values)]
    return float(finite.mean()) if len(finite) else 0.0


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Return the naive model.

    For regression, the naive model repeats an input, or predicts the mean of the training rows if the input
    is missing. For classification, the naive model predicts the fractions of the classes among the training
    rows.
    """
    target, weights = frame.target[frame.rows["train"]], frame.weights_of(frame.rows["train"])
    if frame.objective == Objective.CLASSIFICATION:
        if spec.repeat is not None:
            raise InputError(
                "a naive classifier has no feature to repeat: it predicts the shares of the classes",
                place="repeat",
            )
        counts = np.bincount(target.astype(int), weights, minlength=len(frame.classes))
        return _fitted(frame, (), tuple((counts / counts.sum()).tolist()), {})
    labels = len(frame.subject.labels)
    presents = frame.present_inputs if spec.repeat is None else (repeated_input(frame, spec.repeat),) * labels
    columns = target.reshape(len(target), -1)
    means = fit_spread(columns)
    mean = means.mean if weights is None else np.average(columns * means.scale, axis=0, weights=weights)
    constant = tuple((mean / means.scale).tolist())
    return _fitted(frame, presents, constant, {"repeat": spec.repeat})


def _fitted(
    frame: SortedFrame,
    presents: tuple[int | None, ...],
    constant: tuple[float, ...],
    options: dict[str, Scalar],
) -> FittedModel:
    def predict(inputs: Floats) -> Floats:
        result = np.tile(constant, (len(inputs), 1))
        for label, present in enumerate(presents):
            if present is not None:
                is_present = ~np.isnan(inputs[:, present])
                result[is_present, label] = inputs[is_present, present]
        return result

    return FittedModel(
        graph=naive_graph(presents, constant, len(frame.names)),
        trained=TrainedModel(predict=predict, tolerance=lambda _: np.zeros(1)),
        presents=presents,
        constant=constant,
        options=options,
    )


def naive_graph(presents: tuple[int | None, ...], constant: tuple[float, ...], width: int) -> bytes:
    """Return the graph over inputs [rows, width]. The graph returns the repeated inputs, or the constant."""
    graph, base = GraphBuilder(), BaselineInputs(presents=presents, fallback=constant)
    if base.used:
        base_values = base.values_in(graph, graph.finite_inputs())
    else:
        rows = graph.add("Gather", graph.add("Shape", "inputs"), graph.constant([0], np.int64))
        shape = graph.add("Concat", rows, graph.constant([len(constant)], np.int64), axis=0)
        base_values = graph.add("Expand", graph.constant([constant]), shape)
    many = len(constant) if len(constant) > 1 else 0
    return graph.finish(base_values if many else graph.flat(base_values), width, outputs=many)


def repeated_input(frame: SortedFrame, name: str) -> int:
    """Return the position of the input that the naive model repeats. Raises InputError if no input has this
    name."""
    if name in frame.names:
        return frame.names.index(name)
    hint = suggestion(name, frame.names, f"Numeric features: {', '.join(frame.names)}.")
    raise InputError(f"there is no numeric feature {name!r} to repeat", hint=hint, place="training.repeat")
