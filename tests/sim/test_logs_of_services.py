"""The control node records how many lines of its request log a service has lost."""

from dataclasses import replace

import pytest
from test_races import service as cases_of
from test_races import simulation
from test_services import FOREVER, a_model, is_running, until
from test_services_elsewhere import add_site, executions

from gridmill.codec import to_builtins
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.log_counts import ArrivedFiles, LogArrivals, LogCount, LogReport
from gridmill.domain.pod_protocol import EventType
from gridmill.domain.service import Service
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.site import SiteKind
from gridmill.ports.store import Put
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

WRITER = "0123456789abcdef"


@pytest.fixture
def grid() -> Simulation:
    made = simulation(lambda order: Behaviour(seconds=FOREVER))
    made.store.commit([Put(noun=a_model(1), expected=0)])
    return made


@pytest.fixture
def cases(grid: Simulation) -> Cases:
    made = cases_of(grid)
    add_site(grid, SiteKind.CLUSTER)
    settings = ServiceSettings(log_fraction=1.0, log_bodies=True)
    made.start_service("rain", model="w/m@1", resource="far", settings=settings)
    until(grid, made, is_running)
    return made


def report(grid: Simulation, logged: int, *, is_last: bool = False, **lost: int) -> None:
    """The replicas report their counts."""
    execution = executions(grid)["serve"]
    service = grid.node.control.ledger.snapshot.services["rain"]
    assert service.report is not None
    log = LogReport(
        counts={"rows": LogCount(logged=logged, written=logged - sum(lost.values()), lost=lost)},
        writer=WRITER,
        is_transferred=True,
        is_last=is_last,
    )
    body = {"report": to_builtins(replace(service.report, log=log))}
    pod = grid.world.pods[execution.pod_id]
    pod.journal_event(execution.order, grid.clock.now(), EventType.REPORT, body)
    grid.run_until(lambda: counted(grid) == log, at_most_steps=100)


def counted(grid: Simulation) -> LogReport | None:
    attempts = grid.node.control.ledger.snapshot.services["rain"].log.attempts
    return attempts[-1].report if attempts else None


def arrive(grid: Simulation, rows: int, deleted: int = 0) -> None:
    arrived = {WRITER: ArrivedFiles(total={"rows": rows})}
    grid.storage.arrivals = LogArrivals(arrived=arrived, deleted=ArrivedFiles(total={"rows": deleted}))


def messages(grid: Simulation, service: Service) -> list[str]:
    events = grid.store.events(run_id=service.run_id)
    found = [str(one.body.get("message", "")) for one in events]
    return [one for one in found if "request log" in one]


def test_rows_that_a_pod_loses_at_its_end_are_counted_and_an_event(grid: Simulation, cases: Cases) -> None:
    report(grid, 100, disk=10)
    assert cases.service("rain").log.text == "10 rows lost: the disk was full or failed"
    arrive(grid, 60)
    service = cases.service("rain").service
    grid.world.kill_pod(executions(grid)["serve"].pod_id)
    grid.run_until(lambda: cases.service("rain").service.log.unknown_ends == 1, at_most_steps=1000)
    text = cases.service("rain").log.text
    assert "at least 30 rows lost: their pod ended before this machine had taken them" in text
    assert "1 pod ended without notice" in text
    found = messages(grid, service)
    assert found[0] == "the request log loses lines: the disk was full or failed"
    assert found[1].startswith("the request log lost at least 30 rows with attempt ")

    # files that arrive after a long separation, and files that are deleted at home
    arrive(grid, 85, deleted=7)
    text = cases.service("rain").log.text
    assert "at least 5 rows lost: their pod ended" in text
    assert "7 rows deleted above the limit of the log" in text


def test_the_end_of_a_pod_in_order_is_exact(grid: Simulation, cases: Cases) -> None:
    report(grid, 100, queue_full=1)
    arrive(grid, 108)
    report(grid, 110, is_last=True, queue_full=2)
    service = cases.service("rain").service
    cases.stop_service("rain")
    grid.run_until(lambda: not cases.service("rain").service.log.attempts, at_most_steps=1000)
    assert cases.service("rain").log.text == "2 rows lost: too many lines waited to be written"
    assert messages(grid, service) == ["the request log loses lines: too many lines waited to be written"]
    # the counts stay when the service starts again
    cases.start_service("rain")
    assert cases.service("rain").service.log.lost["rows"]["queue_full"] == 2


def test_deleted_rows_are_shown_when_the_service_logs_no_more(grid: Simulation, cases: Cases) -> None:
    report(grid, 100, is_last=True)
    arrive(grid, 100, deleted=7)
    cases.stop_service("rain")
    grid.run_until(lambda: not cases.service("rain").service.log.attempts, at_most_steps=1000)
    cases.start_service("rain", settings=ServiceSettings(log_fraction=0.0, log_bodies=False))
    assert "7 rows deleted above the limit of the log" in cases.service("rain").log.text
