"""Which released deployments are stopped now, and what follows from the result of a stop."""

from dataclasses import replace
from math import inf

import pytest
from tests.kit.control_records import a_deployment, a_pod

from gridmill.control.ticks.tear_down import (
    ReleasedDeployment,
    StopOutcome,
    StopResult,
    decide_stop_outcome,
    decide_stops,
)
from gridmill.domain.states import DeploymentState, PodState

RELEASING = a_deployment(a_pod(0), a_pod(1), state=DeploymentState.RELEASING)
RESULT = StopResult(deployment_id="r-1", error=None, is_same_interface=True, current=RELEASING)


def released(name: str, wait_seconds: float = -inf, *, is_starting: bool = False) -> ReleasedDeployment:
    deployment = replace(RELEASING, id=name)
    return ReleasedDeployment(deployment=deployment, is_starting=is_starting, wait_seconds=wait_seconds)


@pytest.mark.parametrize(("wait_seconds", "stopped"), [(-inf, True), (-0.1, True), (0.0, True), (0.1, False)])
def test_a_failed_stop_is_tried_again_when_its_time_has_come(wait_seconds: float, stopped: bool):
    decision = decide_stops([released("a", wait_seconds)])
    assert [one.id for one in decision.stop] == (["a"] if stopped else [])
    assert decision.wait_seconds == (inf if stopped else wait_seconds)


def test_the_wait_is_that_of_the_next_stop_and_pending_starts_end_first():
    waiting = [released("a", 3.0), released("b", 2.0), released("c", 1.0, is_starting=True)]
    decision = decide_stops([*waiting, released("d", is_starting=True), released("e")])
    assert [one.id for one in decision.stop] == ["e"]
    assert decision.wait_seconds == 2.0


def test_without_released_deployments_there_is_nothing_to_wait_for():
    assert decide_stops([]).wait_seconds == inf


def test_the_end_of_a_deployment_and_of_all_its_pods_is_recorded():
    outcome = decide_stop_outcome(RESULT)
    assert (outcome.problem, outcome.is_tried_again) == ("", False)
    assert outcome.gone is not None
    assert outcome.gone.state is DeploymentState.GONE
    assert {pod.state for pod in outcome.gone.pods} == {PodState.GONE}


@pytest.mark.parametrize("current", [None, replace(RELEASING, state=DeploymentState.GONE)])
def test_an_end_that_was_recorded_meanwhile_is_not_recorded_again(current):
    assert decide_stop_outcome(replace(RESULT, current=current)) == StopOutcome(problem="")


@pytest.mark.parametrize(("same", "problem"), [(True, "r-1 cannot be stopped now: no answer"), (False, None)])
def test_a_stop_that_failed_is_tried_again_and_is_a_problem_of_the_interface_it_used(same, problem):
    outcome = decide_stop_outcome(replace(RESULT, error="no answer", is_same_interface=same))
    assert outcome == StopOutcome(problem=problem, is_tried_again=True)
