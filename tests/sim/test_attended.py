"""Runs of clients on a fake clock: what ends with a client, and what waits for one to come back."""

from collections.abc import Mapping

from tests.sim.test_races import command, finish, job_of, run_of, service, simulation

from gridmill.control.client_runs import AttendedRuns
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Run, RunRequest
from gridmill.domain.states import JobState, RunState
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

TWO = Pipeline(name="p", jobs=(command("a"), command("b", needs=("a",))))
HERE = {"TZ": "Etc/here"}
WAITS = RunRequest(attended=True, request="one")


def attended(grid: Simulation, **settings: bool) -> AttendedRuns:
    return AttendedRuns(grid.node, **{"own_environment": False, **settings})


def begin(
    grid: Simulation,
    runs: AttendedRuns,
    request: RunRequest = WAITS,
    *,
    pipeline: Pipeline = TWO,
    environment: Mapping[str, str] = HERE,
    again: bool = False,
) -> Run:
    with runs.starting(environment, request, again=again) as start:
        start.run_id = start.run_id or service(grid).start_run(pipeline).run.id
    run: Run = grid.store.get(Run, start.run_id).noun
    return run


def test_a_run_whose_client_has_gone_is_stopped_and_may_be_resumed():
    grid = simulation(lambda order: Behaviour(seconds=100.0))
    runs, loose = attended(grid), Pipeline(name="q", jobs=(command("a"),))
    run = begin(grid, runs)
    other = begin(grid, runs, RunRequest(), pipeline=loose)
    assert grid.run_until(lambda: job_of(grid, run, "a").state == JobState.RUNNING)
    assert run_of(grid, run).attended
    assert not run_of(grid, other).attended
    runs.stop(run.id)
    runs.stop(run.id)
    assert finish(grid, run).state == RunState.STOPPED
    assert runs.is_over(run.id)
    assert finish(grid, other).state == RunState.SUCCEEDED
    service(grid).resume(run.id)
    assert not run_of(grid, run).attended, "whoever resumes it may not wait for it"
    assert finish(grid, run).state == RunState.SUCCEEDED


def test_environments_go_with_their_runs_and_are_not_those_of_one_that_stays():
    grid = simulation()
    runs = attended(grid)
    first = begin(grid, runs, RunRequest())
    assert grid.node.control.clients.environments == {first.id: HERE}
    finish(grid, first)
    second = begin(grid, runs, RunRequest(), environment={})
    assert grid.node.control.clients.environments == {second.id: {}}
    begin(grid, attended(grid, own_environment=True))
    assert list(grid.node.control.clients.environments) == [second.id]


def test_after_another_control_node_runs_stand_still_until_their_clients_are_back():
    grid = simulation()
    runs = attended(grid)
    mine = begin(grid, runs)
    grid.node.await_clients(3.0)
    began = grid.clock.monotonic()
    assert grid.node.tick() == 3.0
    assert job_of(grid, mine, "a").state == JobState.BLOCKED
    runs.take(mine.id, HERE)
    assert finish(grid, mine, within=60.0).state == RunState.SUCCEEDED
    assert grid.clock.monotonic() - began < 60.0
    lost = begin(grid, runs)
    grid.node.await_clients(3.0)
    assert finish(grid, lost).state == RunState.SUCCEEDED, "its client has gone: it goes on"


def test_a_run_that_is_asked_for_again_is_started_once():
    grid = simulation()
    runs = attended(grid)

    first = begin(grid, runs, again=True).id
    assert begin(grid, runs, again=True).id == first
    grid.control_dies()
    runs = attended(grid)
    assert begin(grid, runs, again=True).id == first
    assert begin(grid, runs, again=False).id != first
