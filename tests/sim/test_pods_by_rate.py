"""The number of pods of a service on a Ray cluster that follows from its rate: chosen at the start and at
each update, without less capacity than the rate needs meanwhile."""

from collections.abc import Callable

import pytest
from test_services_in_several_pods import FAR, OPEN, OnRay, sized
from test_successors_of_services import KillAtCommit

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.service import JOB, ServiceState
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import JobState
from gridmill.errors import CapacityError, ConflictError
from gridmill.testing.faults import Fault

EACH = 350
"""The requests/s of a replica, which needs half a CPU for them."""


def lab(names: tuple[str, ...] = ("a", "b", "c"), cpus: float = 2.0) -> OnRay:
    """A grid with three nodes, on each of which a pod has room for 4 replicas."""
    ray = OnRay(names)
    sized(ray)
    ray.cases.configure_resource(replace(FAR, cpus=cpus))
    return ray


def started(rate: float, names: tuple[str, ...] = ("a", "b", "c"), **settings: int) -> OnRay:
    ray = lab(names)
    start(ray, rate, **settings)
    ray.until(ray.is_whole)
    return ray


def start(ray: OnRay, rate: float, name: str = "rain", **settings: int) -> None:
    terms = replace(OPEN, **settings)
    ray.cases.start_service(name, model="w/m@1", rate=rate, resource="far", settings=terms)


def shape(ray: OnRay) -> tuple[int, int]:
    """The pods and the replicas of each."""
    service = ray.view().service
    assert service.size is not None
    assert (service.size.pods, service.size.replicas) == (service.pods, service.replicas)
    return service.pods, service.replicas


def served(ray: OnRay) -> float:
    """The requests/s that the replicas serve to which the router sends requests."""
    reached = ray.reached()
    attempts = (one.order.attempt_id for one in ray.replicas().values())
    return EACH * sum(ray.grid.world.orders[one].replicas for one in attempts if one in reached)


def whole_with(ray: OnRay, least: float) -> Callable[[], bool]:
    """Whether the service is whole; it serves the rate `least` at each moment until then."""

    def holds() -> bool:
        assert served(ray) >= least, ray.view()
        return ray.is_whole() and not ray.view().service.waits_for_pods

    return holds


def test_a_start_has_the_fewest_pods_and_then_the_fewest_replicas_that_serve_the_rate() -> None:
    for rate, expected in (
        (300.0, (1, 1)),
        (1400.0, (1, 4)),
        (1500.0, (2, 3)),
        (2800.0, (2, 4)),
        (2900.0, (3, 3)),
    ):
        ray = started(rate)
        assert shape(ray) == expected
        assert len(ray.replicas()) == expected[0]
        assert served(ray) >= rate


def test_a_plan_shows_the_pods_and_why() -> None:
    ray = lab()
    plan = ray.cases.plan_service("w/m@1", rate=1500.0, resource="far")
    assert plan.size is not None
    assert (plan.size.pods, plan.size.replicas, plan.size.rate, plan.size.most_rate) == (2, 3, 1500, 2100)
    assert plan.size.why[0] == (
        "2 pods, each on a node of its own: resource far can serve 1,400 requests/s in 1 pod"
    )
    spec = ServiceSpec(model="w/m@1", rate=1500.0, settings=OPEN)
    pipeline = Pipeline(name="p", jobs=(Job(name="rain", resource="far", service=spec),))
    [foreseen] = ray.cases.plan_run(pipeline).jobs
    assert foreseen.sizing.why[0].startswith(
        "service rain: takes 2 pods, each with 3 replicas, 1.1 CPUs, 512 MiB for 1,500 requests/s, expected "
    )
    run = ray.cases.start_run(pipeline).run.id
    ray.until(lambda: ray.cases.run(run).run.ended is not None)
    assert ray.cases.job(run, "rain").job.state is JobState.SUCCEEDED
    assert shape(ray) == (2, 3)
    [same] = ray.cases.plan_run(pipeline).jobs
    assert same.unchanged
    assert same.sizing.why == ("service rain: has 2 pods, each with 3 replicas, 1.1 CPUs, 512 MiB",)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1400, 1500, (2, 3)),
        (2800, 2900, (3, 3)),
        (1500, 1400, (1, 4)),
        (2900, 300, (1, 1)),
        (300, 4200, (3, 4)),
    ],
)
def test_another_rate_changes_the_pods_and_the_service_never_serves_less_than_the_lower_rate(
    before: float, after: float, expected: tuple[int, int]
) -> None:
    ray = started(before)
    ray.cases.update_service("rain", rate=after)
    ray.until(whole_with(ray, min(before, after)))
    assert shape(ray) == expected
    assert served(ray) >= after
    assert ray.view().state is ServiceState.RUNNING
    assert len(ray.replicas()) == expected[0]


