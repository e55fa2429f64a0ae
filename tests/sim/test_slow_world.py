"""A site or a file server that takes its time holds up nobody but those who need it.

The control node is the real one with its threads; what is slow waits for an event that the test sets.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from gridmill.control.background import ThreadRunner
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import Continuous, ScheduleSpec
from gridmill.domain.sink import SinkSpec
from gridmill.domain.site import Site
from gridmill.domain.source import Source
from gridmill.domain.states import DeploymentState, JobState, PodState, RunState
from gridmill.errors import StorageError, UnavailableError
from gridmill.ports.storage import FileStat
from gridmill.stores import memory
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import NoStorage, Simulation
from gridmill.testing.store_samples import a_deployment

PATIENCE_SECONDS = 120.0


class SlowStorage(NoStorage):
    """Sources below `slow/` are listed once `gate` is open."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.asked = threading.Event()

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        if str(source.path).startswith("slow/"):
            self.asked.set()
            assert self.gate.wait(PATIENCE_SECONDS)
        return (FileStat(path=str(source.path), size_bytes=7, mtime_ns=1),)


class SlowBundles(NoStorage):
    """Code is carried to other machines once `gate` is open; `failures` times in vain."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.failures = 0
        self.asked = threading.Event()

    def share_bundle(self, bundle: str) -> None:
        self.asked.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.failures:
            self.failures -= 1
            raise StorageError("cannot be shared: No space left on device")


class Grid:
    """A simulation whose control node does slow things beside its ticks, as `gridmill up` does."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.storage = SlowStorage(self.gate)
        self.simulation = Simulation(
            store=memory.make(), behave=lambda order: Behaviour(seconds=0.1), storage=self.storage
        )
        self.simulation.declare_site()
        self.node, self.world = self.simulation.node, self.simulation.world
        self.woken = threading.Event()
        self.control = self.node.control
        self.control.background = ThreadRunner(self.woken.set)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the grid go on until then; its clock goes on by itself."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            wait = self.node.tick()
            if condition():
                return
            if wait:
                self.woken.wait(0.01)  # real threads work beside a clock that is not real
                self.woken.clear()
                self.simulation.clock.advance(0.1)
                self.world.step()
        raise AssertionError("it does not come to that")

    def finished(self, run: Run) -> bool:
        record = self.control.ledger.store.get(Run, run.id)
        return record is not None and record.noun.state == RunState.SUCCEEDED

    def job(self, run: Run, name: str) -> JobRun:
        return self.control.ledger.store.get(JobRun, f"{run.id}/{name}").noun


@pytest.fixture
def grid() -> Iterator[Grid]:
    made = Grid()
    yield made
    made.gate.set()
    made.control.background.stop(PATIENCE_SECONDS)


def quick(name: str = "quick") -> Pipeline:
    job = Job(name="work", command=CommandSpec(run="true"), memory_bytes=2**20)
    return Pipeline(name=name, jobs=(job,))


def load(name: str = "slow", **changes: object) -> Pipeline:
    job = Job(name="load", sink=SinkSpec(source=Source(path="slow/*.csv")), memory_bytes=2**20)
    return Pipeline(name=name, jobs=(job,), **changes)


@contextmanager
def within_patience(grid: Grid) -> Iterator[None]:
    """Whoever waits for the lock meanwhile fails the test instead of hanging it."""
    opener = threading.Timer(PATIENCE_SECONDS, grid.gate.set)
    opener.start()
    yield
    opener.cancel()
    assert not grid.gate.is_set(), "it waited for what was slow"


def test_a_source_that_is_slow_to_list_delays_its_own_job_only(grid: Grid):
    slow = grid.simulation.submit(load())
    with within_patience(grid):
        grid.until(grid.storage.asked.is_set)
        other = grid.simulation.submit(quick())
        grid.until(lambda: grid.finished(other))
        assert grid.job(slow, "load").state == JobState.BLOCKED
    grid.gate.set()
    grid.until(lambda: grid.finished(slow))
    assert grid.job(slow, "load").size.input_bytes == 7


@pytest.mark.parametrize("spec", [ScheduleSpec(every_seconds=3600), ScheduleSpec(continuous=Continuous())])
def test_a_schedule_over_a_slow_source_holds_up_no_other_run(grid: Grid, spec: ScheduleSpec):
    grid.simulation.apply(load(schedule=spec))
    with within_patience(grid):
        grid.until(grid.storage.asked.is_set)
        other = grid.simulation.submit(quick())
        grid.until(lambda: grid.finished(other))
    grid.gate.set()
    grid.until(lambda: any(record.noun.pipeline == "slow" for record in grid.control.ledger.store.list(Run)))
    (run,) = (record.noun for record in grid.control.ledger.store.list(Run, parent="slow"))
    grid.until(lambda: grid.finished(run))


