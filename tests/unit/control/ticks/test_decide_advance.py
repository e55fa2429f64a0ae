"""When a version is restored instead of an execution, how a job waits, and how a run ends."""

from dataclasses import replace

import pytest
from tests.kit.control_records import AMOUNTS, a_job_run, a_run

from gridmill.control.ticks.advance import (
    JobPlace,
    ReadyJob,
    decide_end,
    decide_may_be_cut,
    decide_size,
    decide_unchanged,
)
from gridmill.domain.amounts import GIB
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.command import CommandSpec, Each
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.pod_protocol import JobPart
from gridmill.domain.provenance import Provenance
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
READY = ReadyJob(
    job_run=a_job_run(state=JobState.BLOCKED, message="before"),
    size=JobSize(),
    made_from=Provenance(name="p/j", fingerprint="f", format=1, code="", created=0.0),
    may_restore=True,
    same=SAME,
)


@pytest.mark.parametrize(
    ("waiting", "message"), [("", "as p-0 made it"), ("2 files change", "as p-0 made it; 2 files change")]
)
def test_a_version_of_the_same_content_is_restored(waiting: str, message: str):
    job_run = decide_unchanged(replace(READY, waiting=waiting), 7.0)
    assert job_run is not None
    assert (job_run.state, job_run.artifacts, job_run.fingerprint) == (JobState.UNCHANGED, ("p/j@3",), "f")
    assert (job_run.message, job_run.ready, job_run.ended) == (message, 7.0, 7.0)
    assert "p/j@3" in job_run.reason


@pytest.mark.parametrize("changes", [{"same": None}, {"may_restore": False}, {"broken": "runs again"}])
def test_a_job_executes_without_a_whole_version_that_may_replace_it(changes):
    assert decide_unchanged(replace(READY, **changes), 7.0) is None


PLACE = JobPlace(
    resource=Resource(name="r", type=JobKind.COMMAND, memory_bytes=GIB),
    largest=AMOUNTS,
    nodes=1,
    history=MeasurementHistory(),
)


def test_a_job_is_sized_within_its_resource():
    sizing = decide_size(READY.job_run, READY.size, PLACE)
    assert sizing is not None
    assert 0 < sizing.amounts.memory_bytes <= GIB


def test_a_job_whose_resource_was_removed_has_no_size():
    assert decide_size(READY.job_run, READY.size, replace(PLACE, resource=None)) is None


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
