"""Queueing over the real control node on a fake clock: what was measured decides who goes next."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from gridmill.control.state import ControlTimeouts
from gridmill.control.usecases.projects import ProjectUseCases
from gridmill.control.usecases.run_views import RunViews
from gridmill.control.usecases.views import attempts_of
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.project import Project
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.site import Node
from gridmill.domain.states import FINISHED_RUNS, JobState, RunState
from gridmill.errors import PipelineError
from gridmill.scheduler.wait_estimate import WaitForecasts
from gridmill.stores.memory import make as make_memory
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

SECONDS = {"hold": 30.0, "also": 30.0, "long": 100.0, "short": 5.0}
NODES = (Node(name="n0", capacity=Amounts(cpus=1, memory_bytes=8 * GIB)),)  # two jobs at once


SELDOM = ControlTimeouts(observe_seconds=60.0)


def behave(order: AttemptOrder) -> Behaviour:
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
    told = {name: WaitForecasts(snapshot, now).of(f"{run.id}/{name}") for name in waiting}
    view = RunViews(grid.node).view(run.id)
    for one in view.jobs:
        if one.job.job.name in waiting:
            assert "about" in one.why, one.why
    assert grid.run_until(lambda: over(grid), at_most_steps=20_000)
    for name, wait in told.items():
        really = job_run(grid, run, name).started - now
        assert wait is not None
        assert abs(wait.likely - really) < 5.0, (name, wait, really)


def resumable(name: str, memory: int = 4 * GIB) -> Job:
    return Job(name=name, command=CommandSpec(run="true"), memory_bytes=memory, resumable=True)


def interrupting(
    seconds: dict[str, float],
) -> tuple[Simulation, list[tuple[str, str, float]]]:
    """A grid whose one pod has room for one job at a time. A job that runs again goes on from where it was
    ended. The list: the attempts that began."""
    began: list[tuple[str, str, float]] = []

    def behave(order: AttemptOrder) -> Behaviour:
        name = order.job.name
        earlier = [one for one in grid.world.executions if one.order.job.name == name]
        done = sum((one.ended or one.began) - one.began for one in earlier)
        began.append((order.run_id, name, grid.clock.monotonic()))
        return Behaviour(seconds=max(0.1, seconds[name] - done))

    grid = Simulation(store=make_memory(), behave=behave, nodes=NODES, limits=SELDOM)
    grid.declare_site()
    return grid, began


def test_a_training_of_hours_is_interrupted_for_a_job_of_a_minute_and_goes_on():
    grid, began = interrupting({"long": 7200.0, "short": 60.0})
    short = Pipeline(name="q", jobs=(replace(resumable("short"), resumable=None, memory_bytes=5 * GIB),))
    first = grid.submit(short)
    assert grid.run_until(lambda: over(grid), at_most_steps=20_000)  # a minute, it is known from here on
    run = grid.submit(Pipeline(name="p", jobs=(resumable("long"),)))
    assert grid.run_until(lambda: job_run(grid, run, "long").state == JobState.RUNNING, at_most_steps=2000)
    since = grid.clock.monotonic()
    second = grid.submit(short)
    assert grid.run_until(lambda: job_run(grid, run, "long").state == JobState.WAITING, at_most_steps=20_000)
    assert 300.0 <= grid.clock.monotonic() - since < 1000.0
    view = RunViews(grid.node).view(run.id)
    assert f"interrupted for {second.id}/short, " in view.jobs[0].why
    assert "resumes from its checkpoint" in view.jobs[0].why
    assert grid.run_until(lambda: over(grid), at_most_steps=20_000)
    assert [name for _, name, _ in began] == ["short", "long", "short", "long"]
    done = job_run(grid, run, "long")
    assert (done.attempts, done.interruptions, done.failures, done.losses) == (2, 1, 0, 0)
    assert done.state == job_run(grid, first, "short").state == JobState.SUCCEEDED
    known = grid.node.control.ledger.snapshot.history.of_job("p/long", "command/p/long")
    assert abs(known[-1].use.wall_seconds - 7200.0) < 130.0  # of both attempts, seen each minute
    attempts = attempts_of(grid.store, run.id)[f"{run.id}/long"]
    assert attempts[0].interrupted is not None
    assert attempts[0].interrupted.job_run == f"{second.id}/short"
    assert attempts[0].pod_id == attempts[1].pod_id, "its pod went on"


def test_with_short_jobs_coming_all_the_time_a_long_one_is_not_interrupted_over_and_over():
    grid, began = interrupting({"long": 7200.0, **{f"s{k}": 60.0 for k in range(120)}})
    run = grid.submit(Pipeline(name="p", jobs=(resumable("long"),)))
    assert grid.run_until(lambda: job_run(grid, run, "long").state == JobState.RUNNING, at_most_steps=2000)
    for k in range(120):
        grid.submit(Pipeline(name=f"q{k}", jobs=(replace(resumable(f"s{k}"), resumable=None),)))
        until = grid.clock.monotonic() + 30.0
        assert grid.run_until(lambda until=until: grid.clock.monotonic() >= until, at_most_steps=20_000)
    assert grid.run_until(lambda: over(grid), at_most_steps=40_000)
    long = job_run(grid, run, "long")
    assert long.state == JobState.SUCCEEDED
    assert 1 <= long.interruptions <= 4  # then it is delayed, and has precedence
    assert len(began) == 120 + long.attempts


def test_an_interruption_survives_the_death_of_the_control_node_and_of_the_pod():
    for strike in ("control", "link", "pod"):
        grid, _ = interrupting({"long": 3600.0, "short": 60.0})
        run = grid.submit(Pipeline(name="p", jobs=(resumable("long"),)))
        assert grid.run_until(
            lambda grid=grid, run=run: job_run(grid, run, "long").state == JobState.RUNNING,
            at_most_steps=2000,
        )
        grid.submit(Pipeline(name="q", jobs=(replace(resumable("short"), resumable=None),)))
        assert grid.run_until(
            lambda grid=grid: bool(grid.node.control.ledger.snapshot.places.yielding), at_most_steps=20_000
        )
        if strike == "control":
            grid.control_dies()
        for pod in list(grid.world.pods) if strike != "control" else ():
            grid.world.cut_link(pod, 20.0) if strike == "link" else grid.world.kill_pod(pod)
        assert grid.run_until(lambda grid=grid: over(grid), at_most_steps=20_000)
        long = job_run(grid, run, "long")
        assert (long.state, long.interruptions, long.failures) == (JobState.SUCCEEDED, 1, 0), strike


def test_projects_share_the_grid_keep_their_quota_and_what_they_used_is_kept():
    """Two projects on two places: the one with twice the share gets about two thirds while both wait; a third
    is bounded by its quota. The control node dies in between."""
    grid = Simulation(
        store=make_memory(), behave=lambda _: Behaviour(seconds=700.0), nodes=NODES, limits=SELDOM
    )
    grid.declare_site()
    service = ProjectUseCases(grid.node)
    service.configure_project(Project(name="a", share=2.0))
    service.configure_project(Project(name="b"))
    service.configure_project(Project(name="c", share=100.0, cpus=1))

    def submit(name: str, count: int) -> Run:
        jobs = tuple(replace(job(f"{name}{k}"), memory_bytes=GIB) for k in range(count))
        return grid.submit(Pipeline(name=name, project=name, jobs=jobs))

    def running(name: str) -> int:
        attempts = grid.node.control.ledger.snapshot.attempts.values()
        return sum(attempt.project == name for attempt in attempts)

    bounded = submit("c", 2)
    assert grid.run_until(lambda: running("c") == 1, at_most_steps=2000)
    view = RunViews(grid.node).view(bounded.id)
    whys = [one.why for one in view.jobs if one.job.state == JobState.WAITING]
    assert whys == ["quota of project c: 1 of 1 CPU in use"]
    for name in "ab":
        submit(name, 16)
    most, until = 0, grid.clock.monotonic() + 7000.0
    while grid.clock.monotonic() < until:
        grid.advance()
        most = max(most, running("c"))
    assert most == 1  # though its share is by far the largest
    grid.control_dies()
    grid.tick()
    used = {view.name: view.used_seconds for view in ProjectUseCases(grid.node).projects().items}
    assert 1.5 < used["a"] / used["b"] < 2.8
    assert grid.run_until(lambda: over(grid), at_most_steps=40_000)
    assert {record.noun.state for record in grid.store.list(Run)} == {RunState.SUCCEEDED}


def test_a_pipeline_of_a_project_that_nobody_made_is_refused():
    grid, _ = interrupting({"short": 1.0})
    with pytest.raises(PipelineError, match="there is no project 'visoin'"):
        grid.submit(Pipeline(name="p", project="visoin", jobs=(resumable("short"),)))


@pytest.mark.parametrize("seed", range(12))
def test_interruptions_amid_faults_lose_nothing_and_run_nothing_twice(seed: int):
    """Long jobs that can resume, short ones of two projects that come all the time, pods and control nodes
    that die, links that are cut: every job ends, attempts of one never overlap, none is interrupted too soon.
    """
    chance = Random(seed)
    seconds = {f"long{k}": chance.uniform(2000.0, 6000.0) for k in range(3)}
    seconds |= {f"s{k}": chance.uniform(5.0, 90.0) for k in range(12)}
    grid, _ = interrupting(seconds)
    ProjectUseCases(grid.node).configure_project(Project(name="b", cpus=1))
    grid.submit(
        Pipeline(name="p", jobs=tuple(resumable(f"long{k}", chance.choice((2, 4)) * GIB) for k in range(3)))
    )
    for k in range(12):
        short = replace(resumable(f"s{k}", chance.choice((1, 4)) * GIB), resumable=None)
        grid.submit(Pipeline(name=f"q{k}", project=chance.choice(("default", "b")), jobs=(short,)))
        until = grid.clock.monotonic() + chance.uniform(100.0, 600.0)
        assert grid.run_until(lambda until=until: grid.clock.monotonic() >= until, at_most_steps=20_000)
        fault, pods = chance.randrange(5), sorted(grid.world.pods)
        if fault == 0:
            grid.control_dies()
        elif fault == 1 and pods:
            grid.world.kill_pod(chance.choice(pods))
        elif fault == 2 and pods:
            grid.world.cut_link(chance.choice(pods), 30.0)
    assert grid.run_until(lambda: over(grid), at_most_steps=60_000)
    assert {record.noun.state for record in grid.store.list(Run)} == {RunState.SUCCEEDED}
    for name in seconds:
        mine = [one for one in grid.world.executions if one.order.job.name == name]
        assert all(before.ended <= after.began for before, after in pairwise(mine))
    for record in grid.store.list(Attempt):
        attempt = record.noun
        assert attempt.interrupted is None or attempt.ended - attempt.started >= 300.0
        assert attempt.interrupted is None or attempt.resumable
