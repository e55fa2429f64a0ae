"""What an MLflow server is told of a training, and what becomes of the training when the server fails."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.kit.clean_process import train
from tests.kit.learning_data import series, training_context, write_dataset
from tests.kit.mlflow import Books, mlflow_like
from tests.kit.ports import free_port

from gridmill.domain.tuning import Range, Search
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.training import mlflow
from gridmill.jobs.training.mlflow import MlflowServer
from gridmill.jobs.training.run import run

LSTM = {"sequence": 6, "hidden": 8, "epochs": 3, "batch_size": 64}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERY_SECONDS", "AGAIN_SECONDS", "REST"):
        monkeypatch.setattr(mlflow, name, 0.0)
    monkeypatch.setattr(mlflow, "TIMEOUT", 300.0)  # a busy machine makes no server fail


@pytest.fixture
def events(tmp_path: Path):
    with (tmp_path / "events").open("wb") as file:
        yield file.fileno()


def context_of(root: Path, events: int, url: str, model: str = "lstm", **options: Any) -> JobContext:
    options = (LSTM if model == "lstm" else {}) | options
    context = training_context(root, write_dataset(root, series(160)), model, track=url, **options)
    order = replace(context.order, checkpoint_uri="checkpoints/p/m/f", workers=2)
    return replace(context, order=order, events_fd=events)


def metrics_of(run: dict[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in run["data"]["metrics"]:
        found.setdefault(one["key"], []).append(one["value"])
    return found


def pairs(run: dict[str, Any], kind: str) -> dict[str, str]:
    return {one["key"]: one["value"] for one in run["data"][kind]}


def while_learning(
    context: JobContext, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]
) -> JobResult:
    """Train, and do something after the metrics of each epoch were told."""
    tell = mlflow.MlflowRun._queue_metric

    def told(tracker: mlflow.MlflowRun, name: str, value: float, step: float | None) -> None:
        tell(tracker, name, value, step)
        if name == "validation_loss" and step is not None:
            act(int(step))

    monkeypatch.setattr(mlflow.MlflowRun, "_queue_metric", told)
    return run(context)


def test_the_server_has_the_dataset_and_the_files_of_the_model(tmp_path: Path, events: int):
    books = Books()
    with mlflow_like(books, free_port()) as url:
        context = context_of(tmp_path, events, url)
        run(context)
    ((run_id, told),) = books.runs.items()
    (dataset,) = told["inputs"]["dataset_inputs"]
    digest = context.input("d").fingerprint
    assert (dataset["dataset"]["name"], dataset["dataset"]["digest"]) == ("p/d@1", digest)
    left = {path.name: path.read_bytes() for path in context.output.iterdir()}
    assert books.files == {f"1/{run_id}/artifacts/model/{name}": data for name, data in left.items()}
    assert {"model.json", "model.onnx", "weights.safetensors"} <= set(left)


def test_a_deleted_experiment_is_restored_and_the_log_says_so(tmp_path: Path, events: int, capfd):
    books = Books()
    with mlflow_like(books, free_port()) as url:
        run(context_of(tmp_path / "1", events, url, "linear"))
        assert "restored" not in capfd.readouterr().out
        books.deleted.update(books.experiments)
        run(context_of(tmp_path / "2", events, url, "linear"))
    assert "the MLflow experiment 'p' had been deleted; it is restored" in capfd.readouterr().out
    assert [one["info"]["status"] for one in books.runs.values()] == ["FINISHED", "FINISHED"]


def test_a_run_is_seen_while_it_learns(tmp_path: Path, events: int, monkeypatch: pytest.MonkeyPatch):
    books, seen = Books(), []
    with mlflow_like(books, free_port()) as url:
        context = context_of(tmp_path, events, url)

        def look(epoch: int) -> None:
            (one,) = books.runs.values()
            seen.append((one["info"]["status"], len(metrics_of(one)["validation_loss"])))

        result = while_learning(context, monkeypatch, look)
    assert seen == [("RUNNING", 1), ("RUNNING", 2), ("RUNNING", 3)]
    (one,) = books.runs.values()
    assert one["info"]["status"] == "FINISHED"
    details = result.outputs[0].details
    assert metrics_of(one)["validation_loss"] == [point[2] for point in details["curve"]]
    assert metrics_of(one)["test_rmse"] == [result.metrics["test_rmse"]]
    assert pairs(one, "params")["hidden"] == "8"
    assert pairs(one, "tags")["gridmill.dataset"] == "p/d@1"
    assert details["mlflow_run"] == one["info"]["run_id"]


def test_a_server_that_goes_costs_a_line_and_is_told_when_it_is_back(
    tmp_path: Path, events: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    books, port = Books(), free_port()
    with ExitStack() as first, ExitStack() as second:
        url = first.enter_context(mlflow_like(books, port))

        def go_and_come(epoch: int) -> None:
            if epoch == 1:
                first.close()
            if epoch == 3:
                second.enter_context(mlflow_like(books, port))

        context = context_of(tmp_path, events, url, epochs=4)
        result = while_learning(context, monkeypatch, go_and_come)
    (one,) = books.runs.values()
    assert one["info"]["status"] == "FINISHED"
    assert metrics_of(one)["validation_loss"] == [point[2] for point in result.outputs[0].details["curve"]]
    assert capfd.readouterr().out.count("not sent to MLflow") == 1


def test_a_server_that_is_not_there_fails_nothing(
    tmp_path: Path, events: int, capfd: pytest.CaptureFixture[str]
):
    url = f"http://127.0.0.1:{free_port()}"
    result = run(context_of(tmp_path, events, url))
    assert result.outputs[0].details["mlflow_run"] is None
    said = [line for line in capfd.readouterr().out.splitlines() if "not sent to MLflow" in line]
    assert [f"at {url}: ConnectError" in line for line in said] == [True, True]  # at first, and in the end
    assert "it is sent later" in said[0]
    assert "later" not in said[1]


@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("content", [b"[]", b"null", b'"busy"'])
def test_a_server_that_answers_other_json_than_mlflow_fails_nothing(
    tmp_path: Path, events: int, capfd: pytest.CaptureFixture[str], status: int, content: bytes
):
    class Other(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer  # noqa: N815  http.server's names

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run(context_of(tmp_path, events, url, model="naive"))
        server.shutdown()
    assert result.outputs[0].details["mlflow_run"] is None
    assert "not sent to MLflow" in capfd.readouterr().out


def test_the_attempt_after_a_killed_one_goes_on_with_its_run(tmp_path: Path, events: int):
    books = Books()
    with mlflow_like(books, free_port()) as url:
        context = context_of(tmp_path, events, url)
        assert context.order.job.training is not None
        killed = mlflow.MlflowRun(context.order.job.training, context)
        killed.begin()
        for epoch in (1, 2):
            killed.context.metric("train_loss", 0.5, step=epoch)
        killed.close()  # its connection; the run there is not ended
        run(context)
        (one,) = books.runs.values()
        assert one["info"]["status"] == "FINISHED"
        assert [point["step"] for point in one["data"]["metrics"] if point["key"] == "train_loss"] == [
            1,
            2,
            3,
        ]
        books.runs.clear()  # somebody deleted it
        run(context)
    assert [one["info"]["status"] for one in books.runs.values()] == ["FINISHED"]


def test_what_could_not_be_learned_failed_there_too(tmp_path: Path, events: int):
    books = Books()
    with mlflow_like(books, free_port()) as url, pytest.raises(InputError, match="learning"):
        run(context_of(tmp_path, events, url, learning_rate=1e30))
    assert [one["info"]["status"] for one in books.runs.values()] == ["FAILED"]


@pytest.mark.long
def test_trials_of_a_search_are_runs_below_it(tmp_path: Path, events: int):
    books = Books()
    search = Search(trials=3, parameters={"max_leaves": Range(between=(2, 9))})
    with mlflow_like(books, free_port()) as url:
        result = train(context_of(tmp_path, events, url, "gbdt", search=search, trees=5))
    whole, *trials = books.runs.values()
    assert [one["info"]["run_name"] for one in trials] == ["trial 0", "trial 1", "trial 2"]
    for one, told in zip(trials, result.outputs[0].details["search"]["trials"], strict=True):
        assert pairs(one, "tags")["mlflow.parentRunId"] == whole["info"]["run_id"]
        assert pairs(one, "params") == {"max_leaves": str(told["parameters"]["max_leaves"])}
        assert metrics_of(one)["validation_rmse"] == [told["value"]]
        assert one["info"]["status"] == "FINISHED"
    assert len(metrics_of(whole)["trial_rmse"]) == 3


def experiment_of(url: str, name: str) -> str:
    with closing(MlflowServer(url)) as server:
        return server.experiment(name)


def test_trainings_that_begin_together_make_one_experiment():
    books = Books(askers=3)
    with mlflow_like(books, free_port()) as url, ThreadPoolExecutor(3) as crew:
        found = list(crew.map(lambda _: experiment_of(url, "p"), range(3)))
    assert found == ["1", "1", "1"]


def test_a_password_is_read_from_the_environment_and_said_nowhere(
    tmp_path: Path, events: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    books, port = Books(), free_port()
    monkeypatch.setenv("MLFLOW_SECRET", "s/e:c@ret")
    context = context_of(tmp_path, events, f"http://me:${{env:MLFLOW_SECRET}}@127.0.0.1:{port}", "naive")
    with mlflow_like(books, port):
        run(context)
    assert set(books.authorizations) == {"Basic bWU6cy9lOmNAcmV0"}
    run(context)
    said = capfd.readouterr().out
    assert "not sent to MLflow at http://me:${env:MLFLOW_SECRET}@127.0.0.1" in said
    assert "s/e" not in said
    assert "s%2Fe" not in said


def test_names_that_mlflow_does_not_take_are_written_otherwise():
    books = Books()
    with mlflow_like(books, free_port()) as url, closing(MlflowServer(url)) as server:
        run_id = server.create(server.experiment("p"), "r", 0, {})
        server.log_parameters(run_id, {f"a(b)%{number}": number for number in range(150)})
    assert len(pairs(books.runs[run_id], "params")) == 150
    assert pairs(books.runs[run_id], "params")["a_b__7"] == "7"
