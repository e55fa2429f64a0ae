"""Several ranks learn one network: started with torchrun's variables alone, they give one worker's curve."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from gridmill.codec import decode, encode
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.checkpoint import NAME
from gridmill.jobs.training.run import run
from gridmill.model.message import Outcome
from gridmill.model.state import AttemptState
from tests.e2e.conftest import eventually
from tests.unit.learning_data import series, training_context, write_dataset

pytestmark = pytest.mark.e2e

LSTM = {"sequence": 12, "hidden": 16, "epochs": 5, "learning_rate": 0.01, "batch_size": 64, "patience": 5}
MLP = {"hidden": 16, "epochs": 6, "learning_rate": 0.003, "batch_size": 4, "patience": 6}
CURVE, WEIGHTS = 1e-3, 5e-3
"""How far apart a gang's losses (of their size) and weights may be: sums are added up in another order."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def folder_of(context: JobContext, rank: int) -> Path:
    return context.work / f"rank-{rank}"


@contextmanager
def gang(context: JobContext, size: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Its ranks, each an attempt's process as pods start it."""
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for rank in range(size):
        folder = folder_of(context, rank)
        (folder / "work").mkdir(parents=True, exist_ok=True)
        (folder / "order.json").write_bytes(encode(context.order))
        environment = (
            os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        )
        command = [sys.executable, "-m", "gridmill.jobs.main", str(folder)]
        processes.append(
            subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def learned_by(context: JobContext, size: int) -> list[Outcome]:
    with gang(context, size) as processes:
        for process in processes:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
    return outcomes(context, size)


def outcomes(context: JobContext, size: int) -> list[Outcome]:
    return [decode((folder_of(context, rank) / "outcome.json").read_bytes(), Outcome) for rank in range(size)]


def weights(root: Path, name: str) -> np.ndarray:
    tensors = load_file(root / "outputs" / name / "weights.safetensors")
    return np.concatenate([tensors[key].ravel() for key in sorted(tensors)])


def curve_of(outcome: Outcome) -> np.ndarray:
    return np.array(outcome.outputs[0].details["curve"])


def test_a_gang_gives_the_curve_and_weights_of_one_worker(tmp_path):
    """Its batches have 283, 283 and 1 rows: one rank gets more than the other, and at last all there is."""
    options = LSTM | {"batch_size": 283}
    dataset = write_dataset(tmp_path, series())
    alone = run(training_context(tmp_path, dataset, "lstm", "alone", **options))
    first, other = learned_by(training_context(tmp_path, dataset, "lstm", "gang", **options), 2)
    assert len(curve_of(first)) == LSTM["epochs"]
    assert np.allclose(curve_of(first), alone.outputs[0].details["curve"], rtol=CURVE)
    assert np.allclose(weights(tmp_path, "gang"), weights(tmp_path, "alone"), atol=WEIGHTS)
    assert first.metrics == pytest.approx(alone.metrics, rel=0.01, abs=0.01)
    assert other == Outcome(state=AttemptState.SUCCEEDED), "rank 0 alone says anything"


def test_a_gang_that_lost_a_rank_goes_on_from_its_checkpoint(tmp_path):
    options = MLP | {"checkpoint_seconds": 0.0}
    dataset = write_dataset(tmp_path, series())
    whole = run(training_context(tmp_path, dataset, "mlp", "whole", **options))
    context = training_context(tmp_path, dataset, "mlp", "lost", **options)
    context = replace(context, order=replace(context.order, checkpoint_uri="checkpoints/p/m/f"))

    def in_the_middle() -> bool:
        file = tmp_path / "checkpoints/p/m/f" / NAME
        at = json.loads(file.read_bytes())["facts"]["progress"] if file.exists() else None
        return bool(at and at["epoch"] >= 2 and at["batch"] > 2)

    with gang(context, 2) as processes:
        assert eventually(in_the_middle, 60), "no checkpoint came"
        processes[1].send_signal(signal.SIGKILL)
        out, _ = processes[0].communicate(timeout=60)
    lost = decode((folder_of(context, 0) / "outcome.json").read_bytes(), Outcome)
    assert (processes[0].returncode, lost.state) == (1, AttemptState.FAILED)
    assert "another worker" in lost.message, out
    resumed = learned_by(context, 2)
    assert resumed[0].outputs[0].details["options"]["resumed_in_epoch"] >= 2
    assert np.allclose(curve_of(resumed[0]), whole.outputs[0].details["curve"], rtol=CURVE)


def test_what_a_gang_cannot_learn_is_refused_before_it_waits_for_others(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = write_dataset(tmp_path, series(rows=20))
    with pytest.raises(Exception, match="one worker") as error:
        run(training_context(tmp_path, dataset, "linear"))
    assert error.value.place == "training.model"
