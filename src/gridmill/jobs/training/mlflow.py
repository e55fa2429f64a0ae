"""Reports a training to an MLflow server while the training runs. If the MLflow server fails, the training
continues.

This module sends only those few requests of the REST API of MLflow that are necessary for tracking.
"""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.secret_values import fill_in

if TYPE_CHECKING:
    from gridmill.jobs.training.tuning import TuningResult

TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""The timeouts of requests to the MLflow server, in seconds. A busy server may take long to answer, but a
server that does not exist is detected quickly."""
TROUBLES = (httpx.HTTPError, AttributeError, KeyError, TypeError, ValueError)
"""The exceptions for a server that does not answer, or that does not answer as MLflow does."""
METRICS_A_BATCH, PARAMETERS_A_BATCH, LONGEST_VALUE, LONGEST_DIGEST = 1000, 100, 500, 36
PIECE_BYTES = 1 << 20
_ODD = re.compile(r"[^\w.\- :/]")

Metric = Mapping[str, str | float | int]


class MlflowServer:
    """An MLflow server at `url`. If the URL has a user and password, the requests contain them. The methods
    raise the exceptions in TROUBLES. The constructor raises InputError for an invalid address."""

    def __init__(self, url: str) -> None:
        try:
            self._client = httpx.Client(base_url=url.rstrip("/") + "/api/2.0/mlflow", timeout=TIMEOUT)
        except httpx.InvalidURL as error:
            raise InputError(
                f"not a valid address of an MLflow server: {error}", place="training.track"
            ) from error

    def close(self) -> None:
        """Close the connections to the server."""
        self._client.close()

    def experiment(self, name: str) -> str:
        """Return the id of the MLflow experiment with this name. If the experiment does not exist, it is
        created.

        A deleted experiment is restored, because MLflow does not allow another experiment with the same
        name.
        """
        experiment_id = self._find(name)
        if experiment_id is None:
            answer = self._client.post("/experiments/create", json={"name": name})
            experiment_id = self._find(name) if answer.is_client_error else _content(answer)["experiment_id"]
            # raises the first error, because its cause was not another client that created the experiment
            if experiment_id is None:
                _content(answer)
        return str(experiment_id)

    def _find(self, name: str) -> str | None:
        answer = self._client.get("/experiments/get-by-name", params={"experiment_name": name})
        if answer.status_code == httpx.codes.NOT_FOUND and "error_code" in answer.text:
            return None
        experiment = _content(answer)["experiment"]
        result: str = experiment["experiment_id"]
        if experiment.get("lifecycle_stage") == "deleted":
            self._post("experiments/restore", experiment_id=result)
            print(f"the MLflow experiment {name!r} had been deleted; it is restored", flush=True)
        return result

    def create(self, experiment: str, name: str, begun: int, tags: Mapping[str, str]) -> str:
        """Create an active MLflow run, and return its id. `begun` is in milliseconds since 1970, like all
        times in this module."""
        made = self._post(
            "runs/create", experiment_id=experiment, run_name=name, start_time=begun, tags=_pairs(tags)
        )
        run_id: str = made["run"]["info"]["run_id"]
        return run_id

    def set_state(self, run_id: str, state: str, ended: int | None = None) -> None:
        """Set the state of the MLflow run to RUNNING, FINISHED, FAILED or KILLED."""
        self._post(
            "runs/update", run_id=run_id, status=state, **({} if ended is None else {"end_time": ended})
        )

    def steps(self, run_id: str) -> dict[str, int]:
        """Return the last step of each metric that the server has received."""
        run_data = _content(self._client.get("/runs/get", params={"run_id": run_id}))["run"]["data"]
        return {str(one["key"]): int(one["step"]) for one in run_data.get("metrics", ())}

    def log_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """Send at most METRICS_A_BATCH metrics. If the same metrics are sent again, nothing changes."""
        self._post("runs/log-batch", run_id=run_id, metrics=metrics)

    def log_parameters(self, run_id: str, values: Mapping[str, object]) -> None:
        """Send any number of parameters."""
        pairs = _pairs(values)
        for first in range(0, len(pairs), PARAMETERS_A_BATCH):
            self._post("runs/log-batch", run_id=run_id, params=pairs[first : first + PARAMETERS_A_BATCH])

    def log_dataset(self, run_id: str, name: str, digest: str, source: str) -> None:
        """Record the dataset on which the MLflow run trains."""
        dataset = {
            "name": name,
            "digest": digest[:LONGEST_DIGEST],
            "source_type": "gridmill",
            "source": json.dumps({"uri": source}),
        }
        tags = [{"key": "mlflow.data.context", "value": "training"}]
        self._post("runs/log-inputs", run_id=run_id, datasets=[{"tags": tags, "dataset": dataset}])

    def artifact_root(self, run_id: str) -> str | None:
        """Return the address to which files of the MLflow run can be uploaded through the server.

        Return None if the server requires a storage to which only the MLflow client writes.
        """
        run = _content(self._client.get("/runs/get", params={"run_id": run_id}))["run"]
        scheme, _, path = str(run["info"].get("artifact_uri", "")).partition(":")
        return path.strip("/") if scheme == "mlflow-artifacts" else None

    def put_file(self, folder: str, name: str, path: Path) -> None:
        """Upload a file of an MLflow run, below its `artifact_root`, in chunks."""
        url = f"{str(self._client.base_url).rstrip('/')}-artifacts/artifacts/{folder}/{name}"
        with path.open("rb") as file:
            _check(self._client.put(url, content=iter(lambda: file.read(PIECE_BYTES), b"")))

    def _post(self, path: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401
        return _content(self._client.post(f"/{path}", json=body))


def _check(answer: httpx.Response) -> None:
    """Raise HTTPError with the message of the server. The error does not contain the address of the server,
    which may contain a password."""
    if not answer.is_success:
        text = " ".join(answer.text.split())
        if answer.headers.get("content-type", "").startswith("application/json"):
            content = answer.json()
            text = str(content.get("message", text)) if isinstance(content, dict) else text
        raise httpx.HTTPError(f"{answer.status_code} {answer.reason_phrase}: {text[:LONGEST_VALUE]}")


def _content(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON of the response. Raises the errors of `_check`."""
    _check(answer)
    content: dict[str, Any] = answer.json()
    return content


