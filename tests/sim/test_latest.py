"""Which version a name means: settled once per run; `latest` is what the last submitted run has."""

import pytest
from test_races import command, finish, job_of, run_of, service, simulation

from gridmill.control.steps.run_lifecycle import begin_run
from gridmill.domain.artifact import Alias
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.errors import InputError, PipelineError
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation


def dataset(name: str, text: str = "a", *tables: str, **settings) -> Job:
    spec = DatasetSpec(sql=f"SELECT '{text}'", time="time", tables=tables)
    return Job(name=name, dataset=spec, memory_bytes=2**30, **settings)


def variant(text: str) -> Pipeline:
    return Pipeline(name="w", jobs=(dataset("line", text),), parameters={"text": text})


def reader(name: str) -> Pipeline:
    return Pipeline(name="use", jobs=(dataset("p", "", name),))


@pytest.fixture
def grid() -> Simulation:
    return simulation()


def reads(grid: Simulation, run: Run, name: str) -> tuple[str, ...]:
    return grid.store.get(JobRun, f"{run.id}/{name}").noun.external


def test_latest_is_what_the_last_run_has_not_what_was_made_last(grid: Simulation) -> None:
    for text in ("a", "b", "a"):
        run = grid.submit(variant(text), force=False)
        assert finish(grid, run).state == RunState.SUCCEEDED
    assert job_of(grid, run, "line").state == JobState.UNCHANGED
    cases = service(grid)
    assert {cases.artifact(name).id for name in ("w/line", "w/line@latest")} == {"w/line@1"}
    assert "latest" in cases.version("w/line@1").names
    assert "latest" not in cases.version("w/line@2").names
    used = grid.submit(reader("w/line"), force=False)
    finish(grid, used)
    assert reads(grid, used, "p")[0] == "w/line@1"


def test_show_gives_the_run_and_its_parameters(grid: Simulation) -> None:
    run = grid.submit(variant("b"), force=False)
    finish(grid, run)
    view = service(grid).version("w/line")
    assert (view.artifact.run_id, view.parameters) == (run.id, {"text": "b"})


def test_an_earlier_run_that_ends_later_does_not_become_the_latest(grid: Simulation) -> None:
    seconds = iter((50.0, 1.0))
    grid.world._behave = lambda order: Behaviour(seconds=next(seconds, 1.0))
    slow, quick = grid.submit(variant("a")), grid.submit(variant("b"))
    finish(grid, quick)
    assert run_of(grid, slow).state == RunState.ACTIVE
    finish(grid, slow)
    latest = service(grid).artifact("w/line")
    assert (latest.run_id, latest.number) == (quick.id, 1)
    grid.control_dies()
    grid.tick()
    assert service(grid).artifact("w/line").run_id == quick.id


def test_a_run_that_failed_leaves_the_latest_version_as_it_was(grid: Simulation) -> None:
    finish(grid, grid.submit(variant("a")))
    grid.world._behave = lambda order: Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)
    assert finish(grid, grid.submit(variant("b"))).state == RunState.FAILED
    assert service(grid).artifact("w/line").id == "w/line@1"


def test_a_backfill_makes_no_latest_version_but_of_a_sink(grid: Simulation) -> None:
    load = Job(name="load", sink=SinkSpec(source=Source(path="x.csv")), memory_bytes=2**30)
    both = Pipeline(name="w", jobs=(load, dataset("line")))
    finish(grid, grid.submit(both))
    with grid.node.changing() as transaction:
        chunk = begin_run(grid.node.control.run_creation, transaction, both, force=True, chunk="w/1")
    assert finish(grid, chunk).state == RunState.SUCCEEDED
    assert [one.number for one in service(grid).artifacts(name="w/line").items] == [2, 1]
    assert service(grid).artifact("w/line").id == "w/line@1"
    assert service(grid).artifact("w/load").run_id == chunk.id


def test_the_newest_that_is_left_is_the_latest_once_that_was_removed(grid: Simulation) -> None:
    for text in ("a", "b", "a"):
        finish(grid, grid.submit(variant(text), force=False))
    service(grid).remove_artifact("w/line@1")
    assert service(grid).artifact("w/line").id == "w/line@2"


def test_two_jobs_of_one_run_never_use_different_versions_of_one_name(grid: Simulation) -> None:
    finish(grid, grid.submit(variant("a")))
    jobs = (
        dataset("first", "", "w/line@latest", "w/line"),
        dataset("second", "", "w/line@prod", "w/line", needs=("first",)),
    )
    service(grid).set_alias(Alias(id="w/line@prod", name="w/line", alias="prod", number=1))
    run = grid.submit(Pipeline(name="use", jobs=jobs))
    assert grid.run_until(lambda: job_of(grid, run, "first").state == JobState.RUNNING)
    finish(grid, grid.submit(variant("b")))
    service(grid).set_alias(Alias(id="w/line@prod", name="w/line", alias="prod", number=2))
    grid.control_dies()
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert {one for name in ("first", "second") for one in reads(grid, run, name)} == {"w/line@1"}


