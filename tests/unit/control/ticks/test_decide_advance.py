"""The next record of a job whose needed jobs have ended, and the end of a run."""

from dataclasses import replace

import pytest
from tests.kit.control_records import AMOUNTS, a_job_run, a_run

from gridmill.control.ticks.advance import (
    Executed,
    JobContent,
    JobPlace,
    Restored,
    Skipped,
    Unmade,
    decide_end,
    decide_execution,
    decide_may_be_cut,
    decide_may_replace,
    decide_unexecuted,
)
from gridmill.domain.amounts import GIB
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.command import CommandSpec, Each
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.job import Job, JobKind, JobSize
from gridmill.domain.pod_protocol import JobPart
from gridmill.domain.provenance import Provenance
from gridmill.domain.resource import Resource
from gridmill.domain.states import JobState, RunState

JOB = a_job_run(state=JobState.BLOCKED, message="before")


def version(name: str, number: int = 3) -> Artifact:
    output = Output(kind=ArtifactKind.FILES, uri="")
    return Artifact(
        id=f"{name}@{number}", name=name, number=number, output=output, fingerprint="f", run_id="p-0"
    )


CONTENT = JobContent(
    inputs=(Input(name="i", artifact=version("p/i")), Input(name="q/t", artifact=version("q/t"))),
    size=JobSize(rows=7),
    made_from=Provenance(name="p/j", fingerprint="f", format=1, code="", created=0.0),
)


def test_a_job_that_never_runs_is_skipped_and_one_without_its_inputs_fails():
    skipped = decide_unexecuted(JOB, Skipped(message="needs `i` failed"), 7.0)
    assert skipped == replace(JOB, state=JobState.SKIPPED, message="needs `i` failed", ended=7.0)
    failed = decide_unexecuted(JOB, Unmade(message="no such file"), 7.0)
    assert failed == replace(JOB, state=JobState.FAILED, message="no such file", ready=7.0, ended=7.0)


@pytest.mark.parametrize(
    ("waiting", "message"), [("", "as p-0 made it"), ("2 files change", "as p-0 made it; 2 files change")]
)
def test_a_restored_version_is_the_result_of_the_job(waiting: str, message: str):
    job_run = decide_unexecuted(JOB, Restored(content=CONTENT, version=version("p/j"), waiting=waiting), 7.0)
    assert (job_run.state, job_run.artifacts, job_run.fingerprint) == (JobState.UNCHANGED, ("p/j@3",), "f")
    assert (job_run.message, job_run.ready, job_run.ended) == (message, 7.0, 7.0)
    assert "p/j@3" in job_run.reason


EXECUTED = Executed(
    content=CONTENT,
    place=JobPlace(
        name="r", resource=Resource(name="r", type=JobKind.COMMAND, memory_bytes=GIB), largest=AMOUNTS
    ),
    reason="first run",
    checkpoints="checkpoints/p/j",
)


def test_a_job_that_executes_waits_with_its_size_and_the_versions_that_it_reads():
    reader = replace(JOB, job=replace(JOB.job, needs=("i", "q/t")))
    job_run = decide_execution(reader, EXECUTED, 7.0)
    assert (job_run.state, job_run.fingerprint, job_run.ready) == (JobState.WAITING, "f", 7.0)
    assert (job_run.reason, job_run.checkpoints) == ("first run", "checkpoints/p/j")
    assert (job_run.size, job_run.external) == (JobSize(rows=7), ("q/t@3",))
    assert 0 < job_run.sizing.amounts.memory_bytes <= GIB
    assert (job_run.message, job_run.ended) == ("before", None)


def test_a_job_whose_version_is_broken_waits_with_that_message():
    assert decide_execution(JOB, replace(EXECUTED, broken="runs again"), 7.0).message == "runs again"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (JobPlace(name="r"), "the resource 'r' of the job was removed"),
        (JobPlace(name="r", problem="there is no resource 'r'"), "there is no resource 'r'"),
    ],
)
def test_a_job_whose_resource_was_removed_fails(place: JobPlace, message: str):
    job_run = decide_execution(JOB, replace(EXECUTED, place=place), 7.0)
    assert (job_run.state, job_run.message, job_run.ended) == (JobState.FAILED, message, 7.0)
    assert job_run.reason == "first run"


@pytest.mark.parametrize(
    ("job", "scheduled", "may_replace"),
    [
        (Job(name="j", dataset=DatasetSpec(basis="b")), True, True),
        (Job(name="j", command=CommandSpec(run="true")), False, True),
        (Job(name="j", command=CommandSpec(run="true")), True, False),
    ],
)
def test_an_earlier_version_replaces_an_execution_that_is_not_forced(job, scheduled, may_replace):
    job_run = replace(JOB, job=job)
    assert decide_may_replace(job_run, scheduled=scheduled) == may_replace
    assert not decide_may_replace(replace(job_run, force=True), scheduled=scheduled)


@pytest.mark.parametrize(
    ("job", "may_be_cut"),
    [
        (Job(name="j", command=CommandSpec(run="true")), False),
        (Job(name="j", command=CommandSpec(run="true", each=Each())), True),
        (Job(name="j", dataset=DatasetSpec(basis="b")), True),
    ],
)
def test_only_a_command_for_each_node_and_jobs_of_data_are_cut(job: Job, may_be_cut: bool):
    assert decide_may_be_cut(a_job_run(job=job)) == may_be_cut
    assert not decide_may_be_cut(a_job_run(job=job, state=JobState.FAILED))


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
