"""The tick that receives messages of pods: greetings, events, ends; one transaction for all of them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from gridmill.codec import from_builtins
from gridmill.control.ledger import Transaction
from gridmill.control.state import Control
from gridmill.control.steps.gangs import send_to_pod, stop_message
from gridmill.control.steps.inputs import order_for
from gridmill.control.steps.settle import LOST, defect, runs, settle_attempt
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.pod_protocol import (
    PROTOCOL,
    Ack,
    Event,
    Events,
    EventType,
    Goodbye,
    Hello,
    Order,
    Outcome,
    PodEvent,
    Start,
    ToPod,
    Welcome,
)
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.site import LOCAL
from gridmill.domain.states import LIVE_ATTEMPTS, AttemptState, Cause, DeploymentState, PodState
from gridmill.errors import GridmillError, StorageError

KEPT = (EventType.STARTED, EventType.LOG, EventType.METRIC, EventType.ENDED)
"""Events that are stored. Progress is not: the newest value is enough, and pods send it again."""

_LINE_LENGTH = 200
STOPPED_EARLY = Outcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message="stopped before it started")


def receive(control: Control) -> None:
    """Take everything that has come, commit, then answer.

    Channels are noted first: if this fails half-way, each of them is dropped, read or not, and greets again.
    """
    batch = control.links.receive()
    control.open.update(received.channel for received in batch)
    transaction = control.begin()
    for received in batch:
        match received.message:
            case None:
                _closed(control, received.channel)
            case Hello() as hello:
                _hello(control, transaction, received.channel, hello)
            case Events(events=events):
                _events(control, transaction, received.channel, events)
    control.ledger.commit(transaction)


def _closed(control: Control, channel: int) -> None:
    control.open.discard(channel)
    pod_id = control.pods.pop(channel, None)
    if pod_id is not None and control.channels.get(pod_id) == channel:
        del control.channels[pod_id]


def deployment_of(control: Control, transaction: Transaction, pod_id: str) -> Deployment | None:
    """The deployment a pod belongs to, while it is not gone."""
    return transaction.get(Deployment, pod_id.rpartition(".")[0])


def with_pod(deployment: Deployment, pod: Pod) -> Deployment:
    """The deployment with that pod replaced; UP as soon as any pod is."""
    pods = tuple(pod if old.id == pod.id else old for old in deployment.pods)
    up = deployment.state == DeploymentState.STARTING and any(p.state == PodState.UP for p in pods)
    return replace(deployment, pods=pods, state=DeploymentState.UP if up else deployment.state)


def _hello(control: Control, transaction: Transaction, channel: int, hello: Hello) -> None:
    deployment = deployment_of(control, transaction, hello.pod_id)
    pod = _known_pod(deployment, hello)
    refusal = _refusal(control, deployment, pod, hello)
    if refusal or deployment is None or pod is None:
        control.links.send(channel, [Goodbye(reason=refusal)])
        control.links.drop(channel)
        return
    control.channels[pod.id] = channel
    control.pods[channel] = pod.id
    control.failed_bring_ups.pop(deployment.resource, None)
    control.unwilling.get(deployment.resource, set()).discard(pod.node)
    control.unfit.get(deployment.resource, {}).pop(pod.node, None)
    control.silent_since.pop(deployment.id, None)
    state = PodState.ENDING if pod.state == PodState.ENDING else PodState.UP
    if (pod.state, pod.address) != (state, hello.address):
        transaction.put(with_pod(deployment, replace(pod, state=state, address=hello.address)))
    # what it acknowledges may be part of this very transaction: a pod forgets what it is told is committed
    _send_after(control, transaction, channel, Welcome(acknowledged=pod.acknowledged))
    _reconcile(control, transaction, channel, hello)


def _known_pod(deployment: Deployment | None, hello: Hello) -> Pod | None:
    pods = deployment.pods if deployment else ()
    return next((pod for pod in pods if pod.id == hello.pod_id), None)


def _refusal(control: Control, deployment: Deployment | None, pod: Pod | None, hello: Hello) -> str:
    if hello.secret != control.pod_secret(hello.pod_id):
        return "the secret is wrong"
    if hello.protocol != PROTOCOL:
        return f"protocol {hello.protocol} is not spoken here; this is {PROTOCOL}"
    if deployment is None or pod is None or pod.state == PodState.GONE:
        return "the deployment is gone"
    if deployment.state == DeploymentState.RELEASING:
        return "the deployment is being released"
    return ""


def _reconcile(control: Control, transaction: Transaction, channel: int, hello: Hello) -> None:
    """Start what the pod has not heard of, repeat stops, end what is fenced off."""
    mine = {attempt.id: attempt for attempt in _live_on(control, transaction, hello.pod_id)}
    for attempt in mine.values():
        if attempt.id in hello.attempts:
            if attempt.stop_requested or attempt.interrupted is not None:
                why = attempt.interrupted.why if attempt.interrupted is not None else "stopped"
                _send_after(control, transaction, channel, stop_message(control, attempt.id, why))
        elif attempt.state == AttemptState.PLACED and attempt.stop_requested:
            early = stop_message(control, attempt.id, "stopped before it started")
            _send_after(control, transaction, channel, early)
            settle_attempt(control, transaction, attempt, STOPPED_EARLY)
        elif attempt.state == AttemptState.PLACED:
            start_attempt(control, transaction, attempt)
        else:
            settle_attempt(control, transaction, attempt, LOST)
    for attempt_id, state in hello.attempts.items():
        if attempt_id not in mine and state in LIVE_ATTEMPTS:
            replaced = stop_message(control, attempt_id, "replaced by a newer attempt")
            _send_after(control, transaction, channel, replaced)


def _live_on(control: Control, transaction: Transaction, pod_id: str) -> list[Attempt]:
    """The pod's attempts as this transaction leaves them, without ranks of gangs that have ended."""
    known = (transaction.get(Attempt, a.id) for a in control.ledger.snapshot.attempts_on(pod_id))
    return [attempt for attempt in known if attempt is not None and runs(attempt)]


