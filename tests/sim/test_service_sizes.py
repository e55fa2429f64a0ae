"""Sizes of services on a simulated grid: a calibration is measured once, and services are admitted by it."""

from dataclasses import replace

import pytest
from test_races import service as cases_of
from test_races import simulation
from test_services import FOREVER, a_model
from test_services_elsewhere import add_site, executions

from gridmill.codec import to_builtins
from gridmill.control.steps.services import ENVIRONMENT_SECONDS
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.amounts import MIB
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.service import CALIBRATION_JOB, ServiceState
from gridmill.domain.service_canary import room_needed
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_size import CALIBRATION, Calibration, LoadPoint, ServicePlan
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.site import SiteKind
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.domain.views import PlannedJob
from gridmill.errors import CapacityError, ConflictError, InputError
from gridmill.machine_type import machine_type
from gridmill.ports.store import Put
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

POINT = LoadPoint(
    connections=1, rate_per_second=500.0, mean_seconds=0.002, p99_seconds=0.003, cpu_seconds=0.001
)
MEASURED = Calibration(
    version="",
    machine="AMD EPYC 7B12, 8 CPUs",
    points=(POINT, replace(POINT, connections=10, rate_per_second=1000.0, mean_seconds=0.01)),
    replica_bytes=64 * MIB,
    parent_bytes=32 * MIB,
)
SUCCEEDS = Behaviour(
    seconds=5.0,
    outputs=(Output(kind=ArtifactKind.FILES, uri="", details={CALIBRATION: to_builtins(MEASURED)}),),
)
FAILS = Behaviour(seconds=1.0, outcome=AttemptState.FAILED, cause=Cause.INPUT)
"""One replica serves 700 of its 1000 requests/s, which need 1 CPU; its limit is 128 MiB."""


def grid_of(calibration: Behaviour = SUCCEEDS) -> tuple[Simulation, Cases]:
    grid = simulation(
        lambda order: (
            calibration if order.job.service and order.job.service.calibrates else Behaviour(seconds=FOREVER)
        )
    )
    grid.store.commit([Put(noun=a_model(number), expected=0) for number in (1, 2)])
    return grid, cases_of(grid)


@pytest.fixture
def both() -> tuple[Simulation, Cases]:
    return grid_of()


def planned(grid: Simulation, cases: Cases, model: str = "w/m@1", **terms: object) -> ServicePlan:
    """The plan, after its calibration."""
    first = cases.plan_service(model, **terms)  # type: ignore[arg-type]
    if first.size is not None:
        return first
    assert grid.run_until(lambda: cases.run(first.run_id).run.state is RunState.SUCCEEDED, at_most_steps=2000)
    return cases.plan_service(model, **terms)  # type: ignore[arg-type]


