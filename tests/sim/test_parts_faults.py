"""Seeded faults on jobs in parts: no part twice at once, and only what was done is put together, once."""

from itertools import pairwise

import pytest
from tests.sim.test_faults import Story, command, nothing_is_left, nouns, stopped_means_stopped
from tests.sim.test_parts import NODES

from gridmill.control.state import ControlTimeouts
from gridmill.domain.artifact import Artifact
from gridmill.domain.command import Each
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import DONE_JOBS, FINISHED_JOBS, FINISHED_RUNS, AttemptState
from gridmill.testing.simulation import Simulation

GROUP = 20
FIRST, MORE = range(0, 40, GROUP), range(40, 120, GROUP)
"""Seeds: what `make test` tries, and what `make test-long` does."""


class PartStory(Story):
    """Swarms and commands on each node, at a site with three of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.simulation = Simulation(
            store=self.store,
            behave=self.behave,
            nodes=NODES,
            seed=seed,
            strict=seed % 4 == 0,
            limits=ControlTimeouts(observe_seconds=7.0),
        )

    def pipeline(self, name: str) -> Pipeline:
        retries, workers = self.random.randint(0, 2), self.random.randint(1, 7)
        spec = PredictionSpec(dataset="job0", models=("job1",), workers=workers)
        jobs = (
            command("job0", retries=retries),
            command("job1", retries=retries),
            Job(name="job2", prediction=spec, retries=retries),
            Job(name="job3", needs=("job2",), command=CommandSpec(run="patch", each=Each()), retries=retries),
            command("job4", needs=("job3",), retries=retries),
        )
        return Pipeline(name=name, jobs=jobs)


def check(simulation: Simulation) -> None:
    assert all(run.state in FINISHED_RUNS for run in nouns(simulation.store, Run))
    jobs = nouns(simulation.store, JobRun)
    assert all(job.state in FINISHED_JOBS for job in jobs if job.part is None)
    assert all(job.artifacts for job in jobs if job.part is None and job.state in DONE_JOBS)
    never_twice_at_once(simulation)
    only_what_was_done_is_put_together(simulation)
    versions = [one for one in nouns(simulation.store, Artifact) if one.name.endswith("/job2")]
    done = {one.id for one in nouns(simulation.store, Attempt) if one.state == AttemptState.SUCCEEDED}
    assert len({one.attempt_id for one in versions}) == len(versions)
    assert {one.attempt_id for one in versions} <= done
    assert not any(".p" in one.attempt_id for one in versions)
    nothing_is_left(simulation)
    assert not simulation.node.control.reported.last_lines


def never_twice_at_once(simulation: Simulation) -> None:
    """The same part of any run, and a job beside any of its parts of another run."""
    ids = [one.order.attempt_id for one in simulation.world.executions]
    assert len(ids) == len(set(ids))
    by_part: dict[tuple[str, str, int], list] = {}
    for one in simulation.world.executions:
        number = one.order.part.number if one.order.part else -1
        by_part.setdefault((one.order.run_id, one.order.job.name, number), []).append(one)
    for executions in by_part.values():
        executions.sort(key=lambda one: one.began)
        for earlier, later in pairwise(executions):
            assert earlier.ended is not None
            assert earlier.ended <= later.began, f"{earlier.order.attempt_id} overlaps the next"


def only_what_was_done_is_put_together(simulation: Simulation) -> None:
    made = {one.order.output_uri: one for one in simulation.world.executions}
    for gatherer in (one for one in simulation.world.executions if one.order.parts):
        parts = [made[uri] for uri in gatherer.order.parts]
        assert all(one.state == AttemptState.SUCCEEDED and one.ended <= gatherer.began for one in parts)
        assert {one.order.run_id for one in parts} == {gatherer.order.run_id}
        assert [one.order.part.number for one in parts] == list(range(parts[0].order.part.count))
        assert len(parts) == parts[0].order.part.count


@pytest.mark.parametrize("first", FIRST)
def test_seeded_schedules_of_faults_end_right(first: int):
    try_schedules(first)


@pytest.mark.long
@pytest.mark.parametrize("first", MORE)
def test_more_seeded_schedules_of_faults_end_right(first: int):
    try_schedules(first)


def try_schedules(first: int):
    for seed in range(first, first + GROUP):
        story = PartStory(seed)
        try:
            check(story.tell())
            stopped_means_stopped(story.simulation, story.stopped)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
