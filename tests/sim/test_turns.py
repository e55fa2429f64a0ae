"""Runs that make the same artifact take turns; a defect at one job is that job's alone."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tests.sim.test_races import command, finish, job_of, run_of, service, simulation

from gridmill.domain.artifact import Artifact
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import FINISHED_RUNS, AttemptState, Cause, JobState, RunState
from gridmill.scheduler.explain import why_waiting
from gridmill.storage.disk_usage import LocalHomeFolders
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import NoStorage, Simulation


def slow(order) -> Behaviour:
    return Behaviour(seconds=20.0)


def line() -> Pipeline:
    return Pipeline(name="p", jobs=(command("load"), command("after", needs=("load",))))


def all_over(grid: Simulation) -> bool:
    return not grid.node.control.ledger.snapshot.runs


def test_two_runs_of_a_pipeline_write_one_after_the_other_and_overlap_otherwise():
    grid = simulation(slow)
    runs = [grid.submit(line()) for _ in range(3)]
    assert grid.run_until(lambda: all_over(grid))
    for name in ("load", "after"):
        mine = [e for e in grid.world.executions if e.order.job.name == name]
        assert [e.order.run_id for e in mine] == [run.id for run in runs]
        assert all(earlier.ended <= later.began for earlier, later in pairwise(mine))
        made = [grid.store.get(Artifact, f"p/{name}@{number}").noun for number in (1, 2, 3)]
        assert [artifact.run_id for artifact in made] == [run.id for run in runs]
    second_load, first_after = (
        next(e for e in grid.world.executions if e.order.attempt_id == key)
        for key in ("p-2.load.1", "p-1.after.1")
    )
    assert second_load.began < first_after.ended, "run 2 loads while run 1 goes on"


def test_runs_with_other_parameters_wait_only_where_they_load_one_sink():
    grid = simulation(slow)
    for rate in (0.1, 0.2, 0.3):
        jobs = (sink("load", "a.csv"), using("train", f"train {rate}"))
        grid.submit(Pipeline(name="p", jobs=jobs, parameters={"rate": rate}))
    assert grid.run_until(lambda: all_over(grid))
    loads, trains = ([e for e in grid.world.executions if e.order.job.name == n] for n in ("load", "train"))
    assert all(earlier.ended <= later.began for earlier, later in pairwise(loads))
    assert max(e.began for e in trains) < min(e.ended for e in trains), "all at once"


def using(name: str, line: str, **settings) -> Job:
    return replace(command(name, resumable=True, **settings), command=CommandSpec(run=line))


def test_what_does_not_use_a_parameter_takes_turns_and_is_made_once():
    grid = simulation(slow)
    jobs = (using("train", "train"),)
    runs = [
        grid.submit(Pipeline(name="p", jobs=jobs, parameters={"rate": rate}), force=False)
        for rate in (0.1, 0.2)
    ]
    assert grid.run_until(lambda: all_over(grid))
    assert [job_of(grid, run, "train").state for run in runs] == [JobState.SUCCEEDED, JobState.UNCHANGED]


def test_runs_at_once_share_no_checkpoints_unless_they_take_turns():
    grid = simulation(slow)
    for rate in (0.1, 0.2, 0.3, 0.3):
        jobs = (
            using("load", f"load {rate}"),
            using("train", "train", needs=("load",)),
            using("same", "same"),
        )
        grid.submit(Pipeline(name="p", jobs=jobs, parameters={"rate": rate}))
    grid.submit(Pipeline(name="p", jobs=(using("same", "same"),)))
    assert grid.run_until(lambda: all_over(grid))
    spans = {}
    for one in grid.world.executions:
        spans.setdefault(one.order.checkpoint_uri, []).append(one)
    assert "" not in spans
    for some in spans.values():
        assert all(earlier.ended <= later.began for earlier, later in pairwise(some))
    trains = {one.order.checkpoint_uri for one in grid.world.executions if one.order.job.name == "train"}
    assert len(trains) == 4, "the parameter reaches them by what they read"


def test_the_success_of_a_run_removes_no_checkpoints_but_its_own():
    grid = simulation(lambda order: Behaviour(seconds=60.0 if "0.2" in order.job.command.run else 1.0))
    runs = [
        grid.submit(Pipeline(name="p", jobs=(using("a", f"a {rate}"),), parameters={"rate": rate}))
        for rate in (0.1, 0.2)
    ]
    finish(grid, runs[0])
    quick, slow_one = (job_of(grid, run, "a") for run in runs)
    assert slow_one.state == JobState.RUNNING
    assert [one for one in grid.storage.removed if one.startswith("checkpoints")] == [quick.checkpoints]
    assert slow_one.checkpoints != quick.checkpoints


def test_what_is_made_again_does_not_use_the_folder_that_is_being_removed():
    grid = simulation()
    folders = []
    for _ in range(3):
        run = grid.submit(Pipeline(name="p", jobs=(using("a", "a"),)))
        finish(grid, run)
        folders.append(job_of(grid, run, "a").checkpoints)
    assert len(set(folders)) == 3


def test_a_resumed_run_goes_on_from_its_checkpoints_whatever_ran_meanwhile():
    grid = simulation(lambda order: Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT))
    run = grid.submit(Pipeline(name="p", jobs=(using("a", "a 1"),), parameters={"rate": 1}))
    finish(grid, run)
    before = job_of(grid, run, "a").checkpoints
    grid.world._behave = lambda order: Behaviour(seconds=1.0)
    finish(grid, grid.submit(Pipeline(name="p", jobs=(using("a", "a 2"),), parameters={"rate": 2})))
    grid.resume(run.id)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert job_of(grid, run, "a").checkpoints == before


def test_cleaning_removes_checkpoints_that_nothing_goes_on_from(tmp_path: Path):
    grid = simulation(lambda order: Behaviour(seconds=1e6 if order.run_id == "p-3" else 1.0))
    grid.node.control.home_folders = LocalHomeFolders(tmp_path, tmp_path / "root")
    for line in ("a", "b"):
        finish(grid, grid.submit(Pipeline(name="p", jobs=(using("a", line),))))
    active = grid.submit(Pipeline(name="p", jobs=(using("a", "c"),)))
    assert grid.run_until(lambda: job_of(grid, active, "a").state == JobState.RUNNING)
    old = ("checkpoints/p/a/abandoned", job_of(grid, active, "a").checkpoints, "checkpoints/other/home/x")
    for folder in old:
        (tmp_path / "root" / folder).mkdir(parents=True)
        os.utime(tmp_path / "root" / folder, (0, 0))
    (tmp_path / "root/checkpoints/p/a/fresh").mkdir()
    told = [one for one in service(grid).clean() if one.kind == "checkpoints"]
    assert [(one.name, one.why) for one in told] == [(old[0], "its job has succeeded since (p/a@2)")]
    left = {path.name for path in (tmp_path / "root/checkpoints/p/a").iterdir()}
    assert left == {"fresh", old[1].rpartition("/")[2]}


def test_the_one_that_waits_says_for_which_run():
    grid = simulation(slow)
    grid.submit(line())
    second, third = grid.submit(line()), grid.submit(line())
    assert grid.run_until(lambda: bool(grid.world.executions))
    snapshot, now = grid.node.control.ledger.snapshot, grid.node.control.now()
    for run in (second, third):
        assert why_waiting(snapshot, f"{run.id}/load", now) == "another run (p-1) is running p/load"


def test_what_another_run_made_meanwhile_is_not_made_again():
    grid = simulation(slow)
    runs = [grid.submit(line(), force=False) for _ in range(3)]
    assert grid.run_until(lambda: all_over(grid))
    assert [job_of(grid, run, "load").state for run in runs] == [
        JobState.SUCCEEDED,
        JobState.UNCHANGED,
        JobState.UNCHANGED,
    ]
    assert len(grid.world.executions) == 2


def test_a_run_that_was_stopped_or_waits_for_a_retry_holds_nobody_up_for_ever():
    ends = iter([Behaviour(outcome=AttemptState.FAILED, seconds=5.0), *[Behaviour(seconds=1.0)] * 3])
    grid = simulation(lambda order: next(ends))
    job = command("load", retries=1)
    first, second, third = (grid.submit(Pipeline(name="p", jobs=(job,))) for _ in range(3))
    assert grid.run_until(lambda: bool(grid.world.executions))
    grid.stop(second.id)
    finish(grid, third)
    assert [run_of(grid, run).state for run in (first, second, third)] == [
        RunState.SUCCEEDED,
        RunState.STOPPED,
        RunState.SUCCEEDED,
    ]


class Broken(NoStorage):
    def describe_source(self, source, folder):
        raise ZeroDivisionError("nobody thought of this")


class BrokenMemory(dict):
    """What is asked for a sink's newest version when it is ready, starts and ends."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good, self.asked = good, 0

    def __contains__(self, name: object) -> bool:
        self.asked += name == "p/load"
        if name == "p/load" and self.asked > self.good:
            raise ZeroDivisionError("nobody thought of this")
        return super().__contains__(name)


