"""Services that are sized by a rate on rented machines: the machine of the service measures first."""

import pytest
from test_service_sizes import FAILS, MEASURED, SUCCEEDS
from test_services import FOREVER, is_running
from test_successors_of_services import LIMIT_SECONDS, KillAtCommit, ServingGrid
from tests.kit.rented_site import AWS

from gridmill.control.state import ControlTimeouts
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import MICROS
from gridmill.domain.machine import Offer
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun
from gridmill.domain.service import CALIBRATION_JOB, JOB, SECOND_JOB, Service, ServiceState
from gridmill.domain.service_measuring import SizeRequest, fitting_size
from gridmill.domain.service_size import Calibration
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.site import LOCAL, SiteOffers
from gridmill.domain.states import JobState, RunState
from gridmill.errors import CapacityError, ConflictError, InputError
from gridmill.stores.memory import MemoryStore
from gridmill.testing.cloud.provider_faults import ProviderFaults
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import kill

ONE, EIGHT = "gpu.one at site aws", "gpu.eight at site aws"


def grid_of(calibration: Behaviour = SUCCEEDS, **settings: str) -> ServingGrid:
    """A grid whose pods on rented machines have 4 CPUs, and serve at most 2,800 requests/s of a version."""
    return ServingGrid(
        store=FaultyStore(MemoryStore(), FaultScript(), kill),
        behave=lambda order: (
            calibration if order.job.service and order.job.service.calibrates else Behaviour(seconds=FOREVER)
        ),
        settings={"max_hours": "6m", **settings},
        limits=ControlTimeouts(observe_seconds=5.0),
        workers=None,
    )


def start(grid: ServingGrid, **terms: object) -> ServingGrid:
    grid.cases.start_service("rain", model="w/m@1", resource="servers", **terms)  # type: ignore[arg-type]
    return grid


def served(grid: ServingGrid, **terms: object) -> ServingGrid:
    start(grid, **terms).until(lambda: is_running(grid.view()))
    return grid


def service_of(grid: ServingGrid) -> Service:
    return grid.view().service


def size_of(grid: ServingGrid) -> tuple[int, float, str]:
    size = service_of(grid).size
    assert size is not None
    return size.replicas, size.cpus, size.machine


def measurements(grid: ServingGrid) -> int:
    """The number of attempts that measured, at all sites."""
    return len([one for one in grid.world.executions if one.order.service and one.order.service.calibrates])


def is_measuring(grid: ServingGrid) -> bool:
    running = [one for pod in grid.world.pods.values() for one in pod.running.values()]
    return any(one.order.service is not None and one.order.service.calibrates for one in running)


def test_the_machine_of_a_service_measures_first_and_then_gets_the_replicas() -> None:
    grid = start(grid_of(), rate=900.0)
    assert (service_of(grid).replicas, service_of(grid).size) == (1, None)
    grid.until(lambda: is_measuring(grid))
    view = grid.view()
    assert view.state is ServiceState.STARTING
    assert f"{ONE} measures w/m@1 before its replicas start" in view.message
    [measures] = [one for one in grid.world.executions if one.order.job.name == JOB]
    assert measures.order.given.cpus == 2
    grid.until(lambda: is_running(grid.view()))
    assert size_of(grid) == (2, 1.3, ONE)
    serves = [one for one in grid.world.executions if one.order.job.name == JOB][-1]
    assert serves.pod_id == measures.pod_id
    assert serves.order.service is not None
    assert (serves.order.given.cpus, serves.order.service.replicas) == (1.3, 2)
    assert (len(grid.leases()), measurements(grid)) == (1, 1)
    assert f"gets 2 replicas for {ONE}, which can serve 1,400 requests/s" in grid.told()
    assert grid.view().message == ""
    # the same request changes nothing, another one is refused
    assert start(grid, rate=900.0).view().service == service_of(grid)
    with pytest.raises(ConflictError, match="already runs with other options: replicas, rate"):
        start(grid, rate=100.0)
    grid.stopped()
    # the measurement is used again
    grid.cases.start_service("rain")
    grid.until(lambda: is_running(grid.view()))
    assert (size_of(grid), measurements(grid)) == ((2, 1.3, ONE), 1)
    grid.stopped()


