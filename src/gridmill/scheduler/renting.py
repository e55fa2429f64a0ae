"""This module decides what happens to the leases of a cloud site: which leases to open, which machines to
request, prepare and end, and when a lease is closed.

`decide` is a pure function. Its caller first commits the changed leases, and then executes the actions. Every
action may be repeated. Two rules keep Gridmill from losing a machine: a lease requests another machine only
after it is known that the machine of each earlier request does not exist, and a lease is closed only after a
list of the provider that is newer than its lag shows nothing of the lease.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import field
from math import inf

from gridmill.domain.amounts import show_seconds
from gridmill.domain.deployment import Deployment, Pod
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import (
    HOUR_SECONDS,
    LaunchTry,
    Lease,
    LeaseState,
    RentalTerms,
    TryProblem,
    TryState,
    check_lease_move,
    cost_bound_micros,
    hourly_bound_micros,
)
from gridmill.domain.machine import IMAGE_KINDS, Machine, MachineState, ProviderTraits
from gridmill.domain.states import DeploymentState, PodState
from gridmill.scheduler.rental_accounts import list_for
from gridmill.scheduler.rental_calls import Action, Call, Calls, affordable
from gridmill.scheduler.rental_choice import (
    BOOT_SECONDS,
    MOST_MACHINES,
    Candidate,
    Market,
    Refusal,
    choose,
    refusals_of,
    unusable_tries,
)
from gridmill.scheduler.rental_list import (
    CALLS_PER_LIST,
    MOST_REPEATS,
    MachineList,
    Sightings,
    list_interval,
    reconcile,
    strangers,
)
from gridmill.scheduler.rental_results import faulty

RELEASE_SECONDS = 60.0
"""A machine is ended this many seconds before its cost reaches the limit, because the provider bills it
until it has ended."""
OLD_LIST_SECONDS = 60.0
"""A limit is not decided with a list that is older than this, because the machine may have ended itself while
the control node did not run."""
MOST_LIST_FAILURES = 10
"""After this number of failed lists in a row, which takes about 90 seconds, a limit is decided without a
list."""
MACHINE_ANSWER_SECONDS = 60.0
"""For this many seconds after the start of the control node, a limit is decided only after the machine has
stated how long it has run, because the clock of the control node may be wrong."""
LIMIT_OF_TIME = "the longest rental time (max_hours) is reached"
LIMIT_OF_MONEY = "the highest cost (max_cost) is reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class RentingSituation:
    """Everything on which the decisions about the leases of one site depend.

    `provider` is the kind of the provider. `leases` are the open leases of the site. `closed` has the tokens
    of closed leases by lease, among those that the provider's list names, and `elsewhere` the ids of the
    leases of other sites. `projects` has the project of the first waiting job of each resource, and
    `in_containers` has the resources for which a job in a container waits. `terms` has
    the terms of each resource at the site. `halted` has the reasons why no further machine is rented for a
    resource, such as a used budget, and `halted_projects` those for a project. `silent_seconds` has the time
    for which the machine of a pod has not answered, by pod id. `used_seconds` has the time for which the
    machine of a lease has run, as measured on the machine, by lease. If `awaits_used` is true, the machines
    of the other leases that are READY will state this time soon. `calls` are the calls that run or that have
    to wait. `latest` is the last list of the provider.
    """

    site: str
    provider: str
    owner: str
    traits: ProviderTraits
    market: Market
    deployments: tuple[Deployment, ...] = ()
    leases: tuple[Lease, ...] = ()
    closed: Mapping[str, Set[str]] = field(default_factory=dict)
    elsewhere: Set[str] = frozenset()
    projects: Mapping[str, str] = field(default_factory=dict)
    in_containers: frozenset[str] = frozenset()
    terms: Mapping[str, RentalTerms] = field(default_factory=dict)
    halted: Mapping[str, str] = field(default_factory=dict)
    halted_projects: Mapping[str, str] = field(default_factory=dict)
    silent_seconds: Mapping[str, float] = field(default_factory=dict)
    used_seconds: Mapping[str, float] = field(default_factory=dict)
    awaits_used: bool = False
    latest: MachineList | None = None
    sightings: Sightings
    calls: Calls


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLease:
    """A decision to open a lease for a pod."""

    deployment_id: str
    pod_id: str
    resource: str
    terms: RentalTerms
    cpus: float
    memory_bytes: int
    gpus: int
    project: str = ""
    needs_container: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTry:
    """A decision to request a machine for a lease. The request is sent after the try is committed."""

    lease_id: str
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class RentPlan:
    """The decisions for one site. `changed` are the changed leases, `actions` the calls to execute after
    their commit, and `strangers` the problems with machines that belong to no lease. `again_at` is the Unix
    time at which the decisions may differ without an event."""

    opened: tuple[NewLease, ...] = ()
    changed: tuple[Lease, ...] = ()
    tries: tuple[NewTry, ...] = ()
    actions: tuple[Action, ...] = ()
    strangers: Mapping[str, str] = field(default_factory=dict)
    again_at: float = inf


@dataclass(slots=True)
class _Draft:
    """The decisions that were made so far."""

    situation: RentingSituation
    now: float
    refusals: tuple[Refusal, ...]
    deployments: Mapping[str, Deployment]
    tries: list[NewTry] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    again_at: float = inf

    def wake_at(self, at: float) -> None:
        self.again_at = min(self.again_at, at)


def decide(situation: RentingSituation, now: float) -> RentPlan:
    """Return the decisions for the time `now`. The function is pure: the same situation and time give the
    same decisions."""
    deployments = {one.id: one for one in situation.deployments}
    draft = _Draft(situation, now, refusals_of(situation.leases), deployments)
    changed: list[Lease] = []
    for lease in sorted(situation.leases, key=lambda one: (one.opened, len(one.id), one.id)):
        after = _decide_lease(draft, lease)
        if after != lease:
            check_lease_move(lease, after.state)
            changed.append(after)
    unknown, ends = strangers(
        situation.site,
        situation.provider,
        situation.market,
        situation.latest,
        situation.leases,
        situation.closed,
        situation.elsewhere,
    )
    draft.actions.extend(ends)
    _list_machines(draft)
    actions, later = affordable(draft.actions, situation.calls, situation.traits, now)
    draft.wake_at(later)
    return RentPlan(
        opened=tuple(_new_leases(situation)),
        changed=tuple(changed),
        tries=tuple(draft.tries),
        actions=actions,
        strangers=unknown,
        again_at=draft.again_at,
    )


def _list_machines(draft: _Draft) -> None:
    situation = draft.situation
    latest = situation.latest
    due = draft.now
    if latest is not None:
        due = latest.at + list_interval(situation.leases, latest, situation.traits, draft.now)
    if due > draft.now:
        draft.wake_at(due)
    else:
        draft.actions.append(Action(call=Call.LIST, key=situation.site))


def _new_leases(situation: RentingSituation) -> Iterator[NewLease]:
    """Return the leases of starting pods without a lease. No lease is opened before the provider's list was
    read once, because the ids of leases in an old store may be in use at the provider."""
    if situation.latest is None:
        return
    rented = {lease.pod_id for lease in situation.leases}
    for deployment in situation.deployments:
        terms = situation.terms.get(deployment.resource)
        if terms is None or deployment.state not in (DeploymentState.STARTING, DeploymentState.UP):
            continue
        project = situation.projects.get(deployment.resource, "")
        if deployment.resource in situation.halted or project in situation.halted_projects:
            continue
        for pod in deployment.pods:
            if pod.state is PodState.STARTING and pod.id not in rented:
                needs_container = deployment.resource in situation.in_containers
                lease = _lease_for(deployment, pod, terms, project)
                yield replace(lease, needs_container=needs_container)


def _lease_for(deployment: Deployment, pod: Pod, terms: RentalTerms, project: str) -> NewLease:
    return NewLease(
        deployment_id=deployment.id,
        pod_id=pod.id,
        resource=deployment.resource,
        terms=terms,
        cpus=pod.capacity.cpus,
        memory_bytes=pod.capacity.memory_bytes,
        gpus=pod.capacity.gpus,
        project=project,
    )


def _decide_lease(draft: _Draft, lease: Lease) -> Lease:
    """Return the lease after this decision, and add its actions to the draft."""
    situation, was = draft.situation, lease.state
    latest = list_for(lease, situation.latest)
    lease = reconcile(lease, latest, situation.sightings, situation.calls, situation.traits, draft.now)
    if lease.state not in (LeaseState.RELEASING, LeaseState.CLOSED):
        reason = _why_release(draft, lease)
        if reason:
            lease = releasing(lease, reason, draft.now)
    if lease.state is not LeaseState.RELEASING:
        return _go_on(draft, lease)
    after = _release(draft, lease)
    if after.state is LeaseState.CLOSED and was is not LeaseState.RELEASING and lease.tries:
        draft.wake_at(draft.now)  # the reason of the release becomes visible in a commit of its own
        return lease
    return after


def releasing(lease: Lease, reason: str, now: float) -> Lease:
    """Return the lease with the decision to end its machine. The first reason stays."""
    if lease.state in (LeaseState.RELEASING, LeaseState.CLOSED):
        return lease
    return replace(lease, state=LeaseState.RELEASING, reason=reason, release_asked=now, problem="")


def _why_release(draft: _Draft, lease: Lease) -> str:
    """Return the reason why the machine of a lease must end now. The result is empty if the lease goes
    on."""
    return (
        _limit_reached(draft, lease)
        or _ended_outside(lease)
        or _not_needed(draft, lease)
        or _not_answering(draft, lease)
    )


def _not_answering(draft: _Draft, lease: Lease) -> str:
    """Return the reason if the machine should have ended itself because of its lost contact. The provider
    may report a machine that hangs as running until its longest rental time."""
    silent = draft.situation.silent_seconds.get(lease.pod_id)
    if silent is None or lease.state is not LeaseState.READY:
        return ""
    limit = lease.terms.dead_man_seconds
    if silent < limit:
        draft.wake_at(draft.now + limit - silent)
        return ""
    return f"the machine has not answered for {show_seconds(silent)}"


def _limit_reached(draft: _Draft, lease: Lease) -> str:
    """Return the limit of the lease that ends its machine now. A machine that has ended before the limit has
    not reached it."""
    reason = _limit_of(draft, lease)
    return reason if reason and _is_up_to_date(draft, lease) and not _ended_early(lease) else ""


def _is_up_to_date(draft: _Draft, lease: Lease) -> bool:
    """Return whether the list shows what became of the machine of a lease, or the provider could not be asked
    for a long time. A machine that is missing in the list may have ended, or the list may lag behind."""
    situation, one = draft.situation, lease.machine_try
    if situation.calls.failures_of(Call.LIST, situation.site) >= MOST_LIST_FAILURES:
        return True
    oldest = max(OLD_LIST_SECONDS, 2 * CALLS_PER_LIST * situation.traits.call_gap_seconds)
    if situation.latest is None or draft.now - situation.latest.at > oldest:
        return False
    if one is None or one.problem is not None:
        return True
    return one.machine_id in situation.latest.by_id


def _ended_early(lease: Lease) -> bool:
    last = lease.last_try
    if last is None or not _ended_outside(lease):
        return False
    return last.ended is None or last.ended < (last.confirmed or 0.0) + lease.terms.max_seconds


def _clock_error(draft: _Draft, lease: Lease) -> float | None:
    """Return the seconds by which the clock of the control node was set ahead since the machine of a lease
    started, or None if the machine has to be asked first. A machine boots within BOOT_SECONDS, so that a
    smaller difference to the time that the machine has measured is no error of the clock."""
    situation, one = draft.situation, lease.machine_try
    if one is None or one.confirmed is None or lease.state is not LeaseState.READY:
        return 0.0
    used = situation.used_seconds.get(lease.id)
    if used is not None:
        elapsed = draft.now - one.confirmed
        return elapsed - min(max(elapsed, used), used + BOOT_SECONDS)
    asked_until = situation.sightings.started + MACHINE_ANSWER_SECONDS
    if not situation.awaits_used or draft.now >= asked_until:
        return 0.0
    draft.wake_at(asked_until)
    return None


def _limit_of(draft: _Draft, lease: Lease) -> str:
    terms, error = lease.terms, _clock_error(draft, lease)
    if error is None:
        return ""
    now = draft.now - error
    begins = _timed_since(lease)
    if begins is not None:
        draft.wake_at(begins + terms.max_seconds + error)
        if now >= begins + terms.max_seconds:
            return LIMIT_OF_TIME
    if terms.max_cost_micros is not None and lease.machine_try is not None:
        left = terms.max_cost_micros - cost_bound_micros(lease, now + RELEASE_SECONDS)
        if left < 0:
            return LIMIT_OF_MONEY
        hourly = hourly_bound_micros(lease) or 1
        draft.wake_at(draft.now + max(1.0, left * HOUR_SECONDS / hourly))
    return ""


def _timed_since(lease: Lease) -> float | None:
    """Return the start of the machine whose time counts, or None if there is none. The time of a machine that
    was replaced does not count for the next one."""
    last = lease.last_try
    if last is None or (last.problem is not None and not _ended_outside(lease)):
        return None
    return last.confirmed


def _ended_outside(lease: Lease) -> str:
    """Return the reason if the machine has ended although Gridmill did not end it. A spot machine that was
    interrupted before it was ready is replaced instead, unless the lease has replaced too many machines."""
    last = lease.last_try
    if last is None or last.problem not in (TryProblem.ENDED, TryProblem.INTERRUPTED):
        return ""
    is_replaced = lease.state is not LeaseState.READY and len(unusable_tries(lease)) < MOST_MACHINES
    if last.problem is TryProblem.INTERRUPTED and is_replaced:
        return ""
    what = "the spot machine was interrupted by the provider"
    if last.problem is TryProblem.ENDED:
        what = "the machine was ended at the provider, not by Gridmill"
    return f"{what}: {last.message}" if last.message else what


def _not_needed(draft: _Draft, lease: Lease) -> str:
    if lease.image_name:
        return ""
    deployment = draft.deployments.get(lease.deployment_id)
    reason = ""
    if deployment is None:
        reason = "its deployment has ended"
    elif deployment.state in (DeploymentState.RELEASING, DeploymentState.GONE):
        reason = f"its deployment is released: {deployment.message}".removesuffix(": ")
    else:
        pod = next((one for one in deployment.pods if one.id == lease.pod_id), None)
        if pod is None or pod.state is PodState.GONE:
            reason = f"its pod has ended: {pod.message if pod is not None else ''}".removesuffix(": ")
    if reason and lease.failed is not None and lease.state is LeaseState.READY:
        kept_until = lease.failed + lease.terms.keep_on_failure_seconds
        if draft.now < kept_until:
            draft.wake_at(kept_until)
            return ""
    return reason


def _go_on(draft: _Draft, lease: Lease) -> Lease:
    """Bring a lease that is still needed closer to a machine that is ready."""
    unresolved = [one for one in lease.tries if not one.is_resolved]
    for one in unresolved:
        if one.state is TryState.CONFIRMED and one.problem is not None:
            _terminate(draft, lease, one)
    usable = [one for one in unresolved if one.problem is None]
    if usable:
        return _use(draft, lease, usable[-1])
    if unresolved:
        return lease
    return _next_try(draft, lease)


def _use(draft: _Draft, lease: Lease, one: LaunchTry) -> Lease:
    if one.state is TryState.WRITTEN:
        # after the last repeat, only the provider's list can show whether the machine exists
        if draft.situation.sightings.repeats.get(one.token, 0) < MOST_REPEATS:
            draft.actions.append(Action(call=Call.LAUNCH, key=one.token, lease=lease, launch_try=one))
        return lease
    if lease.state is LeaseState.LAUNCHING:
        lease = replace(lease, state=LeaseState.BOOTING)
    if lease.state is LeaseState.READY:
        if lease.image_name:
            machine = machine_of(lease, one, draft.situation.latest)
            draft.actions.append(Action(call=Call.BUILD, key=one.token, lease=lease, machine=machine))
        return lease
    late_at = (one.confirmed or draft.now) + BOOT_SECONDS
    draft.wake_at(late_at)
    if draft.now >= late_at:
        return faulty(lease, one.token, f"it was not ready {BOOT_SECONDS / 60:.0f} minutes after its start")
    machine = machine_of(lease, one, draft.situation.latest)
    draft.actions.append(Action(call=Call.PREPARE, key=one.token, lease=lease, machine=machine))
    return lease


def _next_try(draft: _Draft, lease: Lease) -> Lease:
    situation = draft.situation
    if list_for(lease, situation.latest) is None:
        return lease  # the account is unknown, or the wrong one
    halted = situation.halted.get(lease.resource) or situation.halted_projects.get(lease.project)
    if halted:
        return releasing(lease, halted, draft.now)
    choice = choose(lease, situation.market, draft.refusals, draft.now)
    if choice.again_at is not None:
        draft.wake_at(choice.again_at)
    if choice.hopeless:
        return releasing(replace(lease, hopeless=True), choice.why, draft.now)
    if choice.candidate is None:
        return replace(lease, problem=choice.why)
    draft.tries.append(NewTry(lease_id=lease.id, candidate=choice.candidate))
    draft.wake_at(draft.now)
    return replace(lease, problem="")


def _terminate(draft: _Draft, lease: Lease, one: LaunchTry) -> None:
    machine = machine_of(lease, one, draft.situation.latest)
    draft.actions.append(Action(call=Call.TERMINATE, key=machine.id, lease=lease, machine=machine))


def _release(draft: _Draft, lease: Lease) -> Lease:
    """End everything of a lease. The lease is closed if the provider's list shows that nothing is left."""
    situation, latest = draft.situation, list_for(lease, draft.situation.latest)
    draft.actions.append(Action(call=Call.FORGET, key=lease.id, lease=lease))
    for one in lease.tries:
        if one.state is TryState.CONFIRMED:
            _terminate(draft, lease, one)
    if not lease.tries:
        return _closed(lease, draft.now)
    if latest is None or not all(one.is_resolved for one in lease.tries):
        return lease
    left = latest.leftovers_by_lease.get(lease.id, ())
    if lease.image_id:  # the list may be older than the decision to keep the image
        left = tuple(each for each in left if each.kind not in IMAGE_KINDS)
    lease = replace(lease, leftovers=tuple(sorted(each.id for each in left)))
    draft.actions.extend(Action(call=Call.DELETE, key=each.id, lease=lease, leftover=each) for each in left)
    if left or _is_listed(lease, latest) or not _is_settled(situation, lease, latest):
        return lease
    return _closed(lease, draft.now)


