"""The baseline: repeat a value that is known, or say what is usual. Every real model must beat it."""

from difflib import get_close_matches

import numpy as np

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats
from gridmill.jobs.training.fitted import Fitted, Scalar, Trained
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.graph import Graph
from gridmill.jobs.training.residual import Base
from gridmill.jobs.training.scaling import fit_spread
from gridmill.model.training import Objective, TrainingSpec


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Regression: an input and, where it is missing, the training mean. Classification: training shares."""
    target, weights = frame.target[frame.rows["train"]], frame.weights_of(frame.rows["train"])
    if frame.objective == Objective.CLASSIFICATION:
        if spec.repeat is not None:
            raise InputError(
                "a naive classifier repeats nothing: it says the classes' shares", place="repeat"
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
    frame: Frame, presents: tuple[int | None, ...], constant: tuple[float, ...], options: dict[str, Scalar]
) -> Fitted:
    def predict(inputs: Floats) -> Floats:
        found = np.tile(constant, (len(inputs), 1))
        for label, present in enumerate(presents):
            if present is not None:
                known = ~np.isnan(inputs[:, present])
                found[known, label] = inputs[known, present]
        return found

    return Fitted(
        graph=naive_graph(presents, constant, len(frame.names)),
        trained=Trained(predict=predict, tolerance=lambda _: np.zeros(1)),
        presents=presents,
        constant=constant,
        options=options,
    )


def naive_graph(presents: tuple[int | None, ...], constant: tuple[float, ...], width: int) -> bytes:
    """Over [rows, width]: the inputs that are repeated, or the constant."""
    graph, base = Graph(), Base(presents=presents, fallback=constant)
    if base.used:
        found = base.values_in(graph, graph.known())
    else:
        rows = graph.add("Gather", graph.add("Shape", "inputs"), graph.constant([0], np.int64))
        shape = graph.add("Concat", rows, graph.constant([len(constant)], np.int64), axis=0)
        found = graph.add("Expand", graph.constant([constant]), shape)
    many = len(constant) if len(constant) > 1 else 0
    return graph.finish(found if many else graph.flat(found), width, outputs=many)


def repeated_input(frame: Frame, name: str) -> int:
    """The number of the input that is repeated. Raises InputError for none of that name."""
    if name in frame.names:
        return frame.names.index(name)
    near = get_close_matches(name, frame.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Numeric features: {', '.join(frame.names)}."
    raise InputError(f"there is no numeric feature {name!r} to repeat", hint=hint, place="training.repeat")