def _send_after(control: Control, transaction: Transaction, channel: int, message: ToPod) -> None:
    transaction.then(lambda: control.links.send(channel, [message]))


def start_attempt(control: Control, transaction: Transaction, attempt: Attempt) -> None:
    """Send Start once the transaction is committed, if the pod's link is open; else its Hello asks for it."""
    current = transaction.get(Attempt, attempt.id)
    if current is not None and current.stop_requested:  # another rank of its gang could not be started
        settle_attempt(control, transaction, current, STOPPED_EARLY)
        return
    try:
        order = order_for(control, transaction, attempt)
    except StorageError:  # the store, not the job: tried again
        raise
    except GridmillError as error:
        settle_attempt(control, transaction, attempt, _failed(Cause.INPUT, error))
        return
    except Exception as error:  # noqa: BLE001  tried again for ever, it would hold up every run
        told = defect(control, attempt.id, error)
        settle_attempt(control, transaction, attempt, _failed(Cause.INTERNAL, told))
        return
    transaction.then(partial(_give, control, attempt, order))


def _give(control: Control, attempt: Attempt, order: Order) -> None:
    """Send Start; where the pod is on another machine the code goes first, beside the ticks."""
    if order.bundle_path and order.bundle:
        share = partial(control.storage.share_bundle, order.bundle)
        control.aside.do(f"share code for {attempt.id}", share, partial(_shared, control, order))
    else:
        send_to_pod(control, attempt.pod_id, _start(control, attempt, order))


def _start(control: Control, attempt: Attempt, order: Order) -> Start:
    """Pods of this machine give the jobs of a client's run that client's environment."""
    here = control.ledger.snapshot.deployments.get(attempt.deployment_id)
    is_local = here is not None and here.site == LOCAL
    return Start(order=order, environment=control.environments.get(attempt.run_id) if is_local else None)


def _shared(control: Control, order: Order, done: Future[None]) -> None:
    """Its code is where the pod finds it: start, if that is still wanted."""
    attempt = control.ledger.snapshot.attempts.get(order.attempt_id)
    if attempt is None or attempt.state != AttemptState.PLACED or attempt.outcome is not None:
        return
    try:
        done.result()
        outcome = STOPPED_EARLY if attempt.stop_requested else None
    except StorageError as error:  # a file server that is full or away: tried again like a lost pod
        outcome = replace(LOST, message=f"its code could not be carried there: {error}")
    if outcome is None:
        send_to_pod(control, attempt.pod_id, _start(control, attempt, order))
        return
    transaction = control.begin()
    settle_attempt(control, transaction, attempt, outcome)
    control.ledger.commit(transaction)


def _failed(cause: Cause, error: GridmillError) -> Outcome:
    return Outcome(state=AttemptState.FAILED, cause=cause, message=error.message, hint=error.hint)