def test_a_machine_that_is_too_small_gets_the_replicas_that_fit_and_says_which_type_is_enough() -> None:
    grid = grid_of()
    site = grid.node.control.ledger.snapshot.sites[AWS]
    offers = tuple(
        Offer(
            provider=AWS,
            region="r",
            zones=("r-a",),
            instance_type=name,
            cpus=cpus,
            memory_bytes=64 * GIB,
            gpus=1,
            price_micros=cpus * MICROS // 4,
        )
        for name, cpus in (("gpu.one", 4), ("gpu.mid", 8), ("gpu.big", 16))
    )
    grid.put(replace(site, market=SiteOffers(offers=offers)))
    served(grid, rate=5000.0)
    view = grid.view()
    assert view.state is ServiceState.RUNNING
    assert (size_of(grid), view.service.rate) == ((4, 4.0, ONE), 5000.0)
    short = (
        f"its machine ({ONE}) has 4 CPUs and 1.8 GiB for the service: 4 replicas of w/m@1 can serve 2,800 "
        "requests/s, not 5,000; gpu.mid (8 CPUs, "
    )
    assert view.message.startswith(short)
    assert "2.00 USD an hour) would be enough if each request takes as much CPU time there" in view.message
    assert any(one.startswith(short) for one in grid.told())
    assert len(grid.leases()) == 1
    grid.stopped()


def test_after_a_measurement_a_machine_with_enough_cpus_is_requested() -> None:
    grid = served(grid_of(), rate=900.0)
    grid.stopped()
    start(grid, rate=2500.0)
    request = service_of(grid).size_request
    assert request is not None
    assert (request.cpus, request.memory_bytes) == (3.6, 688 * MIB)
    grid.until(lambda: is_running(grid.view()))
    assert (size_of(grid), grid.view().message) == ((4, 3.6, ONE), "")
    grid.stopped()
    # no machine is large enough
    start(grid, rate=9000.0)
    request = service_of(grid).size_request
    assert request is not None
    assert request.cpus == 2
    grid.stopped()


def test_a_range_is_cut_to_what_fits_and_another_rate_keeps_it() -> None:
    grid = served(grid_of(), replicas=8, least_replicas=1, rate=700.0)
    service = service_of(grid)
    assert service.scaling is not None
    assert (service.scaling.least, service.scaling.most, service.replicas) == (1, 4, 4)
    assert "enough for 4 replicas of w/m@1, not for 8" in grid.view().message
    assert service.size_request is not None
    assert service.size_request.terms == (700.0, 8, 1)
    after = grid.cases.update_service("rain", rate=1400.0).service
    assert after.size_request is not None
    assert after.size_request.terms == (1400.0, 8, 1)
    grid.stopped()


def test_a_version_that_cannot_be_measured_ends_the_service_and_returns_the_machine() -> None:
    grid = start(grid_of(FAILS), rate=900.0)
    grid.until(lambda: grid.view().state is ServiceState.FAILED)
    assert "its size could not be measured" in grid.view().message
    assert "gridmill start service rain --replicas N" in grid.view().message
    grid.until(grid.is_over)
    assert (len(grid.leases()), grid.alive(), measurements(grid)) == (1, 0, 1)


def test_a_machine_on_which_no_replica_fits_ends_the_service_and_is_returned() -> None:
    huge = replace(MEASURED, replica_bytes=40 * GIB)
    details = {**SUCCEEDS.outputs[0].details, "calibration": {**_built(huge)}}
    output = replace(SUCCEEDS.outputs[0], details=details)
    grid = start(grid_of(replace(SUCCEEDS, outputs=(output,))), rate=900.0)
    grid.until(lambda: grid.view().state is ServiceState.FAILED)
    assert f"a machine {ONE} cannot serve 900 requests/s of w/m@1" in grid.view().message
    grid.until(grid.is_over)
    assert (len(grid.leases()), grid.alive()) == (1, 0)
    # with the measurement, the next start fails before an attempt
    start(grid, rate=900.0).until(lambda: grid.view().state is ServiceState.FAILED)
    grid.until(grid.is_over)
    assert measurements(grid) == 1


