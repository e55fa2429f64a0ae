"""This module has the tick that moves services from one rented machine to another before the first one ends:
replicas start on the other machine, the router changes to them when they are ready, and the old ones end.

All states are in the record of the service, and each step is one commit, so that a control node that was
killed continues with the next step. All replicas are jobs of the run of the service, which end with it.
"""

from collections.abc import Mapping

from gridmill.control.ledger import Transaction
from gridmill.control.state import Endings
from gridmill.control.steps.pod_events import with_pod
from gridmill.control.steps.run_lifecycle import stop_run
from gridmill.control.steps.service_steps import further_job, step_services
from gridmill.control.steps.services import (
    add_event,
    job_run_of,
    live_attempt,
    replica_address,
    size_of_job,
)
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.lease_cost import PROJECT, RESOURCE
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.service import JOB, ROUTE, SECOND_JOB, Service, ServiceState
from gridmill.domain.service_succession import Successor
from gridmill.domain.site import SiteKind
from gridmill.domain.states import DeploymentState
from gridmill.ports.site import ServingSite, SitePort
from gridmill.scheduler.service_succession import (
    MovingService,
    NextStep,
    Step,
    boot_forecast,
    decide_step,
    why_no_machine,
)


def keep_successors(endings: Endings, sites: Mapping[str, SitePort], now: float) -> float:
    """Make the next step of each service on a rented machine. Returns the seconds until another step is
    due."""

    def step(transaction: Transaction, run: Run, service: Service) -> float:
        moving = _read(endings, sites, transaction, service)
        chosen = decide_step(moving, now)
        _act(endings, transaction, run, moving, chosen)
        return chosen.again_at

    return step_services(endings.ledger, SiteKind.CLOUD, now, step)


def _read(
    endings: Endings,
    sites: Mapping[str, SitePort],
    transaction: Transaction,
    service: Service,
) -> MovingService:
    succession, snapshot = service.succession, endings.ledger.snapshot
    attempt = live_attempt(transaction, service)
    successor = succession.successor
    pod_id = attempt.pod_id if attempt is not None else successor.replaces if successor is not None else ""
    lease = next((one for one in snapshot.leases.values() if pod_id and one.pod_id == pod_id), None)
    following = live_attempt(transaction, service, successor.job) if successor is not None else None
    old = live_attempt(transaction, service, succession.retiring) if succession.retiring else None
    return MovingService(
        service=service,
        job_run=job_run_of(transaction, service),
        attempt=attempt,
        pod=_pod(endings, transaction, pod_id)[1],
        lease=lease,
        next_run=job_run_of(transaction, service, successor.job) if successor is not None else None,
        next_attempt=following,
        can_reach_next=following is not None and _is_reachable(sites, service, following),
        old_run=job_run_of(transaction, service, succession.retiring) if succession.retiring else None,
        old_stop_requested=old is not None and old.stop_requested,
        sees_newest=_sees_newest(transaction, service),
        obstacle=_obstacle(endings, service),
        boot_seconds=boot_forecast(snapshot, lease),
    )


def _pod(endings: Endings, transaction: Transaction, pod_id: str) -> tuple[Deployment | None, Pod | None]:
    owner = endings.ledger.snapshot.places.owners.get(pod_id, "")
    deployment = transaction.get(Deployment, owner) if owner else None
    pods = deployment.pods if deployment is not None else ()
    return deployment, next((one for one in pods if one.id == pod_id), None)


def _is_reachable(sites: Mapping[str, SitePort], service: Service, attempt: Attempt) -> bool:
    port, successor = sites.get(service.site), service.succession.successor
    if not isinstance(port, ServingSite) or successor is None:
        return False
    address = replica_address(successor.report, successor.reported_by, attempt)
    return port.upstream(attempt.pod_id, attempt.id, address) is not None


def _sees_newest(transaction: Transaction, service: Service) -> bool:
    """Return whether the router that runs now has read its newest order."""
    route, router = service.route, live_attempt(transaction, service, ROUTE)
    if route is None or route.report is None or router is None or route.reported_by != router.id:
        return False
    return route.report.seen_generation >= service.generation + route.generation


def _obstacle(endings: Endings, service: Service) -> str:
    snapshot, rentals = endings.ledger.snapshot, endings.rentals
    resource = snapshot.resource_of(service.resource, JobKind.SERVICE)
    if resource is None:
        return f"there is no resource {service.resource!r}"
    return why_no_machine(
        snapshot, resource, service.project, rentals.halted(RESOURCE), rentals.halted(PROJECT)
    )


