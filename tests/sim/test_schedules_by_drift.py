"""Schedules that start a run when the requests of a service drift, on a simulated grid."""

import pytest
from test_races import command
from test_races import service as cases_of
from test_services import FOREVER, a_model, is_running, until

from gridmill.codec import to_builtins
from gridmill.control.state import ControlTimeouts
from gridmill.control.steps.services import note_report
from gridmill.domain.amounts import Amounts
from gridmill.domain.drift import FeatureDrift, VersionDrift
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder, EventType, PodEvent
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import DriftTrigger, Schedule, ScheduleSpec
from gridmill.domain.service import JOB
from gridmill.domain.site import Node
from gridmill.domain.states import AttemptState, Cause, RunState
from gridmill.ports.store import Put
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation, kill

PAUSE = 600.0
CALM = VersionDrift(label="w/m@1", rows=900, features=(FeatureDrift(name="temp", psi=0.01),))
DRIFTS = replace(CALM, features=(FeatureDrift(name="temp", psi=0.4),), drifting=("temp",))
FEW_ROWS = VersionDrift(label="w/m@1", rows=3, drifting=("temp",))


def behave(order: AttemptOrder) -> Behaviour:
    return Behaviour(seconds=FOREVER if order.job.kind is JobKind.SERVICE else 30.0)


def fails(order: AttemptOrder) -> Behaviour:
    if order.job.kind is JobKind.SERVICE:
        return Behaviour(seconds=FOREVER)
    return Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)


def made(store: FaultyStore | None = None, behaviour=behave) -> Simulation:
    """A grid with a service, which fills one of the two nodes."""
    nodes = tuple(Node(name=name, capacity=Amounts(cpus=8, memory_bytes=2**35)) for name in ("sim", "other"))
    grid = Simulation(
        store=store or FaultyStore(make_memory(), FaultScript()),
        behave=behaviour,
        nodes=nodes,
        limits=ControlTimeouts(observe_seconds=5.0),
    )
    grid.declare_site()
    grid.store.commit([Put(noun=a_model(1), expected=0)])
    cases = cases_of(grid)
    cases.start_service("rain", model="w/m@1")
    until(grid, cases, is_running)
    return grid


def pipeline(**settings: object) -> Pipeline:
    spec = ScheduleSpec(drift=DriftTrigger(service="rain", pause_seconds=PAUSE), **settings)  # type: ignore[arg-type]
    return Pipeline(name="p", jobs=(command("train", cache=False),), schedule=spec)


def report(grid: Simulation, *drift: VersionDrift) -> None:
    """The service reports this drift."""
    service = cases_of(grid).service("rain").service
    assert service.report is not None
    body = {"report": to_builtins(replace(service.report, drift=drift))}
    event = PodEvent(
        number=1, attempt_id=service.reported_by, token="", type=EventType.REPORT, time=0.0, body=body
    )
    with cases_of(grid)._node.changing() as transaction:
        note_report(transaction, transaction.get(JobRun, f"{service.run_id}/{JOB}"), event)


def pass_time(grid: Simulation, seconds: float) -> None:
    end = grid.clock.monotonic() + seconds
    while grid.clock.monotonic() < end:
        grid.advance()


def runs(grid: Simulation) -> list[Run]:
    return [record.noun for record in grid.store.list(Run) if record.noun.pipeline == "p"]  # type: ignore[union-attr, misc]


def schedule(grid: Simulation) -> Schedule:
    record = grid.store.get(Schedule, "p")
    assert record is not None
    assert isinstance(record.noun, Schedule)
    return record.noun


def test_a_drift_starts_a_run_when_it_begins_and_after_each_pause() -> None:
    grid = made()
    grid.apply(pipeline())
    report(grid, CALM)
    pass_time(grid, 100.0)
    assert runs(grid) == []
    report(grid, DRIFTS)
    pass_time(grid, 100.0)
    (run,) = runs(grid)
    assert run.state is RunState.SUCCEEDED
    (event,) = [one for one in grid.store.events(run_id=run.id) if one.type == "drift"]
    assert event.body["message"] == "the drift of w/m@1 in service rain has started this run"
    # it goes on, also while the service has counted few rows after a restart
    report(grid, FEW_ROWS)
    report(grid, DRIFTS)
    pass_time(grid, PAUSE - 250.0)
    assert len(runs(grid)) == 1
    pass_time(grid, 250.0)
    assert [one.id for one in runs(grid)] == ["p-1", "p-2"]
    report(grid, CALM)
    pass_time(grid, 10 * PAUSE)
    assert len(runs(grid)) == 2


def test_the_pause_delays_the_run_of_the_next_drift_and_drops_it_if_the_drift_ends() -> None:
    grid = made()
    grid.apply(pipeline())
    report(grid, DRIFTS)
    pass_time(grid, 60.0)
    report(grid, CALM)
    report(grid, DRIFTS)
    pass_time(grid, 60.0)
    assert len(runs(grid)) == 1
    view = cases_of(grid).schedule("p")
    assert "w/m@1 drifts in service rain; the pause after the last run is not over" in view.why
    report(grid, CALM)
    pass_time(grid, 2 * PAUSE)
    assert len(runs(grid)) == 1
    report(grid, DRIFTS)
    pass_time(grid, 60.0)
    report(grid, CALM)
    report(grid, DRIFTS)
    pass_time(grid, PAUSE)
    assert [one.id for one in runs(grid)] == ["p-1", "p-2", "p-3"]


def test_a_run_that_fails_is_not_repeated_until_the_next_drift() -> None:
    grid = made(behaviour=fails)
    grid.apply(pipeline())
    report(grid, DRIFTS)
    pass_time(grid, 10 * PAUSE)
    assert [one.state for one in runs(grid)] == [RunState.FAILED]
    assert "p-1 failed, so only the next drift starts a run" in cases_of(grid).schedule("p").why
    report(grid, CALM)
    report(grid, DRIFTS)
    pass_time(grid, 60.0)
    assert len(runs(grid)) == 2


def test_a_run_by_drift_waits_for_a_scheduled_run_and_both_count() -> None:
    grid = made()
    grid.apply(pipeline(every_seconds=3600.0))
    pass_time(grid, 10.0)
    report(grid, DRIFTS)
    pass_time(grid, 10.0)
    assert [one.state for one in runs(grid)] == [RunState.ACTIVE]
    assert "waits for the end of p-1" in cases_of(grid).schedule("p").why
    pass_time(grid, 100.0)
    assert len(runs(grid)) == 2
    report(grid, CALM)
    pass_time(grid, 3600.0)
    assert len(runs(grid)) == 3
    assert schedule(grid).runs == 3


def test_a_paused_schedule_starts_nothing_and_an_unknown_service_is_named() -> None:
    grid = made()
    grid.apply(pipeline())
    cases_of(grid).pause_schedule("p")
    report(grid, DRIFTS)
    pass_time(grid, 100.0)
    assert runs(grid) == []
    other = replace(pipeline(), schedule=ScheduleSpec(drift=DriftTrigger(service="snow")))
    grid.apply(other)
    assert "there is no service 'snow'" in cases_of(grid).schedule("p").why


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
def test_killed_at_any_commit_a_drift_starts_exactly_one_run(fault: Fault) -> None:
    for number in range(8):
        store = FaultyStore(make_memory(), FaultScript(), kill=kill)
        grid = made(store)
        grid.apply(pipeline())
        report(grid, DRIFTS)
        store.schedule = FaultScript(*[Fault.NONE] * number, fault)
        pass_time(grid, 60.0)
        assert len(runs(grid)) == 1, number
