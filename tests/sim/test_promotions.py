"""Aliases that move after a comparison, on a simulated grid: by themselves, after an approval, and although
the control node dies."""

import pytest
from test_races import finish, job_of, simulation
from test_races import service as cases_of
from test_services import FOREVER, a_model, is_running
from test_services import until as until_service
from test_versions import alias

from gridmill.codec import to_builtins
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Output
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder, Event
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.promotion import PROMOTION, PromotionMeasurement, PromotionSpec, PromotionState
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.states import JobState, RunState
from gridmill.errors import ConflictError
from gridmill.ports.store import Put
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation, kill

CHAMPION = "w/m@champion"
VALUES = {1: 0.5, 2: 0.4, 3: 0.3}
"""The error of each version of the model."""


def behave(order: AttemptOrder) -> Behaviour:
    """The job compares the newest version with that of the alias, as a real prediction does."""
    if order.job.kind is JobKind.SERVICE:
        return Behaviour(seconds=FOREVER)
    versions = {one.name: one.artifact for one in order.inputs}
    new, old = versions["w/m"], versions.get(CHAMPION)
    measured = PromotionMeasurement(
        candidate=new.id,
        serving=old.id if old is not None else "",
        metric="rmse",
        candidate_value=VALUES[new.number],
        serving_value=VALUES[old.number] if old is not None else None,
        rows=500,
    )
    details = {PROMOTION: to_builtins(measured)}
    output = Output(kind=ArtifactKind.PREDICTION, uri=order.output_uri, details=details)
    return Behaviour(seconds=1.0, outputs=(output,))


def made(store: FaultyStore | None = None) -> Simulation:
    grid = simulation(behave, store=store)
    data = Output(kind=ArtifactKind.DATASET, uri="datasets/w/data/1")
    dataset = Artifact(id="w/data@1", name="w/data", number=1, output=data, fingerprint="d")
    grid.store.commit([Put(noun=one, expected=0) for one in (a_model(1), dataset)])
    return grid


@pytest.fixture
def grid() -> Simulation:
    return made()


@pytest.fixture
def cases(grid: Simulation) -> Cases:
    return cases_of(grid)


def comparison(**terms: object) -> Pipeline:
    spec = PromotionSpec(alias=CHAMPION, **terms)  # type: ignore[arg-type]
    prediction = PredictionSpec(dataset="w/data", models=("w/m",), promote=spec)
    return Pipeline(name="check", jobs=(Job(name="compare", prediction=prediction),))


def newer(grid: Simulation, number: int) -> None:
    grid.store.commit([Put(noun=a_model(number), expected=0)])
    grid.node.control.catalog.newest_artifacts.clear()


def compared(grid: Simulation, **terms: object) -> Run:
    run = finish(grid, grid.submit(comparison(**terms), force=False))
    assert run.state is RunState.SUCCEEDED, job_of(grid, run, "compare").message
    return run


def champion(grid: Simulation) -> Alias:
    record = grid.store.get(Alias, CHAMPION)
    assert record is not None
    assert isinstance(record.noun, Alias)
    return record.noun


def events(grid: Simulation, run: Run) -> list[Event]:
    return [one for one in grid.store.events(run_id=run.id) if one.type == "promotion"]


def test_the_first_version_sets_the_alias_and_a_better_one_moves_it(grid: Simulation, cases: Cases) -> None:
    compared(grid)
    assert champion(grid).number == 1
    newer(grid, 2)
    run = compared(grid, margin="10%")
    assert champion(grid).number == 2
    assert job_of(grid, run, "compare").message.startswith(
        f"{CHAMPION} moved: w/m@2 has rmse 0.4, w/m@1 has 0.5 on the same 500 rows"
    )
    (event,) = events(grid, run)
    assert (event.body["candidate_value"], event.body["serving_value"]) == (0.4, 0.5)
    assert [(one.before, one.after, one.by) for one in grid.storage.moves if one.alias == "champion"] == [
        ("", "w/m@1", "check-1"),
        ("w/m@1", "w/m@2", run.id),
    ]


