"""Nodes at which pods do not come up: work goes to others where there are any."""

from tests.sim.test_parts import NODES, node_of, simulation
from tests.sim.test_races import command, finish, job_of

from gridmill.model.pipeline import Pipeline
from gridmill.model.state import RunState
from gridmill.testing.behaviour import Behaviour


def run_with(*unfit: str):
    """A grid whose nodes a, b and c are alike, and a run of one job in it."""
    grid = simulation(lambda order: Behaviour(seconds=5.0))
    grid.world.unfit |= set(unfit)
    return grid, finish(grid, grid.submit(Pipeline(name="p", jobs=(command("j", cpus=2.0),))))


def test_a_job_goes_to_the_node_that_takes_it():
    for unfit, there in (("", "a"), ("a", "b"), ("ab", "c")):
        grid, run = run_with(*unfit)
        assert run.state == RunState.SUCCEEDED, job_of(grid, run, "j").message
        [one] = grid.world.executions
        assert node_of(grid, one) == there


def test_where_none_takes_it_that_is_said():
    grid, run = run_with(*(node.name for node in NODES))
    assert run.state == RunState.FAILED
    assert "did not come up 3 times in a row" in job_of(grid, run, "j").message
    assert not grid.world.executions


def test_a_node_that_refused_is_tried_again_where_there_is_no_other():
    grid, _ = run_with("a")
    grid.world.unfit.clear()
    [name] = grid.node.control.unwilling
    assert grid.node.control.unwilling == {name: {"a"}}
    jobs = tuple(command(name, memory_bytes=6 * 2**30) for name in "xyz")
    run = finish(grid, grid.submit(Pipeline(name="q", jobs=jobs)))
    assert run.state == RunState.SUCCEEDED
    assert "a" in [node_of(grid, one) for one in grid.world.executions]
    assert grid.node.control.unwilling == {name: set()}
