"""A service whose replicas run at a farm, behind a router at home. Home is host alpha, the farm is host
beta."""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.kit.farmland import Farmland
from tests.kit.machines import two_hosts
from tests.kit.service_load import answers, load_words
from tests.unit.jobs.training.test_imported import weighted

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
BODY = {"rows": [{"temp": 1.5, "wind": 3.0}]}


@pytest.fixture
def land() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        yield Farmland(net, shared)


def versions_of_a_model(land: Farmland) -> None:
    """Make two versions of `w/model`, of which only the second has golden rows, with the alias `champion` of
    the first."""
    given = {name: land.shared / name for name in ("net.onnx", "signature.yaml", "samples.csv")}
    given["net.onnx"].write_bytes(weighted())
    given["signature.yaml"].write_text("features: [temp, wind]\nlabel: rain\n")
    given["samples.csv"].write_text("temp,wind\n1,2\n3,4\n")
    words = ("import", "model", "w", str(given["net.onnx"]), "--signature", str(given["signature.yaml"]))
    land.gridmill(*words)
    land.gridmill(*words, "--samples", str(given["samples.csv"]))
    land.gridmill("configure", "model", "w/model", "--alias", "champion=1")


def asked(land: Farmland, *words: str) -> Any:
    return json.loads(land.gridmill(*words, "--json"))


class Requests:
    """Requests that a client at home sends one after the other."""

    def __init__(self, land: Farmland, port: int) -> None:
        self._land, self._log = land, land.shared / "load.log"
        land.start(land.alpha, "load", *load_words(sys.executable, port, BODY))

    def seen(self) -> list[tuple[str, str]]:
        return answers(self._log)

    def wrong(self) -> list[tuple[str, str]]:
        return [one for one in self.seen() if one[0] != "200"]

    def more(self, number: int = 20) -> None:
        before = len(self.seen())
        self._land.wait(lambda: len(self.seen()) >= before + number, f"{number} more answers")

    def end(self) -> list[tuple[str, str]]:
        self._land.kill(self._land.alpha, "load")
        return self.seen()


@pytest.mark.long
def test_a_service_at_a_farm_answers_at_home_whatever_ends(land: Farmland) -> None:
    versions_of_a_model(land)
    land.gridmill(
        "configure", "resource", "far-servers", "--type", "service", "--site", "far", "--memory", "2GiB"
    )
    words = ("start", "service", "rain", "--model", "w/model@champion", "--resource", "far-servers")
    view = asked(land, *words)
    assert (view["state"], view["ready"], view["service"]["route"]["site"]) == ("running", 1, "far")
    port = view["service"]["port"]
    requests = Requests(land, port)
    requests.more()

    def shown() -> Any:
        return asked(land, "show", "service", "rain")

    # a new version is transferred, and taken over without a failed request
    land.gridmill("configure", "model", "w/model", "--alias", "champion=2")
    land.wait(lambda: (now := shown())["state"] == "running" and now["service"]["generation"] == 2, "updated")
    requests.more()
    back = asked(land, "rollback", "service", "rain")
    assert (back["state"], back["service"]["version"], back["service"]["port"]) == (
        "running",
        "w/model@1",
        port,
    )

    # a replica is killed: its requests are held, and sent again
    land.beta.run("pkill", "-KILL", "-f", "gridmill.serving.replica")
    land.wait(lambda: shown()["service"]["report"]["replicas"][0]["restarts"] == 1, "another replica")
    requests.more()
    assert requests.wrong() == []

    # the control node is killed and the link is cut: the service waits, and goes on
    land.kill(land.alpha, "up")
    requests.more()
    land.beta.connect(False)
    land.beta.connect(True)
    requests.more()
    land.control()
    land.wait(lambda: shown()["state"] == "running", "it runs")
    assert shown()["service"]["port"] == port
    assert requests.wrong() == []
    land.alpha.run("pkill", "-KILL", "-f", "gridmill.serving.router")
    requests.more(40)
    seen = requests.end()
    assert {status for status, _ in seen} <= {"200", "failure"}
    assert [status for status, _ in seen].count("failure") <= 1
    assert {version for status, version in seen if status == "200"} == {"w/model@1", "w/model@2"}

    assert asked(land, "stop", "service", "rain")["state"] == "stopped"
    land.clear()
    left = land.on_farm(
        "bash", "-c", "find /root/farm -name service.socket; pgrep -af '[g]ridmill.serving' || true"
    )
    assert left.strip() == ""