def sink(name: str, path: str) -> Job:
    return Job(name=name, sink=SinkSpec(source=Source(path=path)), memory_bytes=2**30)


def test_a_defect_at_one_job_fails_that_job_and_no_other():
    grid = simulation()
    grid.node.control.storage = Broken()
    broken = grid.submit(Pipeline(name="p", jobs=(sink("load", "bad.csv"), command("beside"))))
    other = grid.submit(Pipeline(name="q", jobs=(command("a"), command("b", needs=("a",)))))
    assert finish(grid, other).state == RunState.SUCCEEDED
    assert finish(grid, broken).state == RunState.FAILED
    failed = job_of(grid, broken, "load")
    assert "an internal error of Gridmill: ZeroDivisionError: nobody thought of this" in failed.message
    assert job_of(grid, broken, "beside").state == JobState.SUCCEEDED
    assert any("Traceback" in told and "in describe_source" in told for told in grid.warnings)


def test_a_defect_at_an_attempts_start_or_end_fails_that_attempt_and_no_other():
    broke = []
    for good in range(5):
        grid = simulation()
        grid.node.control.catalog.newest_artifacts = memory = BrokenMemory(good)
        broken = grid.submit(Pipeline(name="p", jobs=(sink("load", "bad.csv"),)))
        other = grid.submit(Pipeline(name="q", jobs=(command("a"), command("b", needs=("a",)))))
        assert finish(grid, other).state == RunState.SUCCEEDED
        state = finish(grid, broken).state
        assert state in FINISHED_RUNS
        assert state == (RunState.FAILED if memory.asked > good else RunState.SUCCEEDED)
        assert any("Traceback" in told for told in grid.warnings) == (memory.asked > good)
        assert len(grid.store.list(JobRun)) == 3
        broke.append(memory.asked > good)
    assert broke == [True, True, True, False, False]