def test_a_resumed_run_reads_what_it_read_before(grid: Simulation) -> None:
    finish(grid, grid.submit(variant("a")))
    grid.world._behave = lambda order: Behaviour(outcome=AttemptState.FAILED, cause=Cause.EXIT)
    run = grid.submit(reader("w/line"))
    assert finish(grid, run).state == RunState.FAILED
    grid.world._behave = lambda order: Behaviour(seconds=1.0)
    finish(grid, grid.submit(variant("b")))
    assert service(grid).artifact("w/line").id == "w/line@2"
    grid.resume(run.id)
    assert finish(grid, run).state == RunState.SUCCEEDED
    assert reads(grid, run, "p")[0] == "w/line@1"


def test_a_name_that_no_version_has_is_refused_before_anything_runs(grid: Simulation) -> None:
    finish(grid, grid.submit(variant("a")))
    with pytest.raises(InputError, match="job 'p' reads 'w/lime', which does not exist") as caught:
        service(grid).start_run(reader("w/lime"))
    assert caught.value.hint == "Did you mean `w/line`? Otherwise: Run the pipeline 'w' first."
    planned = service(grid).plan_run(reader("w/lime"))
    assert "'w/lime', which does not exist" in planned.jobs[0].problem
    with pytest.raises(InputError, match="there is no version 'w/line@7'"):
        service(grid).start_run(reader("w/line@7"))


def test_what_exists_only_since_the_run_began_is_read_once_it_is_resumed(grid: Simulation) -> None:
    grid.world._behave = lambda order: Behaviour(seconds=60.0 if order.job.name == "wait" else 1.0)
    late = grid.submit(
        Pipeline(name="use", jobs=(dataset("wait"), dataset("p", "", "w/line", needs=("wait",))))
    )
    finish(grid, grid.submit(variant("a")))
    assert finish(grid, late).state == RunState.FAILED
    assert "did not exist when run use-1 began" in job_of(grid, late, "p").message
    grid.resume(late.id)
    assert finish(grid, late).state == RunState.SUCCEEDED


def test_a_command_reads_a_result_of_another_pipeline_as_its_run_has_settled_it(grid: Simulation) -> None:
    for _ in range(2):
        finish(grid, grid.submit(Pipeline(name="w", jobs=(command("model"),))))
    service(grid).set_alias(Alias(id="w/model@prod", name="w/model", alias="prod", number=1))
    use = Pipeline(name="use", jobs=(command("copy", needs=("w/model", "w/model@prod", "w/model@1")),))
    assert service(grid).plan_run(use).jobs[0].problem == ""
    run = grid.submit(use, force=False)
    assert finish(grid, run).state == RunState.SUCCEEDED
    order = next(one.order for one in grid.world.executions if one.order.run_id == run.id)
    assert [(one.name, one.artifact.id) for one in order.inputs] == [
        ("w/model", "w/model@2"),
        ("w/model@prod", "w/model@1"),
        ("w/model@1", "w/model@1"),
    ]
    assert service(grid).version("use/copy").lineage
    again = grid.submit(use, force=False)
    finish(grid, again)
    assert job_of(grid, again, "copy").state == JobState.UNCHANGED


def test_an_unknown_result_of_another_pipeline_is_refused_for_a_command_too(grid: Simulation) -> None:
    finish(grid, grid.submit(Pipeline(name="w", jobs=(command("model"),))))
    with pytest.raises(InputError, match="job 'c' reads 'w/modle', which does not exist") as caught:
        service(grid).start_run(Pipeline(name="use", jobs=(command("c", needs=("w/modle",)),)))
    assert "Did you mean `w/model`?" in caught.value.hint
    wrong = Pipeline(name="use", jobs=(dataset("d", "", needs=("w/model",)),))
    with pytest.raises(PipelineError, match="job 'd' needs 'w/model', a result of another pipeline"):
        service(grid).start_run(wrong)


def test_a_new_version_of_the_same_declaration_makes_its_readers_run_again(grid: Simulation) -> None:
    jobs = (command("model", cache=False), command("use", needs=("model",)))
    states = []
    for _ in range(2):
        run = grid.submit(Pipeline(name="p", jobs=jobs), force=False)
        finish(grid, run)
        states.append(job_of(grid, run, "use").state)
    assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED]


def test_a_forced_job_makes_its_readers_run_again(grid: Simulation) -> None:
    pipeline = Pipeline(name="w", jobs=(dataset("line"), dataset("p", "", "line")))
    finish(grid, grid.submit(pipeline))
    forced = service(grid).start_run(pipeline, force=True, only=("line",)).run
    finish(grid, forced)
    run = grid.submit(pipeline, force=False)
    finish(grid, run)
    states = [job_of(grid, run, name).state for name in ("line", "p")]
    assert states == [JobState.UNCHANGED, JobState.SUCCEEDED]
    assert job_of(grid, run, "line").artifacts == ("w/line@2",)
