"""Services that share a GPU on a simulated grid: they are measured, admitted by the measurement, and shown
with what they save."""

import pytest
from test_races import service as cases_of
from test_services import FOREVER, a_model
from test_versions import alias

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.gpu_sharing import GpuClaim, GpuMeasurement
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.resource import Resource
from gridmill.domain.service import JOB, ServiceState, ServiceView
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_size import Calibration, LoadPoint
from gridmill.domain.site import Node, Site
from gridmill.errors import CapacityError
from gridmill.machine_type import machine_type
from gridmill.ports.store import Put
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

TRUSTED = ServiceSettings(trust=True)
SHARES = 24


def grid_of(gpus: int = 1, shares: int = SHARES) -> tuple[Simulation, Cases]:
    """A machine with GPUs of 24 GiB, each of which has shares of 1 GiB."""
    node = Node(name="sim", capacity=Amounts(cpus=16, memory_bytes=64 * GIB, gpus=gpus * shares))
    grid = Simulation(
        store=FaultyStore(make_memory(), FaultScript()),
        behave=lambda order: Behaviour(seconds=FOREVER),
        nodes=(node,),
    )
    grid.declare_site()
    transaction = grid.node.control.begin()
    site = grid.node.control.ledger.find(Site, "local")
    assert site is not None
    transaction.put(replace(site, settings={"gpu_shares": str(shares)}))
    grid.node.control.ledger.commit(transaction)
    code = [a_model(number, predict="code/m.py:predict") for number in (1, 2, 3)]
    grid.store.commit([Put(noun=one, expected=0) for one in (*code, a_model(4))])
    cases = cases_of(grid)
    cases.configure_resource(
        Resource(name="servers", type=JobKind.SERVICE, memory_bytes=8 * GIB, gpus=shares, workers=gpus)
    )
    return grid, cases


@pytest.fixture
def both() -> tuple[Simulation, Cases]:
    return grid_of()


def started(grid: Simulation, cases: Cases, name: str, model: str, **options: object) -> ServiceView:
    cases.start_service(name, model=model, resource="servers", settings=TRUSTED, **options)  # type: ignore[arg-type]
    return running(grid, cases, name)


def running(grid: Simulation, cases: Cases, name: str) -> ServiceView:
    def is_running() -> bool:
        view = cases.service(name)
        return view.state is ServiceState.RUNNING and view.service.is_in_effect

    assert grid.run_until(is_running, at_most_steps=2000), cases.service(name)
    return cases.service(name)


def order_of(grid: Simulation, cases: Cases, name: str) -> AttemptOrder:
    attempt = cases.service(name).service.reported_by
    return next(one.order for one in grid.world.executions if one.order.attempt_id == attempt)


def test_the_second_service_starts_on_the_gpu_of_the_first_which_keeps_only_what_it_needs(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB, "w/m@2": 4 * GIB}
    rain = started(grid, cases, "rain", "w/m@1", replicas=2).service
    # it was measured on the whole GPU
    assert order_of(grid, cases, "rain").gpu_indices == tuple(range(24))
    assert rain.gpu_measured == {
        "w/m@1": GpuMeasurement(replica_bytes=1600 * MIB, gpu_bytes=24 * GIB, max_batch=256)
    }
    assert rain.gpu_claim == GpuClaim(shares=6, gpu_shares=24, gpu=0)
    hail = started(grid, cases, "hail", "w/m@2").service
    assert order_of(grid, cases, "hail").gpu_indices == tuple(range(6, 24))
    assert hail.gpu_claim == GpuClaim(shares=10, gpu_shares=24, gpu=0)
    assert len({one.pod_id for one in grid.world.executions}) == 1
    _, sizing = cases.configure_resource(
        Resource(name="servers", type=JobKind.SERVICE, memory_bytes=8 * GIB, gpus=24, workers=1)
    )
    assert sizing.why[-3:] == (
        "GPU memory of hail: 10 GiB of 24 GiB: 1 replica and one more for updates, 5 GiB each (4 GiB "
        "measured)",
        "GPU memory of rain: 6 GiB of 24 GiB: 2 replicas and one more for updates, 2 GiB each (1.6 GiB "
        "measured)",
        "2 services share 1 GPU: saves 1 GPU compared with one GPU for each service",
    )


