"""The model kind `mlp`: a network of hidden layers over the features of a row."""

from gridmill.domain.training import TrainingSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.networks import Perceptron, perceptron_graph
from gridmill.jobs.training.neural import NetworkPlan, fit_network
from gridmill.jobs.training.result import FittedModel


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Train a network on the training rows."""
    plan = NetworkPlan(rows=frame.rows["train"], length=None, changes=spec.residual, relative=False)
    return fit_network(frame, spec, context, plan, Perceptron, perceptron_graph)
