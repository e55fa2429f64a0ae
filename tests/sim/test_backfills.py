"""Backfills on a fake clock over the real control node: bounded, resumable, killed at any commit."""

from dataclasses import replace

import pytest
from tests.sim.test_races import command, simulation

from gridmill.control.usecases.backfills import BackfillUseCases
from gridmill.domain.backfill import Backfill, BackfillView, Chunk, ChunkState, spans
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import Run
from gridmill.domain.schedule import Overlap, ScheduleSpec
from gridmill.domain.sink import Outage, SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import FINISHED_RUNS, AttemptState, Cause, RunState
from gridmill.errors import ConflictError, InputError, NotFoundError, PipelineError, UnavailableError
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation, kill

WEEK = 7 * 86_400.0
MONTH = Backfill(name="p", begins="2013-01-01", ends="2013-02-01", every_seconds=WEEK)
STARTS = ["2013-01-01", "2013-01-08", "2013-01-15", "2013-01-22", "2013-01-29"]


def chunks(backfill: Backfill, jobs: tuple[Job, ...] = (command("load", cache=False),)) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(
            pipeline=Pipeline(name="p", jobs=jobs, parameters={"from": begins, "to": ends}),
            begins=begins,
            ends=ends,
        )
        for begins, ends in spans(backfill)
    )


def start(grid: Simulation, backfill: Backfill = MONTH, **settings) -> BackfillView:
    return BackfillUseCases(grid.node).start_backfill(backfill, chunks(backfill, **settings))


def view(grid: Simulation) -> BackfillView:
    return BackfillUseCases(grid.node).backfill("p")


def runs(grid: Simulation) -> list[Run]:
    return [record.noun for record in grid.store.list(Run)]


def starts(grid: Simulation) -> list[object]:
    return [run.parameters.get("from") for run in runs(grid)]


def to_the_end(grid: Simulation) -> None:
    def over() -> bool:
        try:
            return view(grid).over and all(run.state in FINISHED_RUNS for run in runs(grid))
        except NotFoundError:
            return False

    assert grid.run_until(over, at_most_steps=2000)


def fails(*bad: int):
    """The runs of these numbers fail."""
    names = {f"p-{number}" for number in bad}
    failed = Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)
    return lambda order: failed if order.run_id in names else Behaviour(seconds=1.0)


@pytest.mark.parametrize("newest_first", [False, True])
def test_each_chunk_is_one_run_with_its_bounds(newest_first):
    grid = simulation()
    start(grid, replace(MONTH, newest_first=newest_first))
    to_the_end(grid)
    assert starts(grid) == (STARTS[::-1] if newest_first else STARTS)
    assert runs(grid)[-1].parameters["to"] == ("2013-01-08" if newest_first else "2013-02-01")
    first = runs(grid)[0]
    assert first.chunk == f"p/{first.parameters['from']}..{first.parameters['to']}"
    assert view(grid).counts == {ChunkState.DONE: 5}
    assert [chunk.run for chunk in view(grid).chunks] == sorted(
        (run.id for run in runs(grid)), reverse=newest_first
    )


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_more_run_at_once_than_is_said(parallel):
    grid = simulation()
    start(grid, replace(MONTH, parallel=parallel))
    most = 0
    while not view(grid).over:
        grid.advance()
        most = max(most, len(grid.node.control.ledger.snapshot.runs))
    assert most == parallel


def test_a_failed_chunk_holds_up_nobody_and_is_tried_again_alone():
    grid = simulation(fails(2, 4))
    start(grid)
    to_the_end(grid)
    assert view(grid).counts == {ChunkState.DONE: 3, ChunkState.FAILED: 2}
    assert start(grid).counts == {ChunkState.DONE: 3, ChunkState.LEFT: 2}
    to_the_end(grid)
    assert starts(grid)[5:] == [STARTS[1], STARTS[3]]
    assert view(grid).counts == {ChunkState.DONE: 5}
    start(grid)
    to_the_end(grid)
    assert len(runs(grid)) == 7, "what is done is not done again"
    start(grid, replace(MONTH, force=True))
    to_the_end(grid)
    assert starts(grid)[7:] == STARTS
    assert all(run.force for run in runs(grid)[7:])


def test_a_failed_run_that_is_resumed_makes_its_chunk_done():
    bad = {"p-2"}
    failed = Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)
    grid = simulation(lambda order: failed if order.run_id in bad else Behaviour(seconds=1.0))
    start(grid)
    to_the_end(grid)
    bad.clear()
    grid.resume("p-2")
    to_the_end(grid)
    assert view(grid).counts == {ChunkState.DONE: 5}
    start(grid)
    to_the_end(grid)
    assert len(runs(grid)) == 5


