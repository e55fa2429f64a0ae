"""Nodes at which pods do not come up: work goes to others where there are any."""

import pytest
from tests.sim.test_parts import NODES, node_of, simulation, view_of
from tests.sim.test_races import command, finish, job_of

from gridmill.control.state import BRING_UPS
from gridmill.control.steps.problems import UNFIT_SECONDS
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import PROTOCOL
from gridmill.domain.states import JobState, RunState
from gridmill.testing import simulated_site
from gridmill.testing.simulated_site import Behaviour


def lacking(*nodes: str):
    """A grid whose nodes a, b and c say that they are alike; those lack what they promise."""
    grid = simulation(
        lambda order: Behaviour(seconds=UNFIT_SECONDS + 200.0 if order.job.name == "long" else 5.0)
    )
    grid.world.lacking |= set(nodes)
    return grid


def pass_time(grid, seconds):
    until = grid.clock.monotonic() + seconds
    assert grid.run_until(lambda: grid.clock.monotonic() >= until)


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
    assert "failed to start 3 times in a row" in job_of(grid, run, "j").message
    assert not grid.world.executions


def test_a_job_that_starts_while_its_resource_is_given_up_runs_and_only_the_others_fail():
    grid = simulation(lambda order: Behaviour(seconds=5.0))
    finish(grid, grid.submit(Pipeline(name="p", jobs=(command("first", cpus=2.0),))))
    grid.node.control.bring_ups.failed["default-command"] = BRING_UPS
    jobs = tuple(command(name, cpus=2.0) for name in ("a", "b"))
    run = finish(grid, grid.submit(Pipeline(name="q", jobs=jobs)))
    assert sorted(job_of(grid, run, job.name).state for job in jobs) == [JobState.FAILED, JobState.SUCCEEDED]
    assert len(grid.world.executions) == 2


def test_nodes_that_have_left_but_are_still_listed_fail_no_job():
    """A machine is given back to its owner: until its site is looked at again pods are sent there in vain."""
    grid = simulation(lambda order: Behaviour(seconds=5.0))
    grid.world.left |= {node.name for node in NODES}
    run = grid.submit(Pipeline(name="p", jobs=(command("j", cpus=2.0),)))
    assert grid.run_until(lambda: len(grid.world.ever) > 5, at_most_steps=5000)
    grid.world.left.clear()
    assert finish(grid, run).state == RunState.SUCCEEDED


def test_a_node_that_refused_is_tried_again_where_there_is_no_other():
    grid, _ = run_with("a")
    grid.world.unfit.clear()
    [name] = grid.node.control.bring_ups.refusing_nodes
    assert grid.node.control.bring_ups.refusing_nodes == {name: {"a"}}
    jobs = tuple(command(name, memory_bytes=6 * 2**30) for name in "xyz")
    run = finish(grid, grid.submit(Pipeline(name="q", jobs=jobs)))
    assert run.state == RunState.SUCCEEDED
    assert "a" in [node_of(grid, one) for one in grid.world.executions]
    assert grid.node.control.bring_ups.refusing_nodes == {name: set()}


def test_nodes_that_lie_are_left_aside_and_an_honest_one_is_waited_for():
    """However often: what waits does not fail, and runs where the machine is what it says."""
    grid = lacking("a", "b")
    long = grid.submit(Pipeline(name="long", jobs=(command("long", cpus=2.0, memory_bytes=7 * 2**30),)))
    assert grid.run_until(lambda: bool(grid.world.executions), at_most_steps=5000)
    [name] = grid.node.control.bring_ups.unfit
    grid.node.control.bring_ups.failed[name] = 2  # one more counted failure, and all would fail
    run = grid.submit(Pipeline(name="p", jobs=(command("j", cpus=2.0, memory_bytes=7 * 2**30),)))
    pass_time(grid, 60.0)
    [waits] = view_of(grid, run.id).jobs
    assert "not used: its node has no GPU" in waits.why
    assert finish(grid, long).state == RunState.SUCCEEDED
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert {node_of(grid, one) for one in grid.world.executions} == {"c"}


def test_where_all_nodes_lie_that_is_said():
    grid = lacking("a", "b", "c")
    run = finish(grid, grid.submit(Pipeline(name="p", jobs=(command("j", cpus=2.0),))))
    assert run.state == RunState.FAILED
    assert "failed to start 3 times in a row: its node has no GPU" in job_of(grid, run, "j").message


def test_a_node_that_was_put_right_is_tried_again():
    grid = lacking("a", "b")
    finish(grid, grid.submit(Pipeline(name="p", jobs=(command("j", cpus=2.0),))))
    grid.world.lacking.clear()
    pass_time(grid, UNFIT_SECONDS + 1.0)
    jobs = tuple(command(name, memory_bytes=6 * 2**30) for name in "xyz")
    run = finish(grid, grid.submit(Pipeline(name="q", jobs=jobs)))
    assert run.state == RunState.SUCCEEDED
    assert not any(grid.node.control.bring_ups.unfit.values())


@pytest.mark.parametrize("protocol", [*range(PROTOCOL + 2)])
def test_pods_of_the_three_versions_before_are_accepted_and_others_are_not(
    protocol: int, monkeypatch: pytest.MonkeyPatch
):
    """A pod that compresses texts of logs must not connect to a control node that cannot read them."""
    monkeypatch.setattr(simulated_site, "PROTOCOL", protocol)
    grid, run = run_with()
    accepted = protocol in range(PROTOCOL - 3, PROTOCOL + 1)
    assert run.state == (RunState.SUCCEEDED if accepted else RunState.FAILED)
    assert bool(grid.world.executions) == accepted
