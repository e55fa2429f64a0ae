"""The records of a plan: attempts with their GPUs, deployments, refusals, and idle deployments."""

from dataclasses import replace

import pytest
from tests.kit.control_records import AMOUNTS, a_deployment, a_job_run, a_pod, an_attempt

from gridmill.control.state import BRING_UPS
from gridmill.control.ticks.dispatch import (
    GpuUse,
    JobStart,
    decide_bring_ups,
    decide_deployment,
    decide_gpus,
    decide_idle,
    decide_interrupted,
    decide_refusals,
    decide_start,
)
from gridmill.domain.amounts import GIB, GPU_SHARES, Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job, JobKind
from gridmill.domain.plan import BringUp, StartJob
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Preemption
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import AttemptState, DeploymentState, JobState, PodState
from gridmill.errors import GridmillError


def on_pod(number: int = 0, gpus: int = 0) -> StartJob:
    return StartJob("p-1/j", "r-1", f"r-1.{number}", 1.0, GIB, gpus)


START = JobStart(starts=(on_pod(),), tokens=("t",), deployments=(a_deployment(),))


def test_a_start_makes_the_next_attempt_of_the_job():
    decision = decide_start(a_job_run(attempts=1), START, 7.0)
    assert decision is not None
    [attempt] = decision.attempts
    assert (attempt.id, attempt.token, attempt.state) == ("p-1.j.2", "t", AttemptState.PLACED)
    assert (attempt.pod_id, attempt.given, attempt.placed, attempt.ranks) == ("r-1.0", AMOUNTS, 7.0, 0)
    assert decision.deployments == ()


def test_a_start_ends_the_idle_time_of_its_deployment():
    idle = a_deployment(idle_since=3.0)
    decision = decide_start(a_job_run(), replace(START, deployments=(idle,)), 7.0)
    assert decision is not None
    assert decision.deployments == (replace(idle, idle_since=None),)


def test_a_job_that_does_not_wait_is_not_started():
    with pytest.raises(GridmillError):
        decide_start(a_job_run(state=JobState.SUCCEEDED), START, 7.0)


def test_the_ranks_of_a_gang_have_their_own_ports_and_addresses():
    job = Job(name="j", command=CommandSpec(run="true", workers=2))
    job_run = a_job_run(job=job)
    start = replace(
        START,
        starts=(on_pod(0), on_pod(1)),
        tokens=("t", "u"),
        addresses=("10.0.0.1", "10.0.0.2"),
    )
    first = decide_start(job_run, start, 7.0)
    assert first is not None
    assert [(one.id, one.gang, one.rank, one.ranks) for one in first.attempts] == [
        ("p-1.j.1", "p-1.j.1", 0, 2),
        ("p-1.j.1.1", "p-1.j.1", 1, 2),
    ]
    assert [one.address for one in first.attempts] == ["10.0.0.1", "10.0.0.2"]
    ports = [one.port for one in first.attempts]
    again = decide_start(job_run, replace(start, taken_ports=frozenset(ports)), 7.0)
    assert again is not None
    assert len({*ports, *(one.port for one in again.attempts)}) == 4


def gpu_use(taken: set[int], *, shares: int = 1, gpus: int = 2) -> GpuUse:
    node = Node(name="node0", capacity=Amounts(cpus=4.0, memory_bytes=8 * GIB, gpus=gpus))
    local = Site(name="local", kind=SiteKind.LOCAL, nodes=(node,), settings={GPU_SHARES: str(shares)})
    place = ("local", "node0")
    return GpuUse(places={"r-1.0": place, "r-1.1": place}, taken={place: taken}, local=local)


@pytest.mark.parametrize(
    ("starts", "taken", "shares", "expected"),
    [
        ([1], set(), 1, ((0,),)),
        ([1], {0}, 1, ((1,),)),
        ([1, 1], {1}, 1, ((0,), (2,))),
        ([0, 1], set(), 1, ((), (0,))),
        ([1], {0}, 2, ((1,),)),
        ([1, 1], {0}, 2, ((1,), (2,))),
        ([2], {0}, 2, ((2, 3),)),
        ([2], {0, 2}, 2, ()),
    ],
)
def test_gpus_are_the_lowest_free_ones_and_shares_belong_to_one_gpu(starts, taken, shares, expected):
    wanted = [on_pod(number, gpus) for number, gpus in enumerate(starts)]
    use = gpu_use(taken, shares=shares, gpus=2 * shares)
    assert decide_gpus(wanted, use) == expected
    assert use.taken[("local", "node0")] == taken