def plain(name: str) -> str:
    """Return the name with only the characters that MLflow allows."""
    return _ODD.sub("_", name)


def _pairs(values: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"key": plain(name), "value": str(value)[:LONGEST_VALUE]} for name, value in values.items()]


EVERY_SECONDS, AGAIN_SECONDS, REST = 5.0, 60.0, 20
"""The interval in seconds between two requests that send metrics, and the pause in seconds before a failed
server is tried again. The pause is at least REST times as long as the last request took."""
MOST_WAITING = 100_000
"""The largest number of metrics that wait for an unreachable server. If more metrics wait, the oldest
metrics are dropped."""
KEPT = "mlflow-run"
"""The file in the folder of checkpoints that records the MLflow run. If an attempt is killed, the next
attempt continues the recorded MLflow run."""
_STATES = {"COMPLETE": "FINISHED", "PRUNED": "KILLED"}

Tell = Callable[[str, float, float | None], None]
Trial = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedContext(JobContext):
    """A job context that also sends its metrics to MLflow."""

    send: Tell = field(default=lambda name, value, step: None)

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """Report a metric in the same way as JobContext, and send it to MLflow. If the context reports no
        metrics, it does not send metrics to MLflow either."""
        JobContext.metric(self, name, value, step)
        if self.events_fd is not None and isfinite(value):
            self.send(name, value, step)


