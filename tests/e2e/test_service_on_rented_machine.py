"""A service whose replicas run on a rented machine, which is a virtual host behind an SSH tunnel."""

import http.client
import json
from functools import partial

import pytest

from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.service import ServiceState, ServiceView
from gridmill.errors import InputError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid
from tests.e2e.test_cloud_site import Rent, Rented, net, rent
from tests.kit.host_cloud import power_off, why_not
from tests.unit.jobs.training.test_imported import weighted

__all__ = ["net", "rent"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is everything"),
]


def with_a_model(made: Rented) -> Rented:
    """The version `rain/model@1`, and the resource `servers` at the cloud site."""
    file, signature = made.shared / "net.onnx", made.shared / "signature.yaml"
    file.write_bytes(weighted())
    signature.write_text("features: [temp, wind]\nlabel: rain\n")
    dial = partial(OpenGrid, grid=made.node.grid, close=lambda: None)
    Client(made.settings, dial=dial).import_model("rain", file, signature=signature)
    made.node.grid.configure_resource(
        Resource(
            name="servers",
            type=JobKind.SERVICE,
            site="burst",
            cpus=1.0,
            memory_bytes=2**30,
            keep_seconds=0.0,
        )
    )
    return made


def predicted(port: int) -> tuple[int, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/predict", json.dumps({"rows": [{"temp": 1, "wind": 2}]}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.long
def test_a_service_on_a_rented_machine_answers_at_home_and_moves_to_another_machine(rent: Rent) -> None:
    rented = with_a_model(rent(max_hours="2"))

    def view() -> ServiceView:
        return rented.node.grid.service("rain")

    def runs_on_another_than(machine: str) -> bool:
        ready = [one.id for one in rented.leases() if one.state == "ready"]
        return view().state is ServiceState.RUNNING and ready not in ([], [machine])

    started = rented.node.grid.start_service("rain", model="rain/model", resource="servers")
    assert "max_hours" in started.rental
    assert "the machine ends itself after" in started.rental
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    port = view().service.port
    assert predicted(port)[0] == 200
    assert "an hour" in view().rental

    # the control node is away: the router needs it no more than the replicas do
    rented.leave()
    assert predicted(port)[0] == 200
    rented.open()
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs again")

    [lease] = [one.id for one in rented.leases() if one.state == "ready"]
    power_off(rented.machine())
    status, answer = predicted(port)
    assert (status, answer["code"]) == (503, "not-ready")  # type: ignore[index]
    rented.wait(lambda: runs_on_another_than(lease), "the service runs on another machine")
    rented.wait(lambda: predicted(port)[0] == 200, "it answers at the same address")
    assert view().service.port == port
    rented.node.grid.stop_service("rain")
    rented.wait(lambda: view().state is ServiceState.STOPPED, "the service has stopped")


def test_a_service_without_a_limit_of_time_is_refused(rent: Rent) -> None:
    made = with_a_model(rent())
    with pytest.raises(InputError, match="has no max_hours"):
        made.node.grid.start_service("rain", model="rain/model", resource="servers")