def test_a_measured_version_is_admitted_or_refused_with_the_numbers_and_a_stop_makes_room(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 4 * GIB}
    started(grid, cases, "rain", "w/m@1")
    with pytest.raises(CapacityError) as refused:
        cases.start_service("hail", model="w/m@1", replicas=2, resource="servers", settings=TRUSTED)
    assert "need 15 GiB (5 GiB each; 4 GiB measured), and 14 GiB of 24 GiB are free" in refused.value.message
    assert "rain 10 GiB" in refused.value.message
    # the same version is measured already
    started(grid, cases, "hail", "w/m@1")
    assert len(order_of(grid, cases, "hail").gpu_indices) == 10
    order = order_of(grid, cases, "hail").service
    assert order is not None
    assert order.gpu_memory_bytes == 5 * GIB
    cases.stop_service("rain")
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.STOPPED, at_most_steps=2000)
    fog = started(grid, cases, "fog", "w/m@3").service
    assert fog.gpu_measured == {}
    with pytest.raises(CapacityError, match="w/m@2 was not measured on a GPU, and no share of a GPU is free"):
        cases.start_service("snow", model="w/m@2", resource="servers", settings=TRUSTED)
    # a stopped service keeps its measurement
    with pytest.raises(CapacityError, match="fog 14 GiB"):
        cases.start_service("rain", resource="servers")


def test_an_update_that_needs_more_gpu_memory_is_refused_and_another_one_is_limited(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB, "w/m@2": 4 * GIB, "w/m@3": 1200 * MIB}
    started(grid, cases, "hail", "w/m@2")
    cases.stop_service("hail")
    assert grid.run_until(lambda: cases.service("hail").state is ServiceState.STOPPED, at_most_steps=2000)
    started(grid, cases, "rain", "w/m@1")
    with pytest.raises(CapacityError, match="has 4 GiB of GPU memory, and 1 replica of w/m@2 and one more"):
        cases.update_service("rain", model="w/m@2")
    with pytest.raises(
        CapacityError, match=r"and 2 replicas of w/m@1 and one more for updates need 5\.9 GiB"
    ):
        cases.update_service("rain", replicas=2)
    with pytest.raises(
        CapacityError, match=r"1 replica of w/m@1 with w/m@2 and one more for updates need 20 GiB"
    ):
        cases.update_service("rain", canary="w/m@2")
    cases.update_service("rain", model="w/m@3")
    view = running(grid, cases, "rain")
    # while it was not measured, a replica could use half of what the service has
    assert grid.world.orders[view.service.reported_by].gpu_memory_bytes == 2 * GIB
    assert view.service.gpu_measured["w/m@3"].replica_bytes == 1200 * MIB
    assert view.service.gpu_claim == GpuClaim(shares=3, gpu_shares=24, gpu=0)


def test_a_followed_version_that_needs_more_gpu_memory_and_a_shadow_as_canary_are_refused(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB, "w/m@2": 4 * GIB}
    started(grid, cases, "hail", "w/m@2")
    cases.stop_service("hail")
    assert grid.run_until(lambda: cases.service("hail").state is ServiceState.STOPPED, at_most_steps=2000)
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "rain", "w/m@champion", replicas=4)
    cases.set_alias(alias("champion", 2))
    assert grid.run_until(lambda: cases.service("rain").service.refusal != "", at_most_steps=2000)
    assert "has 10 GiB of GPU memory, and 4 replicas of w/m@2" in cases.service("rain").message
    assert cases.service("rain").service.version == "w/m@1"
    cases.update_service("rain", shadow="w/m@3")
    running(grid, cases, "rain")
    with pytest.raises(CapacityError, match="4 replicas of w/m@1 with w/m@3 and one more for updates need"):
        cases.promote_service("rain")