@pytest.mark.long
def test_a_service_at_a_farm_is_sized_by_a_measurement_there(land: Farmland) -> None:
    versions_of_a_model(land)
    of_farm = ("--type", "service", "--site", "far", "--memory", "2GiB")
    shown = land.gridmill(
        "configure", "resource", "far-servers", *of_farm, "--model", "w/model@1", "--rate", "20"
    )
    assert "service of w/model@1: 1 replica, 0.1" in shown
    assert re.search(r"measured on a node with \d+ CPUs? at site far \(.*CPUs?\) at ", shown), shown
    assert "the p99 does not include the router and the network to site far" in shown
    runs = asked(land, "list", "runs")
    words = ("start", "service", "rain", "--model", "w/model@1", "--resource", "far-servers")
    view = asked(land, *words, "--rate", "20")
    # the service has a run; the measurement was not repeated
    assert len(asked(land, "list", "runs")) == len(runs) + 1
    service = view["service"]
    assert (view["state"], service["replicas"], service["route"]["site"]) == ("running", 1, "far")
    assert service["size"]["cpus"] < 1
    most = service["size"]["most_rate"]
    grown = asked(land, "update", "service", "rain", "--rate", str(most + 1))
    assert (grown["state"], grown["ready"], grown["service"]["rate"]) == ("running", 2, most + 1)
    assert grown["service"]["size"]["memory_bytes"] > service["size"]["memory_bytes"]
    assert asked(land, "stop", "service", "rain")["state"] == "stopped"
    land.clear()


@pytest.mark.long
def test_a_shadow_at_a_farm_is_compared_promoted_and_ended(land: Farmland) -> None:
    versions_of_a_model(land)
    land.gridmill(
        "configure", "resource", "far-servers", "--type", "service", "--site", "far", "--memory", "2GiB"
    )
    words = ("start", "service", "rain", "--model", "w/model@1", "--resource", "far-servers")
    port = asked(land, *words)["service"]["port"]
    requests = Requests(land, port)
    requests.more()

    def compared() -> Any:
        return asked(land, "show", "service", "rain")["service"]["report"]["shadow"]

    asked(land, "update", "service", "rain", "--shadow", "w/model@2", "--shadow-weight", "50")
    land.wait(lambda: (now := compared()) and now["requests"] > 20, "copies are compared")
    seen = compared()
    assert (seen["label"], seen["different"], seen["failed"], seen["problem"]) == ("w/model@2", 0, 0, "")
    assert "w/model@2 gets copies of 50 %" in land.gridmill("show", "service", "rain")

    # its process ends, and another one continues, also while the control node is down
    land.kill(land.alpha, "up")
    land.beta.run("pkill", "-KILL", "-f", "gridmill.serving.shadow")
    requests.more()
    land.control()
    land.wait(lambda: (now := compared()) and now["restarts"] == 1 and now["is_ready"], "another process")
    before = compared()["requests"]
    land.wait(lambda: compared()["requests"] > before, "copies are compared again")

    view = asked(land, "promote", "service", "rain")
    assert (view["service"]["canary"], view["service"]["shadow"]) == ("w/model@2", None)
    land.wait(lambda: compared() is None, "the shadow has ended")
    assert land.on_farm("bash", "-c", "pgrep -af '[g]ridmill.serving.shadow' || true").strip() == ""
    view = asked(land, "rollback", "service", "rain")
    assert (view["service"]["version"], view["service"]["canary"]) == ("w/model@1", "")
    assert {status for status, _ in requests.end()} == {"200"}
    assert asked(land, "stop", "service", "rain")["state"] == "stopped"
    land.clear()
