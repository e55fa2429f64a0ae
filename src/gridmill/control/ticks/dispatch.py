"""This module has the tick that makes a plan and executes it. The tick first commits, and then starts
attempts, starts deployments and releases deployments."""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from itertools import count, groupby, islice
from operator import attrgetter
from typing import Any

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import BRING_UPS, STARTS_PER_TICK, Channels, Control, Starting
from gridmill.control.steps.bring_up import bring_up
from gridmill.control.steps.end_attempt import runs
from gridmill.control.steps.gangs import member_id, rendezvous, send_to_pod, stop_message
from gridmill.control.steps.orders import start_attempt
from gridmill.control.steps.problems import unfit_nodes
from gridmill.control.steps.resource_choice import joining_now, may_flee, move
from gridmill.domain.amounts import GPU_SHARES, pick
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import replace
from gridmill.domain.plan import BringUp, Interrupt, Plan, Refuse, Release, StartJob
from gridmill.domain.resource import keep_of
from gridmill.domain.run import Attempt, JobRun, attempt_id_of
from gridmill.domain.site import LOCAL
from gridmill.domain.states import (
    JOB_MOVES,
    LIVE_ATTEMPTS,
    AttemptState,
    DeploymentState,
    JobState,
    PodState,
    check_move,
)
from gridmill.scheduler.alternatives import CachedForecasts
from gridmill.scheduler.needs import may_go_on
from gridmill.scheduler.plan import needless, plan


def dispatch(control: Control) -> Plan:
    """Make one plan and execute it. The function returns the time of the next plan and whether more jobs
    wait."""
    wanted = plan(
        control.ledger.snapshot,
        control.timeline.now(),
        limit=STARTS_PER_TICK,
        unwilling=control.bring_ups.refusing_nodes,
        unfit=unfit_nodes(control.bring_ups, control.timeline),
        starts=not control.disk.shortage,
    )
    transaction = control.ledger.begin(control.timeline.now())
    joining = joining_now(control.job_moves)
    for refusal in wanted.refusals:
        _refuse(control, joining, transaction, refusal)
    for interrupt in wanted.interrupts:
        _interrupt(control.channels, transaction, interrupt)
    for job_run_id, starts in groupby(wanted.starts, key=attrgetter("job_run_id")):
        _start(control.starting, control.new_token, transaction, job_run_id, tuple(starts))
    for deployment in [d for up in wanted.bring_ups if (d := _bring_up(control, joining, transaction, up))]:
        transaction.put(deployment)
        transaction.then(
            partial(bring_up, control.starting, control.bring_ups, control.sites, control.limits, deployment)
        )
    for release in wanted.releases:
        _release(transaction, release)
    marked = mark_idle(control.ledger, transaction)
    control.ledger.stage(transaction)
    # not complete: another plan has to release the deployments that became needless during this plan
    more = marked or bool(needless(control.ledger.snapshot))
    return replace(wanted, complete=wanted.complete and not more)


def mark_idle(ledger: Ledger, transaction: Transaction) -> bool:
    """Record the time since which a deployment has had no live attempt. Attempts that start now are treated
    as live. When a job starts on the deployment, the function `_start` clears the recorded time.

    The function returns whether a time was recorded, because the next plan may then release the deployment.
    """
    snapshot = ledger.snapshot
    starting = {noun.deployment_id for noun in transaction.nouns.values() if isinstance(noun, Attempt)}
    idle = [
        replace(deployment, idle_since=transaction.now)
        for known in snapshot.deployments.values()
        if (deployment := transaction.get(Deployment, known.id)) is not None
        and deployment.idle_since is None
        and deployment.state == DeploymentState.UP
        and deployment.id not in starting
        and not snapshot.attempts_on(deployment.id)
    ]
    transaction.put(*idle)
    return bool(idle)