@pytest.mark.parametrize("verb", ["bring_up", "observe", "tear_down"])
def test_a_site_that_is_slow_holds_up_no_run_elsewhere(grid: Grid, verb: str):
    """Another site of the same world, with a pod that is to be ended; its every answer waits."""
    asked = threading.Event()

    class Slow:
        def __getattr__(self, name: str) -> object:
            real = getattr(grid.world, name)
            if name != verb:
                return real

            def slow(*arguments: object) -> object:
                asked.set()
                assert grid.gate.wait(PATIENCE_SECONDS)
                return real(*arguments)

            return slow

    grid.control.sites = {**grid.control.sites, "far": Slow()}
    states = {"tear_down": DeploymentState.RELEASING, "observe": DeploymentState.UP}
    state = states.get(verb, DeploymentState.STARTING)
    pod = replace(a_deployment().pods[0], state=PodState.STARTING)
    with grid.node.changing() as transaction:
        transaction.put(replace(a_deployment(state=state), site="far", pods=(pod,)))
    with within_patience(grid):
        grid.until(asked.is_set)
        other = grid.simulation.submit(quick())
        grid.until(lambda: grid.finished(other))
        assert "trainers-1" in grid.control.ledger.snapshot.deployments
    if verb != "observe":  # what nobody waits for is called off once it has been brought up
        grid.gate.set()
        grid.until(lambda: "trainers-1" not in grid.control.ledger.snapshot.deployments)
        assert "trainers-1.0" not in grid.world.pods


def away(grid: Grid) -> tuple[SlowBundles, Run]:
    """A run of a command whose code is carried to a site elsewhere."""
    storage = SlowBundles(grid.gate)
    grid.control.storage = storage
    grid.control.sites = {**grid.control.sites, "far": grid.world}
    with grid.node.changing() as transaction:
        here = transaction.get(Site, "local")
        transaction.put(replace(here, name="far"))
    return storage, grid.simulation.submit(replace(quick("away"), at="far", bundle="0" * 64))


def test_code_that_is_slow_to_be_carried_elsewhere_delays_its_own_job_only(grid: Grid):
    storage, slow = away(grid)
    with within_patience(grid):
        grid.until(storage.asked.is_set)
        other = grid.simulation.submit(quick())
        grid.until(lambda: grid.finished(other))
    grid.gate.set()
    grid.until(lambda: grid.finished(slow))


def test_code_that_cannot_be_carried_elsewhere_holds_up_nobody_and_is_tried_again(grid: Grid):
    storage, slow = away(grid)
    storage.failures = 2
    grid.gate.set()
    grid.until(lambda: storage.failures == 0)
    other = grid.simulation.submit(quick())
    grid.until(lambda: grid.finished(slow) and grid.finished(other))
    assert grid.job(slow, "work").losses == 2
    assert grid.simulation.warnings == []


def test_a_job_that_is_stopped_while_its_code_is_carried_does_not_start(grid: Grid):
    storage, slow = away(grid)
    grid.until(storage.asked.is_set)
    grid.simulation.stop(slow.id)
    grid.gate.set()
    grid.until(lambda: grid.control.ledger.store.get(Run, slow.id).noun.state == RunState.STOPPED)
    assert grid.job(slow, "work").state == JobState.STOPPED


def test_what_a_slow_site_said_of_a_pod_that_is_not_wanted_any_more_is_dropped(grid: Grid):
    real = grid.world.observe
    asked = threading.Event()

    def slow(pod_ids):
        seen = real(pod_ids)
        asked.set()
        assert grid.gate.wait(PATIENCE_SECONDS)
        return seen

    grid.world.observe = slow
    with grid.node.changing() as transaction:
        transaction.put(a_deployment(state=DeploymentState.UP))
    grid.until(asked.is_set)
    with grid.node.changing() as transaction:
        found = transaction.get(type(a_deployment()), "trainers-1")
        assert found.state == DeploymentState.UP
        transaction.delete(type(found), "trainers-1")
    grid.gate.set()
    grid.until(lambda: not grid.control.background.is_running("observe local"))
    assert grid.control.ledger.snapshot.deployments == {}
    assert grid.simulation.warnings == []


def test_an_error_of_a_slow_act_is_raised_where_it_is_taken_in():
    beside = ThreadRunner(lambda: None)
    told: list[str] = []

    def act():
        raise UnavailableError("away")

    beside.submit("key", act, lambda done: told.append(str(done.exception())))
    beside.stop(PATIENCE_SECONDS)
    assert beside.is_running("key")
    assert beside.apply_results()
    assert told == ["away"]
    assert not beside.is_running("key")
    assert not beside.apply_results()


def test_the_same_is_not_done_twice_at_once():
    beside, gate, done = ThreadRunner(lambda: None), threading.Event(), []
    for _ in range(3):
        beside.submit("key", lambda: gate.wait(PATIENCE_SECONDS), done.append)
    gate.set()
    beside.stop(PATIENCE_SECONDS)
    beside.apply_results()
    assert len(done) == 1


def test_a_tick_writes_once_at_most(grid: Grid):
    jobs = tuple(Job(name=f"j{number}", command=CommandSpec(run="true")) for number in range(20))
    run = grid.simulation.submit(Pipeline(name="many", jobs=jobs))
    written: list[int] = []

    def over() -> bool:
        written.append(grid.node.commits)
        return grid.finished(run)

    grid.until(over)
    assert max(after - before for before, after in pairwise(written)) == 1