def _act(endings: Endings, transaction: Transaction, run: Run, moving: MovingService, step: NextStep) -> None:
    service, succession = moving.service, moving.service.succession
    if step.step is Step.BEGIN:
        _begin(endings, transaction, moving, step.why)
    elif step.step is Step.CANNOT_BEGIN:
        _note_problem(transaction, service, step.why)
    elif step.step is Step.FORGET_PROBLEM:
        transaction.put(replace(service, succession=replace(succession, problem="")))
    elif step.step is Step.CALL_OFF:
        _call_off(endings, transaction, run, moving, step.why)
    elif step.step is Step.SWITCH:
        _switch(transaction, moving, step.why)
    elif step.step is Step.NOTE_SWITCHED:
        transaction.put(replace(service, succession=replace(succession, switched=transaction.now)))
    elif step.step is Step.STOP_OLD:
        _stop(endings, transaction, run, succession.retiring)
    elif step.step is Step.FORGET_OLD:
        _forget_old(endings, transaction, moving)


def _begin(endings: Endings, transaction: Transaction, moving: MovingService, why: str) -> None:
    """Put the job of the successor into the queue. The planner knows from now on that the pod of the old
    replicas ends, so that it places the successor on another machine."""
    service, attempt, job_run, lease = moving.service, moving.attempt, moving.job_run, moving.lease
    if attempt is None or job_run is None or lease is None:
        return
    job = SECOND_JOB if service.serving_job == JOB else JOB
    following = further_job(job_run, job, job_run_of(transaction, service, job), transaction.now)
    sizing = replace(following.sizing, expected_seconds=lease.terms.max_seconds)
    successor = Successor(job=job, replaces=attempt.pod_id, began=transaction.now)
    after = replace(service.succession, successor=successor, problem="")
    transaction.put(replace(following, sizing=sizing), replace(service, succession=after))
    _end_pod(endings, transaction, attempt.pod_id)
    add_event(transaction, service, ServiceState.RUNNING, f"{why}; replicas start on another machine")


def _end_pod(endings: Endings, transaction: Transaction, pod_id: str) -> None:
    deployment, pod = _pod(endings, transaction, pod_id)
    if deployment is not None and pod is not None:
        transaction.put(with_pod(deployment, replace(pod, ends=transaction.now)))


def _note_problem(transaction: Transaction, service: Service, why: str) -> None:
    problem = (
        f"no other machine is rented before its machine ends: {why}; the service starts again after the end "
        "of its machine"
    )
    if problem == service.succession.problem:
        return
    transaction.put(replace(service, succession=replace(service.succession, problem=problem)))
    add_event(transaction, service, ServiceState.RUNNING, problem)


def _call_off(endings: Endings, transaction: Transaction, run: Run, moving: MovingService, why: str) -> None:
    service, successor = moving.service, moving.service.succession.successor
    if successor is None:
        return
    _stop(endings, transaction, run, successor.job)
    # the job of the successor still ends, and no other one begins before that
    after = replace(service.succession, successor=None, retiring=successor.job, switched=transaction.now)
    if why:
        after = replace(after, refused_for=successor.replaces)
    service = replace(service, succession=after)
    transaction.put(service)
    if why:
        _note_problem(transaction, service, why)


def _switch(transaction: Transaction, moving: MovingService, why: str) -> None:
    """Let the router change to the successor. The tick of the routers sends it the new way."""
    service, successor = moving.service, moving.service.succession.successor
    if successor is None:
        return
    after = replace(
        service.succession, successor=None, retiring=service.serving_job, switched=None, problem=""
    )
    switched = replace(
        size_of_job(service, successor.job),
        serving_job=successor.job,
        succession=after,
        report=successor.report,
        reported_by=successor.reported_by,
    )
    transaction.put(switched)
    done = "replicas on another machine get the requests from now on"
    add_event(transaction, switched, ServiceState.RUNNING, f"{why}; {done}" if why else done)


def _stop(endings: Endings, transaction: Transaction, run: Run, job: str) -> None:
    stop_run(endings.ledger, endings.channels, endings.candidates, transaction, run, job)


def _forget_old(endings: Endings, transaction: Transaction, moving: MovingService) -> None:
    """Note that the replaced replicas have ended, and return their machine if nothing else runs on it."""
    service = moving.service
    after = replace(service.succession, retiring="", switched=None)
    transaction.put(replace(service, succession=after))
    old = moving.old_run
    last = _last_attempt(endings, old) if old is not None else None
    deployment = transaction.get(Deployment, last.deployment_id) if last is not None else None
    if deployment is None or deployment.state is not DeploymentState.UP:
        return
    ends = any(pod.ends is not None for pod in deployment.pods)
    if ends and not any(endings.ledger.snapshot.attempts_on(deployment.id)):
        message = "the service runs on another machine"
        transaction.put(replace(deployment, state=DeploymentState.RELEASING, message=message))


def _last_attempt(endings: Endings, job_run: JobRun) -> Attempt | None:
    return endings.ledger.read(Attempt, job_run.attempt_id or "")
