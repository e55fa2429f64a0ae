"""A service at a farm that computes windows by key: its view is sent from home, and its answers equal those
of a service at home. Home is host alpha, the farm is host beta."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.e2e.test_services_with_features import PIPELINE, csv_rows
from tests.kit.farmland import FARM, Farmland
from tests.kit.machines import two_hosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
ASKS = """
import sys, urllib.request
kind = {"content-type": "application/json"}
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, kind)
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
ROWS = [
    {"id": key, "x": 1.0, "y": 2.0, "day": f"2024-{day}T12:00:00Z"}
    for key in (1, 2, 9)
    for day in ("04-26", "04-29", "05-01", "05-09")
]


@pytest.fixture
def land() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        yield Farmland(net, shared)


class Services:
    """The service `near` at home, and the service `far` at the farm, with the same version."""

    def __init__(self, land: Farmland) -> None:
        self.land = land
        self.ports = {name: self.shown(name)["service"]["port"] for name in ("near", "far")}

    def shown(self, name: str) -> Any:
        return json.loads(self.land.gridmill("show", "service", name, "--json"))

    def asked(self, name: str, path: str, body: str = "") -> str:
        url = f"http://127.0.0.1:{self.ports[name]}/{path}"
        return self.land.alpha.run(sys.executable, "-c", ASKS, url, body)

    def answer(self, name: str) -> Any:
        """The predictions, the values and the statuses of some rows."""
        answer = json.loads(self.asked(name, "predict?features=values", json.dumps({"rows": ROWS})))
        return {part: answer[part] for part in ("predictions", "features")}

    def holds(self, number: int) -> bool:
        """Whether both services have the version of the table, and then the same answers."""
        answers = [self.answer(name) for name in ("near", "far")]
        if any(one["features"]["view"] != {"rows": number} for one in answers):
            return False
        assert answers[0] == answers[1]
        return True

    def age_seconds(self) -> float:
        """The age of the view at the farm."""
        lines = self.asked("far", "metrics").splitlines()
        found = [line for line in lines if line.startswith("gridmill_view_age_seconds{")]
        return float(found[0].split()[-1])


@pytest.mark.long
def test_a_service_at_a_farm_computes_the_features_of_the_service_at_home(land: Farmland) -> None:
    pipeline, rows, rules = (land.shared / name for name in ("w.yaml", "rows.csv", "rules.yaml"))
    pipeline.write_text(PIPELINE)
    rows.write_text(csv_rows(112))
    rules.write_text("reach_back: all\nrules:\n  x_mean_2d: {max_age: 1d, default: -1}\n")
    land.gridmill("run", str(pipeline))
    land.gridmill(
        "configure", "resource", "far-servers", "--type", "service", "--site", "far", "--memory", "2GiB"
    )
    start = ("--model", "w/m", "--features", str(rules))
    land.gridmill("start", "service", "near", *start)
    land.gridmill("start", "service", "far", *start, "--resource", "far-servers")
    services = Services(land)
    first = services.answer("far")
    (number,) = first["features"]["view"].values()
    assert {"stale", "defaulted"} <= first["features"].keys()
    land.wait(lambda: services.holds(number), "both have the first version")

    # rows that are loaded later reach the farm
    (land.shared / "more.csv").write_text("id,day,x,y\n1,2024-05-01,5,7\n2,2024-04-25,3,1\n")
    load = ("run", str(pipeline), "--set", f"file={land.shared / 'more.csv'}", "--only", "rows")
    land.gridmill(*load)
    land.wait(lambda: services.holds(number + 1), "both have the new rows")
    assert services.answer("far") != first

    def is_shown() -> bool:
        (view,) = services.shown("far")["service"]["report"]["views"]
        return bool((view["state"], view["held"]) == ("fresh", {"rows": "w/rows@2"}))

    land.wait(is_shown, "the report")
    assert "w/rows@2" in land.gridmill("show", "service", "far")

    # without a control node, the service answers from the view that it has, which gets older
    land.kill(land.alpha, "up")
    age = services.age_seconds()
    land.wait(lambda: services.age_seconds() > age + 6, "the view gets older")
    assert services.holds(number + 1)
    land.control()
    land.wait(lambda: services.age_seconds() < 6, "the view is fresh again")

    # a corrected file replaces its rows
    (land.shared / "more.csv").write_text("id,day,x,y\n1,2024-05-01,6,7\n")
    land.gridmill(*load)
    land.wait(lambda: services.holds(number + 2), "both have the correction")
    for name in ("near", "far"):
        assert json.loads(land.gridmill("stop", "service", name, "--json"))["state"] == "stopped"
    land.clear()
    left = land.on_farm("find", FARM, "-name", "*.sqlite", "-path", "*features*")
    assert left.strip() == ""
