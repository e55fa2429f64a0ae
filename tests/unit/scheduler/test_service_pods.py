"""When a pod that a service no longer needs may leave, and when an order waits for added pods."""

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import JOB, SECOND_JOB, Service
from gridmill.domain.service_pods import FurtherPod, job_of_pod
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.serving import ReplicaReport, ReplicaState, ServiceReport, ServiceState
from gridmill.domain.states import AttemptState, JobState
from gridmill.scheduler.service_pods import (
    PodOfService,
    PodStep,
    SpreadService,
    decide_pods,
    jobs_by_use,
    with_wait_for_pods,
)

THIRD_JOB = job_of_pod(JOB, 3)


def report(generation: int, state: ServiceState = ServiceState.READY) -> ServiceReport:
    replica = ReplicaReport(number=0, state=ReplicaState.READY, generation=generation)
    return ServiceReport(
        name="rain",
        state=state,
        generation=generation,
        seen_generation=generation,
        address="",
        host="",
        port=1,
        pid=1,
        started_at=0.0,
        written_at=0.0,
        replicas=(replica,),
    )


def pod(job: str) -> PodOfService:
    """A pod that runs on the node of the name of its job."""
    spec = ServiceSpec(name="rain", node=job)
    run = JobRun(
        id=f"r/{job}",
        run_id="r",
        pipeline="p",
        job=Job(name=job, service=spec),
        order=0,
        state=JobState.RUNNING,
        resource="far",
    )
    attempt = Attempt(
        id=f"a-{job}",
        run_id="r",
        job_run_id=run.id,
        token="t",
        deployment_id="d",
        pod_id=job,
        state=AttemptState.RUNNING,
        given=Amounts(),
        placed=0.0,
    )
    return PodOfService(job=job, job_run=run, attempt=attempt, node=job)


def next_step(service: Service) -> tuple[PodStep, str]:
    further = tuple(pod(one.job) for one in service.further_pods)
    step = decide_pods(SpreadService(service=service, first=pod(JOB), further=further), 0.0)
    return step.step, step.job


def spread(pods: int, *generations: int | None, generation: int = 2) -> Service:
    """A service for `pods` pods, whose present pods are ready with these generations; None: it has no
    report."""
    first, *others = ((report(one) if one else None) for one in generations)
    further = tuple(
        FurtherPod(job=job, report=one, reported_by=f"a-{job}" if one else "")
        for job, one in zip((SECOND_JOB, THIRD_JOB), others, strict=False)
    )
    return Service(
        name="rain",
        model="m",
        version="m@1",
        generation=generation,
        settings=ServiceSettings(pods=pods),
        report=first,
        further_pods=further,
    )


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (spread(1, 2, 2), (PodStep.LEAVE, SECOND_JOB)),
        # the first pod does not have its larger size yet
        (spread(1, 1, 1), (PodStep.WAIT, "")),
        (spread(1, 1, 2), (PodStep.WAIT, "")),
        (spread(1, 2, 1), (PodStep.LEAVE, SECOND_JOB)),
        (spread(2, 2, 1, 2), (PodStep.WAIT, "")),
        (spread(2, 2, 2, 1), (PodStep.LEAVE, THIRD_JOB)),
        # a pod that serves nothing leaves first, at once
        (spread(2, 1, None, 1), (PodStep.LEAVE, SECOND_JOB)),
        (spread(2, 2, 2), (PodStep.WAIT, "")),
    ],
)
def test_a_pod_leaves_when_the_others_serve_with_their_new_size(
    service: Service, expected: tuple[PodStep, str]
) -> None:
    assert next_step(service) == expected


@pytest.mark.parametrize(
    ("service", "step"),
    [
        (spread(2, 1), PodStep.WAIT),
        (spread(2, 1, None), PodStep.WAIT),
        (spread(2, 1, 2), PodStep.SETTLE),
        (spread(3, 1, 1, 2), PodStep.SETTLE),
        (spread(3, 1, 2), PodStep.WAIT),
    ],
)
def test_an_order_that_waits_for_added_pods_is_sent_when_all_of_them_serve(
    service: Service, step: PodStep
) -> None:
    assert next_step(replace(service, waits_for_pods=True))[0] is step
    assert next_step(service)[0] is PodStep.WAIT


def test_the_pods_that_serve_stay_and_those_that_leave_come_last() -> None:
    service = spread(2, 2, None, 2)
    assert jobs_by_use(service) == (JOB, THIRD_JOB, SECOND_JOB)
    second, third = service.further_pods
    leaving = replace(service, further_pods=(second, replace(third, leaving=1.0)))
    assert jobs_by_use(leaving) == (JOB, SECOND_JOB, THIRD_JOB)


def test_only_fewer_replicas_in_more_pods_wait() -> None:
    before = replace(spread(1, 2), replicas=4)
    changed = replace(before, generation=3)
    more = replace(changed, settings=ServiceSettings(pods=2))
    assert with_wait_for_pods(before, replace(more, replicas=3)).waits_for_pods
    for after in (replace(more, replicas=4), replace(changed, replicas=3), replace(before, replicas=3)):
        assert not with_wait_for_pods(before, after).waits_for_pods
    waiting = replace(more, replicas=3, waits_for_pods=True)
    again = replace(waiting, generation=4)
    assert with_wait_for_pods(waiting, again).waits_for_pods
    assert not with_wait_for_pods(waiting, replace(again, settings=ServiceSettings(pods=1))).waits_for_pods
