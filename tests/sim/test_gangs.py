"""Gangs over the real control node on a fake clock: all ranks or none, one end for all, no rank twice."""

import re
from dataclasses import replace

import pytest

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.deployment import Deployment
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node
from gridmill.domain.states import (
    FINISHED_RUNS,
    LIVE_ATTEMPTS,
    AttemptState,
    Cause,
    DeploymentState,
    RunState,
)
from gridmill.stores.memory import make as make_memory
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

NODES = tuple(Node(name=f"n{k}", capacity=Amounts(cpus=2, memory_bytes=8 * GIB)) for k in range(2))


def gang(name="train", workers=3, **fields):
    return Job(name=name, command=CommandSpec(run="true", workers=workers), cache=False, **fields)


def attempts(grid: Simulation) -> dict[str, Attempt]:
    return {record.noun.id: record.noun for record in grid.store.list(Attempt)}


def the_run(grid: Simulation, number=1) -> Run:
    return grid.store.get(Run, f"p-{number}").noun


def the_job(grid: Simulation, name="train") -> JobRun:
    return grid.store.get(JobRun, f"p-1/{name}").noun


def over(grid: Simulation) -> bool:
    return all(record.noun.state in FINISHED_RUNS for record in grid.store.list(Run))


def never_half(grid: Simulation) -> None:
    """At no time are some ranks of an attempt placed and others not, or two attempts of a job live."""
    live = [one for one in attempts(grid).values() if one.state in LIVE_ATTEMPTS]
    by_job: dict[str, list[Attempt]] = {}
    for one in live:
        by_job.setdefault(one.job_run_id, []).append(one)
    for members in by_job.values():
        if members[0].ranks:
            assert sorted(one.rank for one in members) == list(range(members[0].ranks))
            assert len({one.gang for one in members}) == 1


def finish(grid: Simulation) -> None:
    def done() -> bool:
        never_half(grid)
        return over(grid)

    assert grid.run_until(done, at_most_steps=3000)


def started(behave, nodes=NODES, *jobs) -> Simulation:
    grid = Simulation(store=make_memory(), behave=behave, nodes=nodes)
    grid.declare_site()
    grid.submit(Pipeline(name="p", jobs=jobs or (gang(),)))
    return grid


def test_all_ranks_run_at_once_and_make_one_version():
    seen = []

    def behave(order):
        seen.append(order)
        return Behaviour(seconds=1.0)

    grid = started(behave)
    finish(grid)
    assert the_run(grid).state is RunState.SUCCEEDED
    assert sorted(attempts(grid)) == ["p-1.train.1", "p-1.train.1.1", "p-1.train.1.2"]
    assert [order.gang.rank for order in sorted(seen, key=lambda o: o.gang.rank)] == [0, 1, 2]
    assert len({order.gang.members for order in seen}) == 1, "all know the same of each other"
    assert len({member.port for member in seen[0].gang.members}) == 3
    assert {order.output_uri for order in seen} == {"files/p/train/p-1.train.1"}
    assert len(the_job(grid).artifacts) == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_fails_ends_the_attempt_of_all(rank):
    def behave(order):
        if order.gang.rank == rank:
            return Behaviour(seconds=1.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)
        return Behaviour(seconds=1000.0)

    grid = started(behave, NODES, gang(retries=1))
    finish(grid)
    assert the_run(grid).state is RunState.FAILED
    assert the_job(grid).attempts == 2
    assert the_job(grid).message.startswith(f"rank {rank} of 3")
    ended = attempts(grid)
    assert len(ended) == 6
    assert {one.state for one in ended.values()} == {AttemptState.FAILED, AttemptState.STOPPED}
    assert not [one for one in ended.values() if one.outcome is not None], "nothing is held for ever"


def test_a_gang_is_placed_again_on_other_ports_when_its_pod_dies():
    ports = []

    def behave(order):
        ports.append(order.gang.members[0].port)
        return Behaviour(seconds=5.0)

    grid = started(behave)
    assert grid.run_until(lambda: len(ports) == 3)
    grid.world.kill_pod(attempts(grid)["p-1.train.1.1"].pod_id)
    finish(grid)
    assert the_run(grid).state is RunState.SUCCEEDED
    assert the_job(grid).attempts == 2
    assert the_job(grid).losses == 1
    assert len(set(ports[:3])) == 1
    assert ports[0] != ports[-1]


def test_a_gang_goes_on_elsewhere_where_one_pod_of_its_deployment_is_gone_and_the_others_hang():
    grid = started(
        lambda order: Behaviour(seconds=1000.0 if order.attempt_id.startswith("p-1.train.1") else 5.0)
    )
    assert grid.run_until(lambda: len(grid.world.executions) == 3)
    [deployment] = grid.node.control.ledger.snapshot.deployments.values()
    gone, *others = deployment.pods
    assert others
    for pod in others:
        grid.world.cut_link(pod.id, 1e6)
    grid.world.kill_pod(gone.id)
    finish(grid)
    assert the_run(grid).state is RunState.SUCCEEDED
    assert grid.clock.now() - the_run(grid).created < 2 * grid.limits.greeting_seconds
    assert grid.store.get(Deployment, deployment.id).noun.state is DeploymentState.GONE


