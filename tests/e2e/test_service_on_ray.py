"""A service whose replicas run on a Ray cluster: its router at home connects to the node."""

import json
import os
import signal

import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.e2e.test_service_on_rented_machine import Requests, predicted
from tests.kit.farms import open_folder
from tests.kit.ray import ENVIRONMENT, needs_ray, ray_cluster, remove_homes_on_nodes
from tests.unit.jobs.training.test_imported import weighted

pytestmark = [pytest.mark.e2e, pytest.mark.long, needs_ray]


class OnRay:
    """A home with the Ray site `lab`, and the versions `rain/model@1` and `@2`."""

    def __init__(self, place: Place, address: str) -> None:
        self._place = place
        model, signature = place.folder / "net.onnx", place.folder / "signature.yaml"
        signature.write_text("features: [temp, wind]\nlabel: rain\n")
        self.gridmill("add", "site", "lab", "--kind", "ray", "--address", address)
        for name in ("rows", "n"):
            model.write_bytes(weighted(rows=name))
            self.gridmill("import", "model", "rain", str(model), "--signature", str(signature))
        words = ("--type", "service", "--site", "lab", "--cpus", "1", "--memory", "1GiB")
        self.sized = self.gridmill(
            "configure", "resource", "servers", *words, "--model", "rain/model@1", "--rate", "5"
        )

    def gridmill(self, *words: str, code: int = 0) -> str:
        done = self._place.gridmill(*words, **ENVIRONMENT)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def view(self) -> dict:
        return json.loads(self.gridmill("show", "service", "rain", "--json"))

    def logged(self) -> list[dict]:
        """The logged requests of the service, as a sink loads them."""
        pipeline = self._place.folder / "log.yaml"
        pipeline.write_text("pipeline: log\njobs:\n  rows: {sink: {source: {path: 'service://rain'}}}\n")
        self.gridmill("run", str(pipeline))
        shown = json.loads(self.gridmill("preview", "log/rows", "--rows", "10000", "--json"))
        names = [column["name"] for column in shown["columns"]]
        return [dict(zip(names, row, strict=True)) for row in shown["rows"]]

    def compared(self) -> dict | None:
        """The comparison of a shadow."""
        return self.view()["service"]["report"]["shadow"]

    def wait(self, state: str, version: str = "rain/model@1") -> dict:
        def is_there() -> bool:
            view = self.view()
            return (view["state"], view["service"]["version"]) == (state, version)

        assert eventually(is_there, PATIENCE_SECONDS), self.view()
        return self.view()


def test_a_service_on_ray_follows_its_alias_and_loses_a_replica_without_a_failed_request(
    place: Place,
) -> None:
    with open_folder() as folder, ray_cluster(folder / "ray", cpus=2) as address:
        ray = OnRay(place, address)
        try:
            served(ray)
        finally:
            place.gridmill("down", "--all", **ENVIRONMENT)
            remove_homes_on_nodes(place.home)


def served(ray: OnRay) -> None:
    ray.gridmill("configure", "model", "rain/model", "--alias", "champion=1")
    assert "measured on a node with 2 CPUs at site lab (" in ray.sized
    start = ("start", "service", "rain", "--model", "rain/model@champion", "--resource", "servers")
    start = (*start, "--rate", "5")
    refused = ray.gridmill(*start, code=2)
    assert "machines in the network of Ray site 'lab' could reach the replicas" in refused
    ray.gridmill(*start, "--accept-open", "--log-requests", "1", "--log-bodies")
    view = ray.wait("running")
    size = view["service"]["size"]
    assert (size["rate"], size["version"], view["service"]["replicas"]) == (5, "rain/model@1", 1)
    client = Requests(view["service"]["port"])
    client.start()
    try:
        ray.gridmill("configure", "model", "rain/model", "--alias", "champion=2")
        ray.wait("running", "rain/model@2")
        check_shadow(ray)
        updated = ray.view()
        [replica] = updated["service"]["report"]["replicas"]
        os.kill(replica["pid"], signal.SIGKILL)
        ray.gridmill("down")
        answered = client.answered
        assert eventually(lambda: client.answered > answered + 20, PATIENCE_SECONDS)
        ray.wait("running", "rain/model@2")
    finally:
        client.end()
    assert client.failed == []
    assert predicted(view["service"]["port"])[0] == 200
    ray.gridmill("stop", "service", "rain")
    ray.wait("stopped", "rain/model@2")

    # the requests were logged to the storage root, and a killed replica lost none that it had written
    logged = ray.logged()
    assert {one["version"] for one in logged} == {"rain/model@1", "rain/model@2"}
    assert len({one["request_id"] for one in logged}) == len(logged) > client.answered * 0.8


def check_shadow(ray: OnRay) -> None:
    """Compare another version on the node with the requests of a client, and end it."""
    ray.gridmill("update", "service", "rain", "--shadow", "rain/model@1")
    assert eventually(lambda: (now := ray.compared()) and now["requests"] > 5, PATIENCE_SECONDS)
    seen = ray.compared()
    assert (seen["label"], seen["different"], seen["failed"], seen["problem"]) == ("rain/model@1", 0, 0, "")
    ray.gridmill("rollback", "service", "rain")
    ray.wait("running", "rain/model@2")
    assert eventually(lambda: ray.compared() is None, PATIENCE_SECONDS)
