"""Derives the state of a pod from the output of squeue, from Slurm's accounting and from the mark files in
the pod's folder."""

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
"""While its controller restarts, Slurm may not list a job for a short time. If Slurm does not list a job for
longer than this number of seconds, the job has ended."""
SIGNALLED_SECONDS = 60.0
"""If a pod was ended by a signal, the site waits this number of seconds for the reason that Slurm
reports."""
ACCOUNTING_SECONDS = 3.0
"""Slurm's accounting may record the end of a job up to this number of seconds late."""

FENCE_SECONDS = 15.0
"""A pod on a failed node may continue without a connection. If such a pod can still read its folder, it ends
within this number of seconds."""

_BY_ITSELF = ("COMPLETED", "FAILED")
"""The Slurm states that give no reason for the end of a job."""
_OF_A_SCRIPT = re.compile(r"^\S*pod\.sh: (line )?\d+: ")
_LINE_LENGTH = 200

_NEVER = PodReport(status=PodStatus.GONE, message="it was never started")
_NOT_YET = PodReport(status=PodStatus.UNKNOWN, message="Slurm has not accepted the job of the pod yet")
_ENDED = PodReport(status=PodStatus.GONE, message="it has ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvidence:
    """All observations of a pod from which its state is derived.

    `marks` are the names of the mark files in the pod's folder (claimed, stop, signalled, ended). `prepared`
    is true if the files of the pod's deployment exist, so that the deployment is about to be submitted.
    `for_seconds` is the time since the last change of the Slurm job. `accounting` is true if the cluster has
    accounting, which may still report the job.
    """

    marks: frozenset[str]
    submitted: bool
    prepared: bool = False
    job: SqueueJob | None
    account: SacctJob | None = None
    accounting: bool = False
    for_seconds: float = 0.0


def report_of(seen: PodEvidence) -> PodReport:
    """Returns the report on the pod that the site gives to the control node."""
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
    """Returns whether the script of the pod ended by itself although the pod has not recorded its end. In
    this case, the log of the script may contain the reason, for example that the node does not have this
    Python."""
    job = seen.job or seen.account
    return job is not None and job.word in _BY_ITSELF and "ended" not in seen.marks


def with_log(report: PodReport, log: str) -> PodReport:
    """Adds the last line of the pod's log to the report, if there is such a line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if report.status != PodStatus.GONE or not lines:
        return report
    said = _OF_A_SCRIPT.sub("", lines[-1])[:_LINE_LENGTH]
    return replace(report, message=f"{report.message}; its log ends with: {said}")


def _without_job(seen: PodEvidence) -> PodReport:
    if not seen.submitted and "claimed" not in seen.marks:
        return _NOT_YET if seen.prepared else _NEVER
    if _ended_by_itself(seen.marks):
        return _ENDED
    if seen.account is not None and seen.account.is_final:
        state = state_of(seen.account.word)
        return _gone(seen.account.word, state, _figures(None, seen.account), seen.account, 0.0)
    if seen.for_seconds < ABSENT_SECONDS:
        return PodReport(
            status=PodStatus.UNKNOWN, message="Slurm does not list the job of the pod at the moment"
        )
    return PodReport(status=PodStatus.GONE, message="Slurm does not know the job of the pod any more")


def _ended_by_itself(marks: frozenset[str]) -> bool:
    """Returns whether the pod ended by itself or at the request of the site. In both cases, the report needs
    no reason for the end."""
    return "ended" in marks and ("signalled" not in marks or "stop" in marks)


def _ended_before_its_job(seen: PodEvidence) -> PodReport:
    """Returns the report on a pod that ended before its Slurm job, either by itself or because of a signal.
    If a signal ended the pod, Slurm soon reports the reason for the signal."""
    if _ended_by_itself(seen.marks) or seen.for_seconds >= SIGNALLED_SECONDS:
        return _ENDED
    return PodReport(
        status=PodStatus.UNKNOWN, message="the job got a signal to end; Slurm has not reported the reason yet"
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
    message = f"Slurm ended the job, {word}{sentence} ({figures})"
    return PodReport(status=PodStatus.GONE, message=message, cause=state.cause, use=use)


def _figures(job: SqueueJob | None, account: SacctJob | None) -> str:
    """Returns a text such as `job 7 on n1, ran 2 m 03 s, exit code 1, at most 1.2 GiB`."""
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
