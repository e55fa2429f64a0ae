"""The time at which a service gets a successor on another machine, and the steps of the change."""

import pytest

from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.lease import HOUR_SECONDS, LaunchTry, Lease, LeaseState, RentalTerms, TryState
from gridmill.domain.run import JobRun
from gridmill.domain.service import Service
from gridmill.domain.service_succession import (
    EXTRA_SECONDS,
    MARGIN,
    Succession,
    Successor,
    lead_seconds,
    machine_end,
)
from gridmill.domain.states import JobState
from gridmill.scheduler.service_succession import SETTLE_SECONDS, MovingService, Step, decide_step

JOB_RUN = JobRun(
    id="service-rain-1/serve",
    run_id="service-rain-1",
    pipeline="service-rain",
    job=Job(name="serve"),
    order=0,
    state=JobState.RUNNING,
    resource="servers",
)


def lease(**terms: object) -> Lease:
    made = LaunchTry(
        number=1,
        token="t",
        region="north",
        zone="a",
        instance_type="gpu",
        spot=False,
        price_micros=1_000_000,
        currency="USD",
        state=TryState.CONFIRMED,
        machine_id="m",
        at=90.0,
        confirmed=100.0,
    )
    return Lease(
        id="lease-1",
        provider="aws",
        owner="grid",
        resource="servers",
        deployment_id="servers-1",
        pod_id="servers-1.0",
        state=LeaseState.READY,
        terms=RentalTerms(**{"max_seconds": 8 * HOUR_SECONDS, **terms}),
        tries=(made,),
    )


def test_the_lead_time_is_the_forecast_with_a_margin_but_at_most_half_of_the_lifetime() -> None:
    assert lead_seconds(100.0, 60.0, 8 * HOUR_SECONDS) == MARGIN * 160.0 + EXTRA_SECONDS
    assert lead_seconds(1000.0, 600.0, HOUR_SECONDS) == HOUR_SECONDS / 2


def test_a_machine_ends_at_the_limit_that_is_reached_first() -> None:
    by_time = machine_end(lease(), 200.0)
    assert by_time is not None
    assert (by_time.at, by_time.limit) == (100.0 + 8 * HOUR_SECONDS, "max_hours")
    by_cost = machine_end(lease(max_cost_micros=2_000_000), 200.0)
    assert by_cost is not None
    assert by_cost.limit == "max_cost"
    assert by_cost.at < 100.0 + 2.1 * HOUR_SECONDS
    assert machine_end(replace(lease(), tries=()), 200.0) is None


def retiring(state: JobState, **fields: object) -> MovingService:
    succession = Succession(retiring="serve", switched=fields.pop("switched", None))  # type: ignore[arg-type]
    service = Service(name="rain", model="m", version="m@1", succession=succession)
    old = replace(JOB_RUN, state=state)
    return MovingService(service=service, job_run=JOB_RUN, old_run=old, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moving", "step"),
    [
        (retiring(JobState.RUNNING), Step.WAIT),
        (retiring(JobState.RUNNING, sees_newest=True), Step.NOTE_SWITCHED),
        (retiring(JobState.RUNNING, switched=100.0 - SETTLE_SECONDS / 2), Step.WAIT),
        (retiring(JobState.RUNNING, switched=100.0 - SETTLE_SECONDS), Step.STOP_OLD),
        (retiring(JobState.RUNNING, switched=0.0, old_stop_requested=True), Step.WAIT),
        (retiring(JobState.WAITING), Step.STOP_OLD),
        (retiring(JobState.STOPPED), Step.FORGET_OLD),
    ],
)
def test_old_replicas_end_after_the_router_has_changed(moving: MovingService, step: Step) -> None:
    assert decide_step(moving, 100.0).step is step


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.STOPPED])
def test_a_successor_that_cannot_run_is_called_off_with_its_reason(state: JobState) -> None:
    successor = Successor(job="serve-2", replaces="servers-1.0", began=0.0)
    service = Service(name="rain", model="m", version="m@1", succession=Succession(successor=successor))
    following = replace(JOB_RUN, state=state, message="too large")
    step = decide_step(MovingService(service=service, job_run=JOB_RUN, next_run=following), 100.0)
    assert (step.step, step.why) == (Step.CALL_OFF, "too large")
