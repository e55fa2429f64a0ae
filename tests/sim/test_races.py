"""Single races and slips of a grid on a fake clock, each with what a user would have seen."""

from dataclasses import replace

import pytest

from gridmill.control.state import ControlTimeouts
from gridmill.control.usecases.run_views import SHOWN, RunViews
from gridmill.control.usecases.service import Identity, Service
from gridmill.control.usecases.views import attempts_of
from gridmill.domain.amounts import Amounts, devices_of
from gridmill.domain.artifact import Artifact
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.deployment import Deployment
from gridmill.domain.job import CommandSpec, Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node, Site
from gridmill.domain.states import FINISHED_RUNS, AttemptState, Cause, JobState, RunState
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import ConflictError, InputError, PipelineError, StorageError
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation, kill

GIB = 2**30


def command(name: str, **settings) -> Job:
    return Job(name=name, command=CommandSpec(run="true"), **{"memory_bytes": GIB, **settings})


def simulation(
    behave=lambda order: Behaviour(seconds=1.0), *, memory: int = 32 * GIB, store=None, observe: float = 1.0
) -> Simulation:
    node = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=memory))
    made = Simulation(
        store=store or FaultyStore(make_memory(), FaultScript()),
        behave=behave,
        nodes=(node,),
        limits=ControlTimeouts(observe_seconds=observe),
    )
    made.declare_site()
    return made


def service(grid: Simulation) -> Service:
    identity = Identity(version="0", home="", address="", embedded=True)
    return Service(grid.node, identity, render=lambda view, events: "", end=lambda: None)


def run_of(grid: Simulation, run: Run) -> Run:
    return grid.store.get(Run, run.id).noun


def job_of(grid: Simulation, run: Run, name: str) -> JobRun:
    return grid.store.get(JobRun, f"{run.id}/{name}").noun


def finish(grid: Simulation, run: Run, *, within: float = 3600.0) -> Run:
    until = grid.clock.monotonic() + within
    assert grid.run_until(
        lambda: run_of(grid, run).state in FINISHED_RUNS or grid.clock.monotonic() > until, at_most_steps=5000
    )
    assert run_of(grid, run).state in FINISHED_RUNS, "it hangs"
    return run_of(grid, run)


def failing(order) -> Behaviour:
    return Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)


def test_a_run_whose_resource_was_removed_is_not_resumed_and_harms_nobody():
    grid = simulation(failing)
    jobs = (command("a", resource="mine"),)
    resource = Resource(name="mine", type=JobKind.COMMAND)
    run = grid.submit(Pipeline(name="p", jobs=jobs, resources=(resource,)))
    assert finish(grid, run).state == RunState.FAILED
    service(grid).remove_resource("mine")
    with pytest.raises(PipelineError, match="no resource 'mine'"):
        grid.resume(run.id)
    assert finish(grid, grid.submit(Pipeline(name="q", jobs=(command("b"),)))).state == RunState.FAILED


def test_a_resumed_run_uses_a_default_resource_that_was_removed_and_one_assigned_since():
    grid = simulation(failing)
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    finish(grid, run)
    service(grid).remove_resource("default-command")
    grid.resume(run.id)
    finish(grid, run)
    service(grid).configure_resource(Resource(name="mine", type=JobKind.COMMAND, jobs=("p/a",)))
    grid.resume(run.id)
    finish(grid, run)
    assert job_of(grid, run, "a").resource == "mine"
    assert job_of(grid, run, "a").attempts == 3


def test_room_that_is_given_back_is_used_at_once():
    grid = simulation(memory=2 * GIB)
    resources = tuple(
        Resource(name=name, type=JobKind.COMMAND, memory_bytes=2 * GIB) for name in ("one", "two")
    )
    jobs = (command("a", resource="one"), command("b", resource="two", needs=("a",)))
    run = grid.submit(Pipeline(name="p", jobs=jobs, resources=resources))
    finish(grid, run, within=10.0)


def test_a_pod_that_never_answers_is_given_up():
    grid = simulation()
    grid.world.dial_seconds = 1e9
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    assert finish(grid, run).state == RunState.FAILED
    assert "failed to start 3 times" in job_of(grid, run, "a").message
    assert not grid.world.pods


