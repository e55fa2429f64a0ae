"""A network of hidden layers over a row's features."""

from gridmill.jobs.context import JobContext
from gridmill.jobs.training.drawing import perceptron_graph
from gridmill.jobs.training.fitted import Fitted
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.networks import Perceptron
from gridmill.jobs.training.neural import Plan, fit_network
from gridmill.model.training import TrainingSpec


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Learn on the training rows."""
    plan = Plan(rows=frame.rows["train"], length=None, changes=spec.residual, relative=False)
    return fit_network(frame, spec, context, plan, Perceptron, perceptron_graph)
