"""A pipeline that was run is known by its name, as one that was applied is."""

from dataclasses import replace

import pytest
from test_races import command, finish, service, simulation

from gridmill.domain.pipeline import Pipeline
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.states import RunState
from gridmill.errors import NotFoundError
from gridmill.testing.simulation import Simulation


@pytest.fixture
def grid() -> Simulation:
    return simulation()


def pipeline(*jobs: str, **settings: object) -> Pipeline:
    made = tuple(command(name, cache=False) for name in jobs or ("load",))
    return replace(Pipeline(name="w", jobs=made), **settings)


def test_the_declaration_of_the_last_run_is_kept(grid: Simulation) -> None:
    finish(grid, service(grid).start_run(pipeline("load", "train"), only=("load",)).run)
    (known,) = service(grid).pipelines().items
    assert [job.name for job in known.jobs] == ["load", "train"]
    assert not known.applied
    finish(grid, service(grid).start_run(pipeline("load")).run)
    assert [job.name for job in service(grid).pipeline("w").jobs] == ["load"]


def test_what_was_applied_stays_as_it_was_applied(grid: Simulation) -> None:
    service(grid).apply(pipeline("load"))
    finish(grid, service(grid).start_run(pipeline("other")).run)
    assert service(grid).pipeline("w") == pipeline("load")
    assert service(grid).pipeline("w").applied


def test_an_apply_after_runs_takes_over(grid: Simulation) -> None:
    finish(grid, service(grid).start_run(pipeline("load")).run)
    service(grid).apply(replace(service(grid).pipeline("w"), description="kept"))
    assert service(grid).pipeline("w").applied
    finish(grid, service(grid).start_run(pipeline("other")).run)
    assert service(grid).pipeline("w").description == "kept"


def test_a_run_starts_no_schedule_and_a_removed_pipeline_is_known_again_with_its_next_run(
    grid: Simulation,
) -> None:
    spec = ScheduleSpec(every_seconds=60.0)
    finish(grid, service(grid).start_run(pipeline(schedule=spec)).run)
    assert service(grid).schedules().items == ()
    service(grid).remove_pipeline("w")
    with pytest.raises(NotFoundError):
        service(grid).pipeline("w")
    finish(grid, service(grid).start_run(pipeline()).run)
    assert service(grid).pipeline("w").name == "w"


def test_a_run_that_is_refused_changes_nothing(grid: Simulation) -> None:
    finish(grid, service(grid).start_run(pipeline("load")).run)
    with pytest.raises(NotFoundError):
        service(grid).start_run(pipeline("other"), only=("missing",))
    assert [job.name for job in service(grid).pipeline("w").jobs] == ["load"]


def test_runs_in_some_states(grid: Simulation) -> None:
    runs = [service(grid).start_run(pipeline()).run.id for _ in range(3)]
    service(grid).stop_run(runs[1])
    assert grid.run_until(lambda: service(grid).run(runs[1]).run.state == RunState.STOPPED)
    assert [run.id for run in service(grid).runs(states=(RunState.STOPPED,)).items] == [runs[1]]
    others = service(grid).runs(states=(RunState.ACTIVE, RunState.SUCCEEDED), limit=1).items
    assert [run.id for run in others] == [runs[2]]


def test_an_unknown_name_is_answered_with_a_name_like_it(grid: Simulation) -> None:
    finish(grid, service(grid).start_run(replace(pipeline(), name="weather")).run)
    with pytest.raises(NotFoundError, match="did you mean `weather`"):
        service(grid).pipeline("wether")
