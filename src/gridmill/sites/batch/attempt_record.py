"""The record of an attempt at a batch site, which is stored in the home, and the decisions about the attempt
as functions without effects."""

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum

from gridmill.domain.amounts import Amounts, show_seconds
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import Transfer
from gridmill.domain.states import AttemptState, Cause
from gridmill.ports.batch import BatchJob, BatchPhase, QueueProblem

DIAGNOSIS_SECONDS = 60.0
"""If a job is queued for longer than this number of seconds, Gridmill looks for the reason, and looks again
after each further interval of this length."""
HOPELESS_SECONDS = 300.0
"""A job whose diagnosis is hopeless is cancelled after this number of seconds in the queue."""
LAST_OBJECTS_SECONDS = 20.0
"""After the service has ended a job, the home looks for the last objects of the job for this number of
seconds."""
LOST_SECONDS = 120.0
"""A job that the service does not list for longer than this number of seconds does not exist any more."""


class AttemptPhase(StrEnum):
    """The last step of an attempt that is complete."""

    NEW = "new"
    """The home has received the attempt."""
    STAGED = "staged"
    """The inputs and the manifest are in the bucket."""
    SUBMITTED = "submitted"
    """The service has accepted the job."""
    ENDED = "ended"
    """The end of the attempt is in the journal of its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAttemptRecord:
    """The record of an attempt. It is stored, so that a new control node continues the attempt.

    `name` and `job_id` are the name and the id of the job at the service, and `account` is the account of
    the service in which the job was submitted, or empty if it is not known. `asked` is true from the moment
    before the first submission, because its answer may be lost. `stop` is the reason why the attempt must
    end, or empty. `verdict` is the outcome of an attempt that the home itself ends, for example because the
    job waited too long. `upload` is the transfer of its inputs. `submitted` is the Unix time in seconds of
    the submission. `chunks` is the folder of the bucket with the chunks of the attempt. `result` is the state
    in which the attempt has ended. The ranks of a gang are the nodes of one job, which rank 0 submits.
    """

    order: AttemptOrder
    pod_id: str
    type: str
    settings: dict[str, str] = field(default_factory=dict)
    name: str
    phase: AttemptPhase = AttemptPhase.NEW
    asked: bool = False
    job_id: str = ""
    submitted: float = 0.0
    result: AttemptState | None = None
    stop: str = ""
    verdict: AttemptOutcome | None = None
    upload: Transfer = Transfer()
    chunks: str = ""
    account: str = ""

    @property
    def nodes(self) -> int:
        """The number of nodes of the job: the number of ranks, or 1."""
        return len(self.order.gang.members) if self.order.gang is not None else 1

    @property
    def given(self) -> Amounts:
        """The size of the attempt."""
        return self.order.given


def may_submit(others: Sequence[BatchAttemptRecord | None]) -> bool:
    """Returns whether rank 0 may submit the job of a gang. `others` are the other ranks, or None for a rank
    that the home has not got yet. The inputs of all ranks must be in the bucket."""
    return all(one is not None and one.phase is AttemptPhase.STAGED for one in others)


def was_alone(head: BatchAttemptRecord | None, head_job: BatchJob | None) -> bool:
    """Returns whether a rank other than rank 0, whose node ended without an end of its own, ended by itself.
    Otherwise the service ended it after rank 0 had ended (`head`) without success, and the control node
    stops the rank as soon as it knows the end of rank 0."""
    if head is None or head_job is None or head_job.phase is not BatchPhase.ENDED:
        return True
    return head.result is AttemptState.SUCCEEDED


def with_own_files(outcome: AttemptOutcome, rank: int) -> AttemptOutcome:
    """Returns the outcome of a rank whose output folder is its own. Only the files of rank 0 are stored, and
    rank 0 itself is responsible for missing files."""
    if rank:
        is_files = outcome.state is AttemptState.SUCCEEDED and outcome.cause is Cause.OUTPUT
        outcome = replace(outcome, cause=None, message="", hint="") if is_files else outcome
        return replace(outcome, outputs=())
    if outcome.state is AttemptState.SUCCEEDED and outcome.cause is Cause.OUTPUT:
        return replace(outcome, state=AttemptState.FAILED, outputs=())
    return outcome


def stopped(reason: str) -> AttemptOutcome:
    """Returns the outcome of an attempt that was stopped on request."""
    return AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message=reason)


def queue_verdict(
    queued_seconds: float, problem: QueueProblem | None, timeout_seconds: float, status: str
) -> AttemptOutcome | None:
    """Returns the outcome of an attempt whose job waits too long, or None if it may wait longer."""
    why = f": {problem.message}" if problem is not None else ""
    if problem is not None and problem.hopeless and queued_seconds >= min(HOPELESS_SECONDS, timeout_seconds):
        return AttemptOutcome(
            state=AttemptState.FAILED,
            cause=Cause.INPUT,
            message=f"the job can never start at the batch service ({status}){why}",
            hint="Correct the queue of the batch service, or the size of the job.",
        )
    if queued_seconds < timeout_seconds:
        return None
    return AttemptOutcome(
        state=AttemptState.FAILED,
        cause=Cause.TIMEOUT,
        message=f"the job was queued at the batch service for {show_seconds(queued_seconds)} ({status}){why}",
        hint="Set a longer `queue_timeout`, or correct the queue of the batch service.",
    )


def lost_outcome(job: BatchJob | None, interrupted: AttemptOutcome | None = None) -> AttemptOutcome:
    """Returns the outcome of an attempt whose job has ended, and whose container has not reported the end of
    the attempt. `job` is None if the service does not know the job any more. `interrupted` is the end that
    the container reported after the service had sent SIGTERM."""
    use = interrupted.use if interrupted is not None else MeasuredUse()
    if job is None:
        message = "the batch service does not know the job any more"
        return AttemptOutcome(state=AttemptState.LOST, cause=Cause.LOST, message=message, use=use)
    reason = job.reason or "the service gives no reason"
    code = f", exit code {job.exit_code}" if job.exit_code is not None else ""
    if job.started is not None and job.ended is not None and not use.wall_seconds:
        use = MeasuredUse(wall_seconds=max(0.0, job.ended - job.started))
    # another attempt would need as much memory or time
    state = AttemptState.FAILED if job.cause in (Cause.MEMORY, Cause.TIMEOUT) else AttemptState.LOST
    message = f"the batch service ended job {job.id} ({job.status}{code}): {reason}"
    hint = ""
    if job.cause is Cause.TIMEOUT:
        longer = "Set a longer `time_limit`."
        hint = longer if job.started is not None else "Correct the queue of the batch service, or its rules."
    return AttemptOutcome(
        state=state, cause=job.cause, message=message, hint=hint, use=use, exit_code=job.exit_code
    )


def progress_text(job: BatchJob, now: float, problem: QueueProblem | None) -> str:
    """Returns the state of a job that does not run yet, in words."""
    since = f" for {show_seconds(now - job.created)}" if job.created is not None else ""
    why = problem.message if problem is not None else job.reason
    words = {BatchPhase.QUEUED: "is queued", BatchPhase.STARTING: "starts"}.get(job.phase, "runs")
    return f"its job {words} at the batch service{since} ({job.status})" + (f": {why}" if why else "")
