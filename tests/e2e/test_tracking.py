"""Trainings told to a real MLflow server; a dead one costs a line in the log."""

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import Place, eventually
from tests.ports import free_port

pytestmark = pytest.mark.e2e
MLFLOW = os.environ.get("GRIDMILL_TEST_MLFLOW") or shutil.which("mlflow")

PIPELINE = """
pipeline: tracked
jobs:
  points:
    dataset:
      sql: >
        select sin(i * 12.9898) as x, sin(i * 78.233) as y, x + 2 * y as z,
               case when i % 10 < 7 then 'train' when i % 10 = 7 then 'validation' else 'test' end as split
        from range(600) as rows(i) order by i
      label: {column: z}
  model:
    training: {dataset: points, model: mlp, epochs: 3, seed: 4, track: "URL"}
"""


def asked(url: str, body: dict | None = None) -> dict:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict = json.loads(answer.read())
        return found


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.skipif(
    MLFLOW is None,
    reason="no MLflow: make an environment, pip install mlflow, set GRIDMILL_TEST_MLFLOW to its mlflow",
)
def test_a_real_server_has_the_run_its_settings_metrics_and_curves(place: Place, tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(MLFLOW),
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        url.rpartition(":")[2],
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as server:
        try:
            assert eventually(lambda: answers(url)), "the server never answered"
            view = place.json("run", place.write(PIPELINE.replace("URL", url)))
            assert view["run"]["state"] == "succeeded"
            found = asked(f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=tracked")
            ids = [found["experiment"]["experiment_id"]]
            (run,) = asked(f"{url}/api/2.0/mlflow/runs/search", {"experiment_ids": ids})["runs"]
        finally:
            os.killpg(server.pid, 9)
    metrics = {one["key"]: one["value"] for one in run["data"]["metrics"]}
    output = next(one for one in view["jobs"] if one["job"]["job"]["name"] == "model")["artifacts"][0][
        "output"
    ]
    assert run["info"]["status"] == "FINISHED"
    assert metrics["test_rmse"] == pytest.approx(output["metrics"]["test_rmse"])
    assert metrics["validation_loss"] == pytest.approx(output["details"]["curve"][-1][2])
    assert {one["key"]: one["value"] for one in run["data"]["params"]}["seed"] == "4"
    assert output["details"]["mlflow_run"] == run["info"]["run_id"]


def test_a_dead_server_costs_a_line_in_the_log(place: Place):
    url = f"http://127.0.0.1:{free_port()}"
    view = place.json("run", place.write(PIPELINE.replace("URL", url)))
    assert view["run"]["state"] == "succeeded"
    assert f"not told to MLflow at {url}" in place.gridmill("logs", view["run"]["id"], "model").stdout
