"""Ridge and logistic regression on standardised inputs."""

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from gridmill.domain.training import Objective, TrainingSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.label_scale import LabelScale, fit_units
from gridmill.jobs.training.onnx_graph import GraphBuilder
from gridmill.jobs.training.result import FittedModel, TrainedModel
from gridmill.jobs.training.scaling import Scaler, fit_scaler

MOST_STEPS = 1000
TOLERANCE = 1e-9
"""The allowed difference between the predictions of the stored graph and of scikit-learn, in standard
deviations of the label, or in probability. The allowed difference is multiplied by the distance of the
inputs from their mean in standard deviations."""
FARTHEST = 1e100
"""The largest distance of an input from its mean, in standard deviations. Larger distances from the mean are
reduced to this distance, so that products stay finite."""


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Train a linear model on the training rows. `regularization` is alpha of the Ridge regression, and 1/C
    of the logistic regression."""
    rows = frame.rows["train"]
    scaler, units = fit_scaler(frame.inputs[rows], FARTHEST), fit_units(frame, changes=False)
    inputs, target = scaler.apply(frame.inputs[rows]), frame.target[rows]
    with threadpool_limits(limits=context.threads):
        if frame.objective == Objective.REGRESSION:
            model = Ridge(alpha=spec.regularization).fit(
                inputs, units.standardized(target, frame.inputs[rows]), sample_weight=frame.weights_of(rows)
            )
        else:
            model = LogisticRegression(C=1 / spec.regularization, max_iter=MOST_STEPS, random_state=spec.seed)
            model.fit(inputs, target.astype(int), sample_weight=frame.weights_of(rows))
    coefficients = np.atleast_2d(model.coef_)
    graph = _graph(scaler, coefficients, np.atleast_1d(model.intercept_), len(frame.classes), units)
    return FittedModel(
        graph=graph,
        trained=_trained(model, scaler, units),
        importance=_importance(frame, coefficients),
        options={"regularization": spec.regularization},
        libraries=("scikit-learn",),
    )


def _trained(model: Ridge | LogisticRegression, scaler: Scaler, units: LabelScale) -> TrainedModel:
    def predict(inputs: Floats) -> Floats:
        scaled = scaler.apply(inputs)
        if isinstance(model, LogisticRegression):
            values: Floats = model.predict_proba(scaled)
            return values
        return units.labels(model.predict(scaled), inputs)

    def tolerance(inputs: Floats) -> Floats:
        return TOLERANCE * scaler.reach(inputs) * units.label_deviation

    return TrainedModel(predict=predict, tolerance=tolerance)


def _graph(scaler: Scaler, coefficients: Floats, intercept: Floats, classes: int, units: LabelScale) -> bytes:
    graph = GraphBuilder()
    scaled = graph.scaled(graph.finite_inputs(), scaler)
    scores = graph.add("MatMul", scaled, graph.constant(coefficients.T))
    scores = graph.add("Add", scores, graph.constant(intercept))
    if classes:
        return graph.finish(graph.probabilities(scores, classes), scaler.inputs, outputs=classes)
    many = len(intercept) if len(intercept) > 1 else 0
    return graph.finish(units.add_to(graph, scores, graph.finite_inputs()), scaler.inputs, outputs=many)


def _importance(frame: SortedFrame, coefficients: Floats) -> dict[str, float]:
    weight = np.abs(coefficients).mean(axis=0)[: len(frame.names)]
    total = float(weight.sum()) or 1.0
    return {name: float(value) / total for name, value in zip(frame.names, weight, strict=True)}