def test_a_version_is_calibrated_once_for_a_type_of_machine_and_makes_no_version_of_its_own(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    first = cases.plan_service("w/m@1", rate=200.0)
    assert (first.size, first.machine) == (None, machine_type())
    assert cases.plan_service("w/m@1", rate=900.0).run_id == first.run_id
    plan = planned(grid, cases, rate=200.0)
    assert plan.size is not None
    assert (plan.size.replicas, plan.size.cpus, plan.size.most_rate) == (1, 0.3, 700)
    assert plan.size.memory_bytes == 304 * MIB
    assert 0.002 < plan.size.p99_seconds < 0.02
    assert plan.calibration == replace(
        MEASURED,
        version="w/m@1",
        machine=machine_type(),
        hardware="AMD EPYC 7B12, 8 CPUs",
        created=plan.calibration.created,
    )
    executions = len(grid.world.executions)
    assert cases.plan_service("w/m@1", rate=5.0).size is not None
    assert len(grid.world.executions) == executions == 1
    assert grid.world.executions[0].order.given.cpus == 2
    assert not [one for one in cases.artifacts().items if "calibration" in one.name]
    assert cases.plan_service("w/m@2", rate=5.0).size is None


def test_a_calibration_is_replaced_on_request(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    first = planned(grid, cases, rate=200.0).calibration
    again = cases.plan_service("w/m@1", rate=200.0, again=True)
    assert again.size is None
    # the stored one is used meanwhile
    assert cases.plan_service("w/m@1", rate=200.0).calibration == first
    assert grid.run_until(lambda: cases.run(again.run_id).run.state is RunState.SUCCEEDED, at_most_steps=2000)
    second = cases.plan_service("w/m@1", rate=200.0).calibration
    assert first is not None
    assert second is not None
    assert second.created > first.created


def test_a_service_is_admitted_with_its_measured_cpus_and_memory_and_its_replicas_are_limited(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    with pytest.raises(ConflictError, match="w/m@1 was not measured on this type of machine"):
        cases.start_service("rain", model="w/m@1", rate=900.0)
    planned(grid, cases, rate=900.0)
    view = cases.start_service("rain", model="w/m@1", rate=900.0)
    assert view.service.replicas == 2
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    order = grid.world.executions[-1].order
    assert (order.given.cpus, order.given.memory_bytes) == (1.3, 432 * MIB)
    assert order.service is not None
    assert (order.service.replicas, order.service.memory_bytes) == (2, 128 * MIB)
    assert cases.start_service("rain", model="w/m@1", rate=900.0).service == cases.service("rain").service
    with pytest.raises(ConflictError, match="already runs with other options: replicas, rate"):
        cases.start_service("rain", model="w/m@1", rate=100.0)
    # a stopped service starts again with its rate
    cases.stop_service("rain")
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.STOPPED, at_most_steps=2000)
    assert cases.start_service("rain").service.rate == 900.0


def test_services_share_a_resource_and_a_rate_that_does_not_fit_is_refused_with_the_rate_that_does(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    cases.configure_resource(
        Resource(name="servers", type=JobKind.SERVICE, cpus=2.0, memory_bytes=2048 * MIB)
    )
    planned(grid, cases, rate=1.0, resource="servers")
    for name in ("a", "b", "c"):
        cases.start_service(name, model="w/m@1", rate=200.0, resource="servers")
    for name in ("a", "b", "c"):
        assert grid.run_until(
            lambda name=name: cases.service(name).state is ServiceState.RUNNING, at_most_steps=2000
        )
    pods = {one.pod_id for one in grid.world.executions[-3:]}
    assert len(pods) == 1
    plan = cases.plan_service("w/m@1", rate=200.0, resource="servers")
    assert plan.sharing == (
        "4 services on servers: 1.2 CPUs and 1.2 GiB by measurement, in the same pods; saves 2.8 CPUs and "
        "320 MiB compared with one CPU and 192 MiB for each replica",
    )
    with pytest.raises(
        CapacityError, match=r"resource servers beside its other services cannot serve 2,000 requests/s of "
    ) as refused:
        cases.start_service("d", model="w/m@1", rate=2000.0, resource="servers")
    words = refused.value.message
    most = float(words.partition("it can serve ")[2].split()[0].replace(",", ""))
    assert cases.plan_service("w/m@1", rate=most, resource="servers").size is not None
    with pytest.raises(CapacityError):
        cases.plan_service("w/m@1", rate=most + 1, resource="servers")


def test_a_service_that_is_sized_by_its_rate_gets_memory_of_its_pod_for_a_shadow(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.start_service("rain", model="w/m@1", rate=200.0)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    order = grid.world.executions[-1].order
    before = cases.service("rain").service
    after = cases.update_service("rain", shadow="w/m@2").service
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    needed = room_needed(after, before)
    assert grid.world.given[order.attempt_id].memory_bytes == needed > order.given.memory_bytes
    # the next attempt has the memory too
    grid.world.kill_pod(grid.world.executions[-1].pod_id)
    assert grid.run_until(
        lambda: grid.world.executions[-1].order.attempt_id != order.attempt_id, at_most_steps=2000
    )
    assert grid.world.executions[-1].order.given.memory_bytes >= needed


def test_a_range_of_replicas_is_admitted_for_its_largest_number_and_passed_to_the_process(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.start_service("rain", model="w/m@1", replicas=3, least_replicas=0, rate=800.0)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    order = grid.world.executions[-1].order
    assert (order.given.cpus, order.given.memory_bytes) == (3, 560 * MIB)
    assert order.service is not None
    assert order.service.scaling is not None
    assert (order.service.scaling.least, order.service.scaling.most, order.service.replicas) == (0, 3, 2)
    assert order.service.scaling.rate_per_replica == 700
    with pytest.raises(CapacityError, match="the pod of rain has no room for 64 replicas"):
        cases.update_service("rain", replicas=64, least_replicas=1)
    assert cases.update_service("rain", replicas=2, least_replicas=1).service.scaling is not None
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    assert cases.update_service("rain", replicas=2).service.scaling is None
    with pytest.raises(CapacityError, match="1 replica of w/m@1 can serve 700 requests/s, not 900"):
        cases.plan_service("w/m@1", replicas=1, least_replicas=0, rate=900.0)


def test_another_rate_resizes_the_running_service_and_its_attempt(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.start_service("rain", model="w/m@1", rate=200.0)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    order = grid.world.executions[-1].order
    assert (order.given.cpus, order.given.memory_bytes) == (0.3, 304 * MIB)
    before = cases.service("rain").service
    after = cases.update_service("rain", rate=900.0).service
    assert (after.rate, after.replicas, after.port, after.run_id) == (900.0, 2, before.port, before.run_id)
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    assert grid.world.orders[order.attempt_id].replicas == 2
    given = grid.world.given[order.attempt_id]
    assert (given.cpus, given.memory_bytes) == (1.3, 432 * MIB)
    # the same rate changes nothing
    assert cases.update_service("rain", rate=900.0).service.generation == after.generation
    # a lower rate takes effect at once, and the attempt keeps its memory for the replicas that end
    assert cases.update_service("rain", rate=200.0).service.replicas == 1
    assert grid.world.given[order.attempt_id].memory_bytes == 432 * MIB
    # the next attempt has the newest size
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    grid.world.kill_pod(grid.world.executions[-1].pod_id)
    assert grid.run_until(
        lambda: grid.world.executions[-1].order.attempt_id != order.attempt_id, at_most_steps=2000
    )
    assert grid.world.executions[-1].order.given.memory_bytes == 304 * MIB


def test_a_rate_that_does_not_fit_into_the_pod_is_refused_with_the_rate_that_does(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.start_service("rain", model="w/m@1", rate=200.0)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    with pytest.raises(CapacityError, match="the pod of rain cannot serve 90,000 requests/s") as refused:
        cases.update_service("rain", rate=90_000.0)
    most = float(refused.value.message.partition("it can serve ")[2].split()[0].replace(",", ""))
    assert cases.update_service("rain", rate=most).service.rate == most
    with pytest.raises(ConflictError, match="w/m@2 was not measured"):
        cases.update_service("rain", model="w/m@2", rate=100.0)


def test_a_size_leaves_the_memory_of_the_shadow(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    cases.configure_resource(
        Resource(name="servers", type=JobKind.SERVICE, cpus=8.0, memory_bytes=1280 * MIB, workers=1)
    )
    planned(grid, cases, rate=1.0, resource="servers")
    cases.start_service("rain", model="w/m@1", rate=200.0, resource="servers")
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)

    def update(**change: object) -> None:
        cases.update_service("rain", **change)  # type: ignore[arg-type]
        assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)

    def most() -> float:
        with pytest.raises(CapacityError, match="the pod of rain cannot serve") as refused:
            cases.update_service("rain", rate=90_000.0)
        return float(refused.value.message.partition("it can serve ")[2].split()[0].replace(",", ""))

    alone = most()
    # the attempt keeps the memory of the higher rate, in which the shadow has room
    for rate in (alone, 200.0):
        update(rate=rate)
    update(shadow="w/m@2")
    assert most() < alone
    update(rate=most())
    assert grid.world.given[grid.world.executions[-1].order.attempt_id].memory_bytes <= 1280 * MIB


def test_a_range_of_replicas_stays_with_another_rate(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.start_service("rain", model="w/m@1", replicas=3, least_replicas=0, rate=800.0)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    after = cases.update_service("rain", rate=1500.0).service
    assert after.scaling is not None
    assert (after.scaling.least, after.scaling.most, after.rate) == (0, 3, 1500.0)
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    with pytest.raises(CapacityError, match="3 replicas of w/m@1 can serve 2,100 requests/s, not 3,000"):
        cases.update_service("rain", rate=3000.0)


def run_job(grid: Simulation, cases: Cases, **fields: object) -> JobState:
    """Run a pipeline with a job that declares the service. Returns the state of the job."""
    spec = ServiceSpec(**fields)  # type: ignore[arg-type]
    run = cases.start_run(Pipeline(name="p", jobs=(Job(name="rain", service=spec),))).run.id
    assert grid.run_until(lambda: cases.run(run).run.ended is not None, at_most_steps=3000)
    job = cases.job(run, "rain").job
    assert job.state in (JobState.SUCCEEDED, JobState.UNCHANGED), job.message
    return job.state


def test_a_declared_rate_is_measured_and_another_declared_rate_or_range_resizes_the_service(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    assert run_job(grid, cases, model="w/m@1", rate=200.0) is JobState.SUCCEEDED
    first = cases.service("rain").service
    assert (first.replicas, first.rate, first.size is not None) == (1, 200.0, True)
    assert run_job(grid, cases, model="w/m@1", rate=200.0) is JobState.UNCHANGED
    assert run_job(grid, cases, model="w/m@1", rate=900.0) is JobState.SUCCEEDED
    second = cases.service("rain").service
    assert (second.replicas, second.rate, second.run_id) == (2, 900.0, first.run_id)
    # the new version is measured for the same rate
    assert run_job(grid, cases, model="w/m@2", rate=900.0) is JobState.SUCCEEDED
    third = cases.service("rain").service
    assert third.size is not None
    assert (third.version, third.size.version) == ("w/m@2", "w/m@2")
    assert run_job(grid, cases, model="w/m@2", rate=900.0, count="0..2") is JobState.SUCCEEDED
    scaling = cases.service("rain").service.scaling
    assert scaling is not None
    assert (scaling.least, scaling.most) == (0, 2)
    assert run_job(grid, cases, model="w/m@2", rate=900.0, count="0..2") is JobState.UNCHANGED
    measured = [one for one in grid.world.executions if one.order.job.name == CALIBRATION_JOB]
    assert len(measured) == 2


def test_a_plan_shows_what_the_service_takes_and_that_nothing_changes(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both

    def plan(**fields: object) -> PlannedJob:
        spec = ServiceSpec(**fields)  # type: ignore[arg-type]
        return cases.plan_run(Pipeline(name="p", jobs=(Job(name="rain", service=spec),))).jobs[0]

    unknown = plan(model="w/m@1", rate=900.0)
    assert unknown.sizing.why == (
        "service rain: replicas, CPUs and memory for 900 requests/s are unknown until w/m@1 is measured",
    )
    assert (unknown.ends, unknown.unchanged) == (None, False)
    assert plan(model="w/m@1", count="2").sizing.why == (
        "service rain: takes 2 replicas, 2 CPUs, 576 MiB, estimated",
    )
    planned(grid, cases, rate=1.0)
    known = plan(model="w/m@1", rate=900.0)
    assert (known.sizing.amounts.cpus, known.sizing.amounts.memory_bytes) == (1.3, 432 * MIB)
    assert known.sizing.why[0].startswith(
        "service rain: takes 2 replicas, 1.3 CPUs, 432 MiB for 900 requests/s, expected p99 "
    )
    assert "cannot serve 9,000,000 requests/s" in plan(model="w/m@1", rate=9e6).problem
    run_job(grid, cases, model="w/m@1", rate=900.0)
    same = plan(model="w/m@1", rate=900.0)
    assert (same.unchanged, same.reason, same.ends) == (True, "service rain is as declared", 0.0)
    assert same.sizing.why == ("service rain: has 2 replicas, 1.3 CPUs, 432 MiB",)
    other = plan(model="w/m@1", rate=900.0, settings=ServiceSettings(max_batch=7))
    assert (other.unchanged, other.reason) == (
        False,
        "service rain serves w/m@1 already; other settings would be updated",
    )
    assert not plan(model="w/m@2", rate=900.0).unchanged
    assert not plan(model="w/m@1", rate=200.0).unchanged


def test_a_new_version_without_a_calibration_has_no_memory_limit(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.start_service("rain", model="w/m@1", rate=100.0)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    attempt = grid.world.executions[-1].order.attempt_id
    assert grid.world.orders[attempt].memory_bytes == 128 * MIB
    cases.update_service("rain", model="w/m@2")
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    assert grid.world.orders[attempt].memory_bytes is None


def test_a_calibration_that_fails_is_not_repeated_by_itself_and_says_why() -> None:
    grid, cases = grid_of(FAILS)
    run_id = cases.plan_service("w/m@1", rate=1.0).run_id
    assert grid.run_until(lambda: cases.run(run_id).run.state is RunState.FAILED, at_most_steps=2000)
    assert len(grid.world.executions) == 1
    again = cases.plan_service("w/m@1", rate=1.0)
    assert again.run_id != run_id


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"rate": -1.0}, "at least 0"),
        ({"replicas": 65}, "from 1 to 64"),
        ({"replicas": 2, "least_replicas": 3}, r"3\.\.2"),
        ({"least_replicas": 0}, r"0\.\.0"),
    ],
)
def test_impossible_terms_are_refused(
    both: tuple[Simulation, Cases], terms: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        both[1].plan_service("w/m@1", **terms)  # type: ignore[arg-type]


def test_a_version_with_its_own_code_is_measured_with_trust_and_gets_memory_for_its_code() -> None:
    with_code = replace(MEASURED, code_bytes=200 * MIB)
    details = {CALIBRATION: to_builtins(with_code)}
    output = Output(kind=ArtifactKind.FILES, uri="", details=details)
    grid, cases = grid_of(Behaviour(seconds=5.0, outputs=(output,)))
    code = a_model(8, predict="code/m.py:predict", environment="numpy\n")
    grid.store.commit([Put(noun=code, expected=0)])
    with pytest.raises(InputError, match="w/m@8 predicts with its own code") as caught:
        cases.plan_service("w/m@8", rate=100.0)
    assert "--trust" in caught.value.hint
    plan = planned(grid, cases, "w/m@8", rate=900.0, trust=True)
    measured = grid.world.executions[-1].order
    assert measured.service is not None
    assert [one.trust for one in measured.service.versions] == [True]
    assert measured.service.start_seconds == ENVIRONMENT_SECONDS
    assert measured.given.cpus == 3
    assert plan.size is not None
    # 3 x (128 MiB for a replica + 304 MiB for its code) + 48 MiB for the parent process
    assert (plan.size.replicas, plan.size.memory_bytes) == (2, 1344 * MIB)
    trusted = ServiceSettings(trust=True)
    cases.start_service("rain", model="w/m@8", rate=900.0, settings=trusted)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    order = grid.world.executions[-1].order
    assert order.service is not None
    # the limit of a replica does not count the process of its code
    assert (order.given.memory_bytes, order.service.memory_bytes) == (1344 * MIB, 128 * MIB)
    # the settings of the service permit a measurement for it
    assert cases.plan_service("w/m@8", rate=100.0, name="rain").size is not None


def test_a_job_of_a_pipeline_measures_a_version_with_its_own_code() -> None:
    grid, cases = grid_of()
    grid.store.commit([Put(noun=a_model(8, predict="code/m.py:predict"), expected=0)])
    trusted = ServiceSettings(trust=True)
    assert run_job(grid, cases, model="w/m@8", rate=200.0, settings=trusted) is JobState.SUCCEEDED
    assert cases.service("rain").service.size is not None


@pytest.mark.parametrize("kind", [SiteKind.CLUSTER, SiteKind.RAY])
def test_a_service_at_another_site_is_sized_by_a_measurement_in_a_pod_of_its_resource(
    both: tuple[Simulation, Cases], kind: SiteKind
) -> None:
    grid, cases = both
    planned(grid, cases, rate=200.0)
    add_site(grid, kind)
    first = cases.plan_service("w/m@1", rate=200.0, resource="far")
    # the measurement of this machine is not used for machines of the other site
    assert (first.size, first.site, first.machine) == (None, "lab", "a node with 8 CPUs at site lab")
    plan = planned(grid, cases, rate=200.0, resource="far")
    assert plan.size is not None
    assert (plan.size.replicas, plan.size.cpus) == (1, 0.3)
    assert plan.calibration is not None
    assert plan.calibration.hardware == "AMD EPYC 7B12, 8 CPUs"
    measured = grid.world.executions[-1]
    assert measured.order.job.name == CALIBRATION_JOB
    assert measured.pod_id.startswith("far-")

    open_to_all = ServiceSettings(accept_open=True)
    foreseen = cases.plan_run(
        Pipeline(
            name="p",
            jobs=(Job(name="rain", resource="far", service=ServiceSpec(model="w/m@1", rate=900.0)),),
        )
    )
    assert (
        foreseen.jobs[0]
        .sizing.why[0]
        .startswith("service rain: takes 2 replicas, 1.3 CPUs, 432 MiB for 900 requests/s")
    )
    cases.start_service("rain", model="w/m@1", rate=200.0, resource="far", settings=open_to_all)
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    serves = executions(grid)["serve"]
    assert (serves.order.given.cpus, serves.order.given.memory_bytes) == (0.3, 304 * MIB)
    after = cases.update_service("rain", rate=900.0).service
    assert (after.rate, after.replicas) == (900.0, 2)
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    assert grid.world.given[serves.order.attempt_id].memory_bytes == 432 * MIB
    with pytest.raises(CapacityError, match="resource far beside its other services cannot serve 90,000"):
        cases.start_service("snow", model="w/m@1", rate=90_000.0, resource="far", settings=open_to_all)


def test_at_other_kinds_of_sites_a_rate_is_refused_with_the_reason(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    add_site(grid, SiteKind.SLURM)
    with pytest.raises(InputError, match="'lab', where no size is measured: no services run there"):
        cases.plan_service("w/m@1", rate=200.0, resource="far")


def test_a_rate_whose_size_exceeds_the_quota_of_the_project_is_refused(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    planned(grid, cases, rate=1.0)
    cases.configure_project(Project(name="research", cpus=1.0))
    cases.start_service("rain", model="w/m@1", rate=200.0, project="research")
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    before = cases.service("rain").service
    with pytest.raises(CapacityError, match=r"'research' has no room .*: 0.3 of 1 CPU in use, and 1 more"):
        cases.update_service("rain", rate=900.0)
    assert cases.service("rain").service == before
    cases.configure_project(Project(name="research", cpus=1.3))
    assert cases.update_service("rain", rate=900.0).service.replicas == 2
    assert grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    # a lower rate needs no room in the quota
    cases.configure_project(Project(name="research", cpus=0.1))
    assert cases.update_service("rain", rate=200.0).service.replicas == 1


def test_after_a_rollback_the_next_attempt_has_the_amounts_of_the_earlier_size(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    planned(grid, cases, rate=2000.0)
    cases.start_service("rain", model="w/m@1", rate=2000.0)
    grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    run = cases.service("rain").service.run_id

    def amounts() -> tuple[float, int]:
        sizing = cases.job(run, "serve").job.sizing
        return sizing.amounts.cpus, sizing.amounts.memory_bytes

    before = amounts()
    cases.update_service("rain", rate=200.0)
    assert amounts() < before
    cases.rollback_service("rain")
    assert amounts() == before


def test_a_rate_leaves_the_memory_of_the_canary_in_each_of_the_new_replicas(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    small = Resource(name="small", type=JobKind.SERVICE, site="local", memory_bytes=800 * MIB)
    cases.configure_resource(small)
    large = a_model(3)
    output = replace(large.output, size_bytes=50 * MIB)
    grid.store.commit([Put(noun=replace(large, output=output), expected=0)])
    planned(grid, cases, rate=200.0, resource="small")
    cases.start_service("rain", model="w/m@1", rate=200.0, resource="small")
    grid.run_until(lambda: cases.service("rain").state is ServiceState.RUNNING, at_most_steps=2000)
    cases.update_service("rain", canary="w/m@3")
    grid.run_until(lambda: cases.service("rain").service.is_in_effect, at_most_steps=2000)
    # 3 replicas need 560 MiB, and the canary in them and in one more 400 MiB
    with pytest.raises(CapacityError, match="cannot serve 2,000 requests/s"):
        cases.update_service("rain", rate=2000.0)
    cases.update_service("rain", rate=1400.0)
    [attempt] = grid.node.control.ledger.snapshot.attempts.values()
    assert 700 * MIB < attempt.given.memory_bytes <= 800 * MIB
