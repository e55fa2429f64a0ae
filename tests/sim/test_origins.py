"""A pipeline's name belongs to one folder: a copied project does not write into the tables of the first."""

from dataclasses import replace
from itertools import pairwise

import pytest
from test_races import command, finish, service, simulation

from gridmill.domain.backfill import Backfill, Chunk, ChunkState
from gridmill.domain.pipeline import Origin, Pipeline
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.states import RunState
from gridmill.errors import ConflictError
from gridmill.testing.simulation import Simulation


@pytest.fixture
def grid() -> Simulation:
    return simulation()


def project(folder: str, host: str = "laptop", **settings) -> Pipeline:
    return Pipeline(name="w", jobs=(command("load", cache=False),), folder=folder, host=host, **settings)


def wait(grid: Simulation, seconds: float) -> None:
    until = grid.clock.monotonic() + seconds
    while grid.clock.monotonic() < until:
        grid.advance()


def origin(grid: Simulation) -> Origin:
    return grid.store.get(Origin, "w").noun


def test_a_copied_project_is_refused_and_names_both_folders_and_the_ways_out(grid: Simulation) -> None:
    finish(grid, grid.submit(project("/a")))
    for submit in (service(grid).start_run, service(grid).apply):
        with pytest.raises(ConflictError) as caught:
            submit(project("/b"))
        assert "'w' belongs to the folder /a; this pipeline file is in /b" in caught.value.message
        assert "Rename one" in caught.value.hint
        assert "--adopt" in caught.value.hint
    assert len(service(grid).runs().items) == 1
    assert finish(grid, grid.submit(project("/a"))).state == RunState.SUCCEEDED


def test_the_machine_is_named_where_it_is_another(grid: Simulation) -> None:
    grid.submit(project("/a"))
    with pytest.raises(ConflictError, match="/a on laptop; this pipeline file is in /b"):
        grid.submit(project("/b", host="server"))


def test_the_same_folder_of_another_machine_or_container_is_the_same_project(grid: Simulation) -> None:
    grid.submit(project("/a"))
    grid.submit(project("/a", host="3f2a9c"))


def test_plan_says_that_a_run_would_be_refused(grid: Simulation) -> None:
    assert service(grid).plan_run(project("/a")).conflict == ""
    finish(grid, grid.submit(project("/a")))
    assert service(grid).plan_run(project("/a")).conflict == ""
    assert (
        "'w' belongs to the folder /a; this pipeline file is in /b"
        in service(grid).plan_run(project("/b")).conflict
    )
    assert origin(grid).folder == "/a"


def test_a_run_from_the_old_folder_is_not_resumed(grid: Simulation) -> None:
    run = grid.submit(project("/a"))
    service(grid).stop_run(run.id)
    assert finish(grid, run).state == RunState.STOPPED
    service(grid).apply(project("/b"), adopt=True)
    with pytest.raises(ConflictError, match=f"run {run.id} was started from the folder /a; .* belongs to /b"):
        service(grid).resume(run.id)
    service(grid).apply(project("/a"), adopt=True)
    service(grid).resume(run.id)
    assert finish(grid, run).state == RunState.SUCCEEDED


def test_adopt_moves_the_name_for_good(grid: Simulation) -> None:
    finish(grid, grid.submit(project("/a")))
    service(grid).start_run(project("/b"), adopt=True)
    grid.control_dies()
    grid.tick()
    assert origin(grid).folder == "/b"
    with pytest.raises(ConflictError):
        grid.submit(project("/a"))
    service(grid).apply(project("/a"), adopt=True)
    grid.submit(project("/a"))


def test_a_moved_folder_keeps_its_name(grid: Simulation) -> None:
    grid.submit(project("/a", host="moved"))
    grid.submit(project("/b"))
    assert origin(grid).folder == "/b"


def test_what_has_no_folder_is_not_compared(grid: Simulation) -> None:
    grid.submit(project(""))
    grid.submit(project("/a"))
    grid.submit(project(""))
    assert origin(grid).folder == "/a"


def test_a_schedule_of_the_old_folder_starts_nothing_and_says_why(grid: Simulation) -> None:
    grid.apply(project("/a", schedule=ScheduleSpec(every_seconds=3600.0)))
    finish(grid, grid.submit(project("/b"), adopt=True))
    wait(grid, 4000.0)
    (view,) = service(grid).schedules().items
    assert view.schedule.runs == 0
    assert "belongs to the folder /b; this pipeline file is in /a" in view.schedule.message
    grid.apply(project("/b", schedule=ScheduleSpec(every_seconds=3600.0)))
    wait(grid, 4000.0)
    assert service(grid).schedules().items[0].schedule.runs


def test_a_backfill_of_a_copied_project_is_refused_and_what_is_left_of_one_fails(grid: Simulation) -> None:
    days = ("2024-01-01", "2024-01-02", "2024-01-03")
    backfill = Backfill(name="w", begins=days[0], ends=days[2], every_seconds=86400.0)

    def chunks(folder: str) -> tuple[Chunk, ...]:
        return tuple(
            Chunk(pipeline=project(folder), begins=begins, ends=ends) for begins, ends in pairwise(days)
        )

    grid.submit(project("/a"))
    with pytest.raises(ConflictError, match="belongs to the folder /a"):
        service(grid).start_backfill(backfill, chunks("/b"))
    service(grid).start_backfill(backfill, chunks("/a"))
    grid.tick()
    service(grid).start_run(project("/b"), adopt=True)
    assert grid.run_until(lambda: not service(grid).backfill("w").counts.get(ChunkState.LEFT))
    states = [chunk.message for chunk in service(grid).backfill("w").chunks]
    assert "belongs to the folder /b" in states[1]


def test_an_older_store_records_the_folder_with_the_next_run(grid: Simulation) -> None:
    run = grid.submit(replace(project("/a"), folder=""))
    finish(grid, run)
    assert grid.store.get(Origin, "w") is None
    grid.submit(project("/b"))
    assert origin(grid).folder == "/b"
