"""This module has the tick that makes a plan and executes it. The tick first commits, and then starts
attempts, starts deployments and releases deployments."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from itertools import count, groupby, islice
from operator import attrgetter
from typing import TypeAlias

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import (
    BRING_UPS,
    STARTS_PER_TICK,
    BringUps,
    Candidates,
    Channels,
    Control,
    JobMoves,
    PodRequests,
    Starting,
)
from gridmill.control.steps.bring_up import bring_up
from gridmill.control.steps.end_attempt import runs
from gridmill.control.steps.gangs import (
    address_of,
    rendezvous,
    send_to_pod,
    stop_message,
    taken_ports,
)
from gridmill.control.steps.orders import start_attempt
from gridmill.control.steps.problems import unfit_nodes
from gridmill.control.steps.resource_choice import joining_now, may_flee, move, terms_not_met
from gridmill.control.steps.service_measuring import measured_start
from gridmill.domain.amounts import GPU_SHARES, pick
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.gang import member_id
from gridmill.domain.job import Job
from gridmill.domain.plan import BringUp, Interrupt, Plan, Refuse, Release, StartJob
from gridmill.domain.resource import keep_of
from gridmill.domain.run import Attempt, JobRun, Preemption, attempt_id_of
from gridmill.domain.site import LOCAL, Site, SiteKind
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

GpuPlace: TypeAlias = tuple[str, str]
"""The place whose GPUs are numbered: the site and, at the local site, the node, otherwise the pod."""


def dispatch(control: Control) -> Plan:
    """Make one plan and execute it. The function returns the time of the next plan and whether more jobs
    wait."""
    ledger, moves = control.ledger, control.job_moves
    _refuse_all(moves, control.candidates, [*terms_not_met(moves)])
    wanted = plan(
        ledger.snapshot,
        control.timeline.now(),
        limit=STARTS_PER_TICK,
        unwilling=control.bring_ups.refusing_nodes,
        unfit=unfit_nodes(control.bring_ups, control.timeline),
        starts=not control.disk.shortage,
        halted=frozenset(control.rentals.used_budgets),
    )
    transaction = ledger.begin(control.timeline.now())
    refuse = partial(_refuse, moves, control.candidates, joining_now(moves), transaction)
    for refusal in wanted.refusals:
        refuse(refusal)
    for interrupt in wanted.interrupts:
        _interrupt(control.channels, transaction, interrupt)
    is_resized = _start_jobs(control.starting, control.new_token, transaction, wanted.starts)
    provision = decide_bring_ups(wanted.bring_ups, control.bring_ups.failed)
    for resource in provision.given_up:
        for refusal in _give_up(ledger, control.bring_ups, transaction, resource):
            refuse(refusal)
    for one in provision.bring_ups:
        _bring_up(control.pod_requests, ledger, transaction, one, control.counters.next(one.resource.name))
    for release in wanted.releases:
        _release(transaction, release)
    idle = decide_idle(*_read_usage(ledger, transaction), transaction.now)
    transaction.put(*idle)
    ledger.stage(transaction)
    # not complete: another plan has to release the deployments that became needless during this plan
    more = is_resized or bool(idle) or bool(needless(ledger.snapshot))
    return replace(wanted, complete=wanted.complete and not more)


def _read_usage(ledger: Ledger, transaction: Transaction) -> tuple[Sequence[Deployment], Set[str]]:
    """Return the deployments with the changes of the transaction, and the ids of the deployments with live
    attempts. Attempts that start now are treated as live."""
    snapshot = ledger.snapshot
    deployments = [transaction.get(Deployment, known) for known in snapshot.deployments]
    starting = {noun.deployment_id for noun in transaction.nouns.values() if isinstance(noun, Attempt)}
    busy = {known for known in snapshot.deployments if snapshot.places.on.get(known)}
    return [one for one in deployments if one is not None], starting | busy


def decide_idle(deployments: Sequence[Deployment], busy: Set[str], now: float) -> tuple[Deployment, ...]:
    """Decide which deployments are idle from now on. `busy` has the ids of the deployments with live
    attempts. The next plan may release an idle deployment. When a job starts on it, `decide_start` clears
    the time."""
    return tuple(
        [
            replace(one, idle_since=now)
            for one in deployments
            if one.idle_since is None and one.state == DeploymentState.UP and one.id not in busy
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """The facts that a start needs: the decision of the plan with one entry for each rank, a new token for
    each rank, the deployments of the ranks, and the use of GPUs (None if no rank needs a GPU). For a gang,
    `addresses` has the address of each rank, and `taken_ports` has the ports of other ranks."""

    starts: tuple[StartJob, ...]
    tokens: tuple[str, ...]
    deployments: tuple[Deployment, ...]
    gpu_use: "GpuUse | None" = None
    addresses: tuple[str, ...] = ()
    taken_ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDecision:
    """The attempts of a start (one for each rank), and the deployments that are no longer idle."""

    attempts: tuple[Attempt, ...]
    deployments: tuple[Deployment, ...]


def _start_jobs(
    starting: Starting,
    new_token: Callable[[], str],
    transaction: Transaction,
    starts: Sequence[StartJob],
) -> bool:
    """Start jobs. Returns whether a job did not start, because it waits with other amounts."""
    groups = groupby(starts, key=attrgetter("job_run_id"))
    resized = [_start(starting, new_token, transaction, name, tuple(ranks)) for name, ranks in groups]
    return any(resized)


def _start(
    starting: Starting,
    new_token: Callable[[], str],
    transaction: Transaction,
    job_run_id: str,
    starts: tuple[StartJob, ...],
) -> bool:
    """Start a job. Returns whether it waits with other amounts instead."""
    job_run = transaction.get(JobRun, job_run_id)
    if job_run is None:
        return False
    facts = _read_start(starting.ledger, new_token, transaction, job_run.job, starts)
    decision = decide_start(job_run, facts, transaction.now)
    if decision is None:
        return False
    running = replace(
        job_run,
        state=JobState.RUNNING,
        attempts=job_run.attempts + 1,
        attempt_id=decision.attempts[0].id,
        started=job_run.started or transaction.now,
        message="",
    )
    if running.job.service is not None:
        running = measured_start(starting.endings.catalog, transaction, running, decision.attempts[0])
    if running.state is not JobState.RUNNING:
        changed = replace(running, attempts=job_run.attempts, attempt_id=job_run.attempt_id)
        transaction.put(replace(changed, started=job_run.started))
        starting.endings.candidates.add(job_run.run_id, [job_run.id])
        return True
    transaction.put(running, *decision.attempts, *decision.deployments)
    for attempt in decision.attempts:
        start_attempt(starting, transaction, attempt)
    return False


def _read_start(
    ledger: Ledger,
    new_token: Callable[[], str],
    transaction: Transaction,
    job: Job,
    starts: tuple[StartJob, ...],
) -> JobStart:
    deployments = [
        transaction.get(Deployment, key) for key in dict.fromkeys([one.deployment_id for one in starts])
    ]
    facts = JobStart(
        starts=starts,
        tokens=tuple([new_token() for _ in starts]),
        deployments=tuple([one for one in deployments if one is not None]),
        gpu_use=_read_gpu_use(ledger, transaction) if any(one.gpus for one in starts) else None,
    )
    if not job.gang:
        return facts
    addresses = tuple(address_of(transaction, one.deployment_id, one.pod_id) for one in starts)
    return replace(facts, addresses=addresses, taken_ports=taken_ports(ledger, transaction))


def decide_start(job_run: JobRun, start: JobStart, now: float) -> StartDecision | None:
    """Decide the records of the next attempt of a job; a gang has a record for each rank. The result is None
    if the job needs shares of one GPU and the free shares belong to several GPUs."""
    check_move(JOB_MOVES, job_run.state, JobState.RUNNING, f"job {job_run.id}")
    gpus = (
        decide_gpus(start.starts, start.gpu_use) if start.gpu_use is not None else ((),) * len(start.starts)
    )
    if not gpus:
        return None
    name = attempt_id_of(job_run.id, job_run.attempts + 1)
    ranks = enumerate(zip(start.starts, start.tokens, gpus, strict=True))
    attempts = tuple(
        [_attempt(job_run, member_id(name, rank), token, one, own, now) for rank, (one, token, own) in ranks]
    )
    return StartDecision(
        attempts=rendezvous(attempts, start.addresses, start.taken_ports) if job_run.job.gang else attempts,
        deployments=tuple(
            [replace(one, idle_since=None) for one in start.deployments if one.idle_since is not None]
        ),
    )


def _attempt(
    job_run: JobRun, attempt_id: str, token: str, start: StartJob, gpus: tuple[int, ...], now: float
) -> Attempt:
    return Attempt(
        id=attempt_id,
        run_id=job_run.run_id,
        job_run_id=job_run.id,
        token=token,
        deployment_id=start.deployment_id,
        pod_id=start.pod_id,
        state=AttemptState.PLACED,
        given=start.given,
        placed=now,
        gpu_indices=gpus,
        project=job_run.project,
        asked_cpus=job_run.job.cpus or 1.0,
        resumable=job_run.job.can_resume and job_run.part is None and job_run.probe is None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """The place of each pod by its id, the numbers of the GPUs that live attempts use by place, and the
    local site, or None. At the local site, the GPUs of the machine are numbered. At all other sites, the
    GPUs that the site gave to the pod are numbered."""

    places: Mapping[str, GpuPlace]
    taken: Mapping[GpuPlace | None, Set[int]]
    local: Site | None = None


def _read_gpu_use(ledger: Ledger, transaction: Transaction) -> GpuUse:
    snapshot = ledger.snapshot
    places = {
        pod.id: (deployment.site, pod.node if deployment.site == LOCAL else pod.id)
        for deployment in snapshot.deployments.values()
        for pod in deployment.pods
    }
    live = dict(snapshot.attempts)
    live.update({a.id: a for a in transaction.nouns.values() if isinstance(a, Attempt)})
    taken: dict[GpuPlace | None, set[int]] = {}
    for one in live.values():
        if one.state in LIVE_ATTEMPTS:
            taken.setdefault(places.get(one.pod_id), set()).update(one.gpu_indices)
    return GpuUse(places=places, taken=taken, local=snapshot.sites.get(LOCAL))


def decide_gpus(starts: Sequence[StartJob], use: GpuUse) -> tuple[tuple[int, ...], ...]:
    """Decide the numbers of the GPUs for each rank: the lowest numbers that no live attempt uses. If a rank
    gets less than a whole GPU, all of its shares belong to the same GPU. If the GPUs for the ranks are not
    free, the result is empty, without an entry for any rank."""
    taken = {place: set(numbers) for place, numbers in use.taken.items()}
    given: list[tuple[int, ...]] = []
    for start in starts:
        place = use.places[start.pod_id]
        used = taken.setdefault(place, set())
        indices = _free(place, use.local, used, start.given.gpus)
        if indices is None:
            return ()
        used.update(indices)
        given.append(indices)
    return tuple(given)


def _free(place: GpuPlace, local: Site | None, used: Set[int], wanted: int) -> tuple[int, ...] | None:
    is_shared = place[0] == LOCAL and local is not None
    shares = int(local.settings.get(GPU_SHARES, "1")) if is_shared and local is not None else 1
    if shares == 1 or local is None:
        return tuple(islice((number for number in count() if number not in used), wanted))
    total = sum(node.capacity.gpus for node in local.nodes if node.name == place[1])
    return pick((number for number in range(total) if number not in used), wanted, shares)


def _interrupt(channels: Channels, transaction: Transaction, wanted: Interrupt) -> None:
    attempts = [transaction.get(Attempt, key) for key in wanted.attempt_ids]
    why = wanted.interruption.why
    for attempt in decide_interrupted([one for one in attempts if one is not None], wanted.interruption):
        transaction.put(attempt)
        message = stop_message(channels, attempt.id, why)
        transaction.then(partial(send_to_pod, channels, attempt.pod_id, message))


def decide_interrupted(attempts: Sequence[Attempt], interruption: Preemption) -> tuple[Attempt, ...]:
    """Decide which attempts are asked to end, so that another job can start. The job of these attempts then
    waits again and resumes from its checkpoint."""
    return tuple(
        replace(one, interrupted=interruption) for one in attempts if runs(one) and not one.stop_requested
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUpDecision:
    """The deployments that are created, and the resources that are given up."""

    bring_ups: tuple[BringUp, ...]
    given_up: tuple[str, ...]


def decide_bring_ups(wanted: Sequence[BringUp], failed: Mapping[str, int]) -> BringUpDecision:
    """Decide which deployments are created. A resource is given up if its pods have failed to start too
    often in a row. `failed` is the number of failed starts by resource."""
    names = [one.resource.name for one in wanted]
    given_up = dict.fromkeys([name for name in names if failed.get(name, 0) >= BRING_UPS])
    kept = tuple([one for one in wanted if one.resource.name not in given_up])
    return BringUpDecision(bring_ups=kept, given_up=tuple(given_up))


def _bring_up(
    requests: PodRequests, ledger: Ledger, transaction: Transaction, wanted: BringUp, number: int
) -> None:
    site = ledger.snapshot.sites.get(wanted.resource.site)
    deployment = decide_deployment(wanted, number, site.kind if site else None, transaction.now)
    transaction.put(deployment)
    transaction.then(partial(bring_up, requests, deployment))


def decide_deployment(wanted: BringUp, number: int, kind: SiteKind | None, now: float) -> Deployment:
    """Decide the record of a new deployment with that number, at a site of that kind."""
    resource = wanted.resource
    deployment_id = f"{resource.name}-{number}"
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
        keep_seconds=keep_of(resource, kind),
        created=now,
        settings=resource.settings,
        pinned=wanted.pinned,
    )


def _give_up(
    ledger: Ledger, bring_ups: BringUps, transaction: Transaction, resource: str
) -> tuple[Refuse, ...]:
    """Return the refusals of all jobs that wait for the resource. The count of its failed starts begins
    anew."""
    existing = ledger.snapshot.resources.get(resource)
    waiting = [
        job_run.id
        for known in ledger.snapshot.job_runs.values()
        if (job_run := transaction.get(JobRun, known.id)) is not None
        and job_run.resource == resource
        and job_run.state == JobState.WAITING
    ]
    return decide_refusals(
        resource,
        waiting,
        failed=bring_ups.failed.pop(resource, 0),
        problem=bring_ups.problems.pop(resource, ""),
        is_local=existing is None or existing.site == LOCAL,
    )


def decide_refusals(
    resource: str, waiting: Collection[str], *, failed: int, problem: str, is_local: bool
) -> tuple[Refuse, ...]:
    """Decide the refusals of the jobs that wait for a resource that is given up. `problem` is the last
    failure. If `failed` is larger than the number of allowed failures, each further start would fail in the
    same way."""
    is_hopeless = failed > BRING_UPS
    what = "cannot start" if is_hopeless else f"failed to start {BRING_UPS} times in a row"
    hint = f"`gridmill show resource {resource}` shows its request and its site."
    if is_local and not is_hopeless:
        hint = "The pods' logs are in HOME/pods/*/log."
    message = f"the pods of `{resource}` {what}: {problem or 'no reason is known'}"
    return tuple(Refuse(job_run_id=one, message=message, hint=hint) for one in waiting)


def _refuse_all(moves: JobMoves, candidates: Candidates, refusals: Sequence[Refuse]) -> None:
    """Fail these jobs before the plan, which would start them."""
    if refusals:
        transaction = moves.ledger.begin(moves.timeline.now())
        for refusal in refusals:
            _refuse(moves, candidates, joining_now(moves), transaction, refusal)
        moves.ledger.stage(transaction)


def _refuse(
    moves: JobMoves,
    candidates: Candidates,
    joining: CachedForecasts,
    transaction: Transaction,
    refusal: Refuse,
) -> None:
    """Fail the job, unless another of its resources can run it."""
    job_run = transaction.get(JobRun, refusal.job_run_id)
    if job_run is None:
        return
    if may_flee(job_run) and move(moves, joining, transaction, job_run, refused=refusal.message):
        # the next plan has to consider the job at its new resource
        candidates.add(job_run.run_id, [job_run.id])
        return
    message = f"{refusal.message.removesuffix('.')}. {refusal.hint}".strip()
    transaction.put(replace(job_run, state=JobState.FAILED, message=message, ended=transaction.now))
    dependents = may_go_on(moves.ledger.snapshot, job_run.id)
    candidates.add(job_run.run_id, dependents or [job_run.id])


def _release(transaction: Transaction, release: Release) -> None:
    deployment = transaction.get(Deployment, release.deployment_id)
    if deployment is not None and deployment.state != DeploymentState.RELEASING:
        message = release.reason
        transaction.put(replace(deployment, state=DeploymentState.RELEASING, message=message))
