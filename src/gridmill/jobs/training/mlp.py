"""The model kind `mlp`: a network of hidden layers over a row's features."""

from gridmill.domain.training import TrainingSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.data import Frame
from gridmill.jobs.training.networks import Perceptron, perceptron_graph
from gridmill.jobs.training.neural import Plan, fit_network
from gridmill.jobs.training.result import Fitted


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Learn on the training rows."""
    plan = Plan(rows=frame.rows["train"], length=None, changes=spec.residual, relative=False)
    return fit_network(frame, spec, context, plan, Perceptron, perceptron_graph)