def test_a_pipeline_that_cannot_run_any_more_fails_its_chunks_and_says_why():
    grid = simulation()
    broken = (command("load", resource="gone"),)
    with pytest.raises(PipelineError, match="no resource 'gone'"):
        start(grid, jobs=broken)
    with grid.node.changing() as transaction:
        transaction.put(MONTH, *chunks(MONTH, broken))
    to_the_end(grid)
    assert view(grid).counts == {ChunkState.FAILED: 5}
    assert "no resource 'gone'" in view(grid).chunks[0].message


def test_stopped_it_starts_nothing_and_goes_on_when_it_is_started_again():
    grid = simulation(lambda order: Behaviour(seconds=100.0))
    cases = BackfillUseCases(grid.node)
    start(grid)
    grid.run_until(lambda: len(runs(grid)) == 2)
    assert cases.stop_backfill("p").backfill.stopped
    grid.run_until(lambda: all(run.state == RunState.SUCCEEDED for run in runs(grid)))
    for _ in range(20):
        grid.advance()
    assert view(grid).counts == {ChunkState.DONE: 2, ChunkState.LEFT: 3}
    cases.start_backfill(view(grid).backfill)
    to_the_end(grid)
    assert starts(grid) == STARTS
    with pytest.raises(NotFoundError, match="no backfill 'q'"):
        cases.stop_backfill("q")


def test_a_chunk_wholly_in_an_outage_is_skipped_and_says_so():
    outage = Outage(time="at", begins="2013-01-05", ends="2013-01-22", reason="no power")
    load = Job(name="load", sink=SinkSpec(source=Source(path="*.csv"), outages=(outage,)), memory_bytes=2**30)
    grid = simulation()
    start(grid, jobs=(load,))
    to_the_end(grid)
    assert starts(grid) == [STARTS[0], STARTS[3], STARTS[4]]
    assert view(grid).counts == {ChunkState.DONE: 3, ChunkState.SKIPPED: 2}
    assert "no power" in view(grid).chunks[1].message


def test_another_range_waits_for_the_end_of_the_first_and_knows_what_is_done():
    grid = simulation()
    start(grid)
    grid.run_until(lambda: len(runs(grid)) == 2)
    longer = replace(MONTH, ends="2013-02-05")
    with pytest.raises(ConflictError, match="is active"):
        start(grid, longer)
    BackfillUseCases(grid.node).stop_backfill("p")
    start(grid, longer)
    to_the_end(grid)
    assert starts(grid) == STARTS
    assert runs(grid)[-1].parameters["to"] == "2013-02-05"


def test_what_is_not_its_chunks_is_refused_and_nothing_is_kept():
    grid = simulation()
    cases = BackfillUseCases(grid.node)
    with pytest.raises(InputError, match="chunks do not match"):
        cases.start_backfill(MONTH, chunks(MONTH)[1:])
    with pytest.raises(InputError, match="is not 'q'"):
        cases.start_backfill(replace(MONTH, name="q"), chunks(MONTH))
    with pytest.raises(NotFoundError, match="over that range"):
        cases.start_backfill(MONTH)
    grid.node.control.alarms = None
    with pytest.raises(UnavailableError, match="permanent control node"):
        start(grid)
    assert cases.backfills().items == ()
    assert not list(grid.store.list(Chunk))


def test_a_schedule_is_not_held_up_by_the_backfill_of_its_pipeline():
    grid = simulation(lambda order: Behaviour(seconds=50.0))
    spec = ScheduleSpec(every_seconds=60.0, overlap=Overlap.SKIP)
    grid.apply(Pipeline(name="p", jobs=(command("watch", cache=False),), schedule=spec))
    start(grid)
    grid.run_until(lambda: view(grid).over)
    assert len([run for run in runs(grid) if not run.chunk]) >= 4


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.FAIL_BEFORE, Fault.FAIL_AFTER])
def test_killed_at_any_commit_no_chunk_is_lost_or_doubled(fault):
    for number in range(24):
        store = FaultyStore(make_memory(), FaultScript(), kill=kill)
        grid = simulation(store=store)
        store.schedule = FaultScript(*[Fault.NONE] * number, fault)
        if not grid.attempt(lambda g=grid: start(g, replace(MONTH, parallel=2))):
            start(grid, replace(MONTH, parallel=2))
        to_the_end(grid)
        assert sorted(starts(grid)) == STARTS, number
        assert view(grid).counts == {ChunkState.DONE: 5}, number
        attempts = [execution.order.attempt_id for execution in grid.world.executions]
        assert len(attempts) == len(set(attempts)), number
