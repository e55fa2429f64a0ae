"""A model in a service that takes more memory in one request than the service has: only the process of its
code is replaced."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Place
from tests.e2e.test_served_chains import csv_rows
from tests.e2e.test_services_with_features import call
from tests.kit.services import wait_for

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: s
jobs:
  sales:
    sink: {source: {path: "rows.csv"}, columns: {day: timestamp, sold: float}}
  features:
    dataset:
      basis: {table: sales, time: day, entity: [shop], columns: [sold]}
      label: {column: sold, steps: 1, name: next_sold}
      split: {validation: 0.2, test: 0.2}
  own: {training: {dataset: features, model: custom, script: "own.py:fit", predict: "own.py:predict"}}
"""
OWN = """
import numpy as np

def fit(data):
    np.save(data.output / "mean.npy", np.nanmean(data.inputs[data.train]))

def predict(folder, inputs):
    if np.nanmin(inputs) < 0:
        taken = [np.ones(8_000_000) for _ in range(200)]  # 12 GB
    return np.nan_to_num(inputs).sum(axis=1) + np.load(folder / "mean.npy")
"""


def has_memory_groups() -> bool:
    return os.access("/sys/fs/cgroup/memory", os.W_OK) or "memory" in (
        Path("/sys/fs/cgroup/cgroup.subtree_control").read_text()
        if Path("/sys/fs/cgroup/cgroup.subtree_control").exists()
        else ""
    )


@pytest.mark.skipif(os.geteuid() != 0 or not has_memory_groups(), reason="needs cgroups that limit memory")
def test_code_that_takes_all_memory_in_one_request_is_replaced_alone(place: Place) -> None:
    file = place.write(PIPELINE)
    place.write(csv_rows(60), "rows.csv")
    place.write(OWN, "own.py")
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stdout + done.stderr
    started = place.json("start", "service", "sales", "--model", "s/own@1", "--trust")
    port = started["service"]["port"]

    def status_of(sold: float) -> int:
        return call(port, "/predict", {"rows": [{"sold": sold}]})[0]

    def report() -> dict[str, object]:
        return place.json("show", "service", "sales")["service"]["report"]

    assert status_of(1.0) == 200
    before = report()
    assert status_of(-1.0) == 500
    wait_for("the next answer", lambda: status_of(1.0) == 200)
    after = report()
    assert [one["pid"] for one in after["replicas"]] == [one["pid"] for one in before["replicas"]]
    assert after["restarts"] == 0
    ended = place.gridmill("down", "--all").stderr
    assert "stopped: service sales; to start one again: gridmill start service NAME" in ended
    assert "gridmill resume" not in ended