def test_a_gain_below_the_margin_keeps_the_alias_and_the_alias_has_the_reason(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    newer(grid, 2)
    compared(grid, margin="50%")
    shown = champion(grid)
    assert (shown.number, shown.promotion.state) == (1, PromotionState.KEPT)  # type: ignore[union-attr]
    assert "less than the margin 50%" in shown.promotion.reason  # type: ignore[union-attr]


def test_a_service_follows_only_after_the_approval_and_a_rollback_returns(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    newer(grid, 2)
    run = compared(grid, approve=True)
    cases.start_service("rain", model=CHAMPION)
    view = until_service(grid, cases, is_running)
    assert view.service.version == "w/m@1"
    assert view.promotion is not None
    assert view.promotion.is_waiting
    assert cases.promote_alias(CHAMPION).number == 2
    until_service(grid, cases, lambda view: is_running(view) and view.service.version == "w/m@2")
    with pytest.raises(ConflictError, match="no version waits"):
        cases.promote_alias(CHAMPION)
    assert cases.rollback_alias(CHAMPION).number == 1
    until_service(grid, cases, lambda view: is_running(view) and view.service.version == "w/m@1")
    states = [one.body["state"] for one in events(grid, run)]
    assert states == ["waits for approval", "moved", "rolled back"]


def test_a_service_follows_a_promotion_by_a_canary_that_waits_until_a_user_promotes_it(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    cases.configure_resource(Resource(name="servers", type=JobKind.SERVICE, cpus=2.0))
    settings = ServiceSettings(follow_percent=20.0)
    cases.start_service("rain", model=CHAMPION, resource="servers", settings=settings)
    until_service(grid, cases, is_running)
    newer(grid, 2)
    compared(grid)
    assert champion(grid).number == 2
    view = until_service(grid, cases, lambda view: is_running(view) and view.service.canary == "w/m@2")
    (order,) = (one for one in grid.world.orders.values() if one.name == "rain")
    assert {one.label: one.weight for one in order.versions} == {"w/m@1": 80.0, "w/m@2": 20.0}
    assert view.promotion is not None
    assert view.promotion.state is PromotionState.MOVED
    reports: list[tuple[object, ...]] = []
    cases._render = lambda *parts: str(reports.append(parts))
    cases.report("check-1")
    ((_, shown, *_),) = reports
    assert isinstance(shown, tuple)
    assert [one.body["state"] for one in shown] == ["moved"]
    # the canary waits, whatever happens to other aliases
    cases.set_alias(alias("other", 1))
    assert not grid.run_until(lambda: not cases.service("rain").service.canary, at_most_steps=50)
    cases.promote_service("rain")
    view = until_service(grid, cases, is_running)
    service = view.service
    assert (service.version, service.canary, service.follows) == ("w/m@2", "", CHAMPION)
    # the next promotion is a canary again
    newer(grid, 3)
    compared(grid)
    until_service(grid, cases, lambda view: is_running(view) and view.service.canary == "w/m@3")
    # without a canary, the alias returns and the service keeps its version
    cases.rollback_alias(CHAMPION)
    view = until_service(grid, cases, lambda view: is_running(view) and not view.service.canary)
    assert (champion(grid).number, view.service.version) == (2, "w/m@2")


def test_a_version_that_was_rolled_back_is_not_compared_again(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    newer(grid, 2)
    compared(grid)
    cases.rollback_alias(CHAMPION)
    again = compared(grid)
    assert job_of(grid, again, "compare").state is JobState.UNCHANGED
    assert champion(grid).number == 1


def test_a_refused_version_leaves_the_alias(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    newer(grid, 2)
    compared(grid, approve=True)
    cases.rollback_alias(CHAMPION)
    shown = champion(grid)
    assert (shown.number, shown.promotion.state) == (1, PromotionState.REFUSED)  # type: ignore[union-attr]


def test_a_newer_version_or_a_move_by_hand_ends_the_wait(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    newer(grid, 2)
    compared(grid, approve=True)
    newer(grid, 3)
    run = compared(grid, approve=True)
    assert [(one.body["candidate"], one.body["state"]) for one in events(grid, run)] == [
        ("w/m@2", "expired"),
        ("w/m@3", "waits for approval"),
    ]
    cases.set_alias(alias("champion", 2))
    with pytest.raises(ConflictError, match="no version waits"):
        cases.promote_alias(CHAMPION)


def test_an_alias_that_was_moved_during_the_comparison_stays(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    newer(grid, 2)
    newer(grid, 3)
    run = grid.submit(comparison(), force=False)
    cases.set_alias(alias("champion", 2))
    finish(grid, run)
    assert champion(grid).number == 2
    assert "the alias names w/m@2 now" in job_of(grid, run, "compare").message


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
def test_killed_at_any_commit_the_alias_moves_exactly_once(fault: Fault) -> None:
    for number in range(10):
        store = FaultyStore(make_memory(), FaultScript(), kill=kill)
        grid = made(store)
        cases_of(grid).set_alias(alias("champion", 1))
        newer(grid, 2)
        run = grid.submit(comparison(), force=False)
        store.schedule = FaultScript(*[Fault.NONE] * number, fault)
        finish(grid, run)
        assert champion(grid).number == 2, number
        assert len(events(grid, run)) == 1, number
