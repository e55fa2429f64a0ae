"""Services on a simulated grid: they start, follow aliases, are updated and rolled back, and survive the ends
of their process, of their pod and of the control node."""

from collections.abc import Callable

import pytest
from test_races import service as cases_of
from test_races import simulation
from test_versions import alias

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.artifact import Artifact, ArtifactKind, Latest, Output
from gridmill.domain.job import JobKind
from gridmill.domain.project import Project
from gridmill.domain.resource import Resource
from gridmill.domain.service import ServiceState, ServiceView, run_name
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.version_manifest import FileProblem, FileProblemKind
from gridmill.errors import ConflictError, InputError, NotFoundError, StaleVersionError, StorageError
from gridmill.ports.store import Delete, Put
from gridmill.testing.simulated_site import Behaviour, Execution
from gridmill.testing.simulation import Simulation

FOREVER = 1e9


def a_model(number: int, features: tuple[str, ...] = ("temp", "wind"), **details: object) -> Artifact:
    output = Output(
        kind=ArtifactKind.MODEL,
        uri=f"models/w/m/{number}",
        details={"features": list(features), "labels": ["rain"], "objective": "regression", **details},
    )
    return Artifact(id=f"w/m@{number}", name="w/m", number=number, output=output, fingerprint=str(number))


@pytest.fixture
def grid() -> Simulation:
    made = simulation(lambda order: Behaviour(seconds=FOREVER))
    versions = [a_model(1), a_model(2), a_model(3), a_model(4, ("temp", "cloud"))]
    made.store.commit([Put(noun=one, expected=0) for one in versions])
    return made


@pytest.fixture
def cases(grid: Simulation) -> Cases:
    return cases_of(grid)


def until(grid: Simulation, cases: Cases, holds: Callable[[ServiceView], bool]) -> ServiceView:
    assert grid.run_until(lambda: holds(cases.service("rain")), at_most_steps=2000), cases.service("rain")
    return cases.service("rain")


def is_running(view: ServiceView) -> bool:
    return view.state is ServiceState.RUNNING and view.service.is_in_effect


def started(grid: Simulation, cases: Cases, model: str = "w/m@1", **settings: object) -> ServiceView:
    cases.start_service("rain", model=model, **settings)  # type: ignore[arg-type]
    return until(grid, cases, is_running)


def running_execution(grid: Simulation) -> Execution:
    (pod,) = (pod for pod in grid.world.pods.values() if pod.running)
    (execution,) = pod.running.values()
    return execution


def test_a_service_starts_with_its_version_and_shows_its_address_and_its_replicas(
    grid: Simulation, cases: Cases
) -> None:
    view = started(grid, cases, replicas=2)
    execution = running_execution(grid)
    order = grid.world.orders[execution.order.attempt_id]
    assert [(one.label, one.folder) for one in order.versions] == [("w/m@1", "/simulated/models/w/m/1")]
    assert order.replicas == view.ready == 2
    assert view.url == f"http://127.0.0.1:{view.service.port}"
    assert execution.order.given.cpus == 2
    assert view.service.run_id == f"{run_name('rain')}-1"


def test_a_second_start_with_the_same_settings_changes_nothing_and_with_others_is_refused(
    grid: Simulation, cases: Cases
) -> None:
    view = started(grid, cases)
    assert cases.start_service("rain", model="w/m@1").service == view.service
    with pytest.raises(ConflictError, match="already runs with other options: model, replicas"):
        cases.start_service("rain", model="w/m@2", replicas=2)


def test_an_update_reaches_the_running_attempt_and_keeps_the_port(grid: Simulation, cases: Cases) -> None:
    before = started(grid, cases)
    attempt = running_execution(grid).order.attempt_id
    cases.update_service("rain", model="w/m@2")
    after = until(grid, cases, is_running)
    assert (after.service.version, after.service.previous) == ("w/m@2", "w/m@1")
    assert running_execution(grid).order.attempt_id == attempt
    assert after.service.port == before.service.port
    assert after.service.generation == before.service.generation + 1


