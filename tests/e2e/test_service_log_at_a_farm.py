"""The logged requests of a service at a farm become rows of a table at home, and its drift becomes an event.
Home is host alpha, the farm is host beta."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.e2e.test_services_with_features import csv_rows
from tests.kit.farmland import FARM, STORAGE, Farmland
from tests.kit.machines import two_hosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
PIPELINE = """
pipeline: w
jobs:
  rows:
    sink: {source: {path: rows.csv}}
  features:
    dataset:
      basis: {table: rows, time: day, entity: id}
      label: {column: y, steps: 1}
      split: {validation: 0.2, test: 0.2}
  m:
    training: {dataset: features, model: gbdt, trees: 2}
"""
LOG = "pipeline: log\njobs:\n  rows: {sink: {source: {path: 'service://far'}}}\n"
SENDS = """
import json, sys, urllib.request
port, first, last, rows = map(int, sys.argv[1:])
body = json.dumps({"rows": [{"x": 50.0, "y": 99.0, "id": 1}] * rows}).encode()
for number in range(first, last):
    headers = {"content-type": "application/json", "x-request-id": f"id-{number}"}
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, headers)).read()
print(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
"""
ROWS = 100


@pytest.fixture
def land() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        yield Farmland(net, shared)


class Service:
    """The service `far` at the farm, with all its requests logged."""

    def __init__(self, land: Farmland) -> None:
        self.land, self.sent = land, 0
        start = ("start", "service", "far", "--model", "w/m", "--resource", "far-servers")
        land.gridmill(*start, "--log-requests", "1", "--log-bodies")
        self.port = self.shown()["service"]["port"]

    def shown(self) -> Any:
        return json.loads(self.land.gridmill("show", "service", "far", "--json"))

    def send(self, number: int) -> str:
        """Send further requests, and return the metrics."""
        numbers = (self.sent, self.sent + number, ROWS)
        self.sent += number
        return self.land.alpha.run(sys.executable, "-c", SENDS, str(self.port), *map(str, numbers))

    def is_written(self) -> bool:
        """Whether the rows of all requests are in files at home or at the farm."""
        found = [
            int(host.run("bash", "-c", f"find {folder} -type f -name 'rows-*' | xargs -r cat | wc -l"))
            for host, folder in ((self.land.alpha, STORAGE), (self.land.beta, FARM))
        ]
        return sum(found) >= self.sent * ROWS

    def logged(self) -> list[tuple[str, int]]:
        """The request and the number of each row that a sink has loaded."""
        pipeline = self.land.shared / "log.yaml"
        pipeline.write_text(LOG)
        self.land.gridmill("run", str(pipeline))
        shown = json.loads(self.land.gridmill("preview", "log/rows", "--rows", "10000", "--json"))
        names = [column["name"] for column in shown["columns"]]
        rows = [dict(zip(names, row, strict=True)) for row in shown["rows"]]
        assert {(one["x"], one["version"]) for one in rows} == {(50.0, "w/m@1")}
        return sorted((one["request_id"], one["request_row"]) for one in rows)


def test_a_service_at_a_farm_logs_each_row_once_and_reports_its_drift(land: Farmland) -> None:
    pipeline = land.shared / "w.yaml"
    pipeline.write_text(PIPELINE)
    (land.shared / "rows.csv").write_text(csv_rows(112))
    land.gridmill("run", str(pipeline))
    land.gridmill(
        "configure", "resource", "far-servers", "--type", "service", "--site", "far", "--memory", "2GiB"
    )
    service = Service(land)
    service.send(12)

    def is_drift_shown() -> bool:
        report = service.shown()["service"]["report"]
        return any("x" in one["drifting"] for one in report["drift"])

    land.wait(is_drift_shown, "the drift of x is reported")
    metrics = service.send(1)
    assert 'gridmill_drift_psi{version="w/m@1",feature="x"}' in metrics
    assert 'kind="predict",status="200"} 13' in metrics

    # a killed replica and a killed control node lose no row that was written
    land.wait(service.is_written, "all rows are written")
    land.beta.run("pkill", "-KILL", "-f", "gridmill.serving.replica")
    service.send(3)
    land.wait(service.is_written, "the further rows are written")
    land.kill(land.alpha, "up")
    service.send(2)
    land.control()
    land.wait(lambda: service.shown()["state"] == "running", "it runs")
    assert json.loads(land.gridmill("stop", "service", "far", "--json"))["state"] == "stopped"
    assert service.logged() == sorted((f"id-{n}", row) for n in range(service.sent) for row in range(ROWS))
    land.clear()
    land.wait(lambda: not land.on_farm("find", FARM, "-name", "rows-*").strip(), "the farm has no log")