def _start(
    starting: Starting,
    new_token: Callable[[], str],
    transaction: Transaction,
    job_run_id: str,
    starts: Sequence[StartJob],
) -> None:
    """Create one attempt of the job; for a gang, create a record for each rank."""
    job_run = transaction.get(JobRun, job_run_id)
    if job_run is None:
        return
    check_move(JOB_MOVES, job_run.state, JobState.RUNNING, f"job {job_run.id}")
    number = job_run.attempts + 1
    name = attempt_id_of(job_run.id, number)
    attempts = _placed(starting.ledger, new_token, transaction, job_run, name, starts)
    if not attempts:
        return
    running = replace(
        job_run,
        state=JobState.RUNNING,
        attempts=number,
        attempt_id=name,
        started=job_run.started or transaction.now,
        message="",
    )
    transaction.put(running, *attempts)
    for start in starts:
        deployment = transaction.get(Deployment, start.deployment_id)
        if deployment is not None and deployment.idle_since is not None:
            transaction.put(replace(deployment, idle_since=None))
    for attempt in attempts:
        start_attempt(starting, transaction, attempt)


def _placed(
    ledger: Ledger,
    new_token: Callable[[], str],
    transaction: Transaction,
    job_run: JobRun,
    name: str,
    starts: Sequence[StartJob],
) -> tuple[Attempt, ...]:
    """Return the attempts of the job. The result is empty if the job needs shares of one GPU and the free
    shares belong to several GPUs."""
    gpus = free_gpus(transaction, ledger, starts)
    attempts = [
        _attempt(new_token, transaction, job_run, member_id(name, rank), start, own)
        for rank, (start, own) in enumerate(zip(starts, gpus, strict=False))
    ]
    return rendezvous(ledger, transaction, attempts) if attempts and job_run.job.gang else tuple(attempts)


def _attempt(
    new_token: Callable[[], str],
    transaction: Transaction,
    job_run: JobRun,
    attempt_id: str,
    start: StartJob,
    gpus: tuple[int, ...],
) -> Attempt:
    return Attempt(
        id=attempt_id,
        run_id=job_run.run_id,
        job_run_id=job_run.id,
        token=new_token(),
        deployment_id=start.deployment_id,
        pod_id=start.pod_id,
        state=AttemptState.PLACED,
        given=start.given,
        placed=transaction.now,
        gpu_indices=gpus,
        project=job_run.project,
        asked_cpus=job_run.job.cpus or 1.0,
        resumable=job_run.job.can_resume and job_run.part is None and job_run.probe is None,
    )


