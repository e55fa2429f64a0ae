"""Services on rented machines: before a machine ends, replicas on another machine take over."""

from collections.abc import Mapping, Sequence

import pytest
from test_races import service as cases_of
from test_services import FOREVER, a_model, is_running
from tests.kit.rented_site import AWS, RentedGrid, RentedSite

from gridmill.control.node import ControlNode
from gridmill.control.state import ControlTimeouts
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease, LeaseState
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.resource import Resource
from gridmill.domain.service import JOB, ROUTE, SECOND_JOB, ServiceState, ServiceView
from gridmill.domain.site import LOCAL, Node, NodeUtilization, Site, SiteKind
from gridmill.domain.states import AttemptState, Cause
from gridmill.ports.site import PodReport, PodStatus
from gridmill.ports.store import Put
from gridmill.stores.memory import MemoryStore
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour, SimulatedWorld
from gridmill.testing.simulation import Simulation, kill

LIMIT_SECONDS = 360.0


class NoticedSite(RentedSite):
    """A cloud site that passes on the notices of spot machines."""

    def _seen(self, pod_id: str) -> PodReport:
        report, lease = super()._seen(pod_id), self.lease_of(pod_id)
        made = lease.machine_try if lease is not None else None
        if made is None or report.status is not PodStatus.RUNNING:
            return report
        has_notice = self.account.notice_at(made.machine_id) <= self.clock.monotonic()
        return replace(report, notice="terminate at noon") if has_notice else report

    def lease_of(self, pod_id: str) -> Lease | None:
        return next((one for one in self.told if one.pod_id == pod_id), None)


class LocalPods:
    """The site `local`, whose pods are in the same world as those on the rented machines."""

    def __init__(self, world: RentedSite) -> None:
        self._world = world

    def nodes(self) -> tuple[Node, ...]:
        return (Node(name="home", capacity=Amounts(cpus=4.0, memory_bytes=8 * GIB)),)

    def utilization(self) -> Mapping[str, NodeUtilization]:
        return {}

    def link(self) -> str:
        return self._world.link()

    def pod_home(self, pod_id: str) -> str:
        return self._world.pod_home(pod_id)

    def prepare(self) -> None:
        pass

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        SimulatedWorld.bring_up(self._world, orders)

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        return SimulatedWorld.observe(self._world, pod_ids)

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        return SimulatedWorld.undelivered_events(self._world, pod_id)

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        self._world.tear_down(pod_ids)

    def close(self) -> None:
        pass


