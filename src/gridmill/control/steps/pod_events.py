"""This module processes one event of a pod: its record, its effect on the attempt, and the end of the
attempt."""

from collections.abc import Mapping

from gridmill.codec import from_builtins
from gridmill.control.ledger import Transaction
from gridmill.control.state import Endings, ReportedProgress
from gridmill.control.steps.end_attempt import runs, settle_attempt
from gridmill.control.steps.services import note_report
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.environment_build import ENVIRONMENT, is_about_building
from gridmill.domain.frozen import replace
from gridmill.domain.job_log import LogRecord, packed_of, text_of
from gridmill.domain.pod_protocol import AttemptOutcome, Event, EventType, PodEvent
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.states import AttemptState, Cause, DeploymentState, PodState
from gridmill.errors import GridmillError

KEPT = (EventType.STARTED, EventType.METRIC, EventType.ENDED)
"""The types of events that are stored. Progress events are not stored, because only their newest value is
needed and pods send it again. The texts of logs are stored in files beside the store."""


_LINE_LENGTH = 200


def deployment_of(transaction: Transaction, pod_id: str) -> Deployment | None:
    """Return the deployment of a pod, if the deployment has not ended."""
    return transaction.get(Deployment, pod_id.rpartition(".")[0])


def with_pod(deployment: Deployment, pod: Pod) -> Deployment:
    """Return the deployment with that pod replaced. The deployment is UP as soon as one pod is up."""
    pods = tuple(pod if old.id == pod.id else old for old in deployment.pods)
    up = deployment.state == DeploymentState.STARTING and any(p.state == PodState.UP for p in pods)
    return replace(deployment, pods=pods, state=DeploymentState.UP if up else deployment.state)


def apply_event(endings: Endings, transaction: Transaction, pod_id: str, event: PodEvent) -> None:
    """Apply one event of a pod to the records. Events of attempts that have ended, or with another token
    (fencing), have no effect."""
    attempt = transaction.get(Attempt, event.attempt_id)
    if attempt is None or not runs(attempt) or attempt.token != event.token:
        return  # fencing: an attempt that was replaced must change nothing, so its event is only acknowledged
    job_run = transaction.get(JobRun, attempt.job_run_id)
    if event.type in KEPT and (event.type != EventType.METRIC or attempt.rank == 0):
        transaction.events.append(_stored(attempt, job_run, pod_id, event, event.type.value))
    elif event.type == EventType.LOG:
        transaction.logs.append(_log_record(attempt, job_run, event))
        if is_about_building(event.body):
            transaction.events.append(_stored(attempt, job_run, pod_id, event, ENVIRONMENT))
    match event.type:
        case EventType.STARTED:
            started = replace(attempt, state=AttemptState.RUNNING, started=transaction.now)
            transaction.put(started)
        case EventType.PROGRESS if attempt.rank == 0:
            endings.reported.progress[attempt.job_run_id] = event.body
        case EventType.LOG if job_run and job_run.part and job_run.part.node:
            _last_line(endings.reported, job_run, event.body)
        case EventType.METRIC if attempt.rank == 0:
            _metric(endings.reported, attempt, event.body)
        case EventType.REPORT:
            note_report(transaction, job_run, event)
        case EventType.ENDED:
            settle_attempt(endings, transaction, attempt, outcome_of(event))


def _stored(attempt: Attempt, job_run: JobRun | None, pod_id: str, event: PodEvent, kind: str) -> Event:
    return Event(
        time=event.time,
        type=kind,
        run_id=attempt.run_id,
        job=job_run.job.name if job_run else "",
        attempt_id=attempt.id,
        pod_id=pod_id,
        number=event.number,
        body=event.body,
    )


def _log_record(attempt: Attempt, job_run: JobRun | None, event: PodEvent) -> LogRecord:
    packed, size = packed_of(event.body)
    return LogRecord(
        run_id=attempt.run_id,
        job=job_run.job.name if job_run else "",
        attempt_id=attempt.id,
        number=event.number,
        time=event.time,
        stream=str(event.body.get("stream", "pod")),
        text=str(event.body.get("text", "")),
        mark=_mark(attempt, job_run),
        packed=packed,
        packed_size=size,
    )


def _last_line(reported: ReportedProgress, part: JobRun, body: Mapping[str, object]) -> None:
    """Record the last line that a command printed on a node, for the table of nodes."""
    lines = [line.strip() for line in text_of(body).split("\n") if line.strip()]
    if lines:
        reported.last_lines[part.id] = lines[-1][:_LINE_LENGTH]


def _metric(reported: ReportedProgress, attempt: Attempt, body: Mapping[str, object]) -> None:
    value = body.get("value")
    if isinstance(value, int | float):
        reported.metrics.setdefault(attempt.job_run_id, {})[str(body.get("name"))] = float(value)


def _mark(attempt: Attempt, job_run: JobRun | None) -> str:
    """Return the prefix of each line of the log. For a gang, the prefix of a line is the rank, such as `[1]
    `. For a command on every node, the prefix of a line is the name of the node, such as `[alpha] `."""
    if attempt.ranks > 1:
        return f"[{attempt.rank}] "
    return f"[{job_run.part.node}] " if job_run and job_run.part and job_run.part.node else ""


def outcome_of(event: PodEvent) -> AttemptOutcome:
    """Return the outcome of an attempt from the event of its pod."""
    try:
        return from_builtins(event.body.get("outcome"), AttemptOutcome)
    except GridmillError as error:
        return AttemptOutcome(state=AttemptState.FAILED, cause=Cause.INTERNAL, message=error.message)