def free_gpus(
    transaction: Transaction, ledger: Ledger, starts: Sequence[StartJob]
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the GPUs for each rank: the lowest numbers of the node's GPUs that no live
    attempt uses. At the local site, the GPUs of the machine are numbered. At all other sites, the GPUs that
    the site gave to the pod are numbered. If a rank gets less than a whole GPU, all of its shares belong to
    the same GPU. If the GPUs for the ranks are not free, the result is empty, without an entry for any
    rank."""
    if not any(start.given.gpus for start in starts):
        return ((),) * len(starts)
    places = {
        pod.id: (deployment.site, pod.node if deployment.site == LOCAL else pod.id)
        for deployment in ledger.snapshot.deployments.values()
        for pod in deployment.pods
    }
    live = dict(ledger.snapshot.attempts)
    live.update({a.id: a for a in transaction.nouns.values() if isinstance(a, Attempt)})
    taken: dict[tuple[str, str] | None, set[int]] = {}
    for one in live.values():
        if one.state in LIVE_ATTEMPTS:
            taken.setdefault(places.get(one.pod_id), set()).update(one.gpu_indices)
    given: list[tuple[int, ...]] = []
    for start in starts:
        indices = _free(ledger, places[start.pod_id], taken, start.given.gpus)
        if indices is None:
            return ()
        taken.setdefault(places[start.pod_id], set()).update(indices)
        given.append(indices)
    return tuple(given)


def _free(
    ledger: Ledger, place: tuple[str, str], taken: Mapping[Any, Set[int]], wanted: int
) -> tuple[int, ...] | None:
    used = taken.get(place, set())
    site = ledger.snapshot.sites.get(place[0])
    shares = int(site.settings.get(GPU_SHARES, "1")) if site is not None and place[0] == LOCAL else 1
    if shares == 1:
        return tuple(islice((number for number in count() if number not in used), wanted))
    assert site is not None
    total = sum(node.capacity.gpus for node in site.nodes if node.name == place[1])
    return pick((number for number in range(total) if number not in used), wanted, shares)


def _interrupt(channels: Channels, transaction: Transaction, wanted: Interrupt) -> None:
    """Ask an attempt to end, so that another job can start. The job of this attempt then waits again and
    resumes from its checkpoint."""
    for attempt in (transaction.get(Attempt, key) for key in wanted.attempt_ids):
        if attempt is not None and runs(attempt) and not attempt.stop_requested:
            transaction.put(replace(attempt, interrupted=wanted.interruption))
            message = stop_message(channels, attempt.id, wanted.interruption.why)
            transaction.then(partial(send_to_pod, channels, attempt.pod_id, message))


def _bring_up(
    control: Control, joining: CachedForecasts, transaction: Transaction, wanted: BringUp
) -> Deployment | None:
    """Create a deployment, unless the pods of its resource have failed to start too often in a row."""
    resource = wanted.resource
    failures = control.bring_ups.failed.get(resource.name, 0)
    if failures >= BRING_UPS:
        _give_up(control, joining, transaction, resource.name)
        return None
    deployment_id = f"{resource.name}-{control.counters.next(resource.name)}"
    site = control.ledger.snapshot.sites.get(resource.site)
    pods = tuple(
        Pod(
            id=f"{deployment_id}.{index}",
            node=node,
            capacity=wanted.sizing.amounts,
            state=PodState.STARTING,
        )
        for index, node in enumerate(wanted.nodes)
    )
    return Deployment(
        id=deployment_id,
        resource=resource.name,
        type=resource.type,
        site=resource.site,
        state=DeploymentState.STARTING,
        sizing=wanted.sizing,
        pods=pods,
        keep_seconds=keep_of(resource, site.kind if site else None),
        created=transaction.now,
        settings=resource.settings,
        pinned=wanted.pinned,
    )


def _give_up(control: Control, joining: CachedForecasts, transaction: Transaction, resource: str) -> None:
    hopeless = control.bring_ups.failed.get(resource, 0) > BRING_UPS
    problem = control.bring_ups.problems.pop(resource, "")
    what = "cannot start" if hopeless else f"failed to start {BRING_UPS} times in a row"
    hint = f"`gridmill show resource {resource}` shows its request and its site."
    existing = control.ledger.snapshot.resources.get(resource)
    if existing is None or existing.site == LOCAL:
        hint = hint if hopeless else "The pods' logs are in HOME/pods/*/log."
    message = f"the pods of `{resource}` {what}: {problem or 'no reason is known'}"
    for job_run in list(control.ledger.snapshot.job_runs.values()):
        if job_run.resource == resource and job_run.state == JobState.WAITING:
            refusal = Refuse(
                job_run_id=job_run.id,
                message=message,
                hint=hint,
            )
            _refuse(control, joining, transaction, refusal)
    control.bring_ups.failed.pop(resource, None)


def _refuse(control: Control, joining: CachedForecasts, transaction: Transaction, refusal: Refuse) -> None:
    """Fail the job, unless another of its resources can run it."""
    job_run = transaction.get(JobRun, refusal.job_run_id)
    if job_run is None:
        return
    if may_flee(job_run) and move(
        control.job_moves,
        joining,
        transaction,
        job_run,
        refused=refusal.message,
    ):
        # the next plan has to consider the job at its new resource
        control.candidates.add(job_run.run_id, [job_run.id])
        return
    message = f"{refusal.message.removesuffix('.')}. {refusal.hint}".strip()
    transaction.put(replace(job_run, state=JobState.FAILED, message=message, ended=transaction.now))
    dependents = may_go_on(control.ledger.snapshot, job_run.id)
    control.candidates.add(job_run.run_id, dependents or [job_run.id])


def _release(transaction: Transaction, release: Release) -> None:
    deployment = transaction.get(Deployment, release.deployment_id)
    if deployment is not None and deployment.state != DeploymentState.RELEASING:
        message = release.reason
        transaction.put(replace(deployment, state=DeploymentState.RELEASING, message=message))