def test_services_are_divided_among_two_gpus(both: tuple[Simulation, Cases]) -> None:
    grid, cases = grid_of(gpus=2)
    grid.world.gpu_needs = {"w/m@1": 6 * GIB}
    for name in ("a", "b"):
        started(grid, cases, name, "w/m@1")
    gpus = [cases.service(name).service.gpu_claim for name in ("a", "b")]
    assert [one.gpu for one in gpus if one is not None] == [0, 1]
    with pytest.raises(CapacityError, match="9 GiB of 24 GiB are free"):
        cases.start_service("c", model="w/m@1", resource="servers", settings=TRUSTED)


def test_a_model_without_own_code_needs_no_gpu_and_cannot_change_to_one_with_code(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    started(grid, cases, "rain", "w/m@1")
    view = started(grid, cases, "hail", "w/m@4")
    assert order_of(grid, cases, "hail").gpu_indices == ()
    assert view.service.gpu_share is None
    with pytest.raises(CapacityError, match="computes on CPUs, and w/m@1 predicts with its own code"):
        cases.update_service("hail", model="w/m@1")


@pytest.mark.parametrize(("model", "shares"), [("w/m@2", tuple(range(10, 24))), ("w/m@4", ())])
def test_a_measurement_of_the_size_uses_the_free_part_of_the_gpu(
    both: tuple[Simulation, Cases], model: str, shares: tuple[int, ...]
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 4 * GIB}
    started(grid, cases, "rain", "w/m@1")
    run = cases.plan_service(model, rate=5.0, resource="servers", trust=True).run_id
    assert grid.run_until(lambda: grid.world.executions[-1].order.run_id == run, at_most_steps=2000)
    assert grid.world.executions[-1].order.gpu_indices == shares


def test_another_rate_leaves_a_service_its_part_of_the_gpu(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB}
    point = LoadPoint(
        connections=1, rate_per_second=500.0, mean_seconds=0.002, p99_seconds=0.003, cpu_seconds=0.001
    )
    transaction = grid.node.control.begin()
    transaction.put(
        Calibration(version="w/m@1", machine=machine_type(), points=(point,), replica_bytes=64 * MIB)
    )
    grid.node.control.ledger.commit(transaction)
    claim = started(grid, cases, "rain", "w/m@1", rate=100.0).service.gpu_claim
    assert claim == GpuClaim(shares=4, gpu_shares=24, gpu=0)
    cases.update_service("rain", rate=200.0)
    view = running(grid, cases, "rain")
    job_run = grid.node.control.ledger.snapshot.job_runs[f"{view.service.run_id}/{JOB}"]
    assert job_run.sizing.amounts.gpus == 4


def test_without_shares_a_service_has_the_gpus_of_its_resource() -> None:
    grid, cases = grid_of(shares=1)
    grid.world.gpu_needs = {"w/m@1": GIB}
    assert started(grid, cases, "rain", "w/m@1").service.gpu_claim is None
    assert order_of(grid, cases, "rain").gpu_indices == (0,)


def stopped(grid: Simulation, cases: Cases, name: str) -> None:
    cases.stop_service(name)
    assert grid.run_until(lambda: cases.service(name).state is ServiceState.STOPPED, at_most_steps=2000)


def test_a_rollback_to_a_version_that_needs_more_gpu_memory_is_refused(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB, "w/m@2": 4 * GIB}
    started(grid, cases, "rain", "w/m@2")
    cases.update_service("rain", model="w/m@1")
    assert running(grid, cases, "rain").service.gpu_claim == GpuClaim(shares=4, gpu_shares=24, gpu=0)
    with pytest.raises(
        CapacityError, match="has 4 GiB of GPU memory, and 1 replica of w/m@2 and one more"
    ) as why:
        cases.rollback_service("rain")
    assert "gridmill stop service rain; gridmill start service rain --model w/m@2" in why.value.hint
    stopped(grid, cases, "rain")
    started(grid, cases, "rain", "w/m@2")


def test_an_update_that_fails_can_always_be_rolled_back(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB}
    started(grid, cases, "rain", "w/m@1", replicas=2)
    grid.world.broken.add("w/m@3")
    cases.update_service("rain", model="w/m@3")
    assert grid.run_until(lambda: cases.service("rain").state is ServiceState.FAILING, at_most_steps=2000)
    cases.rollback_service("rain")
    assert running(grid, cases, "rain").service.version == "w/m@1"


def test_a_larger_batch_needs_at_least_what_a_smaller_one_needs(both: tuple[Simulation, Cases]) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 12 * GIB}
    claim = started(grid, cases, "rain", "w/m@1").service.gpu_claim
    assert claim == GpuClaim(shares=24, gpu_shares=24, gpu=0)
    # its replica and one more need 30 GiB
    with pytest.raises(CapacityError, match="one more for updates need at least 30 GiB") as why:
        cases.update_service("rain", settings=ServiceSettings(max_batch=512))
    assert why.value.place == "max_batch"
    assert "--max-batch 512" in why.value.hint
    with pytest.raises(CapacityError, match="one more for updates need 30 GiB"):
        cases.update_service("rain", settings=ServiceSettings(timeout_seconds=5.0))
    with pytest.raises(CapacityError, match="one more for updates need 30 GiB"):
        cases.add_service_key("rain", "first")
    stopped(grid, cases, "rain")
    grid.world.gpu_needs = {"w/m@2": 10 * GIB}
    started(grid, cases, "hail", "w/m@2", replicas=1)
    with pytest.raises(
        CapacityError, match=r"'rain' does not fit .* 1 replica of w/m@1 and one more .* at least"
    ):
        cases.start_service("rain", settings=replace(TRUSTED, max_batch=512))


