"""When a version is restored instead of an execution, how a job waits, and how a run ends."""

from dataclasses import replace

import pytest
from tests.kit.control_records import AMOUNTS, a_job_run, a_run

from gridmill.control.ticks.advance import (
    JobPlace,
    ReusableVersion,
    decide_end,
    decide_may_be_cut,
    decide_restored,
    decide_size,
)
from gridmill.domain.amounts import GIB
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.command import CommandSpec, Each
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.pod_protocol import JobPart
from gridmill.domain.resource import Resource
from gridmill.domain.states import JobState, RunState
from gridmill.scheduler.history import MeasurementHistory

SAME = Artifact(
    id="p/j@3",
    name="p/j",
    number=3,
    output=Output(kind=ArtifactKind.FILES, uri=""),
    fingerprint="f",
    run_id="p-0",
)


@pytest.mark.parametrize(
    ("changes", "restored"),
    [
        ({}, SAME),
        ({"version": None}, None),
        ({"may_replace": False}, None),
        ({"broken": "runs again: the files changed"}, None),
        ({"broken": None}, None),
    ],
)
def test_a_whole_version_that_may_replace_the_execution_is_restored(changes, restored):
    reusable = ReusableVersion(version=SAME, may_replace=True)
    assert decide_restored(replace(reusable, **changes)) == restored


PLACE = JobPlace(
    name="r",
    resource=Resource(name="r", type=JobKind.COMMAND, memory_bytes=GIB),
    largest=AMOUNTS,
    nodes=1,
    history=MeasurementHistory(),
)


def test_a_job_is_sized_within_its_resource():
    sizing = decide_size(a_job_run(), JobSize(), PLACE)
    assert sizing is not None
    assert 0 < sizing.amounts.memory_bytes <= GIB


def test_a_job_whose_resource_was_removed_has_no_size():
    assert decide_size(a_job_run(), JobSize(), replace(PLACE, resource=None)) is None


@pytest.mark.parametrize(
    ("job", "may_be_cut"),
    [
        (Job(name="j", command=CommandSpec(run="true")), False),
        (Job(name="j", command=CommandSpec(run="true", each=Each())), True),
        (Job(name="j", dataset=DatasetSpec(basis="b")), True),
    ],
)
def test_only_a_command_for_each_node_and_jobs_of_data_are_cut(job: Job, may_be_cut: bool):
    assert decide_may_be_cut(job) == may_be_cut


@pytest.mark.parametrize(
    ("states", "ended"),
    [
        ([JobState.SUCCEEDED, JobState.UNCHANGED], RunState.SUCCEEDED),
        ([JobState.SUCCEEDED, JobState.FAILED], RunState.FAILED),
        ([JobState.SUCCEEDED, JobState.STOPPED], RunState.STOPPED),
    ],
)
def test_a_run_ends_as_its_jobs_did(states: list[JobState], ended: RunState):
    job_runs = [a_job_run(f"j{number}", state=state) for number, state in enumerate(states)]
    run = decide_end(a_run(), job_runs, 7.0)
    assert (run.state, run.ended) == (ended, 7.0)


def test_parts_do_not_count_and_a_run_with_lost_records_fails():
    part = a_job_run("j.0", state=JobState.FAILED, part=JobPart(of="p-1/j", number=0, count=1))
    done = a_job_run(state=JobState.SUCCEEDED)
    assert decide_end(a_run(), [done, part], 7.0).state is RunState.SUCCEEDED
    damaged = decide_end(a_run(damage="a record is lost"), [done], 7.0)
    assert (damaged.state, damaged.message) == (RunState.FAILED, "a record is lost")
