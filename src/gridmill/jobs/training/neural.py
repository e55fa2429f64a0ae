"""The common code of `lstm` and `mlp`: scaling, the units of the label, the device, training, and the
report."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as to_safetensors

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import ModelKind, Objective, TrainingSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.training.batches import BatchFeed
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.ddp import has_gpu, own_device, present_ranks
from gridmill.jobs.training.label_scale import LabelScale, fit_units
from gridmill.jobs.training.networks import Network, NetworkShape
from gridmill.jobs.training.result import FittedModel, Scalar, TrainedModel
from gridmill.jobs.training.scaling import Scaler, fit_scaler, fit_spread
from gridmill.jobs.training.train_loop import (
    LEARNING_RATE,
    Trainer,
    TrainingResult,
    TrainingSchedule,
    course_of,
)

FARTHEST = 1e4
"""The largest distance of an input from its mean, in standard deviations. 32-bit floats can still
distinguish rows at this distance."""

TOLERANCE = 1e-4
"""The allowed difference between the predictions of the stored graph and of PyTorch, in standard deviations
of the label, or in probability. The allowed difference is multiplied by the distance of the inputs from
their mean in standard deviations."""

AnyNetwork = TypeVar("AnyNetwork", bound=Network)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The data for training a network of one kind.

    The plan contains the training `rows` and the length of the window (None if there is no window). The plan
    also contains whether the network learns changes from the present values, and whether its inputs are such
    changes.
    """

    rows: Integers
    length: int | None
    changes: bool
    relative: bool


def fit_network(
    frame: SortedFrame,
    spec: TrainingSpec,
    context: JobContext,
    plan: NetworkPlan,
    make: Callable[[NetworkShape, TrainingSpec], AnyNetwork],
    draw: Callable[[AnyNetwork, Scaler, LabelScale], bytes],
) -> FittedModel:
    """Train a network, on a GPU if the attempt was given one. The result has the weights of the epoch with
    the best validation loss."""
    torch.set_num_threads(context.threads)
    torch.manual_seed(spec.seed)
    device = own_device(gpu=has_gpu(context))
    scaler = fit_scaler(frame.inputs[frame.rows["train"]], FARTHEST)
    units = fit_units(frame, plan.changes)
    network = make(_shape(frame, scaler, units, plan), spec).to(device)
    feed = _feed(frame, scaler, units, plan.length, device)
    course = course_of(spec, len(plan.rows))
    learner = Trainer(network, feed, spec, course, context, context.checkpoints, present_ranks(device))
    learned = learner.learn(plan.rows, _scorable(frame))
    network.cpu()
    context.metric("data_wait_share", learned.waiting)
    return FittedModel(
        graph=draw(network, scaler, units),
        trained=_trained(network, scaler, units),
        weights=to_safetensors({name: value.contiguous() for name, value in network.state_dict().items()}),
        sequence=plan.length,
        presents=units.base.presents,
        curve=learned.curve,
        options=_options(spec, course, units) | _details(learned),
        libraries=("torch", "safetensors"),
    )


def _trained(network: Network, scaler: Scaler, units: LabelScale) -> TrainedModel:
    network.eval()

    @torch.inference_mode()
    def predict(inputs: Floats) -> Floats:
        scaled = scaler.apply(inputs.reshape(-1, scaler.inputs)).astype(np.float32)
        numbers = network(torch.from_numpy(scaled.reshape(*inputs.shape[:-1], scaler.width))).double()
        if network.shape.classes:
            values: Floats = torch.softmax(numbers, 1).numpy()
            return values
        return units.labels(numbers.numpy(), inputs if inputs.ndim == 2 else inputs[:, -1])

    def tolerance(inputs: Floats) -> Floats:
        return TOLERANCE * scaler.reach(inputs) * units.label_deviation

    return TrainedModel(predict=predict, tolerance=tolerance)


def _details(learned: TrainingResult) -> dict[str, Scalar]:
    return {
        "best_epoch": learned.best_epoch,
        "device": learned.device,
        "mixed_precision": learned.mixed,
        "data_wait_share": round(learned.waiting, 4),
        "resumed_in_epoch": learned.resumed or None,
    }


def _options(spec: TrainingSpec, course: TrainingSchedule, units: LabelScale) -> dict[str, Scalar]:
    names = ["layers", "dropout", "weight_decay"]
    names += ["sequence", "normalize"] if spec.model == ModelKind.LSTM else []
    return {
        **{name: getattr(spec, name) for name in names},
        "learning_rate": spec.learning_rate or LEARNING_RATE,
        "hidden": spec.units,
        **asdict(course),
        "changes" if spec.model == ModelKind.LSTM else "residual": units.base.used,
    }


def _shape(frame: SortedFrame, scaler: Scaler, units: LabelScale, plan: NetworkPlan) -> NetworkShape:
    presents = (present for present in units.base.presents if present is not None)
    return NetworkShape(
        width=scaler.width,
        outputs=len(frame.classes) or len(frame.subject.labels),
        classes=frame.objective == Objective.CLASSIFICATION,
        relative=tuple(dict.fromkeys(presents)) if plan.relative else (),
        weights=_weights(frame, units),
        weighted=frame.weights is not None,
    )


def _weights(frame: SortedFrame, units: LabelScale) -> tuple[float, ...]:
    """Return the weights of several labels in the loss.

    The error of a label is divided by the variance of this label. With these weights, the network maximises
    the mean of r2 over the labels, whatever the units of the labels are and however far ahead the labels
    are.
    """
    if len(frame.subject.labels) == 1:
        return ()
    spread = fit_spread(frame.target[frame.rows["train"]])
    weights = (units.label_deviation / (spread.deviation / spread.scale)) ** 2
    return tuple(float(weight) for weight in weights / weights.mean())


def _feed(
    frame: SortedFrame, scaler: Scaler, units: LabelScale, length: int | None, device: torch.device
) -> BatchFeed:
    scaled = np.empty((len(frame.inputs), scaler.width), np.float32)
    return BatchFeed(
        inputs=torch.from_numpy(scaler.fill(frame.inputs, scaled)).to(device),
        target=torch.from_numpy(_weighted(_scaled_target(frame, units), frame.weights)).to(device),
        starts=torch.from_numpy(frame.starts).to(device),
        length=length,
    )


def _scorable(frame: SortedFrame) -> Integers:
    """Return the validation rows, without the rows of a class that the training rows do not have."""
    rows = frame.rows["validation"]
    return rows if frame.objective == Objective.REGRESSION else rows[frame.target[rows] >= 0]


def _weighted(target: npt.NDArray[np.generic], weights: Floats | None) -> npt.NDArray[np.generic]:
    """Return the targets for training. If rows have weights, the weights are the last column of the
    targets."""
    if weights is None:
        return target
    columns = target.reshape(len(target), -1).astype(np.float32)
    return np.concatenate([columns, np.nan_to_num(weights)[:, None].astype(np.float32)], axis=1)


def _scaled_target(frame: SortedFrame, units: LabelScale) -> npt.NDArray[np.generic]:
    if frame.objective == Objective.CLASSIFICATION:
        return np.nan_to_num(frame.target, nan=-1.0).astype(np.int64)
    return units.standardized(frame.target, frame.inputs).astype(np.float32)
