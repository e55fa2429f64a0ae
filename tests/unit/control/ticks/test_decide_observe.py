"""Which pods a site is asked about, and what follows from its answer."""

from dataclasses import replace

import pytest
from tests.kit.control_records import a_deployment, a_pod, an_attempt

from gridmill.control.state import BRING_UPS
from gridmill.control.ticks.observe import (
    GonePod,
    SilenceDecision,
    decide_gone_pod,
    decide_lost,
    decide_pod,
    decide_queries,
    decide_silence,
)
from gridmill.domain.deployment import Deployment
from gridmill.domain.states import AttemptState, Cause, DeploymentState, PodState
from gridmill.ports.site import PodReport, PodStatus

STARTING = a_pod(state=PodState.STARTING)
GONE = PodReport(status=PodStatus.GONE, message="killed")


def test_each_open_site_gets_one_query_for_the_pods_that_are_left():
    here = a_deployment(a_pod(0), a_pod(1, state=PodState.GONE))
    other = a_deployment(a_pod(2), id="r-2")
    far, closed = a_deployment(a_pod(3), site="far"), a_deployment(a_pod(4), site="closed")
    released = a_deployment(a_pod(5), state=DeploymentState.RELEASING)
    queries = decide_queries([here, far, released, other, closed], set(), {"local", "far", "empty"})
    assert [(query.site, query.pods) for query in queries] == [
        ("local", ("r-1.0", "r-1.2")),
        ("far", ("r-1.3",)),
    ]


def test_a_site_without_pods_gets_no_query():
    assert decide_queries([a_deployment(a_pod(state=PodState.GONE))], set(), {"local"}) == ()


@pytest.mark.parametrize(
    ("state", "brought_up", "missing"),
    [(PodState.STARTING, set(), 1), (PodState.STARTING, {"r-1.0"}, 0), (PodState.UP, set(), 0)],
)
def test_pods_are_requested_again_until_the_site_has_accepted_them(state, brought_up, missing):
    deployment = a_deployment(a_pod(state=state))
    [query] = decide_queries([deployment], brought_up, {"local"})
    assert query.missing == (deployment,) * missing


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        (PodState.STARTING, PodStatus.QUEUED, "waits"),
        (PodState.STARTING, PodStatus.RUNNING, ""),
        (PodState.UP, PodStatus.QUEUED, ""),
    ],
)
def test_only_a_pod_that_waits_for_its_start_has_the_message_of_its_site(state, status, message):
    report = PodReport(status=status, message="waits", began=3.0)
    changed = decide_pod(a_pod(state=state, ends=9.0), report)
    assert (changed.message, changed.began, changed.ends) == (message, 3.0, 9.0)


def gone(deployment: Deployment, report: PodReport = GONE, *, failed: int = 0, replaceable: bool = False):
    return decide_gone_pod(
        GonePod(
            deployment=deployment,
            pod=deployment.pods[0],
            report=report,
            failed=failed,
            is_replaceable=replaceable,
        )
    )


def test_a_deployment_ends_with_its_last_pod():
    both = gone(a_deployment(a_pod(0), a_pod(1))).deployment
    assert both.state is DeploymentState.UP
    assert [pod.state for pod in both.pods] == [PodState.GONE, PodState.UP]
    last = gone(a_deployment(a_pod(0), a_pod(1, state=PodState.GONE))).deployment
    assert (last.state, last.message, last.pods[0].message) == (DeploymentState.GONE, "killed", "killed")


@pytest.mark.parametrize(
    ("report", "replaceable", "failed"),
    [
        (GONE, False, 2),
        (replace(GONE, hopeless=True), False, BRING_UPS + 1),
        (replace(GONE, left=True), False, None),
        (replace(GONE, unfit=True), True, None),
        (replace(GONE, unfit=True), False, 2),
    ],
)
def test_a_start_fails_unless_its_node_left_or_can_be_replaced(report, replaceable, failed):
    decision = gone(a_deployment(STARTING), report, failed=1, replaceable=replaceable)
    assert (decision.failed, decision.is_node_refusing) == (failed, True)


def test_the_end_of_a_pod_that_was_up_is_no_failed_start():
    decision = gone(a_deployment())
    assert (decision.failed, decision.is_node_refusing) == (None, False)


def test_only_live_attempts_are_lost_and_one_alone_failed_for_its_memory():
    ended = an_attempt("p-1.a.1", state=AttemptState.SUCCEEDED)
    alone, other = an_attempt("p-1.b.1"), an_attempt("p-1.c.1", state=AttemptState.PLACED)
    report = replace(GONE, cause=Cause.MEMORY)
    [(attempt, outcome)] = decide_lost([ended, alone], report, 5.0)
    assert (attempt, outcome.cause) == (alone, Cause.MEMORY)
    assert [one.cause for _, one in decide_lost([alone, other], report, 5.0)] == [Cause.SHORTAGE] * 2
    assert decide_lost([ended], report, 5.0) == ()


def silence(deployment=None, running=("r-1.0",), connected=(), since=None, now=100.0) -> SilenceDecision:
    return decide_silence(
        deployment or a_deployment(),
        set(running),
        set(connected),
        silent_since=since,
        now=now,
        limit_seconds=30.0,
    )


@pytest.mark.parametrize(
    ("since", "now", "kept", "released"),
    [(None, 100.0, 100.0, False), (70.1, 100.0, 70.1, False), (70.0, 100.0, None, True)],
)
def test_a_deployment_without_connected_pods_is_released_after_the_limit(since, now, kept, released):
    decision = silence(since=since, now=now)
    assert decision.silent_since == kept
    assert (decision.released is not None) == released
    if decision.released is not None:
        assert decision.released.state is DeploymentState.RELEASING
        assert decision.released.message == "none of the deployment's pods has answered for 30 s"


@pytest.mark.parametrize(("running", "connected"), [((), ()), (("r-1.0",), ("r-1.0",))])
def test_a_deployment_whose_pod_does_not_run_or_is_connected_is_not_silent(running, connected):
    assert silence(running=running, connected=connected, since=0.0) == SilenceDecision()


def test_one_connected_pod_is_enough_and_ended_pods_do_not_count():
    two = a_deployment(a_pod(0), a_pod(1))
    assert silence(two, ("r-1.0", "r-1.1"), ("r-1.1",), since=0.0) == SilenceDecision()
    ended = a_deployment(a_pod(0), a_pod(1, state=PodState.GONE))
    assert silence(ended, since=0.0).released is not None