def _built(calibration: Calibration) -> dict[str, object]:
    from gridmill.codec import to_builtins

    return to_builtins(calibration)  # type: ignore[no-any-return]


def test_a_stop_while_the_machine_measures_returns_it() -> None:
    grid = start(grid_of(), rate=900.0)
    grid.until(lambda: is_measuring(grid))
    grid.stopped()
    assert (len(grid.leases()), measurements(grid)) == (1, 1)


def test_a_machine_that_ends_while_it_measures_is_replaced_and_the_other_one_measures() -> None:
    grid = start(grid_of(replace(SUCCEEDS, seconds=40.0)), rate=900.0)
    grid.until(lambda: is_measuring(grid))
    [first] = grid.leases()
    grid.account.end_by_hand(first.tries[0].machine_id)
    grid.until(lambda: is_running(grid.view()))
    assert (size_of(grid), len(grid.leases()), grid.alive(), measurements(grid)) == ((2, 1.3, ONE), 2, 1, 2)
    grid.stopped()


def test_a_notice_while_the_machine_measures_leads_to_one_other_machine() -> None:
    grid = start(grid_of(replace(SUCCEEDS, seconds=40.0), spot="true"), rate=900.0)
    grid.until(lambda: is_measuring(grid))
    [first] = grid.leases()
    grid.account.interrupt_machine(first.tries[0].machine_id)
    grid.until(lambda: is_running(grid.view()) and grid.ready() not in ([], [first.id]))
    assert size_of(grid) == (2, 1.3, ONE)
    assert len(grid.leases()) == 2
    grid.stopped()


def test_a_successor_on_the_same_type_uses_the_measured_size() -> None:
    grid = served(grid_of(), rate=900.0)
    grid.until(lambda: grid.is_served_by(SECOND_JOB), 2 * LIMIT_SECONDS)
    assert (size_of(grid), measurements(grid)) == ((2, 1.3, ONE), 1)
    serves = [one for one in grid.world.executions if one.order.job.name == SECOND_JOB][-1]
    assert serves.order.given.cpus == 1.3
    grid.stopped()


def test_a_successor_on_another_type_measures_first_while_the_old_replicas_answer() -> None:
    grid = served(grid_of(), rate=900.0)
    zones = [zone for zones in grid.account.catalog.regions.values() for zone in zones]
    grid.account.use_faults(ProviderFaults(no_machine=frozenset((zone, "gpu.one") for zone in zones)))
    grid.until(lambda: is_measuring(grid), 2 * LIMIT_SECONDS)
    assert JOB in grid.running()
    assert size_of(grid)[2] == ONE
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    assert (size_of(grid), measurements(grid)) == ((2, 1.3, EIGHT), 2)
    assert len(grid.leases()) == 2
    grid.stopped()


def test_a_range_is_kept_if_the_service_stops_before_its_machine_has_measured() -> None:
    grid = start(grid_of(), replicas=4, least_replicas=1)
    grid.until(lambda: is_measuring(grid))
    grid.stopped()
    grid.cases.start_service("rain")
    request = service_of(grid).size_request
    assert request is not None
    assert request.terms == (0.0, 4, 1)
    grid.until(lambda: is_running(grid.view()))
    scaling = service_of(grid).scaling
    assert scaling is not None
    assert (scaling.least, scaling.most) == (1, 4)
    grid.stopped()


