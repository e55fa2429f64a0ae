"""What becomes of jobs after their attempts and needs, and of runs after their jobs."""

from dataclasses import replace

import pytest

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.resource import Sizing
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.states import AttemptState, Cause, JobState, RunState
from gridmill.errors import ConflictError
from gridmill.scheduler.outcomes import MOST_LOSSES, backoff_seconds, ready, run_state, settle, skipped
from gridmill.scheduler.snapshot import Snapshot

NOW = 1000.0
RUN = Run(id="p-1", pipeline="p", order=1, state=RunState.ACTIVE, created=0.0)


def a_job(name="x", state=JobState.RUNNING, needs=(), retries=0, **fields):
    return JobRun(
        id=f"p-1/{name}",
        run_id="p-1",
        pipeline="p",
        job=Job(name=name, retries=retries, command=CommandSpec(run="true")),
        order=0,
        state=state,
        resource="a",
        needs=tuple(f"p-1/{need}" for need in needs),
        sizing=Sizing(amounts=Amounts(memory_bytes=GIB)),
        **{"attempts": 1, **fields},
    )


def an_end(state=AttemptState.FAILED, cause=None, memory=GIB, **fields):
    return Attempt(
        id="p-1.x.1",
        run_id="p-1",
        job_run_id="p-1/x",
        token="",
        deployment_id="a-1",
        pod_id="a-1.0",
        state=state,
        given=Amounts(memory_bytes=memory),
        placed=NOW,
        cause=cause,
        **fields,
    )


def test_an_environment_that_could_not_be_installed_is_tried_again_and_counts_as_no_failure():
    end = an_end(cause=Cause.ENVIRONMENT, message="the package index did not answer: refused")
    job = a_job(retries=0)
    waits = []
    for _ in range(MOST_LOSSES):
        job = settled(job, end)
        assert (job.state, job.failures) == (JobState.WAITING, 0)
        waits.append(job.not_before - NOW)
        job = replace(job, state=JobState.RUNNING, attempts=job.attempts + 1)
    assert waits == [1, 2, 4, 8, 16]
    job = settled(job, end)
    assert (job.state, job.failures) == (JobState.FAILED, 0)
    assert job.message == "the package index did not answer: refused (in 6 attempts)"


def settled(job, end, largest=16 * GIB):
    return settle(job, end, NOW, largest=largest)


def test_success():
    after = settled(a_job(), an_end(AttemptState.SUCCEEDED))
    assert (after.state, after.ended, after.message) == (JobState.SUCCEEDED, NOW, "")


def test_a_failure_without_retries_is_final_and_says_why():
    after = settled(a_job(), an_end(cause=Cause.EXIT, exit_code=3))
    assert (after.state, after.message) == (JobState.FAILED, "exit code 3")
    assert settled(a_job(), an_end(cause=Cause.EXIT, message="no disk")).message == "no disk"


def test_a_failure_with_retries_waits_longer_each_time():
    job = a_job(retries=2)
    first = settled(job, an_end(cause=Cause.EXIT, exit_code=1))
    assert (first.state, first.failures, first.not_before) == (JobState.WAITING, 1, NOW + 1)
    assert first.message == "attempt 1 failed: exit code 1; 2 more; next attempt in 1.0 s"
    second = settled(replace(first, state=JobState.RUNNING), an_end(cause=Cause.TIMEOUT))
    assert (second.state, second.not_before) == (JobState.WAITING, NOW + 2)
    third = settled(replace(second, state=JobState.RUNNING), an_end(cause=Cause.EXIT))
    assert third.state is JobState.FAILED


def test_backoff_grows_to_a_minute():
    assert [backoff_seconds(failures) for failures in (1, 2, 3, 7, 50)] == [1.0, 2.0, 4.0, 60.0, 60.0]


def test_wrong_input_is_never_tried_again():
    assert settled(a_job(retries=5), an_end(cause=Cause.INPUT, message="bad")).state is JobState.FAILED


def test_lost_attempts_do_not_cost_retries_but_not_for_ever():
    job = a_job()
    for losses in range(1, MOST_LOSSES + 1):
        job = settled(job, an_end(AttemptState.LOST))
        assert (job.state, job.losses, job.failures) == (JobState.WAITING, losses, 0)
        job = replace(job, state=JobState.RUNNING)
    after = settled(job, an_end(AttemptState.LOST, message="its pod does not exist any more"))
    assert after.state is JobState.FAILED
    assert after.message == "lost 6 times; the last time: its pod does not exist any more"


def test_a_stop_that_nobody_asked_for_is_a_loss():
    assert settled(a_job(), an_end(AttemptState.STOPPED)).state is JobState.WAITING


def test_a_requested_stop_stops_however_the_attempt_ended_unless_it_was_done():
    for state in (AttemptState.STOPPED, AttemptState.FAILED, AttemptState.LOST):
        assert settled(a_job(retries=3), an_end(state, stop_requested=True)).state is JobState.STOPPED
    after = settled(a_job(), an_end(AttemptState.SUCCEEDED, stop_requested=True))
    assert after.state is JobState.SUCCEEDED