def _events(control: Control, transaction: Transaction, channel: int, events: Sequence[PodEvent]) -> None:
    pod_id = control.pods.get(channel)
    deployment = deployment_of(control, transaction, pod_id) if pod_id else None
    pod = next((p for p in deployment.pods if p.id == pod_id), None) if deployment else None
    if deployment is None or pod is None:
        return
    new = [event for event in events if event.number > pod.acknowledged]
    ends = any(_ends_its_pod(transaction, event) for event in new)
    for event in new:
        hear(control, transaction, pod.id, event)
    if new:
        last, state = new[-1].number, PodState.ENDING if ends else pod.state
        current = transaction.get(Deployment, deployment.id) or deployment
        transaction.put(with_pod(current, replace(pod, acknowledged=last, state=state)))
        transaction.then(lambda: control.links.send(channel, [Ack(number=last)]))


def _ends_its_pod(transaction: Transaction, event: PodEvent) -> bool:
    """Whether a pod stopped an attempt that nobody asked it to stop: it stops all, and ends. (A machine may
    be seen to be gone much later, and until then the attempts that come next would be lost with it.)"""
    if event.type != EventType.ENDED:
        return False
    attempt = transaction.get(Attempt, event.attempt_id)
    if attempt is None or not runs(attempt) or attempt.token != event.token:
        return False  # it was stopped for a newer one
    if attempt.stop_requested or attempt.interrupted is not None:
        return False
    return _outcome(event).state == AttemptState.STOPPED


def hear(control: Control, transaction: Transaction, pod_id: str, event: PodEvent) -> None:
    """What follows from one event. Those of attempts that are over, or of another token, say nothing."""
    attempt = transaction.get(Attempt, event.attempt_id)
    if attempt is None or not runs(attempt) or attempt.token != event.token:
        return  # fenced off: acknowledged and dropped
    job_run = transaction.get(JobRun, attempt.job_run_id)
    if event.type in KEPT and (event.type != EventType.METRIC or attempt.rank == 0):
        transaction.events.append(_kept(attempt, job_run, pod_id, event))
    match event.type:
        case EventType.STARTED:
            started = replace(attempt, state=AttemptState.RUNNING, started=transaction.now)
            transaction.put(started)
        case EventType.PROGRESS if attempt.rank == 0:
            control.progress[attempt.job_run_id] = event.body
        case EventType.LOG if job_run and job_run.part and job_run.part.node:
            _last_line(control, job_run, event.body)
        case EventType.METRIC if attempt.rank == 0:
            _metric(control, attempt, event.body)
        case EventType.ENDED:
            settle_attempt(control, transaction, attempt, _outcome(event))


def _last_line(control: Control, part: JobRun, body: Mapping[str, object]) -> None:
    """What a command says last on a node stands in the table of nodes."""
    lines = [line.strip() for line in str(body.get("text", "")).splitlines() if line.strip()]
    if lines:
        control.last_lines[part.id] = lines[-1][:_LINE_LENGTH]


def _metric(control: Control, attempt: Attempt, body: Mapping[str, object]) -> None:
    value = body.get("value")
    if isinstance(value, int | float):
        control.metrics.setdefault(attempt.job_run_id, {})[str(body.get("name"))] = float(value)


def _kept(attempt: Attempt, job_run: JobRun | None, pod_id: str, event: PodEvent) -> Event:
    return Event(
        sequence=0,
        time=event.time,
        type=event.type.value,
        run_id=attempt.run_id,
        job=job_run.job.name if job_run else "",
        attempt_id=attempt.id,
        pod_id=pod_id,
        number=event.number,
        body=_marked(_mark(attempt, job_run), event),
    )


def _mark(attempt: Attempt, job_run: JobRun | None) -> str:
    """With what each line of the log begins: a gang's with its rank, `[1] `, that of a command on every node
    with the node's name, `[alpha] `."""
    if attempt.ranks > 1:
        return f"[{attempt.rank}] "
    return f"[{job_run.part.node}] " if job_run and job_run.part and job_run.part.node else ""


def _marked(mark: str, event: PodEvent) -> Mapping[str, object]:
    if not mark or event.type != EventType.LOG:
        return event.body
    lines = str(event.body.get("text", "")).splitlines(keepends=True)
    return {**event.body, "text": "".join(mark + line for line in lines)}


def _outcome(event: PodEvent) -> Outcome:
    try:
        return from_builtins(event.body.get("outcome"), Outcome)
    except GridmillError as error:
        return Outcome(state=AttemptState.FAILED, cause=Cause.INTERNAL, message=error.message)
