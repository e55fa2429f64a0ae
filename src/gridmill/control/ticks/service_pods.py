"""This module has the tick that runs a service on a Ray cluster in several pods, each on a node of its own.

All states are in the record of the service and in the jobs of its run, and each step is one commit, so that a
control node that was killed continues with the next step.
"""

from gridmill.control.ledger import Transaction
from gridmill.control.state import Endings
from gridmill.control.steps.run_lifecycle import stop_run
from gridmill.control.steps.service_steps import further_job, step_services
from gridmill.control.steps.services import add_event, job_run_of, live_attempt, send_order_again
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import Service, ServiceState
from gridmill.domain.service_pods import FurtherPod
from gridmill.domain.site import SiteKind
from gridmill.domain.states import JobState
from gridmill.scheduler.service_pods import (
    AGAIN_SECONDS,
    NextPodStep,
    PodOfService,
    PodStep,
    SpreadService,
    decide_pods,
    node_of,
    nodes_with_room,
)


def keep_pods(endings: Endings, now: float) -> float:
    """Make the next step for the pods of each service on a Ray cluster. Returns the seconds until another
    step is due."""

    def step(transaction: Transaction, run: Run, service: Service) -> float:
        chosen = decide_pods(_read(endings, transaction, service), now)
        _act(endings, transaction, run, service, chosen)
        return chosen.again_at

    return step_services(endings.ledger, SiteKind.RAY, now, step)


def _read(endings: Endings, transaction: Transaction, service: Service) -> SpreadService:
    snapshot = endings.ledger.snapshot
    site = snapshot.sites.get(service.site)
    first = _pod(endings, transaction, service, service.serving_job)
    further = tuple(_pod(endings, transaction, service, one.job) for one in service.further_pods)
    resource = snapshot.resource_of(service.resource, JobKind.SERVICE) if first.job_run else None
    amounts = first.job_run.sizing.amounts if first.job_run is not None else None
    return SpreadService(
        service=service,
        first=first,
        further=further,
        nodes=tuple(one.name for one in site.nodes) if site is not None else (),
        roomy=nodes_with_room(snapshot, resource, amounts.memory_bytes, amounts.gpus)
        if resource is not None and amounts is not None
        else (),
    )


def _pod(endings: Endings, transaction: Transaction, service: Service, job: str) -> PodOfService:
    attempt = live_attempt(transaction, service, job)
    return PodOfService(
        job=job,
        job_run=job_run_of(transaction, service, job),
        attempt=attempt,
        node=node_of(endings.ledger.snapshot, attempt),
    )


def _act(endings: Endings, transaction: Transaction, run: Run, service: Service, step: NextPodStep) -> None:
    if step.step is PodStep.TAKE_OVER:
        _take_over(transaction, service, step.job)
    elif step.step is PodStep.FORGET:
        staying = tuple(one for one in service.further_pods if one.job != step.job)
        transaction.put(replace(service, further_pods=staying))
    elif step.step is PodStep.CLEAR:
        _clear(transaction, service, step.job)
    elif step.step is PodStep.BIND:
        _bind(transaction, service, step)
    elif step.step is PodStep.ADD:
        _add(transaction, service, step)
    elif step.step is PodStep.LEAVE:
        _leave(transaction, service, step.job)
    elif step.step is PodStep.SETTLE:
        settled = replace(service, waits_for_pods=False)
        transaction.put(settled)
        send_order_again(endings.catalog, endings.storage, endings.channels, transaction, settled)
    elif step.step is PodStep.STOP:
        stop_run(endings.ledger, endings.channels, endings.candidates, transaction, run, step.job)


def _take_over(transaction: Transaction, service: Service, job: str) -> None:
    """Let a ready pod take the place of the pod of the serving job, whose attempt has ended."""
    ready = next(one for one in service.further_pods if one.job == job)
    others = tuple(one for one in service.further_pods if one.job != job)
    after = replace(
        service,
        serving_job=job,
        further_pods=(*others, FurtherPod(job=service.serving_job)),
        report=ready.report,
        reported_by=ready.reported_by,
    )
    transaction.put(after)
    add_event(transaction, after, ServiceState.UPDATING, "a pod has ended; the other pods answer")


def _clear(transaction: Transaction, service: Service, job: str) -> None:
    _change_pod(transaction, service, FurtherPod(job=job, leaving=_record(service, job).leaving))
    if _record(service, job).leaving is None:
        add_event(transaction, service, ServiceState.UPDATING, "a pod has ended; the other pods answer")


def _record(service: Service, job: str) -> FurtherPod:
    return next(one for one in service.further_pods if one.job == job)


def _change_pod(transaction: Transaction, service: Service, pod: FurtherPod) -> None:
    changed = tuple(pod if one.job == pod.job else one for one in service.further_pods)
    transaction.put(replace(service, further_pods=changed))


def _bind(transaction: Transaction, service: Service, step: NextPodStep) -> None:
    job_run = job_run_of(transaction, service, step.job)
    if job_run is None:
        return
    waits = job_run.state is JobState.WAITING
    bound = bound_to(job_run, step.node)
    transaction.put(replace(bound, ready=transaction.now) if waits else bound)


def bound_to(job_run: JobRun, node: str) -> JobRun:
    """Return a job of a service whose next attempts run on this node, or on each node if it is empty."""
    spec = job_run.job.service
    if spec is None:
        return job_run
    return replace(job_run, job=replace(job_run.job, service=replace(spec, node=node)))


def _add(transaction: Transaction, service: Service, step: NextPodStep) -> None:
    """Put the job of a further pod into the queue."""
    first = job_run_of(transaction, service)
    if first is None:
        return
    before, now = job_run_of(transaction, service, step.job), transaction.now
    added = bound_to(further_job(first, step.job, before, now), step.node)
    if before is not None and before.state is JobState.FAILED:
        added = replace(added, not_before=now + AGAIN_SECONDS)
    transaction.put(added, replace(service, further_pods=(*service.further_pods, FurtherPod(job=step.job))))
    add_event(transaction, service, ServiceState.UPDATING, f"a further pod starts on node {step.node}")


def _leave(transaction: Transaction, service: Service, job: str) -> None:
    """Let the router send no further requests to a pod, which ends later."""
    _change_pod(transaction, service, replace(_record(service, job), leaving=transaction.now))
    add_event(transaction, service, ServiceState.UPDATING, "a pod that is not needed ends")