def test_a_declared_size_is_not_exceeded():
    job = a_job(retries=1)
    job = replace(job, job=replace(job.job, memory_bytes=GIB))
    after = settled(job, an_end(cause=Cause.MEMORY))
    assert (after.state, after.memory_kills, after.failures) == (JobState.WAITING, 1, 1)
    assert after.sizing.amounts == job.sizing.amounts
    assert "ran out of memory at 1 GiB, the limit that the job declares; 1 more" in after.message
    again = settled(replace(after, state=JobState.RUNNING), an_end(cause=Cause.MEMORY))
    assert (again.state, again.message) == (
        JobState.FAILED,
        "ran out of memory at 1 GiB, the limit that the job declares",
    )


def test_a_machine_that_ran_out_of_memory_costs_no_try_and_the_job_keeps_its_size():
    job, waits = a_job(), []
    end = an_end(AttemptState.LOST, cause=Cause.SHORTAGE, message="the machine ran out of memory")
    for _ in range(MOST_LOSSES):
        sizing, job = job.sizing, settled(job, end)
        assert (job.state, job.failures, job.memory_kills, job.sizing) == (JobState.WAITING, 0, 0, sizing)
        waits.append(job.not_before - NOW)
        job = replace(job, state=JobState.RUNNING)
    assert waits == [5, 10, 20, 40, 80]
    assert settled(job, end).state is JobState.FAILED


def test_an_estimated_size_grows_to_all_that_the_site_has_before_the_job_has_failed():
    job, had, sizes = a_job(retries=0), GIB // 2, []
    while job.state is JobState.RUNNING:
        job = settled(job, an_end(cause=Cause.MEMORY, memory=had), largest=20 * GIB)
        if job.state is JobState.WAITING:
            had = job.sizing.amounts.memory_bytes
            sizes.append(had / GIB)
            job = replace(job, state=JobState.RUNNING)
    assert sizes == [1, 4, 16, 20]
    assert (job.failures, job.memory_kills) == (0, 5)
    assert job.message == "ran out of memory at 20 GiB; its site has no more memory"


def test_a_memory_kill_at_all_there_is_is_final():
    after = settled(a_job(retries=3), an_end(cause=Cause.MEMORY), largest=GIB)
    assert (after.state, after.message) == (
        JobState.FAILED,
        "ran out of memory at 1 GiB; its site has no more memory",
    )


def test_what_has_no_more_is_named():
    after = settle(a_job(), an_end(cause=Cause.MEMORY), NOW, largest=GIB, whose="resource small")
    assert after.message == "ran out of memory at 1 GiB; resource small has no more memory"


def test_settling_what_does_not_run_or_has_not_ended_is_a_conflict():
    with pytest.raises(ConflictError):
        settled(a_job(state=JobState.BLOCKED), an_end(AttemptState.SUCCEEDED))
    with pytest.raises(ConflictError):
        settled(a_job(), an_end(AttemptState.RUNNING))


def a_snapshot(*jobs):
    return Snapshot((RUN, *jobs))


def test_ready_are_those_whose_needs_are_done():
    snapshot = a_snapshot(
        a_job("a", JobState.SUCCEEDED),
        a_job("b", JobState.UNCHANGED),
        a_job("c", JobState.RUNNING),
        a_job("both", JobState.BLOCKED, ("a", "b")),
        a_job("half", JobState.BLOCKED, ("a", "c")),
        a_job("free", JobState.BLOCKED),
    )
    assert ready(snapshot, "p-1") == ("p-1/both", "p-1/free")
    assert ready(snapshot, ["p-1/half", "p-1/free"]) == ("p-1/free",)


def test_what_needs_a_job_that_did_not_succeed_is_skipped_to_the_end_of_the_chain():
    snapshot = a_snapshot(
        a_job("a", JobState.FAILED),
        a_job("b", JobState.BLOCKED, ("a",)),
        a_job("c", JobState.BLOCKED, ("b",)),
        a_job("d", JobState.BLOCKED),
    )
    found = skipped(snapshot, "p-1", NOW)
    assert [(job.job.name, job.state, job.message) for job in found] == [
        ("b", JobState.SKIPPED, "needs `a` failed"),
        ("c", JobState.SKIPPED, "needs `b` skipped"),
    ]
    assert list(ready(snapshot, "p-1")) == ["p-1/d"]


def test_a_run_ends_when_its_jobs_have():
    done, failed = a_job("a", JobState.SUCCEEDED), a_job("b", JobState.FAILED)
    left_out, halted = a_job("c", JobState.SKIPPED), a_job("d", JobState.STOPPED)
    assert run_state(RUN, [done, a_job("e")])[0] is RunState.ACTIVE
    assert run_state(RUN, [done]) == (RunState.SUCCEEDED, "1 succeeded")
    assert run_state(RUN, [done, failed, left_out]) == (
        RunState.FAILED,
        "1 failed (b), 1 skipped, 1 succeeded",
    )
    assert run_state(RUN, [done, halted])[0] is RunState.STOPPED
    assert run_state(RUN, [done, halted, left_out])[0] is RunState.STOPPED
    assert run_state(RUN, [done, left_out]) == (RunState.SUCCEEDED, "1 skipped, 1 succeeded")
    assert run_state(RUN, [])[0] is RunState.SUCCEEDED
