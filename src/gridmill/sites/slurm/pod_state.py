"""Derives a pod's state from squeue, Slurm's accounting and the marks in the pod's folder."""

import re
from dataclasses import replace

from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.states import Cause
from gridmill.ports.site import PodReport, PodStatus
from gridmill.sites.slurm.parse import SacctJob, SqueueJob
from gridmill.sites.slurm.states import SlurmPhase, SlurmState, never_starts, state_of

ABSENT_SECONDS = 10.0
"""Slurm may not list a job for a moment while its controller restarts. A job that is absent for longer has
ended."""
SIGNALLED_SECONDS = 60.0
"""How long a pod that was ended by a signal waits for Slurm's reason."""
ACCOUNTING_SECONDS = 3.0
"""How long Slurm's accounting may lag behind the end of a job."""

FENCE_SECONDS = 15.0
"""On a failed node a pod may continue without connection; if it still sees its folder, it ends within this
time."""

_BY_ITSELF = ("COMPLETED", "FAILED")
"""Slurm states that give no reason."""
_OF_A_SCRIPT = re.compile(r"^\S*pod\.sh: (line )?\d+: ")
_LINE_LENGTH = 200

_NEVER = PodReport(status=PodStatus.GONE, message="it was never started")
_NOT_YET = PodReport(status=PodStatus.UNKNOWN, message="Slurm has not accepted its job yet")
_ENDED = PodReport(status=PodStatus.GONE, message="it has ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvidence:
    """The observations of a pod.

    `marks` are the marks in the pod's folder (claimed, stop, signalled, ended). `prepared`: the files of its
    deployment exist, so it is about to be submitted. `for_seconds` is the time since the last change of the
    job. `accounting`: the cluster has accounting, which may still report the job.
    """

    marks: frozenset[str]
    submitted: bool
    prepared: bool = False
    job: SqueueJob | None
    account: SacctJob | None = None
    accounting: bool = False
    for_seconds: float = 0.0


def report_of(seen: PodEvidence) -> PodReport:
    """The site's report of the pod."""
    if seen.job is None:
        return _without_job(seen)
    state = seen.job.state
    if state.phase == SlurmPhase.OVER:
        return _over(seen, seen.job, state)
    if "ended" in seen.marks:
        return _ended_before_its_job(seen)
    if state.phase == SlurmPhase.PENDING:
        return _pending(seen.job, state)
    if state.phase == SlurmPhase.RUNNING:
        return PodReport(status=PodStatus.RUNNING, began=seen.job.began, ends=seen.job.ends)
    return PodReport(status=PodStatus.UNKNOWN, message=f"{_named(seen.job)}: {state.sentence}")


def is_unexplained(seen: PodEvidence) -> bool:
    """Whether its script ended by itself without the pod: the log may contain the reason (for example, this
    Python does not exist on the node)."""
    job = seen.job or seen.account
    return job is not None and job.word in _BY_ITSELF and "ended" not in seen.marks


def with_log(sight: PodReport, log: str) -> PodReport:
    """Adds the last line of the pod's log, if there is one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if sight.status != PodStatus.GONE or not lines:
        return sight
    said = _OF_A_SCRIPT.sub("", lines[-1])[:_LINE_LENGTH]
    return replace(sight, message=f"{sight.message}; its log ends with: {said}")


def _without_job(seen: PodEvidence) -> PodReport:
    if not seen.submitted and "claimed" not in seen.marks:
        return _NOT_YET if seen.prepared else _NEVER
    if _ended_by_itself(seen.marks):
        return _ENDED
    if seen.account is not None and seen.account.is_final:
        state = state_of(seen.account.word)
        return _gone(seen.account.word, state, _figures(None, seen.account), seen.account, 0.0)
    if seen.for_seconds < ABSENT_SECONDS:
        return PodReport(status=PodStatus.UNKNOWN, message="Slurm does not list its job at the moment")
    return PodReport(status=PodStatus.GONE, message="Slurm does not know its job any more")


def _ended_by_itself(marks: frozenset[str]) -> bool:
    """Whether the pod ended by itself or by a request of the site. Both need no explanation."""
    return "ended" in marks and ("signalled" not in marks or "stop" in marks)


def _ended_before_its_job(seen: PodEvidence) -> PodReport:
    """The report of a pod that ended before its job: by itself, or by a signal. After a signal Slurm will
    report the reason soon."""
    if _ended_by_itself(seen.marks) or seen.for_seconds >= SIGNALLED_SECONDS:
        return _ENDED
    return PodReport(
        status=PodStatus.UNKNOWN, message="a signal told it to end; Slurm has not reported the reason yet"
    )


def _pending(job: SqueueJob, state: SlurmState) -> PodReport:
    problem = never_starts(job.reason)
    if problem:
        message = f"{_named(job)} can never start: {problem} ({job.reason})"
        return PodReport(status=PodStatus.GONE, message=message, hopeless=True)
    why = state.sentence or (f"reason: {job.reason}" if job.reason not in ("", "None") else "")
    return PodReport(
        status=PodStatus.QUEUED,
        message=f"{_named(job)} waits in Slurm's queue" + (f" ({why})" if why else ""),
    )


def _over(seen: PodEvidence, job: SqueueJob, state: SlurmState) -> PodReport:
    if job.word == "NODE_FAIL" and "ended" not in seen.marks and seen.for_seconds < FENCE_SECONDS:
        return PodReport(
            status=PodStatus.UNKNOWN, message=f"{_named(job)} lost a node; its pods are being ended"
        )
    if _ended_by_itself(seen.marks) and job.word != "NODE_FAIL":
        return _ENDED
    account = seen.account if seen.account is not None and seen.account.is_final else None
    if account is None and seen.accounting and seen.for_seconds < ACCOUNTING_SECONDS:
        return PodReport(
            status=PodStatus.UNKNOWN,
            message=f"{_named(job)} has ended; its accounting record is not available yet",
        )
    word = job.word if job.state is state_of(job.word) else "REQUEUED"
    if account is not None and state_of(account.word).cause == Cause.MEMORY:
        word, state = "OUT_OF_MEMORY", state_of("OUT_OF_MEMORY")
    return _gone(word, state, _figures(job, account), account, job.elapsed_seconds)


def _gone(
    word: str, state: SlurmState, figures: str, account: SacctJob | None, elapsed_seconds: float
) -> PodReport:
    sentence = f": {state.sentence}" if state.sentence else ""
    use = MeasuredUse(wall_seconds=elapsed_seconds)
    if account is not None:
        use = MeasuredUse(
            wall_seconds=account.elapsed_seconds,
            cpu_seconds=account.cpu_seconds,
            peak_memory_bytes=account.peak_memory_bytes,
        )
    message = f"Slurm ended it, {word}{sentence} ({figures})"
    return PodReport(status=PodStatus.GONE, message=message, cause=state.cause, use=use)


def _figures(job: SqueueJob | None, account: SacctJob | None) -> str:
    """`job 7 on n1, ran 2 m 03 s, exit code 1, at most 1.2 GiB`."""
    parts = []
    if job is not None:
        parts.append(f"job {job.id} on {job.nodes}" if job.nodes else f"job {job.id}")
    elapsed = account.elapsed_seconds if account else job.elapsed_seconds if job else 0.0
    parts.append(f"ran {show_seconds(elapsed)}")
    if job is not None and job.exit_status:
        parts.append(_exit(job.exit_status))
    if account is not None and account.peak_memory_bytes:
        parts.append(f"at most {show_bytes(account.peak_memory_bytes)}")
    return ", ".join(parts)


def _exit(status: int) -> str:
    return f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"


def _named(job: SqueueJob) -> str:
    return f"Slurm's job {job.id}"
