"""The decisions about an attempt at a batch site."""

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.states import AttemptState, Cause
from gridmill.ports.batch import BatchJob, BatchPhase, QueueProblem
from gridmill.sites.batch.attempt_record import (
    BatchAttemptRecord,
    lost_outcome,
    queue_verdict,
    was_alone,
    with_own_files,
)
from gridmill.sites.batch.manifest import job_name

HOPELESS = QueueProblem(message="the queue is DISABLED", hopeless=True)
BUSY = QueueProblem(message="no capacity")


@pytest.mark.parametrize(
    ("seconds", "problem", "cause"),
    [
        (10.0, HOPELESS, None),
        (300.0, HOPELESS, Cause.INPUT),
        (300.0, BUSY, None),
        (3600.0, BUSY, Cause.TIMEOUT),
        (3600.0, None, Cause.TIMEOUT),
    ],
)
def test_a_queued_job_is_given_up(seconds: float, problem: QueueProblem | None, cause: Cause | None) -> None:
    verdict = queue_verdict(seconds, problem, 3600.0, "RUNNABLE")
    assert (verdict.cause if verdict is not None else None) == cause
    if verdict is not None and problem is not None:
        assert problem.message in verdict.message


def test_a_job_without_an_end_is_lost_with_the_reason_of_the_service() -> None:
    job = BatchJob(
        id="7",
        phase=BatchPhase.ENDED,
        status="FAILED",
        reason="Host terminated",
        cause=Cause.TAKEN,
        started=10.0,
        ended=25.0,
    )
    outcome = lost_outcome(job)
    assert (outcome.state, outcome.cause) == (AttemptState.LOST, Cause.TAKEN)
    assert outcome.message == "the batch service ended job 7 (FAILED): Host terminated"
    assert outcome.use.wall_seconds == 15.0


def test_the_measured_use_of_an_interrupted_attempt_is_kept() -> None:
    use = MeasuredUse(wall_seconds=3.0, peak_memory_bytes=5)
    interrupted = AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, use=use)
    assert lost_outcome(None, interrupted).use == use


def test_names_of_jobs_are_valid_at_each_service_and_differ() -> None:
    attempts = ("P-1.Job_ä.1", "p-1.job.1", "p-1.job.2", "x" * 300)
    names = {job_name("0a1b2c3d", attempt, token) for attempt in attempts for token in ("t", "u")}
    assert len(names) == 8
    for name in names:
        assert len(name) <= 63
        assert name.replace("-", "").isalnum()
        assert name[0].isalpha()
        assert name[-1].isalnum()
        assert name == name.lower()


@pytest.mark.parametrize(
    ("phase", "result", "alone"),
    [
        (BatchPhase.RUNNING, None, True),
        (BatchPhase.ENDED, None, False),
        (BatchPhase.ENDED, AttemptState.FAILED, False),
        (BatchPhase.ENDED, AttemptState.SUCCEEDED, True),
    ],
)
def test_a_node_that_ended_with_rank_0_waits_for_the_end_of_rank_0(
    phase: BatchPhase, result: AttemptState | None, *, alone: bool
) -> None:
    order = AttemptOrder(
        attempt_id="a",
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        given=Amounts(),
        root="",
        output_uri="",
    )
    head = BatchAttemptRecord(order=order, pod_id="p", type="command", name="n", result=result)
    assert was_alone(head, BatchJob(id="1#0", phase=phase, status="")) == alone
    assert was_alone(None, None)


def test_only_rank_0_is_responsible_for_the_files_of_a_gang() -> None:
    missing = AttemptOutcome(state=AttemptState.SUCCEEDED, cause=Cause.OUTPUT, message="out is missing")
    assert with_own_files(missing, 0).state is AttemptState.FAILED
    assert with_own_files(missing, 1) == AttemptOutcome(state=AttemptState.SUCCEEDED)