def test_a_rollback_returns_to_the_version_before_and_follows_no_alias(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion")
    with pytest.raises(ConflictError, match="no version before"):
        cases.rollback_service("rain")
    cases.set_alias(alias("champion", 2))
    until(grid, cases, lambda view: is_running(view) and view.service.version == "w/m@2")
    cases.rollback_service("rain")
    back = until(grid, cases, is_running)
    assert (back.service.version, back.service.previous, back.service.follows) == ("w/m@1", "w/m@2", "")
    cases.set_alias(alias("champion", 3))
    grid.run_until(lambda: False, at_most_steps=20)
    assert cases.service("rain").service.version == "w/m@1"


def test_only_a_named_alias_is_followed(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    assert started(grid, cases, "w/m@1").service.follows == ""
    grid.store.commit([Put(noun=Latest(name="w/m", artifact="w/m@2", run="w-2", order=2), expected=0)])
    latest = cases.update_service("rain", model="w/m@latest").service
    assert (latest.follows, latest.version) == ("", "w/m@2")
    until(grid, cases, is_running)
    followed = cases.update_service("rain", model="w/m@champion").service
    assert (followed.follows, followed.version) == ("w/m@champion", "w/m@1")


def test_a_version_with_another_signature_is_refused_with_the_names_of_its_fields(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    with pytest.raises(InputError, match="the features `wind` are missing; the features `cloud` are new"):
        cases.update_service("rain", model="w/m@4")
    assert cases.service("rain").service.version == "w/m@1"


def test_an_alias_that_moves_to_another_signature_gives_an_event_and_the_old_version_serves(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion")
    cases.set_alias(alias("champion", 4))
    view = until(grid, cases, lambda view: bool(view.service.refusal))
    assert view.service.version == "w/m@1"
    assert "`cloud` are new" in view.message
    assert "still serves w/m@1" in view.message
    events = [one.body for one in cases.events(view.service.run_id) if one.type == "service"]
    assert sum("w/m@4, which is not served" in one["message"] for one in events) == 1
    cases.set_alias(alias("champion", 2))
    moved = until(grid, cases, lambda view: is_running(view) and view.service.version == "w/m@2")
    assert moved.service.refusal == ""


def test_a_followed_version_whose_files_changed_is_refused(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, "w/m@champion")
    grid.node.control.storage.wrong["w/m@2"] = (FileProblem(path="model.onnx", kind=FileProblemKind.CHANGED),)
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda view: bool(view.service.refusal))
    assert view.service.version == "w/m@1"
    assert "w/m@2, which is not served: the files of w/m@2 changed" in view.message
    with pytest.raises(InputError, match="the files of w/m@2 have changed"):
        cases.update_service("rain", model="w/m@2")


def test_a_second_update_is_refused_until_the_first_is_in_effect_and_a_rollback_is_not(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    grid.world.broken.add("w/m@2")
    cases.update_service("rain", model="w/m@2")
    view = until(grid, cases, lambda view: view.state is ServiceState.FAILING)
    assert "w/m@2 cannot be loaded" in view.message
    with pytest.raises(ConflictError, match="not in effect yet: w/m@2 cannot be loaded"):
        cases.update_service("rain", model="w/m@3")
    cases.rollback_service("rain")
    assert until(grid, cases, is_running).service.version == "w/m@1"
    with pytest.raises(StaleVersionError, match="has generation 3, not 1"):
        cases.update_service("rain", model="w/m@3", expected=1)


def test_more_replicas_than_the_attempt_has_memory_for_are_refused(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    with pytest.raises(InputError, match="8 replicas need about"):
        cases.update_service("rain", replicas=8)


def test_more_replicas_than_the_pod_has_cpus_for_are_refused_because_the_next_start_would_be(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    snapshot = grid.node.control.ledger.snapshot
    (attempt,) = snapshot.attempts.values()
    (pod,) = snapshot.deployments[attempt.deployment_id].pods
    cpus = int(pod.capacity.cpus)
    with pytest.raises(InputError, match=f"{cpus + 1} replicas need {cpus + 1} CPUs, .* has {cpus}"):
        cases.update_service("rain", replicas=cpus + 1)
    assert cases.update_service("rain", replicas=2).service.replicas == 2


@pytest.mark.parametrize("cause", [Cause.EXIT, Cause.MEMORY, Cause.INPUT])
def test_a_process_that_ends_starts_again_at_the_same_port_however_often_it_ends(cause: Cause) -> None:
    ends = {"left": 12}

    def behave(order: object) -> Behaviour:
        ends["left"] -= 1
        if ends["left"] >= 0:
            return Behaviour(seconds=1.0, outcome=AttemptState.FAILED, cause=cause)
        return Behaviour(seconds=FOREVER)

    grid = simulation(behave)
    grid.store.commit([Put(noun=a_model(1), expected=0)])
    cases = cases_of(grid)
    port = started(grid, cases).service.port
    view = until(grid, cases, lambda view: is_running(view) and ends["left"] < 0 and view.since is not None)
    assert len(grid.world.executions) == 13
    assert view.service.port == port


def test_a_service_whose_pod_was_killed_starts_in_another_pod(grid: Simulation, cases: Cases) -> None:
    first = started(grid, cases)
    grid.world.kill_pod(running_execution(grid).pod_id)
    view = until(grid, cases, lambda view: is_running(view) and view.since != first.since)
    assert view.service.port == first.service.port
    assert first.last_end == ""
    assert view.last_end.startswith("started 2 times; the process before: "), view.last_end


def test_a_control_node_that_was_killed_finds_the_service_running_and_sends_what_it_missed(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    before = started(grid, cases, "w/m@champion")
    attempt = running_execution(grid).order.attempt_id
    grid.world.cut_link(running_execution(grid).pod_id, 5.0)
    cases.update_service("rain", model="w/m@2")
    grid.control_dies()
    cases = cases_of(grid)
    after = until(grid, cases, is_running)
    assert running_execution(grid).order.attempt_id == attempt
    assert (after.service.version, after.since) == ("w/m@2", before.since)


def test_a_stopped_service_starts_again_at_its_port_and_can_be_removed_only_when_stopped(
    grid: Simulation, cases: Cases
) -> None:
    first = started(grid, cases)
    with pytest.raises(ConflictError, match="is running"):
        cases.remove_service("rain")
    cases.stop_service("rain")
    stopped = until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    assert cases.stop_service("rain").service == stopped.service
    with pytest.raises(ConflictError, match="belongs to service 'rain'"):
        cases.resume(first.service.run_id)
    with pytest.raises(ConflictError, match="is stopped"):
        cases.update_service("rain", replicas=2)
    cases.start_service("rain")
    again = until(grid, cases, is_running)
    assert (again.service.port, again.service.version) == (first.service.port, "w/m@1")
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    cases.remove_service("rain")
    with pytest.raises(NotFoundError):
        cases.service("rain")
    assert cases.services().items == ()


def test_versions_in_service_are_neither_removed_nor_deleted_by_retention(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    cases.update_service("rain", model="w/m@2")
    until(grid, cases, is_running)
    for number in (1, 2):
        with pytest.raises(ConflictError, match="service 'rain' serves"):
            cases.remove_artifact(f"w/m@{number}", force=True)
    assert cases.remove_artifact("w/m@2", dry_run=True).services == ("rain",)
    cases.remove_artifact("w/m@3", force=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "no model is named"),
        ({"model": "w/m@1", "replicas": -1}, "from 1 to 64"),
        ({"model": "w/m@1", "port": 70000}, "from 1 to 65535"),
    ],
)
def test_what_cannot_start_is_refused(cases: Cases, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cases.start_service("rain", **settings)  # type: ignore[arg-type]


def test_a_port_belongs_to_one_service(grid: Simulation, cases: Cases) -> None:
    port = started(grid, cases).service.port
    with pytest.raises(ConflictError, match=f"port {port} belongs to service 'rain'"):
        cases.start_service("snow", model="w/m@1", port=port)


def test_services_share_the_pods_of_a_resource(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    cases.start_service("snow", model="w/m@2")
    assert grid.run_until(lambda: is_running(cases.service("snow")), at_most_steps=500)
    assert len(grid.world.pods) == 1
    assert [view.name for view in cases.services().items] == ["rain", "snow"]


def test_a_shutdown_of_the_control_node_leaves_services_running(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    cases.shutdown()
    grid.run_until(lambda: False, at_most_steps=20)
    assert is_running(cases.service("rain"))


def in_a_resource(grid: Simulation, cases: Cases) -> None:
    cases.configure_resource(Resource(name="servers", type=JobKind.SERVICE))
    cases.configure_project(Project(name="research"))
    started(grid, cases, "w/m@1", resource="servers", project="research", replicas=2)


def test_a_stopped_service_starts_again_in_its_resource_and_its_project(
    grid: Simulation, cases: Cases
) -> None:
    in_a_resource(grid, cases)
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    cases.start_service("rain")
    service = until(grid, cases, is_running).service
    assert (service.resource, service.project, service.replicas) == ("servers", "research", 2)
    assert cases.run(service.run_id).run.project == "research"
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    cases.start_service("rain", model="w/m@2", resource="default-service")
    service = until(grid, cases, is_running).service
    assert (service.version, service.resource, service.replicas) == ("w/m@2", "", 2)


def test_a_start_of_a_running_service_compares_only_what_it_names(grid: Simulation, cases: Cases) -> None:
    in_a_resource(grid, cases)
    view = cases.service("rain")
    for again in ({}, {"model": "w/m@1"}, {"replicas": 2}, {"resource": "servers"}):
        assert cases.start_service("rain", **again).service == view.service  # type: ignore[arg-type]
    with pytest.raises(ConflictError, match=r"already runs with other options: model$"):
        cases.start_service("rain", model="w/m@2")
    with pytest.raises(ConflictError, match=r"already runs with other options: project$"):
        cases.start_service("rain", project="default")


def test_a_running_service_is_compared_by_the_alias_that_it_follows_and_not_by_the_text(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases, "w/m@0001")
    cases.start_service("rain")
    cases.set_alias(alias("champion", 1))
    with pytest.raises(ConflictError, match=r"other options: model$"):
        cases.start_service("rain", model="w/m@champion")
    cases.update_service("rain", model="w/m@champion")
    until(grid, cases, is_running)
    cases.set_alias(alias("champion", 4))  # which has other features, so that the service refuses it
    until(grid, cases, lambda view: bool(view.service.refusal))
    assert cases.start_service("rain").service.version == "w/m@1"


def test_a_service_that_stops_is_neither_started_nor_changed_until_it_has_ended(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    cases.update_service("rain", model="w/m@2")
    until(grid, cases, is_running)
    cases.stop_service("rain")
    assert cases.service("rain").state is ServiceState.STOPPING
    for change in (
        lambda: cases.start_service("rain"),
        lambda: cases.start_service("rain", model="w/m@3"),
        lambda: cases.update_service("rain", model="w/m@3"),
        lambda: cases.rollback_service("rain"),
    ):
        with pytest.raises(ConflictError, match="service 'rain' is stopping"):
            change()
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)
    cases.start_service("rain")
    assert until(grid, cases, is_running).service.version == "w/m@2"


def test_the_files_of_a_service_are_deleted_only_after_the_commit_of_its_removal(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    cases.stop_service("rain")
    until(grid, cases, lambda view: view.state is ServiceState.STOPPED)

    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    commit, grid.store.commit = grid.store.commit, fail  # type: ignore[method-assign,assignment]
    with pytest.raises(StorageError):
        cases.remove_service("rain")
    assert grid.node.control.discarded == []
    grid.store.commit = commit  # type: ignore[method-assign]
    cases.remove_service("rain")
    assert grid.node.control.discarded == ["services/rain/features"]
    with pytest.raises(ConflictError, match="are still being deleted"):
        cases.start_service("rain", model="w/m@1")
    grid.node.tick()
    started(grid, cases)


def test_a_service_whose_version_has_a_damaged_record_goes_on_and_stops_no_other_service(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    attempt = running_execution(grid).order.attempt_id
    grid.store.commit([Delete(noun=Artifact, key="w/m@1", expected=1)])
    grid.control_dies()
    again = cases_of(grid)
    again.start_service("hail", model="w/m@2")
    assert grid.run_until(lambda: is_running(again.service("hail")), at_most_steps=2000)
    view = again.service("rain")
    assert (view.state, view.service.reported_by) == (ServiceState.RUNNING, attempt)
    assert "its order cannot be made, and it serves as before: there is no version 'w/m@1'" in view.message
    again.stop_service("rain")
    until(grid, again, lambda view: view.state is ServiceState.STOPPED)


def test_a_service_whose_version_is_lost_and_whose_pod_ends_stops_no_other_service(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    (pod,) = grid.world.pods
    grid.store.commit([Delete(noun=Artifact, key="w/m@1", expected=1)])
    grid.control_dies()
    grid.world.kill_pod(pod)
    again = cases_of(grid)
    again.start_service("hail", model="w/m@2")
    assert grid.run_until(lambda: is_running(again.service("hail")), at_most_steps=2000)
    until(grid, again, lambda view: "there is no version 'w/m@1'" in view.message)
