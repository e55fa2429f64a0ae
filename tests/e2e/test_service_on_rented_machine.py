"""A service whose replicas run on a rented machine, which is a virtual host behind an SSH tunnel."""

import http.client
import json
import threading
from functools import partial

import pytest

from gridmill.domain import service_succession
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.service import SECOND_JOB, ServiceState, ServiceView
from gridmill.domain.service_log import writer_in
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.serving import ShadowReport
from gridmill.errors import InputError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid
from gridmill.sites.cloud.boot import NOTICES
from tests.e2e.test_cloud_site import Rent, Rented, net, rent
from tests.kit.host_cloud import HostMachine, has_ended, power_off, why_not
from tests.unit.jobs.training.test_imported import weighted

__all__ = ["net", "rent"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is everything"),
]


def with_a_model(made: Rented) -> Rented:
    """The versions `rain/model@1` and `@2`, and the resource `servers` at the cloud site."""
    file, signature = made.shared / "net.onnx", made.shared / "signature.yaml"
    file.write_bytes(weighted())
    signature.write_text("features: [temp, wind]\nlabel: rain\n")
    dial = partial(OpenGrid, grid=made.node.grid, close=lambda: None)
    Client(made.settings, dial=dial).import_model("rain", file, signature=signature)
    file.write_bytes(weighted(rows="n"))
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

    started = rented.node.grid.start_service("rain", model="rain/model@1", resource="servers")
    assert "max_hours" in started.rental
    assert "the machine ends itself after" in started.rental
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    port = view().service.port
    assert predicted(port)[0] == 200
    assert "an hour" in view().rental
    check_shadow(rented, port)

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


def check_shadow(rented: Rented, port: int) -> None:
    """Compare another version on the machine with the requests of a client, and end it."""
    grid = rented.node.grid

    def compared() -> ShadowReport | None:
        report = grid.service("rain").service.report
        return report.shadow if report is not None else None

    def has_compared() -> bool:
        assert predicted(port)[0] == 200
        seen = compared()
        return seen is not None and seen.requests > 5

    grid.update_service("rain", shadow="rain/model@2")
    rented.wait(has_compared, "copies are compared")
    seen = compared()
    assert seen is not None
    assert (seen.label, seen.different, seen.failed, seen.problem) == ("rain/model@2", 0, 0, "")
    grid.rollback_service("rain")
    rented.wait(lambda: grid.service("rain").state is ServiceState.RUNNING, "the service runs without it")
    rented.wait(lambda: compared() is None, "the shadow has ended")


@pytest.mark.long
def test_a_service_with_a_rate_is_measured_on_its_machine_and_stays_sized_on_the_next_one(rent: Rent) -> None:
    rented = with_a_model(rent(max_hours="2"))
    dial = partial(OpenGrid, grid=rented.node.grid, close=lambda: None)
    client = Client(rented.settings, dial=dial)

    def view() -> ServiceView:
        return rented.node.grid.service("rain")

    plan = client.plan_service("rain/model", rate=20.0, resource="servers")
    assert (plan.size, plan.calibration) == (None, None)
    assert "is measured on the machine that is rented for the service" in plan.later
    assert rented.leases() == []

    client.start_service("rain", model="rain/model", resource="servers", rate=20.0)
    rented.wait(lambda: "measures" in view().message, "the machine measures")
    # the control node is away while the machine measures
    rented.leave()
    rented.open()
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    service = view().service
    assert service.size is not None
    assert (service.size.machine, service.size.version) == ("host.small at site burst", service.version)
    assert service.size.most_rate >= 20
    assert predicted(service.port)[0] == 200
    [lease] = rented.leases()

    # there is a measurement now, so that a plan is an estimate
    plan = rented.node.grid.plan_service(service.version, rate=20.0, resource="servers", name="other")
    assert plan.size is not None
    assert plan.calibration is not None
    measured_at = plan.calibration.created
    after = rented.node.grid.update_service("rain", rate=10.0)
    assert (after.service.rate, after.service.run_id) == (10.0, service.run_id)

    power_off(rented.machine())
    rented.wait(
        lambda: view().state is ServiceState.RUNNING and rented.leases()[-1].id != lease.id,
        "the service runs on another machine",
    )
    rented.wait(lambda: predicted(service.port)[0] == 200, "it answers at the same address")
    again = rented.node.grid.plan_service(service.version, rate=20.0, resource="servers", name="other")
    assert again.calibration is not None
    assert again.calibration.created == measured_at, "the next machine uses the measurement"
    rented.node.grid.stop_service("rain")
    rented.wait(lambda: view().state is ServiceState.STOPPED, "the service has stopped")
    rented.wait(lambda: all(one.state == "closed" for one in rented.leases()), "the machines are returned")
    assert len(rented.leases()) == 2