def test_a_pod_that_answers_late_is_used():
    grid = simulation()
    grid.world.dial_seconds = 100.0
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert job_of(grid, run, "a").attempts == 1


def test_pods_of_a_site_that_was_cut_off_are_not_silent():
    """Its link goes just before its site; both are back after longer than a pod may be silent."""
    grid = simulation(lambda order: Behaviour(seconds=1000.0))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    assert grid.run_until(lambda: bool(grid.world.executions))
    cut_seconds = 2 * grid.limits.greeting_seconds
    grid.world.cut_link("default-command-1.0", cut_seconds + 10.0)
    assert grid.run_until(lambda: bool(grid.node.control.bring_ups.silent_since))
    grid.world.away(cut_seconds)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert job_of(grid, run, "a").attempts == 1


def test_a_pod_forgets_nothing_that_is_not_committed():
    """Events by an old link and the greeting by a new one come together, and their commit fails."""
    grid = simulation()
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    assert grid.run_until(lambda: bool(grid.world.executions))
    grid.stall(1.5)
    grid.world.cut_link("default-command-1.0", 0.1)
    grid.clock.advance(0.2)
    grid.world.step()
    grid.store.schedule = FaultScript(Fault.FAIL_BEFORE)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert job_of(grid, run, "a").attempts == 1, "it ran once, and its end was told once more"


class Reads(FaultyStore):
    broken = 0

    def list(self, noun, **how):
        if noun is Artifact and self.broken:
            self.broken -= 1
            raise StorageError("injected")
        return super().list(noun, **how)


def test_a_greeting_that_came_with_what_cannot_be_settled_now_is_not_lost():
    store = Reads(make_memory(), FaultScript())
    grid = simulation(store=store)
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    other = grid.submit(
        Pipeline(
            name="q",
            jobs=(command("b", resource="r"),),
            resources=(Resource(name="r", type=JobKind.COMMAND),),
        )
    )
    assert grid.run_until(lambda: len(grid.world.executions) == 2)
    grid.tick()
    grid.world.cut_link("r-1.0", 1.1)
    grid.node.control.catalog.newest_artifacts.clear()
    grid.clock.advance(1.05)
    grid.world.step()
    grid.clock.advance(0.1)
    grid.world.step()
    store.broken = 1
    assert finish(grid, run, within=30).state == RunState.SUCCEEDED
    assert finish(grid, other, within=30).state == RunState.SUCCEEDED
    assert grid.world.executions[1].order.attempt_id == "q-1.b.1"
    assert job_of(grid, other, "b").attempts == 1


TABLE = Job(name="table", dataset=DatasetSpec(sql="select 1"), memory_bytes=GIB)


def reader() -> Pipeline:
    job = Job(
        name="fit", training=TrainingSpec(dataset="data/table", model=ModelKind.NAIVE), memory_bytes=GIB
    )
    return Pipeline(name="p", jobs=(job,))


def test_a_store_that_cannot_be_read_for_a_moment_fails_no_job():
    store = Reads(make_memory(), FaultScript())
    grid = simulation(store=store)
    finish(grid, grid.submit(Pipeline(name="data", jobs=(TABLE,))))
    run = grid.submit(reader())
    grid.node.control.catalog.newest_artifacts.clear()
    store.broken = 1
    assert finish(grid, run).state == RunState.SUCCEEDED


def test_lineage_names_the_version_that_was_read():
    """A newer one that another pipeline makes meanwhile is not it."""
    grid = simulation(lambda order: Behaviour(seconds=20.0 if order.pipeline == "p" else 1.0))
    data = Pipeline(name="data", jobs=(TABLE,))
    finish(grid, grid.submit(data))
    run = grid.submit(reader())
    assert grid.run_until(lambda: len(grid.world.executions) == 2)
    finish(grid, grid.submit(data))
    finish(grid, run)
    (made,) = job_of(grid, run, "fit").artifacts
    read = [entry.artifact.id for entry in grid.world.executions[1].order.inputs]
    assert grid.store.get(Artifact, made).noun.made_from == tuple(read) == ("data/table@1",)


