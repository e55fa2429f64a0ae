"""Services whose replicas run at another site: a router at the site `local` has the address of the service,
and follows the replicas from attempt to attempt."""

import pytest
from test_races import service as cases_of
from test_races import simulation
from test_services import FOREVER, a_model, is_running, until

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.resource import Resource
from gridmill.domain.service import ROUTE, ServiceState
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.serving import MOST_OPEN, NO_UPSTREAM, ServiceOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import InputError
from gridmill.ports.store import Put
from gridmill.testing.simulated_site import Behaviour, Execution
from gridmill.testing.simulation import Simulation


@pytest.fixture
def grid() -> Simulation:
    made = simulation(lambda order: Behaviour(seconds=FOREVER))
    made.store.commit([Put(noun=a_model(number), expected=0) for number in (1, 2)])
    return made


@pytest.fixture
def cases(grid: Simulation) -> Cases:
    return cases_of(grid)


def add_site(grid: Simulation, kind: SiteKind) -> None:
    """A site `lab` of that kind, with a resource `far` for services."""
    far = Site(name="lab", kind=kind, nodes=grid.world.nodes())
    grid.store.commit([Put(noun=far, expected=0)])
    grid.node.control.sites["lab"] = grid.world
    grid.node.control.ledger.doubtful = True
    with grid.node.changing() as transaction:
        transaction.put(Resource(name="far", type=JobKind.SERVICE, site="lab"))


def executions(grid: Simulation) -> dict[str, Execution]:
    """What runs now, by the name of its job."""
    running = (one for pod in grid.world.pods.values() for one in pod.running.values())
    return {one.order.job.name: one for one in running}


def router_order(grid: Simulation) -> ServiceOrder:
    return grid.world.orders[executions(grid)[ROUTE].order.attempt_id]


def reached(grid: Simulation) -> str:
    """The attempt to which the router connects."""
    upstream = router_order(grid).upstream
    return upstream.attempt_id if upstream is not None else ""


@pytest.mark.parametrize(
    ("kind", "why"), [(SiteKind.SLURM, "ends at its walltime"), (SiteKind.BATCH, "runs jobs that end")]
)
def test_sites_whose_jobs_end_are_refused_with_the_reason(
    grid: Simulation, cases: Cases, kind: SiteKind, why: str
) -> None:
    add_site(grid, kind)
    with pytest.raises(InputError, match=f"cannot run on resource 'far' at site 'lab': .*{why}"):
        cases.start_service("rain", model="w/m@1", resource="far")


def test_the_router_has_the_address_and_the_replicas_have_the_versions(
    grid: Simulation, cases: Cases
) -> None:
    add_site(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="far")
    view = until(grid, cases, is_running)
    running = executions(grid)
    assert sorted(running) == ["route", "serve"]
    replicas = grid.world.orders[running["serve"].order.attempt_id]
    grid.run_until(lambda: router_order(grid).upstream != NO_UPSTREAM, at_most_steps=100)
    upstream = router_order(grid).upstream
    assert upstream is not None
    assert (upstream.attempt_id, replicas.upstream) == (running["serve"].order.attempt_id, None)
    report = view.service.route.report if view.service.route is not None else None
    assert report is not None
    assert view.url == f"http://127.0.0.1:{report.port}"
    assert view.service.site == "lab"
    assert [one.label for one in replicas.versions] == ["w/m@1"]


def test_the_router_follows_the_replicas_to_their_next_attempt_and_keeps_its_port(
    grid: Simulation, cases: Cases
) -> None:
    add_site(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="far")
    before = until(grid, cases, is_running)
    first = executions(grid)["serve"].order.attempt_id
    grid.world.kill_pod(executions(grid)["serve"].pod_id)
    until(grid, cases, lambda view: view.state is ServiceState.RESTARTING)
    after = until(grid, cases, is_running)
    second = executions(grid)["serve"].order.attempt_id
    assert second != first
    grid.run_until(
        lambda: getattr(router_order(grid).upstream, "attempt_id", "") == second, at_most_steps=100
    )
    upstream = router_order(grid).upstream
    assert upstream is not None
    assert upstream.attempt_id == second
    assert after.service.port == before.service.port