def test_pods_keep_their_replicas_until_the_added_pods_serve_and_a_rollback_returns() -> None:
    ray = started(1400.0, ("a", "b"))
    held = next(iter(ray.replicas().values())).order.attempt_id
    ray.grid.world.left.add("b")
    ray.cases.update_service("rain", rate=1500.0)
    ray.have_nodes()
    ray.grid.run_until(lambda: False, at_most_steps=100)
    # the node of the second pod has left: the first one keeps its 4 replicas
    assert (ray.view().state, ray.view().service.waits_for_pods) == (ServiceState.UPDATING, True)
    assert "1 of 2 pods are ready" in ray.view().message
    assert ray.grid.world.orders[held].replicas == 4
    with pytest.raises(ConflictError, match="not in effect yet"):
        ray.cases.update_service("rain", settings=ServiceSettings(max_batch=7))
    ray.cases.rollback_service("rain")
    ray.until(whole_with(ray, 1400))
    assert (shape(ray), ray.view().service.rate) == ((1, 4), 1400)


def test_a_deleted_key_has_no_effect_while_pods_wait_for_added_ones() -> None:
    ray = started(1400.0, ("a", "b"))
    ray.cases.add_service_key("rain", "one")
    ray.until(lambda: ray.is_whole() and ray.view().service.is_in_effect)
    held = next(iter(ray.replicas().values())).order.attempt_id
    ray.grid.world.left.add("b")
    ray.cases.update_service("rain", rate=1500.0)
    ray.have_nodes()
    ray.grid.run_until(lambda: False, at_most_steps=100)
    assert ray.view().service.waits_for_pods
    assert len(ray.grid.world.orders[held].api_keys or ()) == 1
    ray.cases.remove_service_key("rain", "one")
    ray.until(lambda: ray.grid.world.orders[held].api_keys == ())


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize(("before", "after"), [(1400.0, 1500.0), (1500.0, 1400.0)])
def test_a_control_node_that_is_killed_during_the_change_goes_on(
    before: float, after: float, number: int
) -> None:
    ray = started(before)
    ray.cases.update_service("rain", rate=after)
    fault = Fault.KILL_BEFORE if number % 2 else Fault.KILL_AFTER
    ray.grid.store.schedule = KillAtCommit(number, fault)
    ray.until(whole_with(ray, 1400))


def test_a_number_of_pods_or_replicas_of_the_user_wins_and_is_checked() -> None:
    ray = started(300.0, pods=2)
    assert shape(ray) == (2, 1)
    with pytest.raises(
        CapacityError, match="service rain cannot serve 2,900 requests/s of w/m@1 in 2 pods"
    ) as error:
        ray.cases.update_service("rain", rate=2900.0)
    assert error.value.hint.startswith("Use --pods 3, or --pods 0 to let Gridmill choose")
    ray.cases.update_service("rain", rate=1400.0)
    ray.until(ray.is_whole)
    assert shape(ray) == (2, 2)
    # 0 pods: the number follows from the rate again
    ray.cases.update_service("rain", settings=ServiceSettings(pods=0))
    ray.until(whole_with(ray, 1400))
    assert shape(ray) == (1, 4)
    with pytest.raises(CapacityError, match="1 replica of w/m@1 can serve 350 requests/s, not 900"):
        ray.cases.update_service("rain", rate=900.0, replicas=1)
    ray.cases.update_service("rain", rate=900.0, replicas=3)
    ray.until(ray.is_whole)
    assert shape(ray) == (1, 3)


def test_a_range_scales_the_replicas_within_the_present_pods() -> None:
    ray = started(1500.0)
    ray.cases.update_service("rain", replicas=4, least_replicas=1)
    ray.until(ray.is_whole)
    assert (shape(ray), ray.view().service.rate) == ((2, 4), 1500)
    ray.cases.update_service("rain", rate=2800.0)
    ray.until(ray.is_whole)
    assert shape(ray) == (2, 4)
    with pytest.raises(
        CapacityError, match="4 replicas of w/m@1 in each of 2 pods can serve 2,800 requests/s"
    ):
        ray.cases.update_service("rain", rate=2900.0)