@pytest.mark.long
def test_a_machine_that_is_too_small_for_the_rate_serves_what_fits(rent: Rent) -> None:
    rented = with_a_model(rent(max_hours="2"))

    def view() -> ServiceView:
        return rented.node.grid.service("rain")

    rented.node.grid.start_service("rain", model="rain/model", resource="servers", rate=900_000.0)
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    assert "requests/s, not 900,000" in view().message
    size = view().service.size
    assert size is not None
    assert 0 < size.most_rate < 900_000
    assert predicted(view().service.port)[0] == 200
    rented.node.grid.stop_service("rain")
    rented.wait(lambda: view().state is ServiceState.STOPPED, "the service has stopped")


def test_a_service_without_a_limit_of_time_is_refused(rent: Rent) -> None:
    made = with_a_model(rent())
    with pytest.raises(InputError, match="has no max_hours"):
        made.node.grid.start_service("rain", model="rain/model", resource="servers")


class Requests(threading.Thread):
    """Sends requests one after the other, and tries each failed request once more. `failed` has the requests
    that failed twice."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self._over = port, threading.Event()
        self.answered, self.failed = 0, list[object]()

    def run(self) -> None:
        while not self._over.is_set():
            first = self._try()
            again = first if first == 200 else self._try()
            self.answered += 1
            if again != 200:
                self.failed.append((first, again))
            self._over.wait(0.05)

    def _try(self) -> object:
        try:
            return predicted(self._port)[0]
        except (OSError, http.client.HTTPException) as error:
            return error

    def end(self) -> None:
        self._over.set()
        self.join(60)


def wait_for_change(rented: Rented, machine: HostMachine, client: Requests) -> None:
    """Wait until the service runs on another machine than this one, and answers."""

    def view() -> ServiceView:
        return rented.node.grid.service("rain")

    rented.wait(lambda: view().service.serving_job == SECOND_JOB, "the router changes")
    rented.wait(lambda: has_ended(machine), "the old machine is returned")
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    answered = client.answered
    rented.wait(lambda: client.answered > answered + 20, "the new machine answers")


@pytest.mark.long
def test_a_notice_of_the_provider_moves_a_service_without_a_failed_request(
    rent: Rent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOTICES, "hosts", "cat /run/interruption")
    rented = with_a_model(rent(max_hours="2", spot="true"))

    def view() -> ServiceView:
        return rented.node.grid.service("rain")

    rented.node.grid.start_service("rain", model="rain/model", resource="servers")
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    machine = rented.machine()
    assert machine.host is not None
    client = Requests(view().service.port)
    client.start()
    try:
        machine.host.run("sh", "-c", "echo terminate in 2 minutes > /run/interruption")
        rented.wait(lambda: view().service.succession.successor is not None, "a successor starts")
        rented.leave()  # the control node is away for a moment in the middle of the change
        rented.open()
        wait_for_change(rented, machine, client)
    finally:
        client.end()
    assert client.failed == []
    [first, second] = rented.leases()
    assert second.state == "ready"
    assert first.release_asked is not None
    rented.node.grid.stop_service("rain")
    rented.wait(lambda: view().state is ServiceState.STOPPED, "the service has stopped")


@pytest.mark.long
def test_a_service_moves_before_the_max_hours_of_its_machine_without_a_failed_request(rent: Rent) -> None:
    rented = with_a_model(rent(max_hours="2"))

    def view() -> ServiceView:
        return rented.node.grid.service("rain")

    logs = ServiceSettings(log_fraction=1.0, log_bodies=True)
    rented.node.grid.start_service("rain", model="rain/model", resource="servers", settings=logs)
    rented.wait(lambda: view().state is ServiceState.RUNNING, "the service runs")
    machine = rented.machine()
    client = Requests(view().service.port)
    client.start()
    try:
        with pytest.MonkeyPatch.context() as slow:
            # a forecast as if another machine needed all of the two hours until it is ready
            slow.setattr(service_succession, "EXTRA_SECONDS", 2 * 3600.0)
            slow.setattr(service_succession, "MOST_SHARE", 1.0)
            rented.wait(lambda: view().service.succession.successor is not None, "a successor starts")
        wait_for_change(rented, machine, client)
    finally:
        client.end()
    assert client.failed == []
    log = "".join(str(one.body) for one in rented.node.grid.events(view().service.run_id))
    assert "(max_hours); replicas start on another machine" in log
    [first, second] = rented.leases()
    assert (first.release_asked is not None, second.state) == (True, "ready")
    rented.node.grid.stop_service("rain")
    rented.wait(lambda: view().state is ServiceState.STOPPED, "the service has stopped")

    # the logs of both machines are at home
    files = list((rented.settings.root / "requests/rain").glob("rows-*.jsonl"))
    assert len({writer_in(one.name) for one in files}) == 2
    logged = [json.loads(line)["request_id"] for one in files for line in one.read_text().splitlines()]
    assert len(set(logged)) == len(logged) >= client.answered