def test_a_job_whose_shares_belong_to_several_gpus_is_not_started():
    start = replace(START, starts=(on_pod(gpus=2),), gpu_use=gpu_use({0, 2}, shares=2, gpus=4))
    assert decide_start(a_job_run(), start, 7.0) is None


def test_of_other_sites_the_gpus_of_the_pod_are_numbered():
    use = GpuUse(places={"r-1.0": ("far", "r-1.0")}, taken={("local", "r-1.0"): {0}})
    assert decide_gpus([on_pod(gpus=2)], use) == ((0, 1),)


WANTED = BringUp(
    resource=Resource(name="r", type=JobKind.COMMAND), sizing=Sizing(amounts=AMOUNTS), nodes=("a", "b")
)
OTHER = replace(WANTED, resource=replace(WANTED.resource, name="s"))


@pytest.mark.parametrize(("failed", "given_up"), [(0, ()), (BRING_UPS - 1, ()), (BRING_UPS, ("r",))])
def test_a_resource_is_given_up_after_so_many_failed_starts(failed: int, given_up: tuple[str, ...]):
    decision = decide_bring_ups([WANTED, WANTED, OTHER], {"r": failed})
    assert decision.given_up == given_up
    assert decision.bring_ups == ((OTHER,) if given_up else (WANTED, WANTED, OTHER))


def test_a_new_deployment_has_one_starting_pod_for_each_node():
    deployment = decide_deployment(WANTED, 4, SiteKind.LOCAL, 7.0)
    assert (deployment.id, deployment.state, deployment.created) == ("r-4", DeploymentState.STARTING, 7.0)
    assert [(pod.id, pod.node, pod.state) for pod in deployment.pods] == [
        ("r-4.0", "a", PodState.STARTING),
        ("r-4.1", "b", PodState.STARTING),
    ]


@pytest.mark.parametrize(
    ("failed", "is_local", "problem", "message", "hint"),
    [
        (BRING_UPS, True, "killed", "failed to start 3 times in a row: killed", "HOME/pods"),
        (BRING_UPS, False, "killed", "failed to start 3 times in a row: killed", "show resource r"),
        (BRING_UPS + 1, True, "too large", "cannot start: too large", "show resource r"),
        (BRING_UPS, True, "", "no reason is known", "HOME/pods"),
    ],
)
def test_the_jobs_of_a_resource_that_is_given_up_are_refused(failed, is_local, problem, message, hint):
    refusals = decide_refusals("r", ["p-1/a", "p-1/b"], failed=failed, problem=problem, is_local=is_local)
    assert [one.job_run_id for one in refusals] == ["p-1/a", "p-1/b"]
    assert all(message in one.message and hint in one.hint for one in refusals)


def test_only_attempts_that_run_and_are_not_stopped_are_interrupted():
    reason = Preemption(job_run="p-2/j", left_seconds=9.0)
    live, stopped = an_attempt("a"), an_attempt("b", stop_requested=True)
    ended = an_attempt("c", outcome=AttemptOutcome(state=AttemptState.SUCCEEDED))
    assert decide_interrupted([live, stopped, ended], reason) == (replace(live, interrupted=reason),)


@pytest.mark.parametrize(
    ("changes", "is_idle"),
    [
        ({}, True),
        ({"id": "busy"}, False),
        ({"idle_since": 1.0}, False),
        ({"state": DeploymentState.STARTING}, False),
        ({"state": DeploymentState.RELEASING}, False),
    ],
)
def test_a_deployment_without_live_attempts_is_idle_from_now_on(changes, is_idle):
    deployment = a_deployment(a_pod(), **changes)
    expected = (replace(deployment, idle_since=7.0),) if is_idle else ()
    assert decide_idle([deployment], {"busy"}, 7.0) == expected