def test_a_version_that_a_run_of_another_pipeline_reads_is_not_removed():
    grid = simulation(lambda order: Behaviour(seconds=20.0 if order.pipeline == "p" else 1.0))
    finish(grid, grid.submit(Pipeline(name="data", jobs=(TABLE,))))
    run = grid.submit(reader())
    assert grid.run_until(lambda: len(grid.world.executions) == 2)
    with pytest.raises(ConflictError, match="p-1"):
        service(grid).remove_artifact("data/table@1", force=True)
    finish(grid, run)
    service(grid).remove_artifact("data/table@1", force=True)


def test_a_resumed_run_says_which_version_was_removed():
    grid = simulation(lambda order: Behaviour() if order.job.name == "a" else failing(order))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"), command("b", needs=("a",)))))
    finish(grid, run)
    service(grid).remove_artifact("p/a@1")
    grid.resume(run.id)
    finish(grid, run)
    assert "p/a@1, which was removed" in job_of(grid, run, "b").message


def test_a_job_over_the_memory_of_its_resource_says_that_it_ran_out():
    grid = simulation(lambda order: Behaviour(outcome=AttemptState.FAILED, cause=Cause.MEMORY))
    resource = Resource(name="small", type=JobKind.COMMAND, memory_bytes=GIB)
    run = grid.submit(Pipeline(name="p", jobs=(command("a", resource="small"),), resources=(resource,)))
    finish(grid, run)
    assert "ran out of memory" in job_of(grid, run, "a").message


def test_a_second_stop_and_a_stop_while_the_pod_is_dead_end_the_run():
    grid = simulation(lambda order: Behaviour(seconds=1000.0))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"), command("b", needs=("a",)))))
    assert grid.run_until(lambda: bool(grid.world.executions))
    grid.world.kill_pod("default-command-1.0")
    grid.stop(run.id)
    grid.stop(run.id)
    assert finish(grid, run, within=30).state == RunState.STOPPED
    assert [job_of(grid, run, name).state for name in "ab"] == [JobState.STOPPED] * 2
    grid.stop(run.id)
    assert len(grid.store.list(Attempt)) == 1


@pytest.mark.parametrize("name", ["../../etc", "A", "a.b", "a/b", "", "a\n"])
def test_names_that_would_leave_their_folder_are_refused(name: str):
    grid = service(simulation())
    for pipeline in (Pipeline(name=name, jobs=(command("a"),)), Pipeline(name="p", jobs=(command(name),))):
        for act in (grid.start_run, grid.apply):
            with pytest.raises(InputError, match="cannot be the name"):
                act(pipeline)
    with pytest.raises(InputError, match="cannot be the name"):
        grid.configure_resource(Resource(name=name, type=JobKind.COMMAND))


def test_a_resource_with_memory_without_a_unit_is_refused():
    with pytest.raises(InputError, match="4 bytes of memory") as told:
        service(simulation()).configure_resource(Resource(name="r", type=JobKind.COMMAND, memory_bytes=4))
    assert "4GiB" in told.value.hint


def test_a_use_case_after_a_failed_commit_goes_by_the_store():
    store = FaultyStore(make_memory(), FaultScript())
    grid = simulation(store=store)
    grid.tick()
    pipeline = Pipeline(name="p", jobs=(command("a"),))
    store.schedule = FaultScript(Fault.FAIL_AFTER)
    with pytest.raises(StorageError):
        service(grid).start_run(pipeline)
    view = service(grid).start_run(pipeline)
    assert finish(grid, view.run).state == RunState.SUCCEEDED


def test_a_stop_that_a_pod_did_not_hear_is_said_again():
    grid = simulation(lambda order: Behaviour(seconds=1000.0))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    assert grid.run_until(lambda: bool(grid.world.executions))
    grid.world.cut_link("default-command-1.0", 5.0)
    grid.stop(run.id)
    assert finish(grid, run, within=30).state == RunState.STOPPED


def test_a_deployment_that_a_crash_kept_from_coming_up_comes_up_later():
    store = FaultyStore(make_memory(), FaultScript(), kill=kill)
    grid = simulation(store=store)
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    while not store.list(Deployment):
        store.schedule = FaultScript(Fault.KILL_AFTER)
        grid.advance()
    store.schedule = FaultScript()
    assert not grid.world.pods
    finish(grid, run)
    assert grid.world.executions[0].pod_id == "default-command-1.0"


