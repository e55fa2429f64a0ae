"""Our learning loop against a bare PyTorch loop over the same network, data and batches."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bench.measure import Result, Series, alternate, at_most, row, save
from gridmill.domain.amounts import Amounts
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.batches import BatchFeed
from gridmill.jobs.training.networks import Network, NetworkShape, Perceptron, Recurrent
from gridmill.jobs.training.train_loop import GRADIENT_NORM, Trainer, course_of, rate_share

AREA = "Training"
LIMIT = 3.0
ROWS, HELD, WIDTH, EPOCHS, BATCH = 60_000, 2_000, 12, 3, 256
HOW = """
The loop of `lstm` and `mlp` (early stopping, live metrics, checkpoints when due) against a bare loop by hand
over the same network, optimizer, gradient clipping, schedule and batches, in one process with one thread, in
turn. CPU seconds are compared, not wall time, as neighbours on the machine hardly change them. The share of
time for data is what the loop waits for its batches, of its whole time.
"""


def main() -> None:
    torch.set_num_threads(1)
    results: list[Result] = []
    for kind in (ModelKind.LSTM, ModelKind.MLP):
        results += _compare(kind)
    save("training", results, how=HOW)


def _compare(kind: ModelKind) -> list[Result]:
    spec = TrainingSpec(
        dataset="d", model=kind, hidden=32 if kind == ModelKind.LSTM else 128, layers=1, sequence=24,
        epochs=EPOCHS, patience=EPOCHS, batch_size=BATCH,
    )  # fmt: skip
    feed, waits = _feed(spec.sequence if kind == ModelKind.LSTM else None), Series()
    measured = alternate({"ours": _ours(spec, feed, waits), "bare": _bare(spec, feed)})
    pairs = zip(measured["ours"].values, measured["bare"].values, strict=True)
    overhead = Series([100 * (ours / bare - 1) for ours, bare in pairs])
    return [
        at_most(
            LIMIT,
            AREA,
            f"{kind}: loop over a bare PyTorch loop, more",
            overhead.median,
            "%",
            **overhead.spread,
        ),
        row(AREA, f"{kind}: bare loop", measured["bare"].median, "CPU s", **measured["bare"].spread),
        row(AREA, f"{kind}: share of time for data", 100 * waits.median, "%", **waits.spread),
    ]


def _feed(length: int | None) -> BatchFeed:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    return BatchFeed(
        inputs=torch.from_numpy(inputs),
        target=torch.from_numpy(inputs[:, :1] * 2 + inputs[:, 1:2]),
        starts=torch.zeros(ROWS, dtype=torch.int64),
        length=length,
    )


def _network(spec: TrainingSpec) -> Network:
    torch.manual_seed(0)
    shape = NetworkShape(width=WIDTH, outputs=1)
    return Recurrent(shape, spec) if spec.model == ModelKind.LSTM else Perceptron(shape, spec)


def _rows() -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(64, ROWS)
    return rows[:-HELD], rows[-HELD:]


def _ours(spec: TrainingSpec, feed: BatchFeed, waits: Series) -> Callable[[], float]:
    def act() -> float:
        with TemporaryDirectory() as folder:
            context = _context(spec, Path(folder))
            train, held = _rows()
            course = course_of(spec, len(train))
            learner = Trainer(_network(spec), feed, spec, course, context, Path(folder) / "checkpoints")
            begin = time.process_time()
            learned = learner.learn(train, held)
            waits.values.append(learned.waiting)
            return time.process_time() - begin

    return act


def _context(spec: TrainingSpec, folder: Path) -> JobContext:
    job = Job(name="learn", training=spec)
    order = AttemptOrder(
        attempt_id="bench", token="", run_id="b", pipeline="b", job=job, root=str(folder), output_uri="m",
        given=Amounts(cpus=1, memory_bytes=2**30),
    )  # fmt: skip
    return JobContext(order=order, work=folder, events_fd=os.open(os.devnull, os.O_WRONLY))


def _bare(spec: TrainingSpec, feed: BatchFeed) -> Callable[[], float]:
    def act() -> float:
        network = _network(spec)
        train, held = (torch.from_numpy(some) for some in _rows())
        begin = time.process_time()
        _bare_loop(network, feed, train, held)
        return time.process_time() - begin

    return act


def _bare_loop(network: Network, feed: BatchFeed, train: torch.Tensor, held: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    steps = EPOCHS * math.ceil(len(train) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(step / steps))
    for _ in range(EPOCHS):
        network.train()
        for rows in torch.randperm(len(train)).split(BATCH):  # type: ignore[no-untyped-call]
            inputs, target = feed.batch(train[rows])
            loss = torch.nn.functional.mse_loss(network(inputs), target)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), GRADIENT_NORM)
            optimizer.step()
            schedule.step()
        network.eval()
        with torch.inference_mode():
            for rows in held.split(1024):  # type: ignore[no-untyped-call]
                inputs, target = feed.batch(rows)
                float(torch.nn.functional.mse_loss(network(inputs), target))


if __name__ == "__main__":
    main()