def test_a_rate_beyond_all_nodes_names_the_missing_ones() -> None:
    ray = lab()
    with pytest.raises(CapacityError, match=r"it can serve 4,200 requests/s in up to 3 pods") as error:
        start(ray, 7000.0)
    assert error.value.hint.startswith(
        "2 more nodes with 2 CPUs and 2 GiB for a pod are missing, together 4 CPUs."
    )
    start(ray, 4200.0)
    ray.until(ray.is_whole)
    with pytest.raises(CapacityError, match="service rain cannot serve 4,201 requests/s"):
        ray.cases.update_service("rain", rate=4201.0)


def test_other_services_take_their_part_of_each_node_also_before_they_start() -> None:
    ray = lab()
    start(ray, 2100.0, "hail", pods=3)  # 1 CPU of each of the 3 pods
    with pytest.raises(
        CapacityError, match=r"resource far beside its other services .* serve 2,100 requests/s in"
    ):
        start(ray, 2200.0)
    ray.until(lambda: ray.cases.service("hail").state is ServiceState.RUNNING)
    plan = ray.cases.plan_service("w/m@1", rate=1500.0, resource="far")
    assert plan.size is not None
    assert (plan.size.pods, plan.size.replicas) == (3, 2)
    with pytest.raises(CapacityError, match="it can serve 2,100 requests/s in up to 3 pods"):
        start(ray, 2200.0)
    # a resource of its own on the same nodes has what the pods of the other resource leave
    ray.cases.configure_resource(Resource(name="more", type=JobKind.SERVICE, site="lab", memory_bytes=GIB))
    other = ray.cases.plan_service("w/m@1", rate=1500.0, resource="more")
    assert other.size is not None
    assert (other.size.pods, other.size.replicas) == (2, 3)


def test_a_smaller_node_limits_the_replicas_of_each_pod() -> None:
    ray = lab(cpus=0.0)
    ray.cases.configure_resource(replace(FAR, cpus=None))
    small = Node(name="b", capacity=Amounts(cpus=1.0, memory_bytes=4 * GIB))
    large = Node(name="a", capacity=Amounts(cpus=4.0, memory_bytes=8 * GIB))
    with ray.grid.node.changing() as transaction:
        transaction.put(Site(name="lab", kind=SiteKind.RAY, nodes=(large, small)))

    def planned(rate: float) -> tuple[int, int]:
        size = ray.cases.plan_service("w/m@1", rate=rate, resource="far").size
        assert size is not None
        return size.pods, size.replicas

    assert planned(2800.0) == (1, 8)  # only the large node serves it
    with pytest.raises(CapacityError, match="it can serve 2,800 requests/s in up to 2 pods"):
        planned(2801.0)


def test_a_start_with_the_same_rate_changes_nothing_and_a_stopped_service_chooses_again() -> None:
    ray = started(1500.0)
    before = ray.view().service
    start(ray, 1500.0)
    ray.cases.start_service("rain")
    assert ray.view().service == before
    with pytest.raises(ConflictError, match="already runs with other options: "):
        start(ray, 300.0)
    ray.cases.stop_service("rain")
    ray.until(lambda: ray.view().state is ServiceState.STOPPED)
    ray.cases.configure_resource(replace(FAR, cpus=4.0))
    ray.cases.start_service("rain")
    ray.until(ray.is_whole)
    assert (shape(ray), ray.view().service.rate) == ((1, 5), 1500)


def test_a_quota_counts_the_pods_that_a_rate_adds() -> None:
    ray = lab()
    ray.cases.configure_project(Project(name="research", cpus=100.0))
    ray.cases.start_service(
        "rain", model="w/m@1", rate=1400.0, resource="far", project="research", settings=OPEN
    )
    ray.until(ray.is_whole)
    held = ray.grid.node.control.ledger.snapshot.places.tallies["research"].cpus
    ray.cases.configure_project(Project(name="research", cpus=held + 1.0))
    with pytest.raises(CapacityError, match=r"and 1\.1 more needed"):
        ray.cases.update_service("rain", rate=1500.0)


def test_the_pod_that_leaves_is_not_the_one_that_serves_alone() -> None:
    ray = started(1500.0, ("a", "b"))
    ray.end_node_of(JOB)
    ray.until(lambda: len(ray.reached()) == 1 and len(ray.replicas()) == 1)
    ray.cases.update_service("rain", rate=1400.0)
    ray.until(whole_with(ray, 1000))
    assert shape(ray) == (1, 4)
