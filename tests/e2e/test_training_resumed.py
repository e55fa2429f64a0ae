"""A training killed in the middle resumes from its checkpoint, and gives the model it would have given."""

import json
import math
import os
import signal
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from tests.e2e.conftest import Place, files_below

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: resumed
jobs:
  waves:
    sink: {source: {path: waves.csv}}
  features:
    dataset:
      basis: {table: waves, time: time, entity: [city]}
      label: {column: value, steps: 3, name: ahead}
      split: {validation: 0.2, test: 0.2}
  lstm:
    training:
      {dataset: features, model: lstm, sequence: 24, hidden: 32, dropout: 0.2, epochs: 8, patience: 8,
       batch_size: 16, seed: 5, checkpoint: 0s}
"""


HOURS = 2_000
"""Enough that learning lasts for seconds: it must be met in the middle."""
BEGIN = datetime(2024, 1, 1)


def waves() -> str:
    lines = ["city,time,value"]
    for city in ("a", "b"):
        for hour in range(HOURS):
            value = 10 * math.sin(hour / 24 + len(city)) + 0.3 * math.sin(hour * hour)
            lines.append(f"{city},{(BEGIN + timedelta(hours=hour)).isoformat()},{value:.4f}")
    return "\n".join(lines) + "\n"


def pod_of(place: Place, attempt: str) -> int | None:
    """The pod that started the attempt."""
    for pod in (place.home / "pods").iterdir():
        with suppress(FileNotFoundError):
            if attempt in (pod / "attempts").read_text():
                return int((pod / "pid").read_text().split()[0])
    return None


def model(view: dict) -> tuple[list[str], dict]:
    found = next(one for one in view["jobs"] if one["job"]["job"]["name"] == "lstm")
    return [attempt["state"] for attempt in found["attempts"]], found["artifacts"][0]["output"]


def weights(place: Place, output: dict) -> bytes:
    return next(place.home.rglob(f"{output['uri']}/weights.safetensors")).read_bytes()


@pytest.mark.long
def test_a_training_killed_in_the_middle_ends_with_the_same_weights(place: Place):
    place.write(waves(), "waves.csv")
    file = place.write(PIPELINE)
    run = place.start("run", file, "--json")

    def in_the_middle() -> bool:
        for path in files_below(place.home / "storage" / "checkpoints", "checkpoint.json"):
            with suppress(FileNotFoundError):
                at = json.loads(path.read_bytes())["facts"]["progress"]
                return at["epoch"] >= 3 and at["batch"] > 2
        return False

    place.meet(run, in_the_middle)
    pod = pod_of(place, "resumed-1.lstm.1")
    assert pod is not None
    os.kill(pod, signal.SIGKILL)
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, err
    states, killed = model(json.loads(out))
    assert states == ["lost", "succeeded"]
    assert killed["details"]["options"]["resumed_in_epoch"] >= 3
    assert not list(place.home.rglob("checkpoints/resumed/lstm/*")), (
        "a checkpoint outlives the model's success"
    )

    states, whole = model(place.json("run", file, "--force", "--only", "lstm"))
    assert states == ["succeeded"]
    assert whole["details"]["options"]["resumed_in_epoch"] is None
    assert weights(place, whole) == weights(place, killed)
    assert whole["metrics"] == killed["metrics"]
    assert whole["details"]["curve"] == killed["details"]["curve"]