@contextmanager
def tracking(spec: TrainingSpec, context: JobContext) -> Iterator["MlflowRun"]:
    """Return a context that reports the training in this job context to the server in `spec.track`.

    Errors of the MLflow server are only printed to the log. Raises InputError if `spec.track` uses an
    environment variable that is not set.
    """
    tracker = MlflowRun(spec, context)
    try:
        tracker.begin()
        yield tracker
    except BaseException as error:
        tracker.end("FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    finally:
        tracker.close()


class MlflowRun:
    """A run on the MLflow server.

    Data that cannot be sent waits until the server answers again.
    """

    def __init__(self, spec: TrainingSpec, context: JobContext) -> None:
        url = spec.track or ""
        self._url, self._spec, self._context = url, spec, context
        self._server = MlflowServer(fill_in(url, "training.track", in_url=True))
        self._experiment, self._run = "", ""
        self._steps: Mapping[str, int] = {}
        """The last step of each metric that a killed attempt has already sent. Steps that were already sent
        must be known, because the next attempt reports its curve again from the beginning."""
        self._waiting: deque[Metric] = deque(maxlen=MOST_WAITING)
        self._begun, self._next, self._warned = _now(), 0.0, False

    @property
    def context(self) -> JobContext:
        """Return the context for the training, which also sends the metrics of the training to the
        server."""
        own = {one.name: getattr(self._context, one.name) for one in fields(JobContext)}
        return TrackedContext(**own, send=self._queue_metric)

    def begin(self) -> None:
        """Create the MLflow run, so that the server shows it as running."""
        self._try(self._open, "it is sent later")

    def _queue_metric(self, name: str, value: float, step: float | None) -> None:
        self._waiting.append(_metric(name, value, step))
        if time.monotonic() >= self._next:
            self._try(self._send, "it is sent later")

    def finish(self, card: ModelCard, search: "TuningResult | None" = None) -> str | None:
        """Send the results and the files of the model. Return the id of the MLflow run. If the server does
        not answer, return None and print this to the log.

        The trials of a search become child runs.
        """

        def act() -> None:
            self._send()
            parameters = {"model": card.kind.value, "seed": card.seed, **card.options}
            self._server.log_parameters(self._run, parameters)
            if search is not None:
                for trial in search.trials:
                    self._send_trial(trial, search.metric)
            self._server.set_state(self._run, "FINISHED", _now())

        was_sent = self._try(act, "")
        if was_sent:
            self._try(self._send_files, "")
        return self._run if was_sent else None

    def _send_files(self) -> None:
        root = self._server.artifact_root(self._run)
        if root is None:
            print(
                f"no files are sent to MLflow at {self._url}: this server does not serve artifacts",
                flush=True,
            )
            return
        output = self._context.output
        for path in sorted(path for path in output.rglob("*") if path.is_file()):
            self._server.put_file(root, f"model/{path.relative_to(output).as_posix()}", path)

    def end(self, state: str) -> None:
        """Report to the server that the training has no result, if the server has the MLflow run."""
        if self._run:
            self._try(lambda: self._server.set_state(self._run, state, _now()), "")

    def close(self) -> None:
        """Close the connections to the server."""
        self._server.close()

    def _try(self, act: Callable[[], None], otherwise: str) -> bool:
        """Return whether the server accepted the request. The first and the last failure of the server are
        printed to the log."""
        begun = time.monotonic()
        try:
            act()
        except TROUBLES as error:
            if not (self._warned and otherwise):
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                print(
                    f"not sent to MLflow at {self._url}: {why}" + (f"; {otherwise}" if otherwise else ""),
                    flush=True,
                )
            self._warned, took = True, time.monotonic() - begun
            self._next = time.monotonic() + max(AGAIN_SECONDS, REST * took)
            return False
        self._next = time.monotonic() + max(EVERY_SECONDS, REST * (time.monotonic() - begun))
        return True

    def _open(self) -> None:
        """Continue the MLflow run of a killed attempt. If no attempt created an MLflow run before, create a
        new MLflow run."""
        if self._run:
            return
        self._experiment = self._server.experiment(self._context.order.pipeline)
        kept = self._kept()
        if kept is not None and kept.exists():
            self._take_over(kept.read_text())
        if not self._run:
            order = self._context.order
            name = f"{order.job.name} {order.attempt_id}"
            self._run = self._server.create(self._experiment, name, self._begun, self._tags())
            dataset = self._context.input(self._spec.dataset)
            source = str(self._context.below_root(dataset.output.uri))
            self._server.log_dataset(self._run, dataset.id, dataset.fingerprint, source)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(self._run)

    def _take_over(self, run_id: str) -> None:
        try:
            self._server.set_state(run_id, "RUNNING")
            self._steps = self._server.steps(run_id)
        except TROUBLES:
            return  # not continued, because the run was deleted or belongs to another server
        self._run = run_id

    def _kept(self) -> Path | None:
        """Return the folder of checkpoints. Return None for a training by a script, because the folder
        belongs to the script."""
        folder = self._context.checkpoints
        return folder / KEPT if folder is not None and self._spec.model != ModelKind.CUSTOM else None

    def _tags(self) -> Mapping[str, str]:
        order = self._context.order
        tags = {
            "mlflow.source.type": "JOB",
            "mlflow.source.name": f"{order.pipeline}/{order.job.name}",
            "gridmill.run": order.run_id,
            "gridmill.attempt": order.attempt_id,
            "gridmill.dataset": self._context.input(self._spec.dataset).id,
        }
        return tags | ({"gridmill.code": order.bundle} if order.bundle else {})

    def _send(self) -> None:
        self._open()
        while self._waiting:
            some = list(islice(self._waiting, METRICS_A_BATCH))
            if fresh := [one for one in some if self._is_new(one)]:
                self._server.log_metrics(self._run, fresh)
            for _ in some:
                self._waiting.popleft()

    def _is_new(self, metric: Metric) -> bool:
        return metric["key"] not in self._steps or int(metric["step"]) > self._steps[str(metric["key"])]

    def _send_trial(self, trial: Trial, metric: str) -> None:
        tags = {"mlflow.parentRunId": self._run, "gridmill.attempt": self._context.order.attempt_id}
        ended = _now()
        begun = ended - int(1000 * (trial["seconds"] or 0.0))
        run_id = self._server.create(self._experiment, f"trial {trial['number']}", begun, tags)
        self._server.log_parameters(run_id, trial["parameters"])
        if trial["value"] is not None:
            self._server.log_metrics(run_id, [_metric(f"validation_{metric}", trial["value"], None)])
        self._server.set_state(run_id, _STATES.get(trial["state"].upper(), "FAILED"), ended)


def _metric(name: str, value: float, step: float | None) -> Metric:
    return {"key": plain(name), "value": value, "timestamp": _now(), "step": int(step or 0)}


def _now() -> int:
    """Return the current time in milliseconds since 1970."""
    return int(time.time() * 1000)
