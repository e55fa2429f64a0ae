"""The answers to a Hello, and the events of a pod that count."""

from dataclasses import replace

import pytest
from tests.kit.control_records import a_deployment, a_pod, an_attempt

from gridmill.codec import to_builtins
from gridmill.control.steps.end_attempt import LOST
from gridmill.control.steps.orders import STOPPED_EARLY
from gridmill.control.ticks.receive import (
    AttemptAction,
    HelloDecision,
    ReceivedHello,
    decide_after_events,
    decide_hello,
)
from gridmill.domain.pod_protocol import (
    ACCEPTED_PROTOCOLS,
    AttemptOutcome,
    EventType,
    Hello,
    PodEvent,
)
from gridmill.domain.run import Attempt, Preemption
from gridmill.domain.states import AttemptState, Cause, DeploymentState, PodState

HELLO = Hello(
    pod_id="r-1.0",
    deployment_id="r-1",
    secret="s",
    protocol=max(ACCEPTED_PROTOCOLS),
    version="1",
    address="10.0.0.1",
)
STARTING = a_deployment(a_pod(state=PodState.STARTING), a_pod(1), state=DeploymentState.STARTING)
RECEIVED = ReceivedHello(hello=HELLO, has_right_secret=True, deployment=STARTING, attempts=())


def actions(*attempts: Attempt, on_pod: dict[str, AttemptState] | None = None) -> tuple[AttemptAction, ...]:
    hello = replace(HELLO, attempts=on_pod or {})
    return decide_hello(replace(RECEIVED, hello=hello, attempts=attempts)).actions


def test_a_pod_that_says_hello_is_up_at_its_address():
    decision = decide_hello(RECEIVED)
    assert decision.refusal == ""
    assert decision.pod == replace(STARTING.pods[0], state=PodState.UP, address="10.0.0.1")


def test_a_pod_that_ends_stays_one_that_ends():
    deployment = a_deployment(a_pod(state=PodState.ENDING))
    pod = decide_hello(replace(RECEIVED, deployment=deployment)).pod
    assert pod is not None
    assert pod.state is PodState.ENDING


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"has_right_secret": False}, "the secret of the pod is wrong"),
        ({"deployment": None}, "the deployment does not exist any more"),
        ({"deployment": a_deployment(a_pod(1))}, "the deployment does not exist any more"),
        ({"deployment": a_deployment(a_pod(state=PodState.GONE))}, "the deployment does not exist any more"),
        (
            {"deployment": replace(STARTING, state=DeploymentState.RELEASING)},
            "the deployment is being released",
        ),
        ({"deployment": None, "has_right_secret": False}, "the secret of the pod is wrong"),
    ],
)
def test_a_refused_pod_changes_nothing(changes, refusal):
    assert decide_hello(replace(RECEIVED, attempts=(an_attempt(),), **changes)) == HelloDecision(
        refusal=refusal
    )


def test_a_pod_of_another_protocol_is_refused():
    future = replace(RECEIVED, hello=replace(HELLO, protocol=max(ACCEPTED_PROTOCOLS) + 1))
    assert "is not supported" in decide_hello(future).refusal


INTERRUPTED = Preemption(job_run="p-2/j", left_seconds=9.0)


@pytest.mark.parametrize(
    ("changes", "on_pod", "expected"),
    [
        ({}, True, None),
        ({"stop_requested": True}, True, {"stop_reason": "stopped"}),
        ({"interrupted": INTERRUPTED, "stop_requested": True}, True, {"stop_reason": INTERRUPTED.why}),
        ({}, False, {"outcome": LOST}),
        ({"stop_requested": True}, False, {"outcome": LOST}),
        ({"state": AttemptState.PLACED}, False, {"starts": True}),
        ({"state": AttemptState.PLACED}, True, None),
        (
            {"state": AttemptState.PLACED, "stop_requested": True},
            False,
            {"stop_reason": "stopped before it started", "outcome": STOPPED_EARLY},
        ),
    ],
)
def test_the_pod_and_the_store_agree_about_each_attempt(changes, on_pod, expected):
    attempt = an_attempt(**changes)
    found = actions(attempt, on_pod={attempt.id: AttemptState.RUNNING} if on_pod else {})
    assert found == (
        () if expected is None else (AttemptAction(attempt_id=attempt.id, attempt=attempt, **expected),)
    )


def test_attempts_that_are_no_longer_live_are_stopped_unless_they_ended():
    on_pod = {"p-1.a.1": AttemptState.RUNNING, "p-1.b.1": AttemptState.SUCCEEDED}
    [action] = actions(on_pod=on_pod)
    assert action == AttemptAction(attempt_id="p-1.a.1", stop_reason="replaced by a newer attempt")


def event(number: int, state: AttemptState | None = None, **changes) -> PodEvent:
    body = {"outcome": to_builtins(AttemptOutcome(state=state, cause=Cause.STOPPED))} if state else {}
    known = {
        "number": number,
        "time": 1.0,
        "type": EventType.ENDED if state else EventType.STARTED,
        "attempt_id": "p-1.j.1",
        "token": "token of p-1.j.1",
        "body": body,
    }
    return PodEvent(**{**known, **changes})


def test_events_are_acknowledged_up_to_the_last_one():
    pod = a_pod(acknowledged=2)
    assert decide_after_events(pod, [event(3), event(4)], {}) == replace(pod, acknowledged=4)


@pytest.mark.parametrize(
    ("attempt", "ended", "state"),
    [
        (an_attempt(), event(1, AttemptState.STOPPED), PodState.ENDING),
        (an_attempt(), event(1, AttemptState.SUCCEEDED), PodState.UP),
        (an_attempt(stop_requested=True), event(1, AttemptState.STOPPED), PodState.UP),
        (an_attempt(interrupted=INTERRUPTED), event(1, AttemptState.STOPPED), PodState.UP),
        (an_attempt(), event(1, AttemptState.STOPPED, token="old"), PodState.UP),
        (an_attempt(state=AttemptState.LOST), event(1, AttemptState.STOPPED), PodState.UP),
        (None, event(1, AttemptState.STOPPED), PodState.UP),
    ],
)
def test_a_pod_that_stops_an_attempt_by_itself_is_about_to_end(attempt, ended, state):
    attempts = {attempt.id: attempt} if attempt is not None else {}
    for events in ([ended], [ended, event(2)], [event(0), ended]):
        assert decide_after_events(a_pod(), events, attempts).state is state
