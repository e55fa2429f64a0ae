"""A service of a home: its requests go on while its alias moves, while its control node is killed, and while
it returns to the version before."""

import os
import signal

import pytest

from tests.e2e.conftest import Place, eventually
from tests.kit.services import Load

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: w
parameters:
  trees: 2
jobs:
  rows:
    sink: {source: {path: rows.csv}}
  features:
    dataset:
      basis: {table: rows, time: day}
      label: {column: y, steps: 1}
      split: {validation: 0.2, test: 0.2}
  m:
    training: {dataset: features, model: gbdt, trees: "${trees}"}
"""
BODY = {"rows": [{"x": 1.5, "y": 3.0}]}


def versions_of_a_model(place: Place) -> None:
    """Make two versions of `w/m`, with the alias `champion` of the first."""
    file = place.write(PIPELINE)
    rows = [f"2024-{1 + day // 28:02}-{1 + day % 28:02},{day % 7},{day % 7 * 2}" for day in range(112)]
    place.write("\n".join(["day,x,y", *rows, ""]), "rows.csv")
    for trees in (2, 3):
        done = place.gridmill("run", file, "--set", f"trees={trees}")
        assert done.returncode == 0, done.stderr
    assert place.gridmill("configure", "model", "w/m", "--alias", "champion=1").returncode == 0


def pids(view: dict) -> set[int]:
    return {one["pid"] for one in view["service"]["report"]["replicas"]}


def test_requests_go_on_while_the_alias_moves_and_while_the_control_node_is_killed(place: Place) -> None:
    versions_of_a_model(place)
    view = place.json("start", "service", "rain", "--model", "w/m@champion", "--replicas", "2")
    assert (view["state"], view["ready"], view["service"]["version"]) == ("running", 2, "w/m@1")
    port = view["service"]["port"]

    def shown() -> dict:
        return place.json("show", "service", "rain")

    with Load(port, BODY, clients=2) as load:
        place.gridmill("configure", "model", "w/m", "--alias", "champion=2")
        assert eventually(
            lambda: (seen := shown())["state"] == "running" and seen["service"]["generation"] == 2
        )
        before = shown()
        os.kill(place.node_pid(), signal.SIGKILL)
        load.wait_for_more(20)
        assert eventually(lambda: shown()["state"] == "running")
        assert pids(shown()) == pids(before)
        back = place.json("rollback", "service", "rain")
        assert (back["state"], back["service"]["version"], back["service"]["port"]) == (
            "running",
            "w/m@1",
            port,
        )
    assert load.failures == []
    assert set(load.statuses) == {200}
    assert set(load.versions) == {"w/m@1", "w/m@2"}

    refused = place.gridmill("remove", "model", "w/m@2", "--force")
    assert "service 'rain' serves w/m@2, or can return to it" in refused.stderr
    stopped = place.json("stop", "service", "rain")
    assert stopped["state"] == "stopped"
    assert eventually(lambda: not [pid for pid in pids(before) if os.path.exists(f"/proc/{pid}")])
    again = place.json("start", "service", "rain")
    assert again["service"]["port"] == port
    assert place.json("stop", "service", "rain")["state"] == "stopped"