def _is_listed(lease: Lease, latest: MachineList) -> bool:
    tokens = {one.token for one in lease.tries}
    own = latest.by_lease.get(lease.id, ())
    return any(one.token in tokens and one.state is not MachineState.ENDED for one in own)


def _is_settled(situation: RentingSituation, lease: Lease, latest: MachineList) -> bool:
    """Return whether the list is newer than every request of the lease by more than the lag of the
    provider's lists."""
    calls = situation.calls
    if any(calls.is_running(Call.LAUNCH, one.token) for one in lease.tries):
        return False
    last = max(situation.sightings.sent_at(one.token) for one in lease.tries)
    return latest.at >= last + situation.traits.list_lag_seconds


def _closed(lease: Lease, now: float) -> Lease:
    return replace(lease, state=LeaseState.CLOSED, closed=now, problem="", leftovers=())


def machine_of(lease: Lease, one: LaunchTry, latest: MachineList | None) -> Machine:
    """Return the machine of a confirmed try, as the provider listed it last. If the list does not have the
    machine, its state is unknown."""
    for machine in latest.by_id.get(one.machine_id, ()) if latest is not None else ():
        return machine
    return Machine(
        id=one.machine_id,
        provider=lease.provider,
        region=one.region,
        zone=one.zone,
        instance_type=one.instance_type,
        state=MachineState.UNKNOWN,
        lease=lease.id,
        owner=lease.owner,
        token=one.token,
        spot=one.spot,
    )
