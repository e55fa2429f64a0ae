"""Trainings told to an MLflow server: a real one where there is one, and one that answers alike."""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Place, eventually
from tests.kit.mlflow import Books, mlflow_like
from tests.kit.ports import free_port

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
  trees:
    training:
      {dataset: points, model: gbdt, trees: 5, track: "URL", search: {trials: 2, parameters: {trees: [2, 9]}}}
"""


def asked(url: str, body: dict | None = None) -> dict:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict = json.loads(answer.read())
        return found


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(params=["alike", "real"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "alike":
        with mlflow_like(Books(), free_port()) as address:
            yield address
        return
    if MLFLOW is None:
        pytest.skip(
            "no MLflow: make an environment, pip install mlflow, set GRIDMILL_TEST_MLFLOW to its mlflow"
        )
    address = f"http://127.0.0.1:{free_port()}"
    command = [
        MLFLOW,
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        address.rpartition(":")[2],
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with subprocess.Popen(command, cwd=tmp_path, env=quiet, start_new_session=True) as server:
        try:
            assert eventually(lambda: answers(address)), "the server never answered"
            yield address
        finally:
            os.killpg(server.pid, 9)


def pairs(run: dict, kind: str) -> dict:
    return {one["key"]: one["value"] for one in run["data"].get(kind, ())}


def test_a_server_has_runs_with_settings_metrics_curves_and_trials(place: Place, url: str):
    view = place.json("run", place.write(PIPELINE.replace("URL", url)))
    assert view["run"]["state"] == "succeeded"
    found = asked(f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=tracked")
    ids = [found["experiment"]["experiment_id"]]
    runs = asked(f"{url}/api/2.0/mlflow/runs/search", {"experiment_ids": ids})["runs"]
    assert {run["info"]["status"] for run in runs} == {"FINISHED"}
    named = {run["info"]["run_name"].partition(" ")[0]: run for run in runs}
    assert sorted(run["info"]["run_name"].partition(" ")[0] for run in runs) == [
        "model",
        "trees",
        "trial",
        "trial",
    ]
    jobs = {one["job"]["job"]["name"]: one for one in view["jobs"]}
    output, metrics = jobs["model"]["artifacts"][0]["output"], pairs(named["model"], "metrics")
    assert metrics["test_rmse"] == pytest.approx(output["metrics"]["test_rmse"])
    assert metrics["validation_loss"] == pytest.approx(output["details"]["curve"][-1][2])
    assert pairs(named["model"], "params")["seed"] == "4"
    assert pairs(named["model"], "tags")["gridmill.dataset"] == "tracked/points@1"
    assert output["details"]["mlflow_run"] == named["model"]["info"]["run_id"]
    assert pairs(named["trial"], "tags")["mlflow.parentRunId"] == named["trees"]["info"]["run_id"]
    (dataset,) = named["model"]["inputs"]["dataset_inputs"]
    assert dataset["dataset"]["name"] == "tracked/points@1"
    run_id = named["model"]["info"]["run_id"]
    files = asked(f"{url}/api/2.0/mlflow/artifacts/list?run_id={run_id}&path=model")["files"]
    assert {"model/model.json", "model/model.onnx"} <= {one["path"] for one in files}


@pytest.mark.long
def test_a_deleted_experiment_is_told_again(place: Place, url: str):
    text = PIPELINE.partition("  trees:")[0].replace("URL", url)
    api = f"{url}/api/2.0/mlflow"
    place.json("run", place.write(text))
    found = asked(f"{api}/experiments/get-by-name?experiment_name=tracked")["experiment"]["experiment_id"]
    asked(f"{api}/experiments/delete", {"experiment_id": found})
    place.json("run", place.write(text.replace("seed: 4", "seed: 5")))
    runs = asked(f"{api}/runs/search", {"experiment_ids": [found]})["runs"]
    assert "FINISHED" in {run["info"]["status"] for run in runs}
    assert {"5"} <= {pairs(run, "params").get("seed") for run in runs}


def test_a_dead_server_costs_lines_in_the_log(place: Place):
    url = f"http://127.0.0.1:{free_port()}"
    text = PIPELINE.partition("  trees:")[0]
    view = place.json("run", place.write(text.replace("URL", url)))
    assert view["run"]["state"] == "succeeded"
    assert f"not sent to MLflow at {url}" in place.gridmill("logs", view["run"]["id"], "model").stdout
