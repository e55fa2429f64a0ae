"""A recurrent network over each entity's last rows: a plain PyTorch loop, fed by index from one tensor."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Integers, windows
from gridmill.jobs.training.fitted import Fitted
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.recurrent import Answer, Network, network_graph
from gridmill.jobs.training.residual import fit_base
from gridmill.jobs.training.scaling import fit_scaler
from gridmill.model.training import Objective, TrainingSpec

LEARNING_RATE, PATIENCE, GRADIENT_NORM, LAST_RATE = 1e-3, 4, 1.0, 0.05
SCORING_BATCH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One contiguous tensor of scaled inputs [rows, width], and targets [rows]; batches are index slices."""

    inputs: Tensor
    target: Tensor
    starts: Integers
    length: int

    def batch(self, rows: Integers) -> tuple[Tensor, Tensor]:
        """Windows [batch, length, width] and targets [batch] of these rows."""
        reach = torch.from_numpy(windows(rows, self.starts, self.length)).to(self.inputs.device)
        return self.inputs[reach], self.target[reach[:, -1]]


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Learn on the training rows that have a whole window; the best epoch by validation loss is kept."""
    torch.set_num_threads(context.threads)
    torch.manual_seed(spec.seed)
    device = torch.device("cuda" if context.order.gpu_indices and torch.cuda.is_available() else "cpu")
    rows = _whole_windows(frame, spec.sequence)
    scaler = fit_scaler(frame.inputs[frame.rows["train"]])
    answer = _answer(frame, spec)
    network = Network(scaler.width, spec, outputs=len(frame.classes) or 1).to(device)
    feed = Feed(
        inputs=torch.from_numpy(scaler.apply(frame.inputs).astype(np.float32)).to(device),
        target=torch.from_numpy(_scaled_target(frame, answer)).to(device),
        starts=frame.starts,
        length=spec.sequence,
    )
    curve = _learn(network, feed, rows, _scorable(frame), spec, context)
    network.cpu()
    return Fitted(
        graph=network_graph(network, scaler, spec.sequence, answer, len(frame.classes)),
        weights=to_safetensors({name: value.contiguous() for name, value in network.state_dict().items()}),
        sequence=spec.sequence,
        present=answer.base.present,
        curve=curve,
        options=_options(spec, answer),
        libraries=("torch", "safetensors"),
    )


def _options(spec: TrainingSpec, answer: Answer) -> dict[str, float | int | bool | str | None]:
    names = ("sequence", "hidden", "layers", "dropout", "epochs", "batch_size")
    return {
        **{name: getattr(spec, name) for name in names},
        "learning_rate": spec.learning_rate or LEARNING_RATE,
        "patience": spec.patience or PATIENCE,
        "residual": answer.base.present is not None,
    }


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


def _scorable(frame: Frame) -> Integers:
    """Validation rows; not those of a class that training never saw."""
    rows = frame.rows["validation"]
    return rows if frame.objective == Objective.REGRESSION else rows[frame.target[rows] >= 0]


def _answer(frame: Frame, spec: TrainingSpec) -> Answer:
    """How the network's number becomes the label: scaled, and added to the present value if there is one."""
    if frame.objective == Objective.CLASSIFICATION:
        return Answer()
    rows, base = frame.rows["train"], fit_base(frame, spec.residual)
    change = frame.target[rows] - base.values(frame.inputs[rows])
    return Answer(base=base, mean=float(change.mean()), deviation=float(change.std()) or 1.0)


def _scaled_target(frame: Frame, answer: Answer) -> npt.NDArray[np.generic]:
    if frame.objective == Objective.CLASSIFICATION:
        return np.nan_to_num(frame.target, nan=-1.0).astype(np.int64)
    change = frame.target - answer.base.values(frame.inputs)
    return ((change - answer.mean) / answer.deviation).astype(np.float32)


def _learn(
    network: Network, feed: Feed, rows: Integers, held: Integers, spec: TrainingSpec, context: JobContext
) -> tuple[tuple[float, float, float], ...]:
    optimizer = torch.optim.Adam(network.parameters(), lr=spec.learning_rate or LEARNING_RATE)
    steps = spec.epochs * math.ceil(len(rows) / spec.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / steps))
    random = np.random.default_rng(spec.seed)
    curve: list[tuple[float, float, float]] = []
    best, best_epoch, kept = math.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(1, spec.epochs + 1):
        learned = _epoch(network, feed, random.permutation(rows), spec.batch_size, optimizer, schedule)
        validated = _score(network, feed, held)
        _check_finite(learned, validated, epoch, optimizer)
        curve.append((float(epoch), learned, validated))
        context.metric("train_loss", learned, step=epoch)
        context.metric("validation_loss", validated, step=epoch)
        context.progress(epoch, spec.epochs, "epochs", note=f"validation loss {validated:.4f}")
        if validated < best:
            best, best_epoch, kept = validated, epoch, copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= (spec.patience or PATIENCE):
            break
    network.load_state_dict(kept)
    return tuple(curve)


def _rate(done: float) -> float:
    """The learning rate's share: up over the first twentieth, then down along a cosine."""
    warm = min(1.0, done / 0.05 + 0.05)
    return warm * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def _epoch(
    network: Network,
    feed: Feed,
    rows: Integers,
    size: int,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    network.train()
    total = torch.zeros((), device=feed.inputs.device)
    for first in range(0, len(rows), size):
        inputs, target = feed.batch(rows[first : first + size])
        loss = network.loss(inputs, target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), GRADIENT_NORM)
        optimizer.step()
        schedule.step()
        total += loss.detach() * len(target)
    return float(total) / len(rows)


@torch.inference_mode()
def _score(network: Network, feed: Feed, rows: Integers) -> float:
    network.eval()
    total = 0.0
    for first in range(0, len(rows), SCORING_BATCH):
        inputs, target = feed.batch(rows[first : first + SCORING_BATCH])
        total += float(network.loss(inputs, target)) * len(target)
    return total / max(1, len(rows))


def _check_finite(learned: float, validated: float, epoch: int, optimizer: torch.optim.Optimizer) -> None:
    if math.isfinite(learned) and math.isfinite(validated):
        return
    raise InputError(
        f"the loss is no longer a number in epoch {epoch} (learning_rate {optimizer.defaults['lr']:g})",
        hint="Use a smaller learning_rate, or look for extreme values in the features.",
        place="training.learning_rate",
    )
