"""A service in two pods on a Ray cluster of two nodes: its numbers are those of both pods, and no counter
decreases when a pod is killed, replaced, or no longer needed."""

import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.e2e.test_services_with_features import csv_rows
from tests.kit.ray import needs_ray
from tests.kit.ray_home import RayHome, ray_home

pytestmark = [pytest.mark.e2e, pytest.mark.long, needs_ray]
PIPELINE = """
pipeline: w
jobs:
  rows: {sink: {source: {path: rows.csv}}}
  features:
    dataset:
      basis: {table: rows, time: day, entity: id}
      label: {column: y, steps: 1}
      split: {validation: 0.2, test: 0.2}
  m:
    training: {dataset: features, model: gbdt, trees: 2}
"""
ROWS, REQUESTS = 15, 40
ANSWERED = 'gridmill_requests_total{version="w/m@1",kind="predict",status="200"}'


class Rain:
    """The service `rain` in two pods, and the metrics at its address."""

    def __init__(self, home: RayHome) -> None:
        self.home = home
        file = home.place.write(PIPELINE)
        home.place.write(csv_rows(112), "rows.csv")
        home.gridmill("run", file)
        home.configure()
        start = ("start", "service", "rain", "--model", "w/m", "--resource", "servers", "--accept-open")
        home.gridmill(*start, "--pods", "2")
        self.port = home.wait("running", "w/m@1")["service"]["port"]
        self.before: dict[str, float] = {}

    def request(self, method: str, path: str, body: str | None = None) -> str:
        """The text of an answer on a new connection, so that the pods take turns."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            return text
        finally:
            connection.close()

    def send(self, requests: int) -> None:
        """Send rows that differ from those of the training."""
        body = json.dumps({"rows": [{"x": 50.0, "y": 99.0, "id": 1}] * ROWS})
        for _ in range(requests):
            self.request("POST", "/predict", body)

    def metrics(self) -> dict[str, float]:
        """The metrics by key. None of the counters is less than before."""
        found: dict[str, float] = {}
        for line in self.request("GET", "/metrics").splitlines():
            if not line.startswith("#"):
                key, _, value = line.rpartition(" ")
                found[key] = float(value)
        counters = {key: value for key, value in found.items() if key.partition("{")[0].endswith("_total")}
        assert {key: value for key, value in self.before.items() if counters.get(key, -1.0) < value} == {}
        self.before = counters
        return found

    def answered(self) -> float:
        return self.metrics().get(ANSWERED, 0.0)

    def totals(self) -> Any:
        return self.home.shown()["totals"]

    def wait(self, test: Any) -> None:
        assert eventually(test, PATIENCE_SECONDS), self.home.shown()


def test_the_numbers_of_a_service_are_those_of_both_pods_also_after_the_end_of_one(place: Place) -> None:
    with ray_home(place, nodes=2) as home:
        both_pods(Rain(home))


def both_pods(rain: Rain) -> None:
    rain.send(REQUESTS)
    rain.wait(lambda: rain.answered() == REQUESTS)
    for _ in range(4):  # whichever pod would have answered
        assert rain.answered() == REQUESTS
    found = rain.metrics()
    reached = {key: value for key, value in found.items() if key.startswith("gridmill_pod_reachable")}
    assert reached == {f'gridmill_pod_reachable{{pod="{name}"}}': 1.0 for name in ("serve", "serve-2")}
    assert found['gridmill_request_seconds_count{version="w/m@1"}'] == REQUESTS
    assert all('pod="' in key for key in found if key.startswith("gridmill_memory_bytes"))

    # each pod has too few rows to know its drift, or not those of the other pod
    def is_drift_of_both() -> bool:
        drift = rain.totals()["drift"]
        return [(one["rows"], one["pods"]) for one in drift] == [(REQUESTS * ROWS, 2)]

    rain.wait(is_drift_of_both)
    totals = rain.totals()
    assert "x" in totals["drift"][0]["drifting"]
    assert (totals["ready"], totals["wanted"], len(totals["pods"])) == (2, 2, 2)
    assert totals["memory_bytes"] == sum(one["memory_bytes"] for one in totals["pods"])
    text = rain.home.gridmill("show", "service", "rain")
    assert f"of {REQUESTS * ROWS} rows in 2 pods" in " ".join(text.split())

    # a killed replica is a restart of the service, and stays one after the end of its pod
    [killed, _] = rain.home.shown()["service"]["further_pods"] + [rain.home.shown()["service"]]
    os.kill(killed["report"]["replicas"][0]["pid"], signal.SIGKILL)
    rain.wait(lambda: rain.totals()["restarts"] == 1 and rain.totals()["ready"] == 2)
    attempts = {one["attempt_id"] for one in rain.totals()["pods"]}
    rain.metrics()
    pod = Path(f"/proc/{killed['report']['pid']}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(pod), signal.SIGKILL)
    rain.wait(lambda: rain.metrics() and {one["attempt_id"] for one in rain.totals()["pods"]} != attempts)
    rain.home.wait("running", "w/m@1")
    rain.wait(lambda: rain.totals()["ready"] == 2)
    assert rain.totals()["restarts"] == 1
    assert rain.answered() == REQUESTS

    rain.send(10)
    rain.wait(lambda: rain.answered() == REQUESTS + 10)
    rain.home.gridmill("update", "service", "rain", "--pods", "1")
    rain.wait(lambda: rain.metrics() and len(rain.totals()["pods"]) == 1)
    assert rain.totals()["restarts"] == 1
    assert rain.answered() == REQUESTS + 10
    rain.home.gridmill("stop", "service", "rain")
