"""This module has the tick that receives messages of pods, which are Hellos, events and ends. One
transaction contains the changes for all received messages."""

from collections.abc import Sequence
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import BringUps, Channels, Endings, Starting
from gridmill.control.steps.end_attempt import LOST, runs, settle_attempt
from gridmill.control.steps.gangs import stop_message
from gridmill.control.steps.orders import STOPPED_EARLY, start_attempt
from gridmill.control.steps.pod_events import apply_event, deployment_of, outcome_of, with_pod
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import (
    ACCEPTED_PROTOCOLS,
    Ack,
    Events,
    EventType,
    Goodbye,
    Hello,
    PodEvent,
    ToPod,
    Welcome,
)
from gridmill.domain.run import Attempt
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
            case Events(events=events):
                _events(starting.endings, transaction, received.channel, events)
    starting.ledger.stage(transaction)


def _closed(channels: Channels, channel: int) -> None:
    channels.open.discard(channel)
    pod_id = channels.by_channel.pop(channel, None)
    if pod_id is not None and channels.by_pod.get(pod_id) == channel:
        del channels.by_pod[pod_id]


def _hello(
    starting: Starting, bring_ups: BringUps, transaction: Transaction, channel: int, hello: Hello
) -> None:
    deployment = deployment_of(transaction, hello.pod_id)
    pod = _known_pod(deployment, hello)
    refusal = _refusal(starting.channels, deployment, pod, hello)
    if refusal or deployment is None or pod is None:
        transaction.then(partial(_turn_away, starting.channels, channel, refusal))
        return
    starting.channels.by_pod[pod.id] = channel
    starting.channels.by_channel[channel] = pod.id
    bring_ups.failed.pop(deployment.resource, None)
    bring_ups.refusing_nodes.get(deployment.resource, set()).discard(pod.node)
    bring_ups.unfit.get(deployment.resource, {}).pop(pod.node, None)
    bring_ups.silent_since.pop(deployment.id, None)
    state = PodState.ENDING if pod.state == PodState.ENDING else PodState.UP
    if (pod.state, pod.address) != (state, hello.address):
        transaction.put(with_pod(deployment, replace(pod, state=state, address=hello.address)))
    # sent after the commit: a pod deletes acknowledged events, so they must be stored first
    _send_after(starting.channels, transaction, channel, Welcome(acknowledged=pod.acknowledged))
    _reconcile(starting, transaction, channel, hello)


def _turn_away(channels: Channels, channel: int, refusal: str) -> None:
    channels.links.send(channel, [Goodbye(reason=refusal)])
    channels.links.drop(channel)


def _known_pod(deployment: Deployment | None, hello: Hello) -> Pod | None:
    pods = deployment.pods if deployment else ()
    return next((pod for pod in pods if pod.id == hello.pod_id), None)


def _refusal(channels: Channels, deployment: Deployment | None, pod: Pod | None, hello: Hello) -> str:
    if hello.secret != channels.pod_secret(hello.pod_id):
        return "the secret of the pod is wrong"
    if hello.protocol not in ACCEPTED_PROTOCOLS:
        accepted = " and ".join(map(str, ACCEPTED_PROTOCOLS))
        return f"protocol {hello.protocol} is not supported; this control node supports {accepted}"
    if deployment is None or pod is None or pod.state == PodState.GONE:
        return "the deployment does not exist any more"
    if deployment.state == DeploymentState.RELEASING:
        return "the deployment is being released"
    return ""


def _reconcile(starting: Starting, transaction: Transaction, channel: int, hello: Hello) -> None:
    """Make the pod and the store consistent after a Hello: start the attempts that the pod does not know,
    send Stop messages again, and end attempts with an outdated token (fencing)."""
    mine = {attempt.id: attempt for attempt in _live_on(starting.ledger, transaction, hello.pod_id)}
    for attempt in mine.values():
        if attempt.id in hello.attempts:
            if attempt.stop_requested or attempt.interrupted is not None:
                why = attempt.interrupted.why if attempt.interrupted is not None else "stopped"
                _send_after(
                    starting.channels,
                    transaction,
                    channel,
                    stop_message(starting.channels, attempt.id, why),
                )
        elif attempt.state == AttemptState.PLACED and attempt.stop_requested:
            early = stop_message(starting.channels, attempt.id, "stopped before it started")
            _send_after(starting.channels, transaction, channel, early)
            settle_attempt(starting.endings, transaction, attempt, STOPPED_EARLY)
        elif attempt.state == AttemptState.PLACED:
            start_attempt(starting, transaction, attempt)
        else:
            settle_attempt(starting.endings, transaction, attempt, LOST)
    for attempt_id, state in hello.attempts.items():
        if attempt_id not in mine and state in LIVE_ATTEMPTS:
            replaced = stop_message(starting.channels, attempt_id, "replaced by a newer attempt")
            _send_after(starting.channels, transaction, channel, replaced)


def _live_on(ledger: Ledger, transaction: Transaction, pod_id: str) -> list[Attempt]:
    """Return the pod's live attempts with the changes of this transaction, without ranks of gangs that have
    ended."""
    attempts = (transaction.get(Attempt, a.id) for a in ledger.snapshot.attempts_on(pod_id))
    return [attempt for attempt in attempts if attempt is not None and runs(attempt)]


def _send_after(channels: Channels, transaction: Transaction, channel: int, message: ToPod) -> None:
    transaction.then(lambda: channels.links.send(channel, [message]))


def _events(endings: Endings, transaction: Transaction, channel: int, events: Sequence[PodEvent]) -> None:
    pod_id = endings.channels.by_channel.get(channel)
    deployment = deployment_of(transaction, pod_id) if pod_id else None
    pod = next((p for p in deployment.pods if p.id == pod_id), None) if deployment else None
    if deployment is None or pod is None:
        return
    new = [event for event in events if event.number > pod.acknowledged]
    ends = any(_ends_its_pod(transaction, event) for event in new)
    for event in new:
        apply_event(endings, transaction, pod.id, event)
    if new:
        last, state = new[-1].number, PodState.ENDING if ends else pod.state
        current = transaction.get(Deployment, deployment.id) or deployment
        transaction.put(with_pod(current, replace(pod, acknowledged=last, state=state)))
        transaction.then(lambda: endings.channels.links.send(channel, [Ack(number=last)]))


def _ends_its_pod(transaction: Transaction, event: PodEvent) -> bool:
    """Return whether a pod stopped an attempt although nobody requested it, because the pod stops all its
    attempts and ends. The machine of such a pod may be shutting down. The loss of the machine may be noticed
    only much later, and attempts that start on the pod in the meantime would be lost too."""
    if event.type != EventType.ENDED:
        return False
    attempt = transaction.get(Attempt, event.attempt_id)
    if attempt is None or not runs(attempt) or attempt.token != event.token:
        return False  # fencing: the attempt was stopped because a newer attempt replaced it
    if attempt.stop_requested or attempt.interrupted is not None:
        return False
    return outcome_of(event).state == AttemptState.STOPPED
