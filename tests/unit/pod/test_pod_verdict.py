import signal
from dataclasses import replace

import pytest

from gridmill.domain.amounts import MIB
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.states import AttemptState, Cause
from gridmill.pod.outcome import AttemptEnding, MemoryShortage, judge

COMMAND = AttemptEnding(status=0, is_command=True, use=MeasuredUse(wall_seconds=1.0))
BUILT_IN = replace(COMMAND, is_command=False)
SUCCESS = AttemptOutcome(state=AttemptState.SUCCEEDED, metrics={"rmse": 1.0})
KILLED = int(signal.SIGKILL)


def test_a_command_succeeds_with_exit_code_0():
    outcome = judge(COMMAND)
    assert (outcome.state, outcome.exit_code, outcome.cause) == (AttemptState.SUCCEEDED, 0, None)


@pytest.mark.parametrize(
    ("status", "cause", "message"),
    [
        (3 << 8, Cause.EXIT, "exit code 3"),
        (127 << 8, Cause.EXIT, "exit code 127 (a command was not found)"),
        (139 << 8, Cause.EXIT, "exit code 139 (a program in it was killed by SIGSEGV)"),
        (int(signal.SIGSEGV), Cause.SIGNAL, "killed by SIGSEGV"),
        (int(signal.SIGABRT) | 0x80, Cause.SIGNAL, "killed by SIGABRT"),
        (None, Cause.INTERNAL, "its process could not be started"),
    ],
)
def test_what_an_exit_status_says(status, cause, message):
    outcome = judge(replace(COMMAND, status=status))
    assert (outcome.state, outcome.cause, outcome.message) == (AttemptState.FAILED, cause, message)


def test_a_built_in_job_says_itself_how_it_ended():
    outcome = judge(replace(BUILT_IN, reported=SUCCESS))
    assert (outcome.state, outcome.metrics, outcome.use) == (
        AttemptState.SUCCEEDED,
        {"rmse": 1.0},
        BUILT_IN.use,
    )
    assert judge(BUILT_IN).cause == Cause.INTERNAL


def test_success_that_was_written_before_a_crash_is_no_success():
    assert judge(replace(BUILT_IN, reported=SUCCESS, status=KILLED)).cause == Cause.SIGNAL


def test_memory_comes_before_what_it_caused():
    use = MeasuredUse(peak_memory_bytes=530 * MIB)
    over = {"shortage": MemoryShortage.ATTEMPT, "memory_limit": 512 * MIB}
    ending = replace(COMMAND, status=KILLED, use=use, **over)
    outcome = judge(replace(ending, stop_reason="stopped", timed_out=True))
    assert (outcome.cause, outcome.message) == (Cause.MEMORY, "used more than 512 MiB (peak 530 MiB)")
    exactly = judge(replace(ending, use=MeasuredUse(peak_memory_bytes=512 * MIB)))
    assert exactly.message == "used more than 512 MiB"


@pytest.mark.parametrize("ending", [COMMAND, replace(BUILT_IN, reported=SUCCESS)])
def test_a_job_that_lost_any_process_to_memory_has_failed_whatever_it_says(ending):
    outcome = judge(replace(ending, shortage=MemoryShortage.ATTEMPT, memory_limit=512 * MIB))
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, Cause.MEMORY)


def test_a_job_within_its_limit_is_not_blamed_when_the_machine_ran_out_of_memory():
    use = MeasuredUse(peak_memory_bytes=300 * MIB)
    outcome = judge(
        replace(COMMAND, status=KILLED, shortage=MemoryShortage.MACHINE, memory_limit=512 * MIB, use=use)
    )
    assert (outcome.state, outcome.cause) == (AttemptState.LOST, Cause.SHORTAGE)
    assert outcome.message == "the machine ran out of memory; the job used 300 MiB of its 512 MiB"


@pytest.mark.parametrize("status", [KILLED, 137 << 8])
def test_a_kill_that_nobody_explains_is_the_jobs_failure(status):
    """Also a gang's rank, and its own `kill -9 $$`: `retries` decide."""
    outcome = judge(replace(COMMAND, status=status))
    assert outcome.state == AttemptState.FAILED
    assert "SIGKILL" in outcome.message
    assert "retries: 1" in outcome.hint


def test_a_timeout_is_told_from_a_stop():
    outcome = judge(replace(COMMAND, status=KILLED, timed_out=True, timeout_seconds=30.0))
    assert (outcome.cause, outcome.message) == (Cause.TIMEOUT, "ran longer than 30.0 s")
    slow = {"timed_out": True, "timeout_seconds": 2.0, "ignored_term": True, "grace_seconds": 5.0}
    outcome = judge(replace(COMMAND, status=KILLED, **slow))
    assert outcome.message == "ran longer than 2.0 s, and did not end within 5.0 s of SIGTERM"
    outcome = judge(replace(COMMAND, status=KILLED, stop_reason="you asked"))
    assert (outcome.state, outcome.cause, outcome.message) == (
        AttemptState.STOPPED,
        Cause.STOPPED,
        "you asked",
    )


def test_a_command_that_ends_well_when_stopped_is_stopped_but_finished_work_counts():
    assert judge(replace(COMMAND, stop_reason="x")).state == AttemptState.STOPPED
    assert judge(replace(BUILT_IN, reported=SUCCESS, stop_reason="x")).state == AttemptState.SUCCEEDED


def test_trouble_of_the_pod_is_said():
    outcome = judge(replace(BUILT_IN, status=None, trouble="the warm process died"))
    assert (outcome.cause, outcome.message) == (Cause.INTERNAL, "the warm process died")