def test_a_batch_that_was_not_measured_is_limited_to_the_part_of_the_service_and_then_measured(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 1600 * MIB}
    started(grid, cases, "rain", "w/m@1")
    cases.update_service("rain", settings=ServiceSettings(max_batch=512))
    view = running(grid, cases, "rain")
    assert grid.world.orders[view.service.reported_by].gpu_memory_bytes == 2 * GIB
    assert view.service.gpu_measured["w/m@1"].max_batch == 512


def test_a_version_with_code_gets_into_a_service_without_gpu_in_no_way(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    started(grid, cases, "rain", "w/m@1")
    stopped(grid, cases, "rain")
    started(grid, cases, "rain", "w/m@4", replicas=4)
    for change in (
        lambda: cases.rollback_service("rain"),
        lambda: cases.update_service("rain", canary="w/m@1"),
        lambda: cases.update_service("rain", model="w/m@2"),
    ):
        with pytest.raises(CapacityError, match="service 'rain' has no part of a GPU"):
            change()
    cases.update_service("rain", shadow="w/m@1")
    running(grid, cases, "rain")
    with pytest.raises(CapacityError, match="service 'rain' has no part of a GPU"):
        cases.promote_service("rain")


def test_a_canary_that_fits_into_the_part_of_its_service_runs_and_can_be_promoted(
    both: tuple[Simulation, Cases],
) -> None:
    grid, cases = both
    grid.world.gpu_needs = {"w/m@1": 4 * GIB, "w/m@2": 1600 * MIB}
    started(grid, cases, "hail", "w/m@2")
    started(grid, cases, "rain", "w/m@1")
    cases.update_service("rain", model="w/m@4")  # computes on CPUs, and the service keeps its part
    running(grid, cases, "rain")
    cases.update_service("rain", canary="w/m@2")
    view = running(grid, cases, "rain")
    assert grid.world.orders[view.service.reported_by].gpu_memory_bytes == 2000 * MIB
    cases.promote_service("rain")
    assert running(grid, cases, "rain").service.version == "w/m@2"
