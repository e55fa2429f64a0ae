"""When a version is restored instead of an execution, how a job waits, and how a run ends."""

from dataclasses import replace

import pytest
from tests.kit.control_records import AMOUNTS, a_job_run, a_run

from gridmill.control.ticks.advance import (
    JobPlace,
    ReadyJob,
    decide_end,
    decide_unchanged,
    decide_waiting,
)
from gridmill.domain.amounts import GIB
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.job import JobKind, JobSize
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


def test_a_job_that_executes_waits_with_its_size():
    job_run = decide_waiting(READY, PLACE, 7.0)
    assert (job_run.state, job_run.fingerprint, job_run.ready) == (JobState.WAITING, "f", 7.0)
    assert job_run.sizing.amounts.memory_bytes > 0
    assert (job_run.message, job_run.ended) == ("before", None)


def test_a_job_whose_version_is_broken_waits_with_that_reason():
    assert decide_waiting(replace(READY, broken="runs again"), PLACE, 7.0).message == "runs again"


def test_a_job_whose_resource_was_removed_fails():
    job_run = decide_waiting(READY, replace(PLACE, resource=None), 7.0)
    assert (job_run.state, job_run.ended) == (JobState.FAILED, 7.0)
    assert job_run.message == "the resource 'r' of the job was removed"


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
