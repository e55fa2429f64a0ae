"""This module has the tick that receives messages of pods, which are Hellos, events and ends. One
transaction contains the changes for all received messages."""

from collections.abc import Mapping, Sequence
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import BringUps, Channels, Endings, Starting
from gridmill.control.steps.end_attempt import LOST, runs, settle_attempt
from gridmill.control.steps.gangs import stop_message
from gridmill.control.steps.orders import STOPPED_EARLY, start_attempt
from gridmill.control.steps.pod_events import apply_event, deployment_of, outcome_of, with_pod
from gridmill.control.steps.secrets import answer_request
from gridmill.control.steps.services import send_order_again
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.pod_protocol import (
    ACCEPTED_PROTOCOLS,
    Ack,
    AttemptOutcome,
    Events,
    EventType,
    Goodbye,
    Hello,
    PodEvent,
    SecretRequest,
    ToPod,
    Welcome,
)
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import Service
from gridmill.domain.states import LIVE_ATTEMPTS, AttemptState, DeploymentState, PodState


def receive(starting: Starting, bring_ups: BringUps) -> None:
    """Process all received messages, commit, then answer them.

    Channels of new connections are recorded first. If processing fails, all channels are closed, also the
    channels whose messages were not read. The pod of a closed channel then connects and sends a Hello again.
    """
    batch = starting.channels.links.receive()
    starting.channels.open.update(received.channel for received in batch)
    transaction = starting.ledger.begin(starting.timeline.now())
    for received in batch:
        match received.message:
            case None:
                _closed(starting.channels, received.channel)
            case Hello() as hello:
                _hello(starting, bring_ups, transaction, received.channel, hello)
            case SecretRequest() as request:
                answer_request(starting, transaction, received.channel, request)
            case Events(events=events):
                _events(starting.endings, transaction, received.channel, events)
    starting.ledger.stage(transaction)