def test_nothing_starts_where_one_rank_has_no_place():
    """Two nodes with two CPUs run four jobs each: nine ranks would hold eight places for ever."""
    grid = started(
        lambda order: Behaviour(seconds=1.0),
        NODES,
        gang(workers=9),
        Job(name="small", command=CommandSpec(run="true"), cache=False),
    )
    assert grid.run_until(lambda: the_job(grid, "small").state == "succeeded", at_most_steps=500)
    assert not [one for one in attempts(grid).values() if one.ranks]
    assert the_job(grid).state == "waiting"


def test_stop_ends_every_rank():
    grid = started(lambda order: Behaviour(seconds=1000.0))
    assert grid.run_until(lambda: len(attempts(grid)) == 3)
    grid.stop("p-1")
    finish(grid)
    assert the_run(grid).state is RunState.STOPPED
    assert {one.state for one in attempts(grid).values()} == {AttemptState.STOPPED}


def test_ranks_that_ended_are_remembered_by_a_new_control_node():
    grid = started(lambda order: Behaviour(seconds=1.0 if order.gang.rank == 1 else 60.0))
    assert grid.run_until(lambda: any(one.outcome for one in attempts(grid).values()))
    grid.control_dies()
    finish(grid)
    assert the_run(grid).state is RunState.SUCCEEDED
    assert the_job(grid).attempts == 1


def test_use_is_added_up_over_the_ranks():
    grid = started(lambda order: Behaviour(seconds=2.0))
    finish(grid)
    ended = attempts(grid)
    head, others = ended["p-1.train.1"], [ended["p-1.train.1.1"], ended["p-1.train.1.2"]]
    assert head.use.wall_seconds >= max(one.use.wall_seconds for one in others)
    assert head.use.cpu_seconds == pytest.approx(3 * others[0].use.cpu_seconds)


def test_a_gang_of_one_is_a_gang():
    seen = []

    def behave(order):
        seen.append(order)
        return Behaviour(seconds=1.0)

    grid = started(behave, NODES, gang(workers=1))
    finish(grid)
    assert seen[0].gang is not None
    assert len(seen[0].gang.members) == 1
    assert re.fullmatch(r"p-1\.train\.1", *attempts(grid))


def test_the_log_says_which_rank_spoke():
    grid = started(lambda order: Behaviour(seconds=1.0, lines=2))
    finish(grid)
    texts = [f"{e.mark}{e.text}" for e in grid.logs.records if e.job == "train"]
    assert sorted("".join(texts).splitlines()) == [f"[{r}] line {n}" for r in range(3) for n in range(2)]


def test_two_gangs_do_not_wait_for_each_other_for_ever():
    jobs = (gang("a", 5), gang("b", 5), gang("c", 8))
    grid = started(lambda order: Behaviour(seconds=3.0), NODES, *jobs)
    finish(grid)
    assert the_run(grid).state is RunState.SUCCEEDED
    assert replace(the_job(grid, "a"), id="").attempts == 1


@pytest.mark.parametrize(
    ("roles", "serving"),
    [({"worker": 2, "ps": 1}, {"ps"}), ({"chief": 1, "worker": 2, "ps": 1}, {"ps", "worker"})],
)
def test_ranks_that_only_serve_end_with_those_that_they_served(roles, serving):
    """A parameter server never ends by itself; nor, beside a chief, do the workers that it leads."""

    def behave(order):
        me = order.gang.me
        return Behaviour(seconds=1e6 if me.role in serving else 5.0 + me.rank)

    job = Job(name="train", command=CommandSpec(run="true", roles=roles), cache=False)
    grid = started(behave, NODES, job)
    finish(grid)
    assert the_run(grid).state is RunState.SUCCEEDED, the_job(grid).message
    assert the_job(grid).ended - the_job(grid).started < 100.0
    assert {one.state for one in attempts(grid).values()} == {AttemptState.SUCCEEDED}
    assert len(the_job(grid).artifacts) == 1


def test_a_rank_that_serves_and_fails_before_fails_the_gang():
    def behave(order):
        if order.gang.me.role == "ps":
            return Behaviour(seconds=1.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)
        return Behaviour(seconds=60.0)

    job = Job(name="train", command=CommandSpec(run="true", roles={"worker": 2, "ps": 1}), cache=False)
    grid = started(behave, NODES, job)
    finish(grid)
    assert the_run(grid).state is RunState.FAILED
    assert "rank 2 of 3" in the_job(grid).message
