"""A service on a Ray cluster that computes windows by key: its node copies the view from the storage root,
and its answers equal those of a service at home."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.e2e.test_features_at_a_farm import ROWS
from tests.e2e.test_services_with_features import PIPELINE, call, csv_rows
from tests.kit.farms import open_folder
from tests.kit.ray import ENVIRONMENT, needs_ray, ray_cluster, remove_homes_on_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.long, needs_ray]


class Lab:
    """The service `near` at home, and the service `far` on Ray, with the same version."""

    def __init__(self, place: Place, address: str) -> None:
        self._place = place
        self.gridmill("add", "site", "lab", "--kind", "ray", "--address", address)
        self.file = place.write(PIPELINE)
        place.write(csv_rows(112), "rows.csv")
        self.gridmill("run", self.file)
        rules = "reach_back: all\nrules:\n  x_mean_2d: {max_age: 1d, default: -1}\n"
        start = ("--model", "w/m", "--features", place.write(rules, "rules.yaml"))
        words = ("--type", "service", "--site", "lab", "--cpus", "1", "--memory", "2GiB")
        self.gridmill("configure", "resource", "servers", *words)
        self.gridmill("start", "service", "near", *start)
        self.gridmill("start", "service", "far", *start, "--resource", "servers", "--accept-open")
        self.ports = {name: self.shown(name)["service"]["port"] for name in ("near", "far")}

    def gridmill(self, *words: str) -> str:
        done = self._place.gridmill(*words, **ENVIRONMENT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def load(self, text: str) -> None:
        """Load rows; the rows of an earlier call are replaced."""
        self._place.write(text, "more.csv")
        self.gridmill("run", self.file, "--set", "file=more.csv", "--only", "rows")

    def shown(self, name: str) -> Any:
        return json.loads(self.gridmill("show", "service", name, "--json"))

    def view(self) -> Any:
        """The report about the view on the node."""
        return self.shown("far")["service"]["report"]["views"][0]

    def answer(self, name: str) -> Any:
        """The predictions, the values and the statuses of some rows."""
        status, answer = call(self.ports[name], "/predict?features=values", {"rows": ROWS})
        return {part: answer[part] for part in ("predictions", "features")} if status == 200 else {}

    def hold(self, number: int) -> bool:
        """Whether both services have the version of the table, and then the same answers."""
        answers = [self.answer(name) for name in ("near", "far")]
        if any(one.get("features", {}).get("view") != {"rows": number} for one in answers):
            return False
        assert answers[0] == answers[1]
        return True

    def wait(self, number: int) -> None:
        assert eventually(lambda: self.hold(number), PATIENCE_SECONDS), self.shown("far")

    def copies(self) -> list[Path]:
        """The SQLite files of the node."""
        (path,) = self._place.home.glob("sites/lab/mark")
        return list(Path(f"/tmp/gridmill-{path.read_text()}").glob("**/views/*/view-*.sqlite"))

    def age_seconds(self) -> float:
        """The age of the view on the node."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['far']}/metrics") as response:
            lines = response.read().decode().splitlines()
        return float(next(one for one in lines if one.startswith("gridmill_view_age_seconds{")).split()[-1])


def test_a_service_on_ray_computes_the_features_of_the_service_at_home(place: Place) -> None:
    with open_folder() as folder, ray_cluster(folder / "ray", cpus=2) as address:
        lab = Lab(place, address)
        try:
            compared(lab)
        finally:
            place.gridmill("down", "--all", **ENVIRONMENT)
            remove_homes_on_nodes(place.home)


def compared(lab: Lab) -> None:
    first = lab.answer("far")
    (number,) = first["features"]["view"].values()
    assert {"stale", "defaulted"} <= first["features"].keys()
    lab.wait(number)
    assert len(lab.copies()) == 1

    # rows that are loaded later, and a correction of them
    lab.load("id,day,x,y\n1,2024-05-01,5,7\n2,2024-04-25,3,1\n")
    lab.wait(number + 1)
    assert lab.answer("far") != first
    lab.load("id,day,x,y\n1,2024-05-01,6,7\n")
    lab.wait(number + 2)
    fresh = ("fresh", {"rows": "w/rows@3"})
    assert eventually(lambda: (lab.view()["state"], lab.view()["held"]) == fresh, PATIENCE_SECONDS)

    # without a control node, the service answers from the view that it has, which gets older
    lab.gridmill("down")
    age = lab.age_seconds()
    assert eventually(lambda: lab.age_seconds() > age + 6, PATIENCE_SECONDS)
    assert lab.hold(number + 2)

    # another pod copies the view again
    report = lab.shown("far")["service"]["report"]
    pod = Path(f"/proc/{report['pid']}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(pod), signal.SIGKILL)
    lab.load("id,day,x,y\n1,2024-05-01,6,7\n9,2024-05-01,1,7\n")
    lab.wait(number + 3)
    assert lab.shown("far")["service"]["report"]["pid"] != report["pid"]
    assert eventually(lambda: lab.age_seconds() < 6, PATIENCE_SECONDS)
    for name in ("near", "far"):
        lab.gridmill("stop", "service", name)
    assert eventually(lambda: lab.copies() == [], PATIENCE_SECONDS)