def test_an_update_reaches_the_replicas_and_a_stop_ends_both(grid: Simulation, cases: Cases) -> None:
    add_site(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="far")
    until(grid, cases, is_running)
    cases.update_service("rain", model="w/m@2")
    until(grid, cases, lambda view: is_running(view) and view.service.version == "w/m@2")
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    assert executions(grid) == {}


def test_a_router_ends_with_replicas_that_cannot_run_so_that_the_service_starts_again(
    grid: Simulation, cases: Cases
) -> None:
    add_site(grid, SiteKind.CLUSTER)

    def far(memory_bytes: int | None) -> None:
        with grid.node.changing() as transaction:
            transaction.put(Resource(name="far", type=JobKind.SERVICE, site="lab", memory_bytes=memory_bytes))

    far(10**15)
    cases.start_service("rain", model="w/m@1", resource="far")
    view = until(grid, cases, lambda view: view.service.retry_at is not None)
    assert view.state is ServiceState.RESTARTING
    assert "asks for 909.5 TiB" in view.message
    assert executions(grid) == {}
    far(None)
    view = until(grid, cases, is_running)
    assert sorted(executions(grid)) == ["route", "serve"]
    assert view.message == ""


def test_a_service_whose_router_has_ended_does_not_run() -> None:
    def behaviour(order: AttemptOrder) -> Behaviour:
        if order.job.name == ROUTE:
            return Behaviour(seconds=30.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)
        return Behaviour(seconds=FOREVER)

    grid = simulation(behaviour)
    grid.store.commit([Put(noun=a_model(1), expected=0)])
    cases = cases_of(grid)
    add_site(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="far")
    until(grid, cases, is_running)
    view = until(grid, cases, lambda view: not is_running(view))
    assert (view.state, sorted(executions(grid))) == (ServiceState.STARTING, ["serve"])
    assert "of the service ended" in view.message
    until(grid, cases, is_running)


def test_replicas_on_ray_listen_at_the_address_of_their_node_and_need_keys_or_consent(
    grid: Simulation, cases: Cases
) -> None:
    add_site(grid, SiteKind.RAY)
    with pytest.raises(InputError, match="machines in the network of Ray site 'lab' could reach"):
        cases.start_service("rain", model="w/m@1", resource="far")
    cases.start_service("rain", model="w/m@1", resource="far", settings=ServiceSettings(require_keys=True))
    until(grid, cases, is_running)
    order = grid.world.orders[executions(grid)["serve"].order.attempt_id]
    deployment = next(
        one for one in grid.node.control.ledger.snapshot.deployments.values() if one.site == "lab"
    )
    assert (order.host, order.port) == (deployment.pods[0].address or "127.0.0.1", 0)
    grid.run_until(lambda: router_order(grid).upstream != NO_UPSTREAM, at_most_steps=100)
    with pytest.raises(InputError, match="has no API keys"):
        cases.update_service("rain", settings=ServiceSettings(require_keys=False))


def test_an_update_that_is_not_transferred_shows_why_in_the_service_and_in_an_event(
    grid: Simulation, cases: Cases
) -> None:
    add_site(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="far")
    view = until(grid, cases, is_running)
    attempt = executions(grid)["serve"].order.attempt_id
    lasting = grid.node.control.problems.lasting
    lasting[f"data at lab {attempt}"] = "the update was not transferred to the site: the disk is full"
    grid.node.wake_now()
    view = until(grid, cases, lambda view: "the disk is full" in view.message)
    assert view.service.version == "w/m@1"
    del lasting[f"data at lab {attempt}"]
    until(grid, cases, lambda view: view.message == "")
    events = [one.body["message"] for one in cases.events(view.service.run_id) if one.type == "service"]
    assert sum("the disk is full" in message for message in events) == 1


def test_all_routers_of_a_site_share_its_connections(grid: Simulation, cases: Cases) -> None:
    add_site(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="far")
    until(grid, cases, is_running)
    assert router_order(grid).most_open == MOST_OPEN
    cases.start_service("snow", model="w/m@2", resource="far")
    assert grid.run_until(lambda: is_running(cases.service("snow")), at_most_steps=2000)

    def limits() -> list[int]:
        return [order.most_open for order in grid.world.orders.values() if order.upstream is not None]

    assert grid.run_until(lambda: limits() == [MOST_OPEN // 2] * 2, at_most_steps=200), limits()
