"""A damaged record costs its own run at most: every run ends, says what was lost, and can be run again."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest

from gridmill.control.removable import read_records, unused_files
from gridmill.control.steps.damage import SUBJECT
from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.run import JobRun, Run
from gridmill.domain.site import Node
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, FINISHED_RUNS, JobState, RunState
from gridmill.errors import ConflictError
from gridmill.ports.disk import DiskArea, DiskItem
from gridmill.stores import sql
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation, random_pipeline


def command(name: str, **settings) -> Job:
    return Job(name=name, command=CommandSpec(run="true"), memory_bytes=2**30, **settings)


CHAIN = Pipeline(
    name="chain",
    jobs=(
        command("a"),
        command("b", needs=("a",)),
        command("c", needs=("b",)),
        command("alone"),
        command("last", needs=("c", "alone")),
    ),
)


class Story:
    """A simulated grid over a SQLite store, of which records are damaged while it works."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.path, self.random = path, Random(seed)
        node = Node(name="sim", capacity=Amounts(cpus=8, memory_bytes=32 * 2**30))
        self.store = sql.make(path)
        self.simulation = Simulation(
            store=self.store, behave=self.behave, nodes=(node,), seed=seed, strict=False
        )
        self.simulation.declare_site()

    def behave(self, order: AttemptOrder) -> Behaviour:
        return Behaviour(seconds=self.random.choice((1.0, 20.0, 60.0)))

    def damage(self, where: str, *values: object) -> int:
        """Damage the records that a condition selects; how many."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            sql_text = f"UPDATE record SET checksum = checksum + 1 WHERE {where}"
            return connection.execute(sql_text, values).rowcount

    def restart(self) -> None:
        """As after SIGKILL."""
        self.store.close()
        self.store = self.simulation.store = sql.make(self.path)
        self.simulation.control_dies()

    def finish(self) -> None:
        """All that is known ends, and nothing unexpected happens."""
        simulation = self.simulation
        assert simulation.run_until(self._over, at_most_steps=3000), [
            (job.id, job.state, job.message)
            for job in simulation.node.control.ledger.snapshot.job_runs.values()
        ]

    def _over(self) -> bool:
        control = self.simulation.node.control
        return not (control.ledger.doubtful or control.ledger.snapshot.runs)

    def runs(self) -> dict[str, Run]:
        return {one.noun.id: one.noun for one in self.store.list(Run) if isinstance(one.noun, Run)}

    def jobs(self, run_id: str) -> dict[str, JobRun]:
        found = (record.noun for record in self.store.list(JobRun, parent=run_id))
        return {job.job.name: job for job in found if isinstance(job, JobRun)}


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "store.db")


def begun(story: Story) -> str:
    """A run of the chain whose `b` runs."""
    run = story.simulation.submit(CHAIN)

    def is_running() -> bool:
        job = story.simulation.node.control.ledger.snapshot.job_runs.get(f"{run.id}/b")
        return job is not None and job.state == JobState.RUNNING

    assert story.simulation.run_until(is_running)
    return run.id


def test_a_run_with_a_damaged_job_fails_and_says_so(story: Story):
    run_id = begun(story)
    assert story.damage("key = ?", f"{run_id}/b") == 1
    story.restart()
    story.finish()
    run, jobs = story.runs()[run_id], story.jobs(run_id)
    assert run.state == RunState.FAILED
    assert run.message == "the record of job `b` in the store was damaged and is lost"
    assert jobs["a"].state == jobs["alone"].state == JobState.SUCCEEDED
    assert jobs["c"].state == JobState.SKIPPED
    assert jobs["c"].message == "the record of job `b`, which this job needs, was damaged"
    assert jobs["last"].state == JobState.SKIPPED
    assert len([line for line in story.simulation.warnings if f"JobRun {run_id}/b" in line]) == 1
    assert (
        f"1 record of the store damaged and lost: JobRun {run_id}/b"
        in (story.simulation.node.control.problems.lasting[SUBJECT])
    )
    with pytest.raises(ConflictError, match="cannot continue: the record of job `b`"):
        story.simulation.resume(run_id)
    again = story.simulation.submit(CHAIN, force=False)
    story.finish()
    assert story.runs()[again.id].state == RunState.SUCCEEDED
    assert story.jobs(again.id)["a"].state == JobState.UNCHANGED


def test_a_damaged_run_is_there_and_says_so(story: Story):
    run_id = begun(story)
    assert story.damage("noun = 'Run'") == 1
    story.restart()
    story.finish()
    run = story.runs()[run_id]
    assert (run.state, run.pipeline) == (RunState.FAILED, "chain")
    assert "the record of the run was damaged" in run.message
    assert {job.state for job in story.jobs(run_id).values()} <= FINISHED_JOBS
    assert story.simulation.submit(CHAIN).id != run_id
    story.finish()


@pytest.mark.parametrize("noun", ["Attempt", "Deployment"])
def test_a_job_whose_attempt_or_deployment_is_damaged_fails(story: Story, noun: str):
    run_id = begun(story)
    assert story.damage("noun = ? AND live = 1", noun) >= 1
    story.restart()
    story.finish()
    assert story.runs()[run_id].state == RunState.FAILED
    job = story.jobs(run_id)["b"]
    assert job.state == JobState.FAILED
    assert f"the record of its {noun.lower()}" in job.message


def test_a_run_that_lost_all_its_jobs_ends(story: Story):
    run_id = begun(story)
    story.damage("noun = 'JobRun'")
    story.restart()
    story.finish()
    assert story.runs()[run_id].state == RunState.FAILED


def test_a_damaged_run_can_be_stopped(story: Story):
    run_id = begun(story)
    story.damage("key = ?", f"{run_id}/c")
    story.restart()
    story.simulation.stop(run_id)
    story.finish()
    assert story.runs()[run_id].state == RunState.FAILED


def test_files_of_a_version_stay_while_its_record_may_be_lost(story: Story):
    story.simulation.submit(CHAIN)
    story.simulation.run_until(lambda: story.simulation.clock.monotonic() > 1.0)
    story.finish()
    [version] = [one.noun for one in story.store.list(Artifact, parent="chain/a")]
    files = [DiskItem(area=DiskArea.OUTPUT, name=version.output.uri, size_bytes=1, changed=0.0)]

    def unused() -> list[str]:
        control = story.simulation.node.control
        records = read_records(control.ledger)
        return [one.name for one, _ in unused_files(control.catalog, records, files, inf, inf)]

    story.damage("noun = 'Artifact' AND key = ?", version.id)
    assert unused() == []
    story.simulation.node.check_store()
    assert unused() == []


def test_damage_that_only_a_check_finds_is_taken_in(story: Story):
    run_id = begun(story)
    with closing(sqlite3.connect(story.path)) as connection, connection:
        connection.execute("UPDATE record SET live = 0 WHERE noun = 'Run'")
    story.restart()
    story.simulation.tick()
    assert run_id not in story.simulation.node.control.ledger.snapshot.runs
    story.simulation.node.check_store()
    story.finish()
    assert any(f"Run {run_id}" in warning for warning in story.simulation.warnings)


def test_any_damaged_record_at_any_moment(tmp_path: Path):
    for seed in range(5):
        check_any(tmp_path / f"{seed}.db", seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(12, 212, 20))
def test_many_damaged_records_at_many_moments(tmp_path: Path, first: int):
    for seed in range(first, first + 20):
        check_any(tmp_path / f"{seed}.db", seed)


def check_any(path: Path, seed: int) -> None:
    story, random = Story(path, seed), Random(seed)
    simulation = story.simulation
    for number in range(random.randint(1, 3)):
        simulation.submit(random_pipeline(random, f"p{number}", command))
    steps = random.randrange(60)
    simulation.run_until(lambda: False, at_most_steps=steps)
    with closing(sqlite3.connect(path)) as connection:
        positions = [row[0] for row in connection.execute("SELECT position FROM record WHERE noun <> 'Site'")]
    for position in random.sample(positions, random.randint(1, 3)):
        story.damage("position = ?", position)
    if random.random() < 0.8:
        story.restart()
    else:
        simulation.node.check_store()
    story.finish()
    assert simulation.node.failure is None, simulation.node.failure
    assert {run.state for run in story.runs().values()} <= FINISHED_RUNS
    for run in story.runs().values():
        jobs = story.jobs(run.id)
        if run.state == RunState.SUCCEEDED and run.jobs:
            assert {job.state for job in jobs.values()} <= DONE_JOBS, run
    renewed = [simulation.submit(replace(CHAIN, name=f"p{number}")) for number in range(3)]
    story.finish()
    assert {story.runs()[run.id].state for run in renewed} == {RunState.SUCCEEDED}
    story.store.close()