def _closed(channels: Channels, channel: int) -> None:
    channels.open.discard(channel)
    pod_id = channels.by_channel.pop(channel, None)
    if pod_id is not None and channels.by_pod.get(pod_id) == channel:
        del channels.by_pod[pod_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedHello:
    """A Hello, with the records of its pod: its deployment, or None if the deployment has ended, and the
    live attempts of the pod, without ranks of gangs that have ended."""

    hello: Hello
    has_right_secret: bool
    deployment: Deployment | None
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAction:
    """The action that makes the pod and the store agree about an attempt: a Stop message with this reason
    (empty for none), an outcome that is recorded, or a start. `attempt` is the record of the attempt, or None
    if the attempt has ended."""

    attempt_id: str
    attempt: Attempt | None = None
    stop_reason: str = ""
    outcome: AttemptOutcome | None = None
    starts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloDecision:
    """The answer to a Hello: the reason why the pod is refused, or the new record of the pod, its deployment,
    and the actions for its attempts."""

    refusal: str = ""
    deployment: Deployment | None = None
    pod: Pod | None = None
    actions: tuple[AttemptAction, ...] = ()


def decide_hello(received: ReceivedHello) -> HelloDecision:
    """Decide the answer to a Hello."""
    deployment, hello = received.deployment, received.hello
    pod = _known_pod(deployment, hello.pod_id)
    refusal = _refusal(received, pod)
    if refusal or deployment is None or pod is None:
        return HelloDecision(refusal=refusal)
    state = PodState.ENDING if pod.state == PodState.ENDING else PodState.UP
    return HelloDecision(
        deployment=deployment,
        pod=replace(pod, state=state, address=hello.address),
        actions=_actions(received),
    )


def _known_pod(deployment: Deployment | None, pod_id: str) -> Pod | None:
    pods = deployment.pods if deployment else ()
    return next((pod for pod in pods if pod.id == pod_id), None)


def _refusal(received: ReceivedHello, pod: Pod | None) -> str:
    deployment, protocol = received.deployment, received.hello.protocol
    if not received.has_right_secret:
        return "the secret of the pod is wrong"
    if protocol not in ACCEPTED_PROTOCOLS:
        *others, newest = map(str, ACCEPTED_PROTOCOLS)
        accepted = f"{', '.join(others)} and {newest}"
        return f"protocol {protocol} is not supported; this control node supports {accepted}"
    if deployment is None or pod is None or pod.state == PodState.GONE:
        return "the deployment does not exist any more"
    if deployment.state == DeploymentState.RELEASING:
        return "the deployment is being released"
    return ""


def _actions(received: ReceivedHello) -> tuple[AttemptAction, ...]:
    """Return the actions that make the pod and the store agree: start the attempts that the pod does not
    know, send Stop messages again, and stop attempts with an outdated token (fencing)."""
    on_pod = received.hello.attempts
    own = {attempt.id for attempt in received.attempts}
    known = [_action(attempt, is_on_pod=attempt.id in on_pod) for attempt in received.attempts]
    replaced = [
        AttemptAction(attempt_id=attempt_id, stop_reason="replaced by a newer attempt")
        for attempt_id, state in on_pod.items()
        if attempt_id not in own and state in LIVE_ATTEMPTS
    ]
    return (*(action for action in known if action is not None), *replaced)


def _action(attempt: Attempt, *, is_on_pod: bool) -> AttemptAction | None:
    action = AttemptAction(attempt_id=attempt.id, attempt=attempt)
    if is_on_pod:
        if attempt.interrupted is not None:
            return replace(action, stop_reason=attempt.interrupted.why)
        return replace(action, stop_reason="stopped") if attempt.stop_requested else None
    if attempt.state != AttemptState.PLACED:
        return replace(action, outcome=LOST)
    if attempt.stop_requested:
        return replace(action, stop_reason="stopped before it started", outcome=STOPPED_EARLY)
    return replace(action, starts=True)


def _hello(
    starting: Starting, bring_ups: BringUps, transaction: Transaction, channel: int, hello: Hello
) -> None:
    channels = starting.channels
    received = ReceivedHello(
        hello=hello,
        has_right_secret=hello.secret == channels.pod_secret(hello.pod_id),
        deployment=deployment_of(transaction, hello.pod_id),
        attempts=_live_on(starting.ledger, transaction, hello.pod_id),
    )
    decision = decide_hello(received)
    deployment, pod = decision.deployment, decision.pod
    if deployment is None or pod is None:
        transaction.then(partial(_turn_away, channels, channel, decision.refusal))
        return
    channels.protocols[pod.id] = hello.protocol
    _note_connected(channels, bring_ups, channel, deployment, pod)
    if pod not in deployment.pods:
        transaction.put(with_pod(deployment, pod))
    # sent after the commit: a pod deletes acknowledged events, so they must be stored first
    _send_after(channels, transaction, channel, Welcome(acknowledged=pod.acknowledged))
    for action in decision.actions:
        _act(starting, transaction, channel, action)
    _send_orders_of_services(starting, transaction, received.attempts)


def _send_orders_of_services(
    starting: Starting, transaction: Transaction, attempts: Sequence[Attempt]
) -> None:
    """Send the present orders of the services on a pod, because the pod may have missed a change."""
    catalog, storage, channels = starting.endings.catalog, starting.endings.storage, starting.channels
    for attempt in attempts:
        job_run = transaction.get(JobRun, attempt.job_run_id)
        spec = job_run.job.service if job_run is not None else None
        service = transaction.get(Service, spec.name) if spec is not None else None
        if service is not None and service.run_id == attempt.run_id:
            send_order_again(catalog, storage, channels, transaction, service)


def _live_on(ledger: Ledger, transaction: Transaction, pod_id: str) -> tuple[Attempt, ...]:
    """Return the pod's live attempts with the changes of this transaction, without ranks of gangs that have
    ended."""
    attempts = (transaction.get(Attempt, a.id) for a in ledger.snapshot.attempts_on(pod_id))
    return tuple(attempt for attempt in attempts if attempt is not None and runs(attempt))


def _note_connected(
    channels: Channels, bring_ups: BringUps, channel: int, deployment: Deployment, pod: Pod
) -> None:
    channels.by_pod[pod.id] = channel
    channels.by_channel[channel] = pod.id
    bring_ups.failed.pop(deployment.resource, None)
    bring_ups.refusing_nodes.get(deployment.resource, set()).discard(pod.node)
    bring_ups.unfit.get(deployment.resource, {}).pop(pod.node, None)
    bring_ups.silent_since.pop(deployment.id, None)


def _turn_away(channels: Channels, channel: int, refusal: str) -> None:
    channels.links.send(channel, [Goodbye(reason=refusal)])
    channels.links.drop(channel)


def _act(starting: Starting, transaction: Transaction, channel: int, action: AttemptAction) -> None:
    if action.stop_reason:
        job_run = transaction.get(JobRun, action.attempt.job_run_id) if action.attempt is not None else None
        job = job_run.job if job_run is not None else None
        message = stop_message(starting.channels, action.attempt_id, action.stop_reason, job)
        _send_after(starting.channels, transaction, channel, message)
    if action.attempt is not None and action.outcome is not None:
        settle_attempt(starting.endings, transaction, action.attempt, action.outcome)
    if action.attempt is not None and action.starts:
        start_attempt(starting, transaction, action.attempt)


def _send_after(channels: Channels, transaction: Transaction, channel: int, message: ToPod) -> None:
    transaction.then(lambda: channels.links.send(channel, [message]))


def decide_after_events(pod: Pod, events: Sequence[PodEvent], attempts: Mapping[str, Attempt]) -> Pod:
    """Decide the record of a pod after new events, of which there is at least one. `attempts` has, by id,
    the attempts that the events name, as far as they are live."""
    ends = any(_ends_its_pod(attempts.get(event.attempt_id), event) for event in events)
    return replace(pod, acknowledged=events[-1].number, state=PodState.ENDING if ends else pod.state)


def _ends_its_pod(attempt: Attempt | None, event: PodEvent) -> bool:
    """Return whether a pod stopped an attempt although nobody requested it, because the pod stops all its
    attempts and ends. The machine of such a pod may be shutting down. The loss of the machine may be noticed
    only much later, and attempts that start on the pod in the meantime would be lost too."""
    if event.type != EventType.ENDED:
        return False
    if attempt is None or not runs(attempt) or attempt.token != event.token:
        return False  # fencing: the attempt was stopped because a newer attempt replaced it
    if attempt.stop_requested or attempt.interrupted is not None:
        return False
    return outcome_of(event).state == AttemptState.STOPPED


def _events(endings: Endings, transaction: Transaction, channel: int, events: Sequence[PodEvent]) -> None:
    pod_id = endings.channels.by_channel.get(channel)
    deployment = deployment_of(transaction, pod_id) if pod_id else None
    pod = _known_pod(deployment, pod_id) if pod_id else None
    if deployment is None or pod is None:
        return
    new = [event for event in events if event.number > pod.acknowledged]
    if not new:
        return
    after = decide_after_events(pod, new, _attempts_of(transaction, new))
    for event in new:
        apply_event(endings, transaction, pod.id, event)
    current = transaction.get(Deployment, deployment.id) or deployment
    transaction.put(with_pod(current, after))
    _send_after(endings.channels, transaction, channel, Ack(number=after.acknowledged))


def _attempts_of(transaction: Transaction, events: Sequence[PodEvent]) -> Mapping[str, Attempt]:
    attempts = {
        one.attempt_id: transaction.get(Attempt, one.attempt_id)
        for one in events
        if one.type == EventType.ENDED
    }
    return {attempt_id: attempt for attempt_id, attempt in attempts.items() if attempt is not None}
