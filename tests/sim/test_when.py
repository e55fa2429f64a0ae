"""Jobs that run after a failure, or in any case: which run, and what they are told."""

from dataclasses import replace

import pytest
from test_races import command, finish, job_of, service, simulation

from gridmill.domain.job import Job, When
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Run
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.errors import InputError
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

FAILED = Behaviour(seconds=1.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)
FINE = Behaviour(seconds=1.0)


def grid_where(*failing: str) -> Simulation:
    return simulation(lambda order: FAILED if order.job.name in failing else FINE)


def line(*more: Job) -> Pipeline:
    """`load`, `train` and `publish`, one after the other, and what reports and cleans up."""
    return Pipeline(
        name="p",
        jobs=(
            command("load"),
            command("train", needs=("load",)),
            command("publish", needs=("train",)),
            command("notify", needs=("publish",), when=When.FAILURE),
            command("clean", needs=("publish",), when=When.ALWAYS),
            *more,
        ),
    )


def states(grid: Simulation, run: Run) -> dict[str, str]:
    view = service(grid).run(run.id)
    return {job.job.job.name: str(job.job.state) for job in view.jobs}


def told(grid: Simulation, name: str) -> list[tuple[str, ...]]:
    return [e.order.failed for e in grid.world.executions if e.order.job.name == name]


def test_without_a_failure_only_what_always_runs_does() -> None:
    grid = grid_where()
    run = finish(grid, grid.submit(line()))
    assert run.state == RunState.SUCCEEDED
    assert job_of(grid, run, "notify").state == JobState.SKIPPED
    assert job_of(grid, run, "notify").message == "none of the jobs that this job needs has failed"
    assert job_of(grid, run, "clean").state == JobState.SUCCEEDED
    assert told(grid, "clean") == [()]


@pytest.mark.parametrize("failing", ["load", "train", "publish"])
def test_after_a_failure_however_far_before_both_run_and_the_run_stays_failed(failing: str) -> None:
    grid = grid_where(failing)
    run = finish(grid, grid.submit(line()))
    assert run.state == RunState.FAILED
    assert f"1 failed ({failing})" in run.message
    assert [states(grid, run)[name] for name in ("notify", "clean")] == ["succeeded", "succeeded"]
    assert told(grid, "notify") == told(grid, "clean") == [(failing,)]


def test_all_jobs_that_failed_are_named_and_it_waits_for_the_slowest() -> None:
    behaviours = {"a": FAILED, "b": Behaviour(seconds=50.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)}
    grid = simulation(lambda order: behaviours.get(order.job.name, FINE))
    jobs = [command(name) for name in "abc"]
    notify = command("notify", needs=("c", "b", "a"), when=When.FAILURE)
    finish(grid, grid.submit(Pipeline(name="p", jobs=(*jobs, notify))))
    assert told(grid, "notify") == [("a", "b")]


def test_it_waits_for_jobs_before_a_job_that_was_skipped_early() -> None:
    behaviours = {"a": FAILED, "b": Behaviour(seconds=50.0, outcome=AttemptState.FAILED, cause=Cause.EXIT)}
    grid = simulation(lambda order: behaviours.get(order.job.name, FINE))
    jobs = (
        command("a"),
        command("b"),
        command("both", needs=("a", "b")),
        command("clean", needs=("both",), when=When.ALWAYS),
    )
    run = grid.submit(Pipeline(name="p", jobs=jobs))
    assert grid.run_until(lambda: job_of(grid, run, "both").state == JobState.SKIPPED)
    assert job_of(grid, run, "b").state == JobState.RUNNING
    finish(grid, run)
    assert told(grid, "clean") == [("a", "b")]


def test_one_that_fails_itself_fails_the_run() -> None:
    grid = grid_where("clean")
    assert finish(grid, grid.submit(line())).state == RunState.FAILED


def test_what_needs_a_job_that_was_skipped_is_skipped_too_and_after_a_notification_goes_on() -> None:
    after = command("after", needs=("notify",))
    for failing, state in (((), JobState.SKIPPED), (("load",), JobState.SUCCEEDED)):
        grid = grid_where(*failing)
        run = finish(grid, grid.submit(line(after)))
        assert job_of(grid, run, "after").state == state


