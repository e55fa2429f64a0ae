"""Queueing over the real control node on a fake clock: what was measured decides who goes next."""

from gridmill.control.views import attempts_of, run_view
from gridmill.model.amounts import GIB, Amounts
from gridmill.model.job import CommandSpec, Job
from gridmill.model.message import Order
from gridmill.model.pipeline import Pipeline
from gridmill.model.run import JobRun, Run
from gridmill.model.site import Node
from gridmill.model.state import FINISHED_RUNS, JobState
from gridmill.planning.waits import forecast_wait
from gridmill.stores.memory import make as make_memory
from gridmill.testing.simulated import Behaviour
from gridmill.testing.simulation import Simulation

SECONDS = {"hold": 30.0, "also": 30.0, "long": 100.0, "short": 5.0}
NODES = (Node(name="n0", capacity=Amounts(cpus=1, memory_bytes=8 * GIB)),)  # two jobs at once


def behave(order: Order) -> Behaviour:
    return Behaviour(seconds=SECONDS[order.job.name])


def job(name: str) -> Job:
    return Job(name=name, command=CommandSpec(run="true"), cache=False, memory_bytes=GIB)


def job_run(grid: Simulation, run: Run, name: str) -> JobRun:
    return grid.store.get(JobRun, f"{run.id}/{name}").noun


def over(grid: Simulation) -> bool:
    return all(record.noun.state in FINISHED_RUNS for record in grid.store.list(Run))


def learned() -> Simulation:
    """A grid on which every job ran before."""
    grid = Simulation(store=make_memory(), behave=behave, nodes=NODES)
    grid.declare_site()
    grid.submit(Pipeline(name="p", jobs=tuple(job(name) for name in SECONDS)))
    assert grid.run_until(lambda: over(grid), at_most_steps=20_000)
    return grid


def again(grid: Simulation) -> Run:
    """Two that hold the pod, and behind them a long and a short one, in this order."""
    run = grid.submit(Pipeline(name="p", jobs=tuple(job(name) for name in SECONDS)))
    for name in ("hold", "also"):
        assert grid.run_until(
            lambda name=name: job_run(grid, run, name).state != JobState.BLOCKED, at_most_steps=200
        )
    assert grid.run_until(lambda: len(grid.node.control.ledger.snapshot.attempts) == 2, at_most_steps=200)
    return run


def test_the_short_ones_go_first_once_they_were_measured():
    grid = learned()
    run = again(grid)
    assert grid.run_until(lambda: over(grid), at_most_steps=20_000)
    began = {name: job_run(grid, run, name).started for name in SECONDS}
    assert began["short"] <= began["hold"] <= began["long"]
    assert began["short"] < began["long"]


def test_a_view_says_about_how_long_a_job_still_waits_and_it_does():
    grid = learned()
    run = again(grid)
    grid.advance()
    waiting = [name for name in SECONDS if job_run(grid, run, name).state == JobState.WAITING]
    snapshot, now = grid.node.control.ledger.snapshot, grid.node.control.now()
    told = {name: forecast_wait(snapshot, f"{run.id}/{name}", now) for name in waiting}
    view = run_view(grid.node.control, run.id, attempts_of(grid.store, run.id))
    for one in view.jobs:
        if one.job.job.name in waiting:
            assert "about" in one.why, one.why
    assert grid.run_until(lambda: over(grid), at_most_steps=20_000)
    for name, wait in told.items():
        really = job_run(grid, run, name).started - now
        assert wait is not None
        assert abs(wait.likely - really) < 5.0, (name, wait, really)
