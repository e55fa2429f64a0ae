"""Continuous loads on a fake clock: blocks overlap, wait their turn, and nothing runs for nothing."""

from dataclasses import replace

from tests.sim.test_faults import never_two_at_once
from tests.sim.test_races import command, simulation

from gridmill.control.usecases.pipelines import PipelineUseCases
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.schedule import Continuous, Schedule, ScheduleSpec
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import FINISHED_RUNS, AttemptState, RunState
from gridmill.ports.storage import FileStat
from gridmill.stores.memory import make as make_memory
from gridmill.testing.faults import Fault, FaultScript, FaultyStore
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import NoStorage, Simulation, kill


class Folder(NoStorage):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[FileStat] = []
        self.looks = 0

    def describe_source(self, source: Source, folder: str) -> tuple[FileStat, ...]:
        self.looks += 1
        return tuple(self.files)

    def arrive(self, count: int = 1, size_bytes: int = 1000) -> None:
        for _ in range(count):
            self.files.append(FileStat(path=f"f{len(self.files):05}", size_bytes=size_bytes, mtime_ns=1))


LOAD = Job(name="load", sink=SinkSpec(source=Source(path="*.csv")), resource="sinks", memory_bytes=2**30)
AFTER = command("after", needs=("load",), resource="others")
RESOURCES = (
    Resource(name="sinks", type=JobKind.SINK, cpus=2.0),
    Resource(name="others", type=JobKind.COMMAND, cpus=2.0),
)


def pipeline(**settings) -> Pipeline:
    spec = ScheduleSpec(continuous=Continuous(**settings))
    return Pipeline(name="p", jobs=(LOAD, AFTER), resources=RESOURCES, schedule=spec)


def grid_with(behave, store=None) -> tuple[Simulation, Folder]:
    grid = simulation(behave, store=store)
    grid.storage = grid.node.control.storage = folder = Folder()
    return grid, folder


def seconds(load_seconds: float, after_seconds: float):
    return lambda order: Behaviour(seconds=load_seconds if order.job.name == "load" else after_seconds)


def runs(grid: Simulation) -> list[Run]:
    return [record.noun for record in grid.store.list(Run)]


def pass_time(grid: Simulation, length: float) -> None:
    until = grid.clock.monotonic() + length
    while grid.clock.monotonic() < until:
        grid.advance()


def test_nothing_new_starts_nothing_and_writes_nothing():
    grid, folder = grid_with(seconds(1.0, 1.0))
    grid.apply(pipeline())
    folder.arrive(3)
    pass_time(grid, 600.0)
    assert [run.state for run in runs(grid)] == [RunState.SUCCEEDED]
    commits, looks = grid.node.commits, folder.looks
    pass_time(grid, 3600.0)
    assert grid.node.commits == commits
    assert folder.looks - looks > 600
    folder.arrive()
    pass_time(grid, 30.0)
    assert len(runs(grid)) == 2


def test_a_block_loads_while_those_before_are_worked_on_and_no_more_than_allowed_are_in_flight():
    grid, folder = grid_with(seconds(5.0, 60.0))
    grid.apply(pipeline(in_flight=3))
    most = overlaps = 0
    for _ in range(100):
        folder.arrive()
        pass_time(grid, 10.0)
        live = [e for e in grid.world.executions if e.ended is None]
        overlaps += {e.order.job.name for e in live} == {"load", "after"}
        most = max(most, len(grid.node.control.ledger.snapshot.runs))
    assert most == 3
    assert overlaps > 5
    assert 10 <= len(runs(grid)) <= 20, "when what comes after is behind, blocks grow"
    never_two_at_once(grid)
    pass_time(grid, 600.0)
    assert all(run.state == RunState.SUCCEEDED for run in runs(grid))


def test_a_block_closes_by_files_by_bytes_or_by_the_time_it_waited():
    for settings, closing in (
        ({"max_files": 4, "max_wait_seconds": 1e6}, 4),
        ({"max_bytes": 2500, "max_wait_seconds": 1e6}, 3),
        ({"max_wait_seconds": 45.0}, 5),
    ):
        grid, folder = grid_with(seconds(1.0, 1.0))
        grid.apply(pipeline(**settings))
        while not runs(grid):
            folder.arrive()
            pass_time(grid, 10.0)
        assert len(folder.files) == closing, settings
    view = PipelineUseCases(grid.node).schedule("p")
    assert view.schedule.runs == 1


def test_what_is_in_the_way_is_told():
    grid, folder = grid_with(seconds(100.0, 100.0))
    grid.apply(pipeline(max_wait_seconds=60.0))
    cases = PipelineUseCases(grid.node)
    folder.arrive(2)
    pass_time(grid, 20.0)
    assert cases.schedule("p").why == "2 new files wait for their block to be closed"
    pass_time(grid, 60.0)
    assert cases.schedule("p").why == "p-1 loads the block before"
    cases.pause_schedule("p")
    assert cases.schedule("p").why == "paused"
    pass_time(grid, 600.0)
    folder.arrive()
    pass_time(grid, 600.0)
    assert len(runs(grid)) == 1
    cases.start_schedule("p")
    pass_time(grid, 600.0)
    assert len(runs(grid)) == 2


def test_killed_at_any_commit_every_file_is_loaded_and_no_run_starts_for_nothing():
    for fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.FAIL_AFTER):
        for number in range(16):
            store = FaultyStore(make_memory(), FaultScript(), kill=kill)
            grid, folder = grid_with(seconds(1.0, 1.0), store)
            grid.apply(pipeline())
            store.schedule = FaultScript(*[Fault.NONE] * number, fault)
            folder.arrive()
            pass_time(grid, 60.0)
            folder.arrive()
            pass_time(grid, 60.0)
            assert [run.state for run in runs(grid)] == [RunState.SUCCEEDED] * 2, (fault, number)


def test_a_block_that_fails_is_not_tried_for_ever():
    grid, folder = grid_with(lambda order: Behaviour(seconds=1.0, outcome=AttemptState.FAILED))
    grid.apply(pipeline())
    folder.arrive()
    pass_time(grid, 600.0)
    assert [run.state for run in runs(grid)] == [RunState.FAILED]
    folder.arrive()
    pass_time(grid, 60.0)
    assert len(runs(grid)) == 2
    assert all(run.state in FINISHED_RUNS for run in runs(grid))
    assert grid.store.get(Schedule, "p").noun.last_run == "p-2"


def test_a_file_that_is_not_settled_starts_nothing_and_is_not_forgotten():
    grid, folder = grid_with(seconds(1.0, 1.0))
    source = Source(path="*.csv", settled_seconds=120.0)
    load = replace(LOAD, sink=SinkSpec(source=source))
    spec = ScheduleSpec(continuous=Continuous())
    grid.apply(Pipeline(name="p", jobs=(load, AFTER), resources=RESOURCES, schedule=spec))
    folder.arrive()
    pass_time(grid, 60.0)
    assert len(runs(grid)) == 1
    now_ns = int(grid.clock.now() * 1e9)
    folder.files.append(FileStat(path="late", size_bytes=1, mtime_ns=1, ctime_ns=now_ns))
    pass_time(grid, 60.0)
    assert len(runs(grid)) == 1
    assert PipelineUseCases(grid.node).schedule("p").why == "load: waiting: 1 file changed less than 120s ago"
    pass_time(grid, 120.0)
    assert len(runs(grid)) == 2
    assert PipelineUseCases(grid.node).schedule("p").why == ""
