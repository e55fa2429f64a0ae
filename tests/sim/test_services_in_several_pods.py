"""Services on a Ray cluster that run in several pods: each pod has a node of its own, the router gets the
ways to all of them, and the others answer after the end of one."""

import random
from collections.abc import Sequence

import pytest
from test_races import service as cases_of
from test_services import FOREVER, a_model, is_running
from test_successors_of_services import KillAtCommit, LocalPods

from gridmill.control.node import ControlNode
from gridmill.control.state import ControlTimeouts
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.service import JOB, ROUTE, SECOND_JOB, ServiceState, ServiceView
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_size import Calibration, LoadPoint
from gridmill.domain.serving import ServiceOrder
from gridmill.domain.site import LOCAL, Node, Site, SiteKind
from gridmill.errors import CapacityError, InputError
from gridmill.ports.store import Put
from gridmill.stores.memory import MemoryStore
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour, Execution
from gridmill.testing.simulation import Simulation, kill

FAR = Resource(name="far", type=JobKind.SERVICE, site="lab", cpus=1.0, memory_bytes=2 * GIB)
OPEN = ServiceSettings(accept_open=True)
NAMES = ("a", "b", "c")


class Lab(Simulation):
    """A grid whose simulated pods are at the Ray site `lab` and at the site `local`."""

    def new_node(self, sites: object = None, background: object = None) -> ControlNode:
        return Simulation.new_node(self, {"lab": self.world, LOCAL: LocalPods(self.world)}, background)


