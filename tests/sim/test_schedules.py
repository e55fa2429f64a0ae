"""Schedules on a fake clock over the real control node: kills at any commit, and clocks that jump."""

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from tests.sim.test_faults import Fates, never_two_at_once
from tests.sim.test_races import command, simulation

from gridmill.control.usecases.pipelines import PipelineUseCases
from gridmill.control.usecases.runs import RunUseCases
from gridmill.declarations import parse_declarations
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.schedule import CatchUp, Overlap, Schedule, ScheduleSpec
from gridmill.domain.states import FINISHED_RUNS, JobState, RunState
from gridmill.domain.version_manifest import FileProblem, FileProblemKind
from gridmill.errors import NotFoundError, PipelineError
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation, kill

HOUR = 3600.0
SELDOM = 15.0
"""Seconds between two looks at the site: here days pass, and pods seldom end by themselves."""


def scheduled(seconds: float = HOUR, **settings) -> Pipeline:
    spec = ScheduleSpec(every_seconds=seconds, **settings)
    return Pipeline(name="p", jobs=(command("load", cache=False),), schedule=spec)


def with_a_job_of_its_own(seconds: float = HOUR, **settings) -> Pipeline:
    load = replace(command("load", cache=False), schedule=ScheduleSpec(every_seconds=seconds, **settings))
    jobs = (command("ask", cache=False), replace(load, needs=("ask",)), command("train", needs=("load",)))
    return Pipeline(name="p", jobs=jobs)


def dues(grid: Simulation) -> list[float]:
    return [run.due for run in runs(grid)]


def runs(grid: Simulation) -> list[Run]:
    return [record.noun for record in grid.store.list(Run)]


def pass_time(grid: Simulation, seconds: float) -> None:
    until = grid.clock.monotonic() + seconds
    while grid.clock.monotonic() < until:
        grid.advance()


def kept(grid: Simulation) -> Schedule:
    return grid.store.get(Schedule, "p").noun


def test_runs_start_when_they_are_due_and_say_for_when():
    grid = simulation(observe=SELDOM)
    start = grid.clock.now()
    grid.apply(scheduled())
    pass_time(grid, 5.5 * HOUR)
    assert dues(grid) == [start + n * HOUR for n in range(6)]
    assert all(0 <= run.created - run.due < 0.1 for run in runs(grid))
    assert all(run.state in FINISHED_RUNS for run in runs(grid))
    assert (kept(grid).runs, kept(grid).last_run) == (6, "p-6")


def test_the_same_declaration_applied_again_changes_nothing_and_another_one_begins_anew():
    grid = simulation(observe=SELDOM)
    grid.apply(scheduled())
    pass_time(grid, 1.5 * HOUR)
    before = kept(grid)
    grid.apply(scheduled())
    assert kept(grid) == before
    grid.apply(scheduled(60.0))
    assert kept(grid).since == grid.clock.now()
    grid.apply(replace(scheduled(), schedule=None))
    assert grid.store.get(Schedule, "p") is None
    count = len(runs(grid))
    pass_time(grid, 2 * HOUR)
    assert len(runs(grid)) == count


def test_a_paused_one_starts_nothing_and_goes_on_from_now():
    grid = simulation(observe=SELDOM)
    cases = PipelineUseCases(grid.node)
    grid.apply(scheduled())
    pass_time(grid, 0.5 * HOUR)
    assert cases.pause_schedule("p").why == "paused"
    assert cases.pause_schedule("p").next == ()
    pass_time(grid, 5.25 * HOUR)
    assert len(runs(grid)) == 1
    (view,) = (cases.start_schedule("p"),)
    assert view.next[0] - grid.clock.now() == pytest.approx(0.25 * HOUR, abs=60)
    pass_time(grid, 1.5 * HOUR)
    assert len(runs(grid)) == 3
    with pytest.raises(NotFoundError, match="no schedule 'q'"):
        cases.pause_schedule("q")


@pytest.mark.parametrize(("catch_up", "made_up"), [(CatchUp.LATEST, 1), (CatchUp.ALL, 10), (CatchUp.NONE, 0)])
def test_what_was_missed_while_the_control_node_was_down(catch_up, made_up):
    grid = simulation(observe=SELDOM)
    grid.apply(scheduled(catch_up=catch_up))
    pass_time(grid, 0.5 * HOUR)
    grid.clock.advance(10.25 * HOUR)
    grid.control_dies()
    pass_time(grid, 0.1 * HOUR)
    assert len(runs(grid)) == 1 + made_up
    pass_time(grid, HOUR)
    assert len(runs(grid)) == 2 + made_up
    assert len(set(dues(grid))) == len(dues(grid))


