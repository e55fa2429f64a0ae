"""Several ranks learn one network: started with torchrun's variables alone, they give one worker's curve."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from gridmill.codec import decode, encode
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.states import AttemptState
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.run import run
from gridmill.jobs.training.train_loop import NAME
from tests.e2e.conftest import Place, eventually, files_below
from tests.kit.learning_data import series, training_context, write_dataset
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e

LSTM = {"sequence": 12, "hidden": 16, "epochs": 5, "learning_rate": 0.01, "batch_size": 64, "patience": 5}
CURVE, WEIGHTS = 1e-5, 1e-5
"""How far apart a gang's losses (of their size) and weights may be: sums are added up in another order."""
LONG_CURVE = 1e-3
"""... after hundreds of steps."""


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


def learned_by(context: JobContext, size: int) -> list[AttemptOutcome]:
    with gang(context, size) as processes:
        for process in processes:
            out, _ = process.communicate(timeout=600)
            assert process.returncode == 0, out
    return outcomes(context, size)


def outcomes(context: JobContext, size: int) -> list[AttemptOutcome]:
    return [
        decode((folder_of(context, rank) / "outcome.json").read_bytes(), AttemptOutcome)
        for rank in range(size)
    ]


def weights(root: Path, name: str) -> np.ndarray:
    tensors = load_file(root / "outputs" / name / "weights.safetensors")
    return np.concatenate([tensors[key].ravel() for key in sorted(tensors)])


def curve_of(outcome: AttemptOutcome) -> np.ndarray:
    return np.array(outcome.outputs[0].details["curve"])


@pytest.mark.long
def test_a_gang_gives_the_curve_and_weights_of_one_worker(tmp_path):
    """Its batches have 283, 283 and 1 rows: one rank gets more than the other, and at last all there is."""
    options = LSTM | {"batch_size": 283}
    dataset = write_dataset(tmp_path, series())
    alone = run(training_context(tmp_path, dataset, "lstm", "alone", **options))
    first, other = learned_by(training_context(tmp_path, dataset, "lstm", "gang", workers=2, **options), 2)
    assert len(curve_of(first)) == LSTM["epochs"]
    assert np.allclose(curve_of(first), alone.outputs[0].details["curve"], rtol=CURVE)
    assert np.allclose(weights(tmp_path, "gang"), weights(tmp_path, "alone"), atol=WEIGHTS)
    assert first.metrics == pytest.approx(alone.metrics, rel=0.01, abs=0.01)
    assert other == AttemptOutcome(state=AttemptState.SUCCEEDED), "rank 0 alone says anything"


PIPELINE = """
pipeline: waves
jobs:
  rows: {sink: {source: {path: rows.csv}}}
  data:
    dataset:
      basis: {table: rows, time: time, entity: [city]}
      label: {column: value, steps: 3, name: ahead}
      split: {validation: 0.2, test: 0.2}
  alone: {training: {dataset: data, model: lstm, sequence: 12, hidden: 16, epochs: 5, batch_size: 16}}
  together:
    needs: [alone]
    retries: 1
    training:
      {dataset: data, model: lstm, sequence: 12, hidden: 16, epochs: 5, batch_size: 16, workers: 2,
       checkpoint: 0s}
"""


HOURS = 6_000
"""Enough that learning lasts for seconds: it must be met in the middle."""
BEGIN = datetime(2024, 1, 1)


def rows() -> str:
    waves = [
        f"{city},{(BEGIN + timedelta(hours=hour)).isoformat()},{10 * math.sin(hour / 24 + number):.4f}"
        for number, city in enumerate("ab")
        for hour in range(HOURS)
    ]
    return "\n".join(["city,time,value", *waves, ""])


def process_of(place: Place, attempt: str) -> int | None:
    """The process that works in the attempt's folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == place.home / "attempts" / attempt / "work":
                return int(process.name)
    return None


@pytest.mark.long
def test_workers_that_lose_one_go_on_from_the_checkpoint_with_one_workers_curve(place: Place):
    place.write(rows(), "rows.csv")
    running = place.start("run", place.write(PIPELINE), "--json")

    def in_the_middle() -> bool:
        for file in files_below(place.home / "storage" / "checkpoints" / "waves" / "together", NAME):
            with suppress(FileNotFoundError):
                at = json.loads(file.read_bytes())["facts"]["progress"]
                return bool(at["epoch"] >= 2 and at["batch"] > 2)
        return False

    place.meet(running, in_the_middle)
    victim = process_of(place, "waves-1.together.1.1")
    assert victim is not None, "it had ended"
    os.kill(victim, signal.SIGKILL)
    out, err = running.communicate(timeout=600)
    assert running.returncode == 0, out + err
    jobs = {one["job"]["job"]["name"]: one for one in json.loads(out)["jobs"]}
    assert [attempt["state"] for attempt in jobs["together"]["attempts"]] == ["failed", "succeeded"]
    alone, together = (jobs[name]["artifacts"][0]["output"]["details"] for name in ("alone", "together"))
    assert together["options"]["resumed_in_epoch"] >= 2
    assert np.allclose(together["curve"], alone["curve"], rtol=LONG_CURVE)
    assert eventually(lambda: not place.leftovers())