class ServingGrid(RentedGrid):
    """A grid with a resource `servers` for services on rented machines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        old = self.world
        self.world = NoticedSite(self.clock, self.behave, old.provider)
        self.node = self.new_node()
        self.declare()
        self.store.commit([Put(noun=a_model(number), expected=0) for number in (1, 2)])
        home = LocalPods(self.world)
        self.put(
            Site(name=LOCAL, kind=SiteKind.LOCAL, nodes=home.nodes()),
            Resource(
                name="servers",
                type=JobKind.SERVICE,
                site=AWS,
                gpus=1,
                keep_seconds=60.0,
                settings=self.settings,
            ),
        )

    def new_node(self, sites: object = None, background: object = None) -> ControlNode:
        return Simulation.new_node(self, {AWS: self.world, LOCAL: LocalPods(self.world)}, background)

    def put(self, *nouns: object) -> None:
        with self.node.changing() as transaction:
            transaction.put(*nouns)

    @property
    def cases(self) -> Cases:
        return cases_of(self)

    def view(self) -> ServiceView:
        return self.cases.service("rain")

    def ready(self) -> list[str]:
        return [one.id for one in self.leases() if one.state is LeaseState.READY]

    def running(self) -> list[str]:
        return sorted(one.order.job.name for pod in self.world.pods.values() for one in pod.running.values())

    def told(self) -> list[str]:
        run = self.view().service.run_id
        return [one.body["message"] for one in self.cases.events(run) if one.type == "service"]

    def serve(self) -> "ServingGrid":
        self.cases.start_service("rain", model="w/m@1", resource="servers")
        self.until(lambda: is_running(self.view()))
        return self

    def is_served_by(self, job: str) -> bool:
        view = self.view()
        return is_running(view) and self.running() == sorted([job, ROUTE]) and view.service.serving_job == job

    def stopped(self) -> None:
        """Stop the service; nothing is left of it."""
        self.cases.stop_service("rain")
        self.until(lambda: self.view().state is ServiceState.STOPPED)
        self.until(self.is_over)
        assert (self.alive(), self.account.resources_alive(), self.running()) == (0, (), [])


def serving(**settings: str) -> ServingGrid:
    return ServingGrid(
        store=FaultyStore(MemoryStore(), FaultScript(), kill),
        behave=lambda order: Behaviour(seconds=FOREVER),
        settings={"max_hours": "6m", **settings},
        limits=ControlTimeouts(observe_seconds=5.0),
        workers=None,
    ).serve()


def used_seconds(lease: Lease, now: float) -> float:
    [made] = lease.tries
    return (now if made.ended is None else made.ended) - (made.confirmed or 0.0)


def test_a_successor_takes_over_before_the_limit_and_the_old_machine_is_returned() -> None:
    grid = serving()
    (first,) = grid.ready()
    port = grid.view().service.port
    change = "another one starts 2 min before and takes over when it is ready, which costs 0.0350 USD more"
    assert change in grid.view().rental
    grid.until(lambda: len(grid.ready()) == 2, LIMIT_SECONDS)
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    assert grid.view().service.port == port
    assert grid.told()[-2:] == [
        "its machine ends in 2 min (max_hours); replicas start on another machine",
        "replicas on another machine get the requests from now on",
    ]
    grid.until(lambda: grid.ready() != [first] and len(grid.ready()) == 1)
    old = next(one for one in grid.leases() if one.id == first)
    left = LIMIT_SECONDS - used_seconds(old, grid.clock.now())
    assert 30 < left < 180, "the old machine ends shortly before its limit"
    grid.stopped()


@pytest.mark.long
def test_the_service_is_always_served_while_machines_change() -> None:
    grid = serving()
    changes, end = {grid.view().service.serving_job}, grid.clock.monotonic() + 4 * LIMIT_SECONDS
    while grid.clock.monotonic() < end:
        grid.advance()
        view = grid.view()
        assert view.state in (ServiceState.RUNNING, ServiceState.UPDATING), view
        assert grid.alive() <= 2
        changes.add(view.service.serving_job)
    assert changes == {JOB, SECOND_JOB}
    assert len(grid.leases()) >= 4
    grid.stopped()


def test_a_notice_of_a_spot_machine_starts_the_successor_at_once_and_its_replicas_go_on() -> None:
    grid = serving(spot="true")
    (first,) = grid.ready()
    made = next(one for one in grid.leases() if one.id == first).machine_try
    assert made is not None
    grid.account.interrupt_machine(made.machine_id)
    ended = grid.account.every[made.machine_id].interrupted_at
    began = grid.clock.monotonic()
    grid.until(lambda: len(grid.leases()) == 2)
    assert grid.clock.monotonic() - began < 30
    assert JOB in grid.running(), "the old replicas answer until their machine ends"
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    assert grid.clock.monotonic() < ended + 180
    assert "the provider ends its spot machine (terminate at noon)" in " ".join(grid.told())
    grid.stopped()


def test_a_limit_of_one_worker_permits_no_successor_and_the_service_starts_again_after_the_end() -> None:
    grid = serving()
    servers = grid.node.control.ledger.snapshot.resources["servers"]
    grid.put(replace(servers, workers=1))
    grid.until(lambda: bool(grid.view().service.succession.problem), LIMIT_SECONDS)
    assert "resource 'servers' has at most 1 worker" in grid.view().message
    assert sum("no other machine is rented" in one for one in grid.told()) == 1
    grid.until(lambda: len(grid.leases()) == 2)
    (first, second) = grid.leases()
    assert used_seconds(first, grid.clock.now()) >= LIMIT_SECONDS
    grid.until(lambda: grid.is_served_by(JOB) and grid.ready() == [second.id])
    assert grid.view().message == ""
    grid.stopped()


def test_a_used_budget_permits_no_successor_until_it_is_raised() -> None:
    grid = serving()
    servers = grid.node.control.ledger.snapshot.resources["servers"]
    grid.put(replace(servers, settings={**servers.settings, "budget": "0.02"}))
    grid.until(lambda: bool(grid.view().service.succession.problem), LIMIT_SECONDS)
    assert "budget of resource servers" in grid.view().message
    grid.put(servers)
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    grid.stopped()


def test_a_machine_that_ends_before_the_successor_is_ready_leaves_one_job_in_the_queue() -> None:
    grid = serving()
    grid.until(lambda: grid.view().service.succession.successor is not None, LIMIT_SECONDS)
    (first, *_) = grid.leases()
    grid.account.end_by_hand(first.tries[0].machine_id)
    grid.until(lambda: grid.view().service.serving_job == SECOND_JOB)
    assert grid.alive() <= 1
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    assert len(grid.leases()) == 2
    grid.stopped()


def test_a_stop_while_the_successor_starts_ends_both_machines() -> None:
    grid = serving()
    grid.until(lambda: grid.view().service.succession.successor is not None, LIMIT_SECONDS)
    grid.stopped()
    started = grid.cases.start_service("rain").service
    assert (started.serving_job, started.succession.successor) == (JOB, None)
    grid.until(lambda: is_running(grid.view()))
    grid.stopped()


def test_an_update_while_the_successor_starts_reaches_both() -> None:
    grid = serving()
    grid.until(lambda: grid.view().service.succession.successor is not None, LIMIT_SECONDS)
    grid.cases.update_service("rain", model="w/m@2")
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    labels = [one.label for one in grid.view().service.report.replicas[0].versions]
    assert labels == ["w/m@2"]
    grid.stopped()


def test_replicas_that_end_on_a_machine_that_goes_on_start_again_there() -> None:
    grid = serving()
    grid.until(lambda: grid.view().service.succession.successor is not None, LIMIT_SECONDS)
    grid.until(lambda: len(grid.leases()) == 2)
    (pod,) = (
        pod for pod in grid.world.pods.values() for one in pod.running.values() if one.order.job.name == JOB
    )
    for execution in tuple(pod.running.values()):
        execution.behaviour = replace(execution.behaviour, outcome=AttemptState.FAILED, cause=Cause.EXIT)
        execution.ends = grid.clock.monotonic()
    grid.until(lambda: grid.is_served_by(SECOND_JOB))
    assert len(grid.leases()) == 2
    grid.stopped()


class KillAtCommit:
    """Kills the control node before or after one commit."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.left, self._fault = number, fault

    def next(self) -> Fault:
        self.left -= 1
        return self._fault if self.left == 0 else Fault.NONE


@pytest.mark.parametrize(
    "number", [1, 4, *(pytest.param(one, marks=pytest.mark.long) for one in (2, 3, 5, 6, 7, 8, 9))]
)
def test_a_control_node_that_is_killed_in_a_step_leaves_one_machine_and_a_service_that_runs(
    number: int,
) -> None:
    grid = serving()
    (first,) = grid.ready()
    grid.until(lambda: grid.view().service.succession.successor is not None, LIMIT_SECONDS)
    schedule = KillAtCommit(number, Fault.KILL_BEFORE if number % 2 else Fault.KILL_AFTER)
    grid.store.schedule = schedule
    grid.until(lambda: grid.is_served_by(SECOND_JOB) and len(grid.ready()) == 1)
    assert schedule.left < 0, "the control node was killed"
    assert first not in grid.ready()
    assert (len(grid.leases()), grid.alive()) == (2, 1)
    grid.stopped()
