"""A recurrent network over each entity's last rows."""

from gridmill.errors import DataError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Integers
from gridmill.jobs.training.drawing import recurrent_graph
from gridmill.jobs.training.fitted import Fitted
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.networks import Recurrent
from gridmill.jobs.training.neural import Plan, fit_network
from gridmill.model.training import Normalization, TrainingSpec


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Learn on the training rows that have a whole window."""
    last = spec.normalize == Normalization.LAST
    plan = Plan(rows=_whole_windows(frame, spec.sequence), length=spec.sequence, changes=last, relative=last)
    return fit_network(
        frame,
        spec,
        context,
        plan,
        Recurrent,
        lambda network, scaler, units: recurrent_graph(network, scaler, spec.sequence, units),
    )


def _whole_windows(frame: Frame, length: int) -> Integers:
    rows = frame.rows["train"]
    whole: Integers = rows[rows - frame.starts[rows] >= length - 1]
    if len(whole) == 0:
        most = int((rows - frame.starts[rows]).max()) + 1
        raise DataError(
            f"no training row has {length} rows of its entity up to it (the most is {most})",
            hint=f"Use `sequence: {most}` or less, or check the dataset's entity.",
            place="training.sequence",
        )
    return whole