def test_they_run_in_each_run_and_are_never_unchanged() -> None:
    grid = grid_where()
    for _ in range(2):
        run = finish(grid, grid.submit(line(), force=False))
    assert states(grid, run) == {
        **dict.fromkeys(("load", "train", "publish"), "unchanged"),
        "notify": "skipped",
        "clean": "succeeded",
    }


def test_a_stop_of_the_run_starts_none_of_them() -> None:
    grid = simulation(lambda order: Behaviour(seconds=100.0))
    run = grid.submit(line())
    assert grid.run_until(lambda: job_of(grid, run, "load").state == JobState.RUNNING)
    grid.stop(run.id)
    assert finish(grid, run).state == RunState.STOPPED
    assert set(states(grid, run).values()) == {"stopped"}


def test_a_stop_of_one_job_is_no_failure_but_an_end() -> None:
    grid = simulation(lambda order: Behaviour(seconds=100.0))
    run = grid.submit(line())
    assert grid.run_until(lambda: job_of(grid, run, "load").state == JobState.RUNNING)
    grid.stop(run.id, "load")
    assert finish(grid, run).state == RunState.STOPPED
    assert [states(grid, run)[name] for name in ("notify", "clean")] == ["skipped", "succeeded"]


def test_a_resumed_run_does_them_again_by_how_it_ends_then() -> None:
    grid = grid_where("train")
    run = finish(grid, grid.submit(line()))
    grid.world._behave = lambda order: FINE
    grid.resume(run.id)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert [states(grid, run)[name] for name in ("notify", "clean")] == ["skipped", "succeeded"]
    assert told(grid, "clean") == [("train",), ()]
    assert len(told(grid, "load")) == 1


def test_a_resumed_run_does_again_what_has_read_their_versions() -> None:
    grid = grid_where("train")
    run = finish(grid, grid.submit(line(command("count", needs=("clean",)))))
    assert job_of(grid, run, "count").state == JobState.SUCCEEDED
    grid.world._behave = lambda order: FINE
    grid.resume(run.id)
    finish(grid, run)
    read = [e.order.inputs[0].artifact.id for e in grid.world.executions if e.order.job.name == "count"]
    assert read == ["p/clean@1", "p/clean@2"]


def test_they_survive_a_kill_of_the_control_node() -> None:
    grid = grid_where("load")
    run = grid.submit(line())
    assert grid.run_until(lambda: job_of(grid, run, "load").state == JobState.FAILED)
    grid.control_dies()
    finish(grid, run)
    assert told(grid, "notify") == [("load",)]


def test_a_schedule_does_not_start_for_them_alone() -> None:
    grid = grid_where()
    finish(grid, grid.submit(line(), force=False))
    jobs = tuple(replace(job, cache=True) for job in line().jobs)
    grid.apply(Pipeline(name="p", jobs=jobs, schedule=ScheduleSpec(every_seconds=3600.0)))
    until = grid.clock.monotonic() + 8000.0
    while grid.clock.monotonic() < until:
        grid.advance()
    (view,) = service(grid).schedules().items
    assert (view.schedule.runs, view.schedule.message) == (
        0,
        "there was no new data: no change of `load` since p/load@1, `train` since p/train@1, `publish` since "
        "p/publish@1",
    )


def test_a_plan_tells_when_they_run_and_counts_a_run_without_failures() -> None:
    planned = {job.job: job for job in service(grid_where()).plan_run(line()).jobs}
    assert planned["notify"].when == When.FAILURE
    assert planned["clean"].when == When.ALWAYS


@pytest.mark.parametrize(
    "job", [command("x", when=When.ALWAYS), Job(name="x", needs=("y",), when=When.FAILURE)]
)
def test_only_commands_with_needs_can_say_when(job: Job) -> None:
    with pytest.raises(InputError, match="needs `needs`"):
        job.check()