def test_gpus_are_told_apart_by_their_numbers():
    node = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=32 * 2**30, gpus=3))
    simulation = Simulation(store=make_memory(), behave=lambda order: Behaviour(seconds=5.0), nodes=(node,))
    simulation.declare_site()
    resource = Resource(name="gpus", type=JobKind.COMMAND, gpus=1, workers=3)
    jobs = tuple(Job(name=f"j{i}", resource="gpus", command=CommandSpec(run="true")) for i in range(3))
    simulation.submit(Pipeline(name="devices", jobs=jobs, resources=(resource,)))
    assert simulation.run_until(lambda: len(simulation.world.executions) == 3)
    assert sorted(e.order.gpu_indices for e in simulation.world.executions) == [(0,), (1,), (2,)]


def test_parts_of_two_gpus_are_no_whole_one():
    """Two GPUs that each count as four: one job with a part of each, then one that wants all of one."""
    node = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=32 * 2**30, gpus=8))
    seconds = {"first": 5.0, "second": 50.0, "third": 5.0}
    grid = Simulation(
        store=make_memory(),
        behave=lambda order: Behaviour(seconds=seconds.get(order.job.name, 5.0)),
        nodes=(node,),
    )
    grid.declare_site()
    transaction = grid.node.control.begin()
    site = grid.node.control.ledger.find(Site, "local")
    transaction.put(replace(site, settings={"gpu_shares": "4"}))
    grid.node.control.ledger.commit(transaction)
    sizes = (("first", 3), ("second", 2), ("third", 2), ("whole", 4), ("six", 6))
    resources = tuple(Resource(name=name, type=JobKind.COMMAND, gpus=gpus, cpus=1.0) for name, gpus in sizes)
    jobs = tuple(command(name, resource=name) for name, _ in sizes)
    grid.submit(Pipeline(name="p", jobs=jobs, resources=resources))
    assert grid.run_until(lambda: len(grid.world.executions) == 5, at_most_steps=5000)
    given = {one.order.job.name: one.order.gpu_indices for one in grid.world.executions}
    assert {name: len(devices_of(numbers, 4)) for name, numbers in given.items()} == {
        **dict.fromkeys(("first", "second", "third", "whole"), 1),
        "six": 2,
    }
    assert len(given["six"]) == 8  # whole ones: nobody else gets what it does not need


@pytest.mark.parametrize("before", ["placed", "started"])
def test_a_view_never_shows_a_finished_job_with_an_attempt_that_runs(before):
    grid = simulation()
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    if before == "started":
        assert grid.run_until(lambda: any(attempts_of(grid.store, run.id).values()), at_most_steps=5000)
    views = RunViews(grid.node)
    early = views.read(run.id, SHOWN)  # as a reader has it, who then waits for the lock
    finish(grid, run)
    [job] = views.make(run.id, early, SHOWN).jobs
    assert [attempt.state for attempt in job.attempts] == [AttemptState.SUCCEEDED]


def test_a_pod_that_ends_gets_no_job_though_its_site_still_sees_it():
    """The next attempt would wait there until the pod is seen to be gone, and be lost with it."""
    grid = simulation(lambda order: Behaviour(seconds=60.0))
    run = grid.submit(Pipeline(name="p", jobs=(command("a"),)))
    assert grid.run_until(lambda: job_of(grid, run, "a").state == JobState.RUNNING, at_most_steps=500)
    [ending] = grid.world.pods
    grid.world.end_pod(ending)
    assert finish(grid, run).state == RunState.SUCCEEDED
    first, second = attempts_of(grid.store, run.id)["p-1/a"]
    assert (first.pod_id, first.state) == (ending, AttemptState.STOPPED)
    assert second.pod_id != ending


def test_what_a_tick_meets_again_and_again_is_said_once_until_it_is_over():
    grid = simulation()

    def full() -> float:
        raise StorageError("the disk is full")

    for tick in (full, full, grid.node.tick, full):
        grid.node._guarded(tick)
    assert grid.warnings == ["the disk is full"] * 2
