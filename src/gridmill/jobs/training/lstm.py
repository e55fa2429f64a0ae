"""The model kind `lstm`: a recurrent network over the last rows of each entity."""

from gridmill.domain.training import Normalization, TrainingSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.data import SortedFrame, whole_windows
from gridmill.jobs.training.networks import Recurrent, recurrent_graph
from gridmill.jobs.training.neural import NetworkPlan, fit_network
from gridmill.jobs.training.result import FittedModel


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Train a network on the training rows that have a complete window."""
    last = spec.normalize == Normalization.LAST
    plan = NetworkPlan(
        rows=whole_windows(frame, spec.sequence), length=spec.sequence, changes=last, relative=last
    )
    return fit_network(
        frame,
        spec,
        context,
        plan,
        Recurrent,
        lambda network, scaler, units: recurrent_graph(network, scaler, spec.sequence, units),
    )
