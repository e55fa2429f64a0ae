"""What a training came to, told to an MLflow server: by its REST API, and never at the training's expense."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from gridmill.jobs.context import JobContext
from gridmill.jobs.models import Card
from gridmill.jobs.training.fitted import Fitted

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""Seconds. A busy server takes its time; one that is not there is found out at once."""
METRICS_A_BATCH, LONGEST_VALUE = 1000, 500


def track(url: str, context: JobContext, card: Card, fitted: Fitted) -> str | None:
    """Log the model as a run of the experiment named like the pipeline; returns its id.

    None where the server does not answer, or not as MLflow does: a line in the log says so.
    """
    try:
        with httpx.Client(base_url=url.rstrip("/") + "/api/2.0/mlflow", timeout=TIMEOUT) as client:
            return _log(client, context, card, fitted)
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, TypeError, ValueError) as error:
        print(f"not told to MLflow at {url}: {type(error).__name__}: {error}", flush=True)
        return None


def _log(client: httpx.Client, context: JobContext, card: Card, fitted: Fitted) -> str:
    now = int(time.time() * 1000)
    order = context.order
    run = _post(
        client,
        "runs/create",
        experiment_id=_experiment(client, order.pipeline),
        run_name=f"{order.job.name} {order.attempt_id}",
        start_time=now,
        tags=_pairs({"gridmill.attempt": order.attempt_id, "gridmill.dataset": card.dataset}),
    )
    run_id: str = run["run"]["info"]["run_id"]
    parameters = {"model": card.kind.value, "seed": card.seed, **card.options}
    _post(client, "runs/log-batch", run_id=run_id, params=_pairs(parameters))
    metrics = _metrics(card, fitted, now)
    for first in range(0, len(metrics), METRICS_A_BATCH):
        _post(client, "runs/log-batch", run_id=run_id, metrics=metrics[first : first + METRICS_A_BATCH])
    _post(client, "runs/update", run_id=run_id, status="FINISHED", end_time=int(time.time() * 1000))
    return run_id


def _experiment(client: httpx.Client, name: str) -> str:
    answer = client.get("/experiments/get-by-name", params={"experiment_name": name})
    if answer.status_code == httpx.codes.NOT_FOUND:
        created: str = _post(client, "experiments/create", name=name)["experiment_id"]
        return created
    answer.raise_for_status()
    found: str = answer.json()["experiment"]["experiment_id"]
    return found


def _post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401
    answer = client.post(f"/{path}", json=body)
    answer.raise_for_status()
    content: dict[str, Any] = answer.json()
    return content


def _pairs(values: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"key": name, "value": str(value)[:LONGEST_VALUE]} for name, value in values.items()]


def _metrics(card: Card, fitted: Fitted, now: int) -> Sequence[Mapping[str, Any]]:
    """The final ones, and the curves by step."""
    last = [
        {"key": name, "value": value, "timestamp": now, "step": 0} for name, value in card.metrics.items()
    ]
    curves: list[dict[str, Any]] = [
        {"key": name, "value": point[place], "timestamp": now, "step": int(point[0])}
        for point in fitted.curve
        for place, name in ((1, "train_loss"), (2, "validation_loss"))
    ]
    return [*last, *curves]