class OnRay:
    """A grid with the Ray site `lab` of some nodes, and the resource `far` for services."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.names = names
        self.grid = Lab(
            store=FaultyStore(MemoryStore(), FaultScript(), kill),
            behave=lambda order: Behaviour(seconds=FOREVER),
            nodes=tuple(map(_node, names)),
            limits=ControlTimeouts(observe_seconds=1.0),
        )
        home = LocalPods(self.grid.world)
        self.grid.store.commit(
            [
                *(Put(noun=a_model(number), expected=0) for number in (1, 2)),
                Put(noun=Site(name=LOCAL, kind=SiteKind.LOCAL, nodes=home.nodes()), expected=0),
                Put(noun=Site(name="lab", kind=SiteKind.RAY, nodes=self.grid.world.nodes()), expected=0),
                Put(noun=FAR, expected=0),
            ]
        )
        self.grid.node = self.grid.new_node()

    def have_nodes(self) -> None:
        """The site has all its nodes that have not left."""
        nodes = tuple(_node(one) for one in self.names if one not in self.grid.world.left)
        self.grid.world._nodes = nodes
        with self.grid.node.changing() as transaction:
            transaction.put(Site(name="lab", kind=SiteKind.RAY, nodes=nodes))

    def node_returns(self, name: str) -> None:
        self.grid.world.left.discard(name)
        self.have_nodes()

    @property
    def cases(self) -> Cases:
        return cases_of(self.grid)

    def view(self) -> ServiceView:
        return self.cases.service("rain")

    def until(self, holds) -> None:
        assert self.grid.run_until(holds, at_most_steps=3000), self.view()

    def start(self, pods: int = 2) -> "OnRay":
        settings = replace(OPEN, pods=pods)
        self.cases.start_service("rain", model="w/m@1", resource="far", settings=settings)
        self.until(self.is_whole)
        return self

    def replicas(self) -> dict[str, Execution]:
        """The running attempts of the replicas, by the name of their job."""
        running = (one for pod in self.grid.world.pods.values() for one in pod.running.values())
        return {one.order.job.name: one for one in running if one.order.job.name != ROUTE}

    def where(self) -> dict[str, str]:
        """The nodes of the replicas, by the name of their job."""
        pods = self.grid.world.pods
        return {name: pods[one.pod_id].order.node for name, one in self.replicas().items()}

    def end_node_of(self, job: str) -> str:
        """The pods on the node of this job end, and the node leaves the cluster."""
        node = self.where()[job]
        self.grid.world.left.add(node)
        for pod_id, pod in tuple(self.grid.world.pods.items()):
            if pod.order.node == node:
                self.grid.world.kill_pod(pod_id)
        self.have_nodes()
        return node

    def router(self) -> ServiceOrder:
        running = (one for pod in self.grid.world.pods.values() for one in pod.running.values())
        [route] = (one for one in running if one.order.job.name == ROUTE)
        return self.grid.world.orders[route.order.attempt_id]

    def reached(self) -> set[str]:
        """The attempts to which the router connects."""
        return {one.attempt_id for one in self.router().upstreams}

    def is_whole(self) -> bool:
        """Whether the service runs in all its pods, on different nodes, and the router reaches all of
        them."""
        view, where = self.view(), self.where()
        attempts = {one.order.attempt_id for one in self.replicas().values()}
        return (
            is_running(view)
            and len(where) == len(set(where.values())) == view.service.pods
            and self.reached() == attempts
        )


def _node(name: str) -> Node:
    return Node(name=name, capacity=Amounts(cpus=4.0, memory_bytes=8 * GIB))


def test_each_pod_has_a_node_of_its_own_and_the_router_reaches_all_of_them() -> None:
    ray = OnRay().start(pods=3)
    assert set(ray.where().values()) == set(NAMES)
    assert ray.view().ready == 3
    ray.cases.stop_service("rain")
    ray.until(lambda: ray.view().state is ServiceState.STOPPED)
    assert ray.replicas() == {}


@pytest.mark.parametrize("job", [JOB, SECOND_JOB])
def test_after_the_end_of_a_node_the_other_pod_answers_and_a_new_one_starts_on_another_node(job: str) -> None:
    ray = OnRay().start()
    port, before = ray.view().service.port, ray.where()
    [other] = (one.order.attempt_id for name, one in ray.replicas().items() if name != job)
    lost = ray.end_node_of(job)
    ray.until(lambda: ray.reached() == {other})
    assert ray.view().state is ServiceState.UPDATING
    assert "1 of 2 pods are ready" in ray.view().message
    ray.until(ray.is_whole)
    assert lost not in ray.where().values()
    assert set(before.values()) - {lost} < set(ray.where().values())
    assert ray.view().service.port == port
    told = [
        one.body["message"] for one in ray.cases.events(ray.view().service.run_id) if one.type == "service"
    ]
    assert "a pod has ended; the other pods answer" in told


def test_without_another_node_the_pod_waits_and_starts_when_the_node_returns() -> None:
    ray = OnRay(("a", "b")).start()
    lost = ray.end_node_of(SECOND_JOB)
    ray.until(lambda: len(ray.reached()) == 1)
    ray.grid.run_until(lambda: len(ray.replicas()) > 1, at_most_steps=60)
    assert set(ray.where().values()) == {"a", "b"} - {lost}
    ray.node_returns(lost)
    ray.until(ray.is_whole)


def test_an_update_of_the_number_of_pods_leaves_the_other_pods_as_they_are() -> None:
    ray = OnRay().start(pods=1)
    first, generation = ray.replicas()[JOB].order.attempt_id, ray.view().service.generation
    ray.cases.update_service("rain", settings=ServiceSettings(pods=3))
    ray.until(ray.is_whole)
    assert len(ray.replicas()) == 3
    ray.cases.update_service("rain", settings=ServiceSettings(pods=1))
    ray.until(lambda: ray.reached() == {first})
    assert len(ray.replicas()) == 3  # the router sends nothing to them before they end
    ray.until(ray.is_whole)
    assert list(ray.replicas()) == [JOB]
    assert (ray.replicas()[JOB].order.attempt_id, ray.view().service.generation) == (first, generation)
    lost = ray.end_node_of(JOB)
    ray.until(ray.is_whole)  # a service in one pod is bound to no node
    assert lost not in ray.where().values()


def test_an_update_of_the_version_reaches_all_pods() -> None:
    ray = OnRay().start(pods=3)
    ray.cases.update_service("rain", model="w/m@2")
    assert ray.view().state is ServiceState.UPDATING
    ray.until(ray.is_whole)
    orders = [ray.grid.world.orders[one.order.attempt_id] for one in ray.replicas().values()]
    assert [one.versions[0].label for one in orders] == ["w/m@2"] * 3


def test_an_update_takes_effect_while_a_pod_has_no_node() -> None:
    ray = OnRay(("a", "b")).start()
    ray.end_node_of(JOB)
    ray.until(lambda: len(ray.reached()) == 1 and len(ray.replicas()) == 1)
    ray.cases.update_service("rain", model="w/m@2")
    ray.until(lambda: ray.view().service.is_in_effect)
    ray.cases.update_service("rain", model="w/m@1")
    ray.until(lambda: ray.view().service.is_in_effect)


def test_a_version_that_fails_in_a_pod_is_shown() -> None:
    ray = OnRay().start()
    ray.grid.world.broken.add("w/m@2")
    ray.cases.update_service("rain", model="w/m@2")
    ray.until(lambda: ray.view().state is ServiceState.FAILING)
    assert "w/m@2 cannot be loaded" in ray.view().message
    ray.cases.rollback_service("rain")
    ray.until(ray.is_whole)


def test_only_a_ray_cluster_with_enough_nodes_runs_several_pods() -> None:
    ray = OnRay(("a", "b"))
    settings = replace(OPEN, pods=3)
    with pytest.raises(InputError, match="each pod needs a node of its own, and site 'lab' has 2 nodes"):
        ray.cases.start_service("rain", model="w/m@1", resource="far", settings=settings)
    with pytest.raises(InputError, match="cannot run in 3 pods at site 'local'"):
        ray.cases.start_service("rain", model="w/m@1", settings=settings)
    with pytest.raises(InputError, match="pods: 33 is not between 0 and 32"):
        ray.cases.start_service("rain", model="w/m@1", settings=ServiceSettings(pods=33))


def sized(ray: OnRay) -> None:
    """The version is measured: a replica serves 350 requests/s, which need 0.5 CPUs of its node."""
    point = LoadPoint(
        connections=1, rate_per_second=500.0, mean_seconds=0.002, p99_seconds=0.003, cpu_seconds=0.001
    )
    machine = "a node with 4 CPUs at site lab"
    with ray.grid.node.changing() as transaction:
        transaction.put(
            Calibration(version="w/m@1", machine=machine, points=(point,), replica_bytes=64 * MIB)
        )


def test_a_rate_is_divided_among_the_pods_of_the_same_update() -> None:
    ray = OnRay().start(pods=1)
    sized(ray)
    with pytest.raises(CapacityError):
        ray.cases.update_service("rain", rate=900.0)
    ray.cases.update_service("rain", rate=900.0, settings=ServiceSettings(pods=3))
    ray.until(ray.is_whole)
    service = ray.view().service
    assert (service.pods, service.replicas, service.rate) == (3, 1, 900.0)
    with pytest.raises(CapacityError):
        ray.cases.update_service("rain", rate=900.0, settings=ServiceSettings(pods=1))


def test_a_service_with_a_rate_gets_another_size_with_another_number_of_pods() -> None:
    ray = OnRay()
    sized(ray)
    settings = replace(OPEN, pods=2)
    ray.cases.start_service("rain", model="w/m@1", rate=600.0, resource="far", settings=settings)
    ray.until(ray.is_whole)
    assert ray.view().service.replicas == 1
    for pods, replicas in ((1, 2), (3, 1)):
        ray.cases.update_service("rain", settings=ServiceSettings(pods=pods))
        ray.until(ray.is_whole)
        assert (ray.view().service.replicas, ray.view().service.rate) == (replicas, 600.0)


def test_a_quota_counts_the_growth_of_all_pods() -> None:
    ray = OnRay()
    sized(ray)
    ray.cases.configure_project(Project(name="research", cpus=100.0))
    settings = replace(OPEN, pods=3)
    ray.cases.start_service(
        "rain", model="w/m@1", rate=300.0, resource="far", project="research", settings=settings
    )
    ray.until(ray.is_whole)
    held = ray.grid.node.control.ledger.snapshot.places.tallies["research"].cpus
    ray.cases.configure_project(Project(name="research", cpus=held + 0.5))
    # each of 3 pods grows from 0.15 to 0.45 CPUs
    with pytest.raises(CapacityError, match=r"and 0\.9 more needed"):
        ray.cases.update_service("rain", rate=900.0)


def killed_at(ray: OnRay, number: int) -> None:
    """The control node is killed at a commit from now on, and the service is whole again."""
    fault = Fault.KILL_BEFORE if number % 2 else Fault.KILL_AFTER
    ray.grid.store.schedule = schedule = KillAtCommit(number, fault)
    ray.until(ray.is_whole)
    assert schedule.left < 0, "the control node was killed"


@pytest.mark.parametrize("number", range(1, 4))
def test_a_control_node_that_is_killed_while_a_pod_is_added_goes_on(number: int) -> None:
    ray = OnRay().start(pods=1)
    ray.cases.update_service("rain", settings=ServiceSettings(pods=2))
    killed_at(ray, number)


@pytest.mark.parametrize("number", range(1, 6))
def test_a_control_node_that_is_killed_after_the_end_of_a_node_goes_on(number: int) -> None:
    ray = OnRay().start()
    ray.end_node_of(JOB)
    killed_at(ray, number)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_nodes_and_pods_the_service_is_whole_again(seed: int) -> None:
    chance, ray = random.Random(seed), OnRay().start()
    for _ in range(8):
        happens = chance.choice(("ends", "returns", "pods", "killed", "version"))
        left = sorted(ray.grid.world.left)
        if happens == "ends" and ray.where() and not left:
            ray.end_node_of(chance.choice(sorted(ray.where())))
        elif happens == "returns" and left:
            ray.node_returns(chance.choice(left))
        elif happens == "pods" and not left:
            ray.cases.update_service("rain", settings=ServiceSettings(pods=chance.randint(1, 3)))
        elif happens == "version" and ray.view().service.is_in_effect:
            ray.cases.update_service("rain", model=f"w/m@{chance.randint(1, 2)}")
        elif happens == "killed":
            ray.grid.control_dies()
        ray.grid.run_until(lambda: False, at_most_steps=chance.randint(1, 40))
    for name in sorted(ray.grid.world.left):
        ray.node_returns(name)
    ray.until(ray.is_whole)
