"""The training loop of networks, in plain PyTorch with early stopping and checkpoints. If an attempt is
killed, the next attempt continues the training.

A checkpoint is written atomically, and the next attempt of the same job reads it. If the number of epochs is
not declared, it depends on the number of rows. Several processes can train a network together: each batch is
divided among them, and the learning curve stays the same.
"""

import copy
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import LARGEST_BATCH, ModelKind, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Integers
from gridmill.jobs.training.batches import BatchFeed
from gridmill.jobs.training.ddp import RankGroup
from gridmill.jobs.training.networks import Network

NAME = "checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint contains tensors by name, and other values as JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, number: int) -> None:
    """Write the newest checkpoint into `folder`, and delete all other checkpoints.

    The function first writes the tensors under a unique name. After the tensors are written, the function
    renames the JSON file, which contains the name of the tensor file, to its final name. If the process is
    killed in between, the previous checkpoint is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"state-{number}.safetensors"
    tensors = {key: value.detach().cpu().contiguous() for key, value in checkpoint.tensors.items()}
    _write(folder / name, to_safetensors(tensors))
    content = {"torch": str(torch.__version__), "state": name, "facts": dict(checkpoint.facts)}
    _write(folder / f".{NAME}.partial", json.dumps(content).encode())
    (folder / f".{NAME}.partial").replace(folder / NAME)
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint in the folder.

    Return None if there is no checkpoint, if another PyTorch version wrote it, or if it cannot be read (the
    log shows this). If the result is None, training starts from the beginning.
    """
    try:
        content = json.loads((folder / NAME).read_bytes())
        if content["torch"] != str(torch.__version__):
            print(
                f"the checkpoint is from PyTorch {content['torch']}: training starts again from the "
                "beginning",
                flush=True,
            )
            return None
        tensors = from_safetensors((folder / content["state"]).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"the checkpoint cannot be read ({error}): training starts again from the beginning", flush=True
        )
        return None
    return Checkpoint(tensors=tensors, facts=content["facts"])


STEPS = {ModelKind.LSTM: 1000, ModelKind.MLP: 2000}
"""The default for the smallest number of optimizer steps of a network. With fewer steps, on a few hundred
rows, the predictions of the network are still close to the mean."""
FEWEST_EPOCHS, MOST_EPOCHS = 20, 500
BATCHES_PER_EPOCH = 16
SMALLEST_BATCH = 16
FEWEST_PATIENCE, PATIENCE_SHARE = 4, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSchedule:
    """The declared limits of a training: at most `epochs` passes over all rows, in batches of `batch_size`
    rows.

    Training stops after `patience` epochs without a better loss.
    """

    epochs: int
    batch_size: int
    patience: int


def course_of(spec: TrainingSpec, rows: int) -> TrainingSchedule:
    """Return the declared schedule of a training, with defaults. The defaults depend on the number of
    training rows.

    The default size of a batch is the largest power of two with which an epoch has at least 16 batches,
    between 16 and 256 rows. The default number of epochs is between 20 and 500, and large enough for the
    number of steps in `STEPS`. The default patience is a fifth of the epochs, because the learning rate
    falls until the last epoch.
    """
    batch_size = spec.batch_size or _batch_size(rows)
    steps = math.ceil(max(1, rows) / batch_size)
    epochs = spec.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, math.ceil(STEPS[spec.model] / steps)))
    patience = spec.patience or max(FEWEST_PATIENCE, math.ceil(PATIENCE_SHARE * epochs))
    return TrainingSchedule(epochs=epochs, batch_size=batch_size, patience=patience)


def _batch_size(rows: int) -> int:
    most = max(1, rows // BATCHES_PER_EPOCH)
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, 1 << (most.bit_length() - 1)))


LEARNING_RATE, GRADIENT_NORM, LAST_RATE = 1e-3, 1.0, 0.05
SCORING_BATCH = 1024
AGREE_SECONDS = 1.0
"""The interval in seconds at which the ranks of a gang ask rank 0 whether to write a checkpoint."""

Curve = tuple[tuple[float, float, float], ...]


@dataclass(slots=True)
class TrainingProgress:
    """The position at which a training continues. The training continues with the batch number `batch` in
    the epoch number `epoch`. `total` is the loss of this epoch before that batch."""

    epoch: int = 1
    batch: int = 0
    total: float = 0.0
    best: float = math.inf
    best_epoch: int = 0
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    loaded: int = 0
    """The epoch at which this attempt continued a killed attempt, or 0 if it started from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Facts about a finished training. The network itself has the weights of its best epoch."""

    curve: Curve
    best_epoch: int
    resumed: int
    """The epoch at which this attempt continued a killed attempt, or 0 if it started from the beginning."""
    waiting: float
    """The fraction of the time of the loop that was spent waiting until a batch is ready."""
    device: str
    mixed: bool