def test_a_machine_that_slept_makes_up_once_and_keeps_the_hour():
    grid = simulation(observe=SELDOM)
    start = grid.clock.now()
    grid.apply(scheduled())
    pass_time(grid, 0.5 * HOUR)
    grid.clock.jump(8 * HOUR)  # the wall clock went on, the monotonic one did not
    pass_time(grid, 0.1 * HOUR)
    assert dues(grid) == [start, start + 8 * HOUR]
    pass_time(grid, 0.5 * HOUR)
    assert dues(grid)[2:] == [start + 9 * HOUR]
    grid.clock.jump(-0.9 * HOUR)
    pass_time(grid, 0.5 * HOUR)
    assert len(runs(grid)) == 3, "a clock set back does nothing twice"


@pytest.mark.parametrize(
    ("overlap", "count", "together"), [(Overlap.QUEUE, 5, 1), (Overlap.SKIP, 4, 1), (Overlap.ALLOW, 10, 3)]
)
def test_runs_that_take_longer_than_their_interval(overlap, count, together):
    grid = simulation(lambda order: Behaviour(seconds=2.2 * HOUR), observe=SELDOM)
    jobs = (command("load", cache=False), command("after", needs=("load",)))
    spec = ScheduleSpec(every_seconds=HOUR, overlap=overlap)
    grid.apply(Pipeline(name="p", jobs=jobs[:1], schedule=spec))
    most = 0
    until = grid.clock.monotonic() + 9.9 * HOUR
    while grid.clock.monotonic() < until:
        grid.advance()
        most = max(most, len(grid.node.control.ledger.snapshot.runs))
    assert len(runs(grid)) == count
    assert (most == 1) == (together == 1)
    never_two_at_once(grid)


def test_when_nothing_would_run_no_run_is_recorded():
    grid = simulation(observe=SELDOM)
    cached = Pipeline(
        name="p", jobs=(command("load", cache=True),), schedule=ScheduleSpec(every_seconds=60.0)
    )
    grid.apply(cached)
    pass_time(grid, HOUR)
    assert len(runs(grid)) == 1
    assert (kept(grid).unchanged, kept(grid).message) == (
        59,
        "there was no new data: no change of `load` since p/load@1",
    )


def test_a_run_that_would_change_nothing_is_started_where_files_were_lost():
    grid = simulation(observe=SELDOM)
    cached = Pipeline(
        name="p", jobs=(command("load", cache=True),), schedule=ScheduleSpec(every_seconds=60.0)
    )
    grid.apply(cached)
    pass_time(grid, 600.0)
    assert len(runs(grid)) == 1
    grid.storage.wrong["p/load@1"] = (FileProblem(path="x", kind=FileProblemKind.MISSING),)
    pass_time(grid, 600.0)
    assert len(runs(grid)) == 2, "it made a version that is whole"


def test_a_pipeline_that_cannot_run_tells_and_harms_nobody():
    grid = simulation(observe=SELDOM)
    grid.apply(scheduled())
    broken = replace(scheduled(60.0), name="q", jobs=(command("load", resource="gone"),))
    with grid.node.changing() as transaction:
        transaction.put(broken)
        transaction.put(Schedule(name="q", spec=broken.schedule, since=grid.clock.now()))
    pass_time(grid, 1.5 * HOUR)
    told = grid.store.get(Schedule, "q").noun
    assert "no resource 'gone'" in told.message
    assert told.skipped in (90, 91)
    assert len([run for run in runs(grid) if run.pipeline == "p"]) == 2


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
@pytest.mark.parametrize("make", [scheduled, with_a_job_of_its_own])
def test_killed_at_any_commit_no_due_time_is_lost_or_doubled(fault, make):
    for number in range(14):
        store = FaultyStore(make_memory(), FaultScript(), kill=kill)
        grid = simulation(store=store)
        start = grid.clock.now()
        grid.apply(make(30.0))
        store.schedule = FaultScript(*[Fault.NONE] * number, fault)
        pass_time(grid, 95.0)
        assert dues(grid) == [start, start + 30, start + 60, start + 90], number


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_seeded_misfortunes_lose_and_double_nothing(first):
    for seed in range(first, first + 8):
        chance = Random(seed)
        store = FaultyStore(make_memory(), FaultScript(), kill=kill)
        grid = simulation(
            lambda order, c=chance: Behaviour(seconds=c.uniform(1.0, 300.0)), store=store, observe=SELDOM
        )
        start = grid.clock.now()
        grid.apply(scheduled(100.0, catch_up=CatchUp.ALL))
        store.schedule = Fates(seed)
        for _ in range(chance.randint(1, 8)):
            pass_time(grid, chance.uniform(1.0, 400.0))
            match chance.randrange(3):
                case 0:
                    grid.control_dies()
                case 1:
                    grid.clock.jump(chance.uniform(-500.0, 1000.0))
                case 2:
                    grid.clock.advance(chance.uniform(0.0, 1000.0))
        store.schedule = FaultScript()
        pass_time(grid, 3000.0)
        expected = [start + n * 100.0 for n in range(len(runs(grid)))]
        assert dues(grid) == expected, seed
        assert all(run.state in FINISHED_RUNS for run in runs(grid)[:-1]), seed
        never_two_at_once(grid)