def test_a_number_of_replicas_is_refused_while_a_machine_of_another_type_replaces_the_machine() -> None:
    grid = served(grid_of(), rate=900.0)
    zones = [zone for zones in grid.account.catalog.regions.values() for zone in zones]
    grid.account.use_faults(ProviderFaults(no_machine=frozenset((zone, "gpu.one") for zone in zones)))
    grid.until(lambda: service_of(grid).succession.successor is not None, 2 * LIMIT_SECONDS)
    with pytest.raises(ConflictError, match="another machine replaces its machine now"):
        grid.cases.update_service("rain", replicas=1)
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    grid.cases.update_service("rain", replicas=1)
    grid.until(lambda: service_of(grid).is_in_effect)
    assert service_of(grid).replicas == 1
    grid.stopped()


def test_another_version_is_measured_on_the_next_machine() -> None:
    grid = served(grid_of(), rate=900.0)
    grid.cases.update_service("rain", model="w/m@2")
    grid.until(lambda: service_of(grid).is_in_effect)
    assert measurements(grid) == 1
    grid.until(lambda: grid.is_served_by(SECOND_JOB), 2 * LIMIT_SECONDS)
    size = service_of(grid).size
    assert size is not None
    assert (size.version, measurements(grid)) == ("w/m@2", 2)
    grid.stopped()


def test_nothing_is_rented_for_a_plan_which_is_an_estimate_after_a_measurement() -> None:
    grid = grid_of()
    site = grid.node.control.ledger.snapshot.sites[AWS]
    provider_offers = grid.world.provider.offers()
    grid.put(replace(site, market=SiteOffers(offers=provider_offers)))

    def foreseen() -> str:
        spec = ServiceSpec(model="w/m@1", rate=900.0)
        pipeline = Pipeline(name="p", jobs=(Job(name="snow", resource="servers", service=spec),))
        [job] = grid.cases.plan_run(pipeline).jobs
        assert not job.problem
        return job.sizing.why[0]

    later = "is measured on the machine that is rented for the service, before its replicas start"
    plan = grid.cases.plan_service("w/m@1", rate=900.0, resource="servers")
    assert (plan.size, plan.run_id, plan.later) == (None, "", f"the size {later}")
    assert foreseen() == f"service snow: its size for 900 requests/s {later}"
    with pytest.raises(InputError, match="no machine is rented only for a measurement"):
        grid.cases.plan_service("w/m@1", rate=900.0, resource="servers", again=True)
    with pytest.raises(InputError, match="cannot run in 3 pods on a rented machine"):
        grid.cases.plan_service("w/m@1", rate=900.0, resource="servers", pods=3)
    assert grid.leases() == []
    served(grid, rate=900.0)
    grid.stopped()
    plan = grid.cases.plan_service("w/m@1", rate=1300.0, resource="servers")
    assert (plan.machine, plan.calibration is not None, bool(plan.later)) == (ONE, True, True)
    assert plan.size is not None
    assert (plan.size.replicas, plan.size.shortage) == (2, "")
    assert "takes about 2 replicas, 1.3 CPUs" in foreseen()
    assert len(grid.leases()) == 1


def test_another_rate_of_a_running_service_is_measured_on_its_machine_if_cpus_are_free() -> None:
    grid = served(grid_of(), replicas=2)
    with pytest.raises(ConflictError, match="w/m@1 was not measured"):
        grid.cases.update_service("rain", rate=900.0)
    plan = grid.cases.plan_service("w/m@1", resource="servers", name="rain")
    grid.until(lambda: grid.cases.run(plan.run_id).run.state is RunState.SUCCEEDED)
    [measured] = [one for one in grid.world.executions if one.order.job.name == CALIBRATION_JOB]
    assert JOB in grid.running()
    assert len(grid.leases()) == 1
    after = grid.cases.update_service("rain", rate=1500.0).service
    assert (after.replicas, size_of(grid)[2]) == (3, ONE)
    grid.until(lambda: service_of(grid).is_in_effect)
    assert measured.pod_id == next(one.pod_id for one in grid.world.executions if one.order.job.name == JOB)
    with pytest.raises(CapacityError, match="the pod of rain cannot serve 5,000 requests/s"):
        grid.cases.update_service("rain", rate=5000.0)
    grid.stopped()


