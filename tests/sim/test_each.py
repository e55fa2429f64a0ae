"""A command on each node: once on every one that matches, all tried, each end told."""

from dataclasses import replace

import pytest
from tests.sim.test_parts import NODES, node_of, simulation, view_of
from tests.sim.test_races import finish

from gridmill.cli.format import node_rows
from gridmill.domain.amounts import GIB, MIB
from gridmill.domain.command import Each
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun
from gridmill.domain.run_failures import at_fault, reason
from gridmill.domain.site import Site
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.testing.simulated_site import Behaviour


def patch(**wanted) -> Pipeline:
    spec = CommandSpec(run="patch", each=Each(**wanted))
    after = Job(name="after", needs=("patch",), command=CommandSpec(run="true"))
    return Pipeline(name="p", jobs=(Job(name="patch", command=spec), after))


def patches(grid):
    return [one for one in grid.world.executions if one.order.job.name == "patch"]


def test_once_on_every_node_and_what_needs_it_comes_after():
    grid = simulation(lambda order: Behaviour(seconds=5.0))
    run = finish(grid, grid.submit(patch()))
    assert run.state == RunState.SUCCEEDED
    assert sorted(node_of(grid, one) for one in patches(grid)) == ["a", "b", "c"]
    assert all(one.order.part.node == node_of(grid, one) for one in patches(grid))
    [after] = [one for one in grid.world.executions if one.order.job.name == "after"]
    assert after.began >= max(one.ended for one in patches(grid))
    texts = [f"{e.mark}{e.text}" for e in grid.logs.records if e.job == "patch"]
    assert sorted(texts) == [f"[{node}] line 0\n" for node in "abc"], "each line says where"
    rows = node_rows(view_of(grid, run.id).jobs[0])
    assert [(row[0], row[1], row[4]) for row in rows] == [(n, "succeeded", "line 0") for n in "abc"]
    assert node_rows(view_of(grid, run.id).jobs[1]) == []


@pytest.mark.parametrize(
    ("names", "there"), [(("a",), ["a"]), (("[ab]",), ["a", "b"]), (("?", "x"), ["a", "b", "c"])]
)
def test_nodes_by_name(names, there):
    grid = simulation(lambda order: Behaviour())
    finish(grid, grid.submit(patch(nodes=names)))
    assert sorted(node_of(grid, one) for one in patches(grid)) == there


def test_nodes_that_do_not_exist_are_told_with_those_that_do():
    grid = simulation(lambda order: Behaviour())
    run = finish(grid, grid.submit(patch(gpus=1)))
    job = grid.store.get(JobRun, f"{run.id}/patch").noun
    assert job.state == JobState.FAILED
    assert job.message == "no node of site local matches `each` (its nodes are a, b, c)"


def test_one_that_fails_fails_the_job_after_all_have_been_tried():
    def behave(order) -> Behaviour:
        bad = order.part is not None and order.part.node == "b"
        return Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT) if bad else Behaviour(seconds=60.0)

    grid = simulation(behave)
    run = finish(grid, grid.submit(patch()))
    job = grid.store.get(JobRun, f"{run.id}/patch").noun
    assert (job.state, job.message) == (JobState.FAILED, "on b: simulated exit: line 0")
    assert sorted(one.state for one in patches(grid)) == ["failed", "succeeded", "succeeded"]
    view = view_of(grid, run.id).jobs[0]
    fault = at_fault(view)
    assert fault is not None
    assert (fault.job_run_id, fault.cause) == (f"{run.id}/patch.p1", Cause.EXIT)
    assert reason(view, fault) == "on b: simulated exit: line 0"


def test_a_node_that_leaves_is_told_and_the_others_are_done():
    grid = simulation(lambda order: Behaviour(seconds=30.0))
    run = grid.submit(patch())
    assert grid.run_until(lambda: len(patches(grid)) == 3)
    leaving = next(one for one in patches(grid) if node_of(grid, one) == "c")
    grid.world.kill_pod(leaving.pod_id)
    with grid.node.changing() as transaction:
        site = transaction.get(Site, "local")
        transaction.put(replace(site, nodes=NODES[:2]))
    assert finish(grid, run).state == RunState.FAILED
    job = grid.store.get(JobRun, f"{run.id}/patch").noun
    assert job.message.startswith("on c: node c has left site local")
    assert sorted(one.state for one in patches(grid)) == ["lost", "succeeded", "succeeded"]


def test_a_pod_that_is_lost_while_its_node_stays_is_done_again_there():
    grid = simulation(lambda order: Behaviour(seconds=30.0))
    run = grid.submit(patch())
    assert grid.run_until(lambda: len(patches(grid)) == 3)
    again = patches(grid)[1].order.part.node
    grid.world.kill_pod(patches(grid)[1].pod_id)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert [one.order.part.node for one in patches(grid)].count(again) == 2


def test_it_is_done_in_every_run():
    grid = simulation(lambda order: Behaviour())
    for _ in range(2):
        finish(grid, grid.submit(patch(), force=False))
    assert len(patches(grid)) == 6


def test_what_the_neediest_node_took_sizes_the_next_run():
    def behave(order) -> Behaviour:
        on_b = order.part is not None and order.part.node == "b"
        return Behaviour(seconds=9.0 if on_b else 3.0, peak_memory_bytes=300 * MIB if on_b else 5 * MIB)

    grid = simulation(behave)
    for _ in range(2):
        finish(grid, grid.submit(patch()))
    given = [one.order.given.memory_bytes for one in patches(grid)]
    assert given == [768 * MIB] * 3 + [464 * MIB] * 3
    [first, _] = grid.node.control.ledger.snapshot.history.of_job("p/patch", "command/p/patch")
    assert first.use.wall_seconds >= 9.0


def test_a_node_that_ran_out_of_memory_is_remembered_even_where_the_job_failed():
    def behave(order) -> Behaviour:
        on_b = order.part is not None and order.part.node == "b"
        killed = Behaviour(outcome=AttemptState.FAILED, cause=Cause.MEMORY, peak_memory_bytes=GIB)
        return killed if on_b else Behaviour()

    grid = simulation(behave)
    assert finish(grid, grid.submit(patch())).state == RunState.FAILED
    before = len(patches(grid))
    finish(grid, grid.submit(patch()))
    again = [one.order.given.memory_bytes for one in patches(grid)[before:]]
    assert min(again) >= 2 * 768 * MIB