class Trainer:
    """Trains a network. `network` and `feed` are on the same device.

    A checkpoint contains all state on which the next steps depend: the weights, and the moments of the
    optimizer. The order of the rows in an epoch depends only on the seed and the number of the epoch. The
    random numbers of dropout also depend on the number of the batch and on the rank. Only rank 0 of the gang
    reports to `context` and writes to `folder`.
    """

    def __init__(
        self,
        network: Network,
        feed: BatchFeed,
        spec: TrainingSpec,
        course: TrainingSchedule,
        context: JobContext,
        folder: Path | None,
        ranks: RankGroup = RankGroup(),  # noqa: B008  immutable
    ) -> None:
        self._network, self._feed, self._spec, self._folder = network, feed, spec, folder
        self._ranks, self._context = ranks, context
        self._rate = spec.learning_rate or LEARNING_RATE
        self._optimizer = torch.optim.Adam(
            network.parameters(), lr=self._rate, weight_decay=spec.weight_decay
        )
        cuda = feed.device.type == "cuda"
        self._mixed = cuda if spec.mixed_precision is None else spec.mixed_precision
        self._half = torch.float16 if cuda else torch.bfloat16
        self._scaler = torch.amp.GradScaler(feed.device.type, enabled=self._mixed and cuda)
        self._at = TrainingProgress()
        self._kept = copy.deepcopy(network.state_dict())
        self._course = course
        self._next_checkpoint = 0.0
        self._stop_requested, self._next_question = (0, 0.0), 0
        self._waited = self._worked = 0.0

    def learn(self, rows: Integers, held: Integers) -> TrainingResult:
        """Train the network on the rows whose numbers are in `rows`. At the end the network has the weights
        of the epoch with the best loss on the rows whose numbers are in `held`. Raises InputError."""
        self._resume()
        self._loss = self._ranks.loss_of(self._network)
        train, validation = (torch.from_numpy(some).to(self._feed.device) for some in (rows, held))
        self._next_checkpoint = time.monotonic() + self._spec.checkpoint_seconds
        begun = time.perf_counter()
        while not self._ended():
            self._epoch(train, held=validation)
        self._worked = time.perf_counter() - begun
        self._network.load_state_dict(self._kept)
        return TrainingResult(
            curve=tuple(self._at.curve),
            best_epoch=self._at.best_epoch,
            resumed=self._at.loaded,
            waiting=self._waited / self._worked if self._worked else 0.0,
            device=self._feed.device.type,
            mixed=self._mixed,
        )

    def _ended(self) -> bool:
        at = self._at
        return at.epoch > self._course.epochs or at.epoch - 1 - at.best_epoch >= self._course.patience

    def _epoch(self, train: Tensor, *, held: Tensor) -> None:
        at, spec, course, device = self._at, self._spec, self._course, self._feed.device
        generator = torch.Generator().manual_seed(_seed(spec.seed, at.epoch))
        order = torch.randperm(len(train), generator=generator).to(device)
        batches = torch.split(order, course.batch_size)
        total = torch.tensor(at.total if self._ranks.leads else 0.0, device=device)
        self._network.train()
        for number in range(at.batch, len(batches)):
            step = (at.epoch - 1) * len(batches) + number
            if spec.dropout:
                torch.manual_seed(_seed(spec.seed, at.epoch, number, self._ranks.rank))
            total += self._step(train[batches[number]], step / (course.epochs * len(batches)))
            at.batch = number + 1
            if self._folder is not None and self._is_due(step):
                at.total = self._ranks.total(float(total))[0]
                self._save()
        learned, validated = self._ranks.total(float(total), self._score(held))
        self._finish_epoch(learned / len(train), validated / max(1, len(held)))

    def _is_due(self, step: int) -> bool:
        """Return whether the training must write a checkpoint now.

        In a gang, rank 0 makes this decision. The other ranks ask rank 0 about once a second whether to
        write a checkpoint. The number of steps between two such questions is computed from the recent speed.
        """
        if self._ranks.size == 1:
            return time.monotonic() >= self._next_checkpoint
        if step < self._next_question:
            return False
        now, (before, then) = time.monotonic(), self._stop_requested
        pace = AGREE_SECONDS / max(now - then, 1e-6) * (step - before)
        due, wait = self._ranks.broadcast((now >= self._next_checkpoint, max(1, int(pace)) if then else 1))
        self._stop_requested, self._next_question = (step, now), step + wait
        return due

    def _step(self, rows: Tensor, done: float) -> Tensor:
        """Train on a batch, or in a gang on the rows of the batch that belong to this rank. Return the loss
        multiplied by the number of rows.

        `done` is the fraction of all steps that were made before this step.
        """
        begin = time.perf_counter()
        mine, counts = self._ranks.part(rows)
        inputs, target = self._feed.batch(mine)
        self._waited += time.perf_counter() - begin
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * rate_share(done)
        with torch.autocast(self._feed.device.type, dtype=self._half) if self._mixed else nullcontext():
            loss = self._loss(inputs, target)
        if self._ranks.size > 1:
            loss = loss * counts
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.unscale_(self._optimizer)
        nn.utils.clip_grad_norm_(self._network.parameters(), GRADIENT_NORM)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss.detach() * (len(rows) / self._ranks.size)

    @torch.inference_mode()
    def _score(self, rows: Tensor) -> float:
        """Return the loss of the rows that belong to this rank, multiplied by their number."""
        self._network.eval()
        total = 0.0
        for some in torch.split(self._ranks.share(rows), SCORING_BATCH):
            if len(some):
                inputs, target = self._feed.batch(some)
                total += float(self._network.loss(inputs, target)) * len(target)
        return total

    def _finish_epoch(self, learned: float, validated: float) -> None:
        at, context = self._at, self._context
        _check_finite(learned, validated, at.epoch, self._rate)
        at.curve.append((float(at.epoch), learned, validated))
        context.metric("train_loss", learned, step=at.epoch)
        context.metric("validation_loss", validated, step=at.epoch)
        context.progress(at.epoch, self._course.epochs, "epochs", note=f"validation loss {validated:.4f}")
        if validated < at.best:
            at.best, at.best_epoch = validated, at.epoch
            self._kept = copy.deepcopy(self._network.state_dict())
        at.epoch, at.batch, at.total = at.epoch + 1, 0, 0.0

    def _save(self) -> None:
        """Write a checkpoint of the training.

        The next checkpoint is written after the declared time. Writing checkpoints takes at most a twentieth
        of the time.
        """
        if self._folder is None or not self._ranks.leads:
            return
        begin = time.monotonic()
        write_checkpoint(self._folder, self._checkpoint(), self._at.epoch * 10**9 + self._at.batch)
        now = time.monotonic()
        self._next_checkpoint = now + max(self._spec.checkpoint_seconds, 20 * (now - begin))

    def _checkpoint(self) -> Checkpoint:
        moments = {
            f"optimizer.{number}.{name}": value
            for number, state in self._optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        tensors = {
            **{f"network.{name}": value for name, value in self._network.state_dict().items()},
            **{f"best.{name}": value for name, value in self._kept.items()},
            **moments,
        }
        facts = {"progress": _finite(asdict(self._at)), "scaler": self._scaler.state_dict()}
        return Checkpoint(tensors=tensors, facts=facts)

    def _resume(self) -> None:
        """Continue from the checkpoint that rank 0 reads."""
        reads = self._folder is not None and self._ranks.leads
        checkpoint = self._ranks.broadcast(read_checkpoint(self._folder) if self._folder and reads else None)
        if checkpoint is None:
            return
        facts = dict(checkpoint.facts["progress"])
        facts["best"] = math.inf if facts["best"] is None else facts["best"]
        facts["curve"] = [tuple(point) for point in facts["curve"]]
        self._at = TrainingProgress(**facts)
        self._at.loaded = self._at.epoch
        self._network.load_state_dict(_below(checkpoint.tensors, "network."))
        self._kept = _below(checkpoint.tensors, "best.")
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(checkpoint.tensors, "optimizer.").items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._scaler.load_state_dict(checkpoint.facts["scaler"])
        for point in self._at.curve:
            self._context.metric("train_loss", point[1], step=point[0])
            self._context.metric("validation_loss", point[2], step=point[0])
        if self._ranks.leads:
            print(
                f"continuing from a checkpoint in epoch {self._at.epoch}, batch {self._at.batch}", flush=True
            )


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _below(tensors: Any, prefix: str) -> dict[str, Tensor]:  # noqa: ANN401
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the value in a form that JSON can represent. Infinity is replaced, because JSON cannot
    represent it."""
    return facts | {"best": facts["best"] if math.isfinite(facts["best"]) else None}


def rate_share(done: float) -> float:
    """Return the factor of the learning rate after this fraction of all steps.

    The factor rises in the first twentieth of the steps and then falls along a cosine.
    """
    warm = min(1.0, done / 0.05 + 0.05)
    return warm * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def _check_finite(learned: float, validated: float, epoch: int, rate: float) -> None:
    if math.isfinite(learned) and math.isfinite(validated):
        return
    raise InputError(
        f"the loss is NaN or infinite in epoch {epoch} (learning_rate {rate:g})",
        hint="Use a smaller learning_rate, or check the features for extreme values.",
        place="training.learning_rate",
    )