def test_another_rate_is_refused_if_the_machine_has_too_few_free_cpus() -> None:
    grid = served(grid_of(), replicas=3)
    with pytest.raises(CapacityError, match="the measurement needs 2 CPUs, and 1 of 4 are free"):
        grid.cases.plan_service("w/m@1", resource="servers", name="rain")
    assert len(grid.leases()) == 1
    grid.stopped()


def test_a_measurement_that_lost_its_machine_rents_no_other_one() -> None:
    grid = served(grid_of(replace(SUCCEEDS, seconds=60.0)), replicas=2)
    plan = grid.cases.plan_service("w/m@1", resource="servers", name="rain")
    grid.until(lambda: is_measuring(grid))
    [first] = grid.leases()
    grid.cases.stop_service("rain")
    grid.account.end_by_hand(first.tries[0].machine_id)
    grid.until(lambda: grid.cases.run(plan.run_id).run.state is RunState.FAILED)
    grid.until(grid.is_over)
    assert len(grid.leases()) == 1


def test_a_job_of_a_pipeline_starts_a_service_that_is_measured_on_its_machine() -> None:
    grid = grid_of()

    def run(**fields: object) -> JobState:
        spec = ServiceSpec(model="w/m@1", **fields)  # type: ignore[arg-type]
        pipeline = Pipeline(name="p", jobs=(Job(name="rain", resource="servers", service=spec),))
        name = grid.cases.start_run(pipeline).run.id
        grid.until(lambda: grid.cases.run(name).run.ended is not None)
        job: JobRun = grid.cases.job(name, "rain").job
        assert job.state in (JobState.SUCCEEDED, JobState.UNCHANGED), job.message
        return job.state

    assert run(rate=900.0) is JobState.SUCCEEDED
    assert size_of(grid) == (2, 1.3, ONE)
    assert run(rate=900.0) is JobState.UNCHANGED
    assert run(rate=900.0, count="1..4") is JobState.SUCCEEDED
    assert (len(grid.leases()), measurements(grid)) == (1, 1)
    grid.stopped()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_a_control_node_that_is_killed_while_the_machine_measures_rents_one_machine(
    number: int, fault: Fault
) -> None:
    grid = start(grid_of(), rate=900.0)
    grid.until(lambda: grid.ready() != [])
    schedule = KillAtCommit(number, fault)
    grid.store.schedule = schedule
    grid.until(lambda: is_running(grid.view()))
    assert schedule.left <= 0, "the control node was killed"
    assert (size_of(grid), len(grid.leases()), measurements(grid)) == ((2, 1.3, ONE), 1, 1)
    grid.stopped()


def test_a_control_node_that_is_away_while_the_machine_measures_starts_the_replicas_when_it_is_back() -> None:
    grid = start(grid_of(replace(SUCCEEDS, seconds=20.0)), rate=900.0)
    grid.until(lambda: is_measuring(grid))
    grid.control_dies()
    for _ in range(12):  # nobody ticks, and the measurement ends
        grid.clock.advance(5.0)
        grid.world.step()
    grid.until(lambda: is_running(grid.view()))
    assert (size_of(grid), len(grid.leases()), measurements(grid)) == ((2, 1.3, ONE), 1, 1)
    grid.stopped()


@pytest.mark.parametrize("replicas", [1, 4])
def test_local_sizes_do_not_depend_on_rented_ones(replicas: int) -> None:
    grid = grid_of()
    grid.put(Resource(name="here", type=JobKind.SERVICE, site=LOCAL))
    plan = grid.cases.plan_service("w/m@1", rate=700.0 * replicas, resource="here")
    assert plan.run_id
    size, _ = fitting_size(
        replace(MEASURED, machine=ONE), SizeRequest(rate=700.0 * replicas), Amounts(cpus=8, memory_bytes=GIB)
    )
    assert (size.replicas, size.shortage) == (replicas, "")
