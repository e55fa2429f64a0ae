"""The few requests to an MLflow server that tracking takes, by its REST API."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from gridmill.errors import InputError

TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""Seconds. A busy server takes its time; one that is not there is found out at once."""
TROUBLES = (httpx.HTTPError, AttributeError, KeyError, TypeError, ValueError)
"""What comes of a server that does not answer, or not as MLflow does."""
METRICS_A_BATCH, PARAMETERS_A_BATCH, LONGEST_VALUE, LONGEST_DIGEST = 1000, 100, 500, 36
PIECE_BYTES = 1 << 20
_ODD = re.compile(r"[^\w.\- :/]")

Metric = Mapping[str, str | float | int]


class Server:
    """An MLflow server at `url`; a user and password in it are used. Raises TROUBLES; InputError for what is
    no address."""

    def __init__(self, url: str) -> None:
        try:
            self._client = httpx.Client(base_url=url.rstrip("/") + "/api/2.0/mlflow", timeout=TIMEOUT)
        except httpx.InvalidURL as error:
            raise InputError(f"no address of an MLflow server: {error}", place="training.track") from error

    def close(self) -> None:
        """Let its connections go."""
        self._client.close()

    def experiment(self, name: str) -> str:
        """The id of the experiment of that name, made where there is none; one that was deleted is restored,
        as MLflow gives its name to no other."""
        found = self._find(name)
        if found is None:
            answer = self._client.post("/experiments/create", json={"name": name})
            found = self._find(name) if answer.is_client_error else _content(answer)["experiment_id"]
            if found is None:  # refused, and not because somebody else has just made it
                _content(answer)
        return str(found)

    def _find(self, name: str) -> str | None:
        answer = self._client.get("/experiments/get-by-name", params={"experiment_name": name})
        if answer.status_code == httpx.codes.NOT_FOUND and "error_code" in answer.text:
            return None
        experiment = _content(answer)["experiment"]
        found: str = experiment["experiment_id"]
        if experiment.get("lifecycle_stage") == "deleted":
            self._post("experiments/restore", experiment_id=found)
            print(f"the MLflow experiment {name!r} had been deleted; it is restored", flush=True)
        return found

    def create(self, experiment: str, name: str, begun: int, tags: Mapping[str, str]) -> str:
        """A run that is under way; its id. `begun` is in milliseconds since 1970, as all times here."""
        made = self._post(
            "runs/create", experiment_id=experiment, run_name=name, start_time=begun, tags=_pairs(tags)
        )
        run_id: str = made["run"]["info"]["run_id"]
        return run_id

    def set_state(self, run_id: str, state: str, ended: int | None = None) -> None:
        """RUNNING, FINISHED, FAILED or KILLED."""
        self._post(
            "runs/update", run_id=run_id, status=state, **({} if ended is None else {"end_time": ended})
        )

    def steps(self, run_id: str) -> dict[str, int]:
        """How far each metric of the run was told."""
        found = _content(self._client.get("/runs/get", params={"run_id": run_id}))["run"]["data"]
        return {str(one["key"]): int(one["step"]) for one in found.get("metrics", ())}

    def log_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """At most METRICS_A_BATCH. Saying the same ones again does no harm."""
        self._post("runs/log-batch", run_id=run_id, metrics=metrics)

    def log_parameters(self, run_id: str, values: Mapping[str, object]) -> None:
        """As many as there are."""
        pairs = _pairs(values)
        for first in range(0, len(pairs), PARAMETERS_A_BATCH):
            self._post("runs/log-batch", run_id=run_id, params=pairs[first : first + PARAMETERS_A_BATCH])

    def log_dataset(self, run_id: str, name: str, digest: str, source: str) -> None:
        """The dataset that the run learns from."""
        dataset = {
            "name": name,
            "digest": digest[:LONGEST_DIGEST],
            "source_type": "gridmill",
            "source": json.dumps({"uri": source}),
        }
        tags = [{"key": "mlflow.data.context", "value": "training"}]
        self._post("runs/log-inputs", run_id=run_id, datasets=[{"tags": tags, "dataset": dataset}])

    def artifact_root(self, run_id: str) -> str | None:
        """Where files of the run are put through the server; None where it wants them in a storage that only
        MLflow's own client writes to."""
        run = _content(self._client.get("/runs/get", params={"run_id": run_id}))["run"]
        scheme, _, path = str(run["info"].get("artifact_uri", "")).partition(":")
        return path.strip("/") if scheme == "mlflow-artifacts" else None

    def put_file(self, folder: str, name: str, path: Path) -> None:
        """A file of a run, below its `artifact_root`, in pieces."""
        url = f"{str(self._client.base_url).rstrip('/')}-artifacts/artifacts/{folder}/{name}"
        with path.open("rb") as file:
            _check(self._client.put(url, content=iter(lambda: file.read(PIECE_BYTES), b"")))

    def _post(self, path: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401
        return _content(self._client.post(f"/{path}", json=body))


def _check(answer: httpx.Response) -> None:
    """Raise HTTPError with the server's own words, and without the address, which may hold a password."""
    if not answer.is_success:
        said = " ".join(answer.text.split())
        if answer.headers.get("content-type", "").startswith("application/json"):
            content = answer.json()
            said = str(content.get("message", said)) if isinstance(content, dict) else said
        raise httpx.HTTPError(f"{answer.status_code} {answer.reason_phrase}: {said[:LONGEST_VALUE]}")


def _content(answer: httpx.Response) -> dict[str, Any]:
    """The answer's JSON. Raises what `_check` raises."""
    _check(answer)
    content: dict[str, Any] = answer.json()
    return content


def plain(name: str) -> str:
    """The name as MLflow takes it."""
    return _ODD.sub("_", name)


def _pairs(values: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"key": plain(name), "value": str(value)[:LONGEST_VALUE]} for name, value in values.items()]
