"""Services on a simulated grid whose run fails: they start again after growing pauses, or show what to do."""

from collections.abc import Iterator
from typing import Any

import pytest
from test_services import cases, grid, is_running, started, until
from test_versions import alias

from gridmill.control.steps.run_lifecycle import begin_run
from gridmill.control.ticks import services as ticks
from gridmill.control.ticks.services import (
    LONGEST_RETRY_SECONDS,
    EndedRun,
    decide_end_of_service,
    decide_retry,
)
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.service import Service, ServiceState
from gridmill.domain.states import RunState
from gridmill.errors import ConflictError, StorageError
from gridmill.testing.simulation import Simulation

__all__ = ["cases", "grid"]

SERVICE = Service(name="rain", model="w/m@1", version="w/m@1", run_id="service-rain-1")
FAR_TOO_LARGE = 10**15


def resource(grid: Simulation, memory_bytes: int | None) -> None:
    with grid.node.changing() as transaction:
        transaction.put(Resource(name="servers", type=JobKind.SERVICE, memory_bytes=memory_bytes))


def failed(grid: Simulation, cases: Cases) -> None:
    """Start a service on a resource that no machine can hold, and wait until its run has failed."""
    resource(grid, FAR_TOO_LARGE)
    cases.start_service("rain", model="w/m@1", resource="servers")
    until(grid, cases, lambda view: view.service.retry_at is not None)


def test_a_service_without_capacity_starts_again_by_itself_when_there_is_some(
    grid: Simulation, cases: Cases
) -> None:
    failed(grid, cases)
    view = cases.service("rain")
    assert view.state is ServiceState.RESTARTING
    assert "starts again in 10.0 s; to end it: gridmill stop service rain" in view.message
    until(grid, cases, lambda view: view.service.failures == 2 and view.service.retry_at is not None)
    assert "starts again in 20.0 s" in cases.service("rain").message
    resource(grid, None)
    view = until(grid, cases, is_running)
    assert (view.service.failures, view.service.problem, view.message) == (0, "", "")
    assert view.service.run_id == "service-rain-3"


def test_a_service_that_waits_for_its_next_start_can_be_stopped_or_started(
    grid: Simulation, cases: Cases
) -> None:
    failed(grid, cases)
    assert cases.stop_service("rain").state is ServiceState.STOPPED
    grid.run_until(lambda: False, at_most_steps=50)
    assert cases.service("rain").state is ServiceState.STOPPED
    cases.start_service("rain", resource="servers")
    until(grid, cases, lambda view: view.service.retry_at is not None)
    resource(grid, None)
    assert cases.start_service("rain", resource="servers").service.retry_at is None
    until(grid, cases, is_running)


def test_a_control_node_that_was_killed_starts_the_service_again(grid: Simulation, cases: Cases) -> None:
    failed(grid, cases)
    resource(grid, None)
    grid.control_dies()
    until(grid, cases, is_running)


def test_a_service_that_starts_again_has_no_report_of_its_earlier_run(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    view = cases.service("rain")
    with grid.node.changing() as transaction:
        transaction.put(replace(view.service, retry_at=transaction.now, problem="its run failed"))
        again = ticks._start_again(grid.node.control.run_creation, transaction.within(), view.service)
    assert again.run_id != view.service.run_id
    assert (again.report, again.is_in_effect, again.port) == (None, False, view.service.port)


def test_aliases_are_looked_at_again_after_an_error_of_the_store(grid: Simulation) -> None:
    control = grid.node.control

    def unreadable() -> Iterator[Service]:
        raise StorageError("the store cannot be read")
        yield SERVICE

    transaction = control.ledger.begin(0.0)
    with pytest.raises(StorageError):
        ticks._follow_all(control.endings, control.reads, control.names, transaction, unreadable())
    assert control.names.may_have_moved


def test_a_service_whose_version_has_no_record_does_not_end_the_tick(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    view = started(grid, cases, "w/m@champion")
    with grid.node.changing() as transaction:
        transaction.put(replace(view.service, version="w/m@99"))
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda view: view.service.refusal != "")
    assert "w/m@champion cannot be followed" in view.message


def test_the_pauses_grow_to_a_limit() -> None:
    service, pauses = SERVICE, []
    for _ in range(10):
        service = decide_retry(service, "no capacity.", 100.0)
        assert service.retry_at is not None
        pauses.append(service.retry_at - 100.0)
    assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
    assert pauses[-1] == LONGEST_RETRY_SECONDS


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.SUCCEEDED])
def test_a_service_that_was_stopped_does_not_start_again(state: RunState) -> None:
    after = decide_end_of_service(SERVICE, EndedRun(state=state), True, 5.0)
    assert (after.ended, after.retry_at, after.problem) == (5.0, None, "")


def test_a_service_without_its_resource_fails_and_shows_what_to_do() -> None:
    run = EndedRun(state=RunState.FAILED, message="the resource 'servers' was removed")
    after = decide_end_of_service(SERVICE, run, False, 5.0)
    assert (after.ended, after.retry_at) == (5.0, None)
    assert "gridmill start service rain" in after.problem


def test_a_start_that_fails_midway_leaves_nothing_of_its_run(
    grid: Simulation, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(grid, cases)
    resource(grid, None)
    failures = cases.service("rain").service.failures

    def begin_and_fail(*args: Any, **words: Any) -> Run:
        monkeypatch.undo()
        run = begin_run(*args, **words)
        raise ConflictError(f"{run.id} cannot begin")

    monkeypatch.setattr(ticks, "begin_run", begin_and_fail)
    view = until(grid, cases, lambda view: view.service.failures > failures)
    assert "service-rain-2 cannot begin" in view.message
    assert grid.node.control.ledger.read(Run, "service-rain-2") is None
    assert "service-rain-2" not in grid.node.control.ledger.snapshot.runs
    until(grid, cases, is_running)