def jobs_of(grid: Simulation, run: Run) -> list[str]:
    return [record.noun.job.name for record in grid.store.list(JobRun, parent=run.id)]


def test_a_jobs_schedule_runs_it_with_what_it_needs_and_nothing_after_it():
    grid = simulation(observe=SELDOM)
    grid.apply(with_a_job_of_its_own())
    pass_time(grid, 1.5 * HOUR)
    assert [jobs_of(grid, run) for run in runs(grid)] == [["ask", "load"]] * 2
    assert {run.only for run in runs(grid)} == {("load",)}
    assert {run.state for run in runs(grid)} == {RunState.SUCCEEDED}
    cases = PipelineUseCases(grid.node)
    assert [view.name for view in cases.schedules().items] == ["p/load"]
    cases.pause_schedule("p/load")
    pass_time(grid, 2 * HOUR)
    assert len(runs(grid)) == 2
    cases.remove_pipeline("p")
    assert cases.schedules().items == ()


def test_a_pipelines_schedule_and_a_jobs_do_not_hold_each_other_up_and_the_jobs_runs_take_turns():
    grid = simulation(
        lambda order: Behaviour(seconds=2 * HOUR if order.job.name == "train" else 60.0), observe=SELDOM
    )
    night = ScheduleSpec(every_seconds=24 * HOUR, overlap=Overlap.SKIP)
    grid.apply(replace(with_a_job_of_its_own(overlap=Overlap.SKIP), schedule=night))
    pass_time(grid, 24.5 * HOUR)
    whole = [run for run in runs(grid) if not run.only]
    assert [len(jobs_of(grid, run)) for run in whole] == [3, 3]
    assert len(runs(grid)) - len(whole) == 23, "two were skipped: the whole runs were loading"
    never_two_at_once(grid)


DUE = """
pipeline: p
schedule: {every: 1h, catch_up: all, zone: Asia/Kolkata}
jobs:
  load: {command: "load ${due:%Y-%m-%dT%H} ${due_before} $GRIDMILL_DUE"}
  other: {command: "other", cache: true}
"""


def with_due(text: str = DUE) -> Pipeline:
    (pipeline,) = parse_declarations(text, awaiting=True)
    assert isinstance(pipeline, Pipeline)
    return pipeline


def test_a_run_knows_which_time_it_is_for_and_missed_ones_differ():
    grid = simulation(observe=SELDOM)
    start = grid.clock.now()
    grid.apply(with_due())
    pass_time(grid, 1.5 * HOUR)
    grid.clock.advance(3 * HOUR)
    grid.control_dies()
    pass_time(grid, 1.0 * HOUR)
    assert dues(grid) == [start + n * HOUR for n in range(6)]
    told = {run.id: run for run in runs(grid)}
    jobs = {j.run_id: j for j in (r.noun for r in grid.store.list(JobRun)) if j.job.name == "load"}
    assert len({job.job.command.run for job in jobs.values()}) == 6
    for run_id, job in jobs.items():
        due = datetime.fromtimestamp(int(told[run_id].due), ZoneInfo("Asia/Kolkata"))
        before = due - timedelta(hours=1)
        assert job.job.command.run == f"load {due:%Y-%m-%dT%H} {before.isoformat()} $GRIDMILL_DUE"
        assert job.job.command.env == {"GRIDMILL_DUE": due.isoformat()}
        assert job.state is JobState.SUCCEEDED
    others = [r.noun.state for r in grid.store.list(JobRun) if r.noun.job.name == "other"]
    assert sorted(others) == [JobState.SUCCEEDED] + [JobState.UNCHANGED] * 5


def test_a_run_that_somebody_starts_needs_the_times():
    grid = simulation()
    grid.apply(with_due())
    for ask in (RunUseCases(grid.node).start_run, RunUseCases(grid.node).plan_run):
        with pytest.raises(PipelineError, match=r"uses `.\{due\}` and `.\{due_before\}`") as raised:
            ask(PipelineUseCases(grid.node).pipeline("p"))
        assert "--set due=" in raised.value.hint


def test_a_continuous_schedule_has_no_due_times():
    with pytest.raises(PipelineError, match="a continuous schedule has no due times"):
        with_due(DUE.replace("every: 1h, catch_up: all, zone: Asia/Kolkata", "continuous: true"))
