"""This module has the tick that rents and returns machines: it reads the leases of each cloud site, decides
with values (scheduler/renting.py), commits the changed leases, and then calls the provider in the background.

No call is made before its decision is committed. The result of a call is applied in a later tick. After a
restart, the leases are compared with the provider's list before anything is rented.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.renting_state import (
    LIST_AGAIN_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    PREPARE_AGAIN_SECONDS,
    TERMINATE_AGAIN_SECONDS,
    ReadTerms,
    SiteRental,
)
from gridmill.control.state import Control
from gridmill.control.steps.lease_records import (
    Renting,
    has_failed,
    last_attempts,
    live_on,
    provider_of,
    put_lease,
    sent_by,
    with_machine,
)
from gridmill.control.steps.problems import set_problems
from gridmill.control.steps.rental_calls import action_call, finish_call, finish_market, market_call
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease, LeaseState, RentalTerms
from gridmill.domain.lease_cost import PROJECT, RESOURCE, counted, live_uses, with_egress
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.ports.cloud import RentingSite, TimedSite
from gridmill.ports.site import SitePort
from gridmill.scheduler.queue import JOB_CLASS, JOB_RUN_ID
from gridmill.scheduler.rental_accounts import account_problem
from gridmill.scheduler.rental_calls import OWN, Action, Call
from gridmill.scheduler.rental_choice import Market
from gridmill.scheduler.rental_results import with_new_try
from gridmill.scheduler.renting import NewLease, RentingSituation, RentPlan, decide
from gridmill.scheduler.snapshot import Snapshot

FIRST_TRY_AGAIN_SECONDS = 5.0


def rent(control: Control) -> float:
    """Rent and return machines at all cloud sites. The function returns the seconds until more may have to
    be done."""
    renting = Renting(
        starting=control.starting,
        bring_ups=control.bring_ups,
        rentals=control.rentals,
        sites=control.sites,
        counters=control.counters,
        new_token=control.new_token,
    )
    snapshot = control.ledger.snapshot
    names = {one.name for one in snapshot.sites.values() if one.kind is SiteKind.CLOUD}
    names |= {lease.provider for lease in snapshot.leases.values()}
    names |= {name for name, port in control.sites.items() if isinstance(port, RentingSite)}
    return min((_rent_at(renting, name) for name in sorted(names)), default=inf)


def show_heartbeat(sites: Mapping[str, SitePort], leases: Iterable[Lease]) -> float:
    """Tell all cloud sites that this control node works. The caller has committed all decisions. The function
    returns the seconds until the next heartbeat: a quarter of the shortest dead-man time."""
    for port in sites.values():
        if isinstance(port, RentingSite):
            port.heartbeat()
    return min((one.terms.dead_man_seconds / 4 for one in leases), default=inf)


def _rent_at(renting: Renting, site: str) -> float:
    now = renting.now()
    port = renting.sites.get(site)
    rental = renting.rentals.at(site, now)
    leases = tuple(one for one in renting.ledger.snapshot.leases.values() if one.provider == site)
    if not isinstance(port, RentingSite):
        is_late = now - rental.started >= OPENING_SECONDS
        _show_problems(renting, site, rental, leases, _NOT_OPEN if leases and is_late else "")
        return FIRST_TRY_AGAIN_SECONDS if leases else inf
    current = [_with_uses(renting.ledger, rental, one, now) for one in leases]
    situation = _read(renting, site, port, rental, current)
    plan = decide(situation, now)
    final = {one.id: one for one in (*current, *plan.changed)}
    transaction = renting.ledger.begin(now)
    _commit(renting, transaction, site, port, rental, plan, final)
    renting.ledger.stage(transaction)
    open_leases = [one for one in final.values() if one.is_open]
    _show_problems(renting, site, rental, open_leases, "", plan.strangers)
    if plan.opened or plan.changed or plan.tries:
        return 0.0
    unpriced = _unpriced(rental, plan.strangers)
    again_seconds = _refresh_market(renting, site, port, rental, situation, unpriced)
    return max(0.0, min(plan.again_at - now, again_seconds))


OPENING_SECONDS = 30.0
"""A control node that starts opens its sites one after the other. Their leases have no problem meanwhile."""
_NOT_OPEN = "the site is not open, so that its machines cannot be ended now"


def _with_uses(ledger: Ledger, rental: SiteRental, lease: Lease, now: float) -> Lease:
    """Return the lease with the use of its machine, if the jobs on the machine have changed."""
    live = frozenset(one.id for one in ledger.snapshot.attempts_on(lease.pod_id))
    before = rental.live.get(lease.id)
    ended = (last_attempts(ledger, lease) if before is None else before) - live
    rental.live[lease.id] = live
    if ended and has_failed(ledger, ended):
        lease = replace(lease, failed=now)
    for subject, sent_bytes in sent_by(ledger, ended):
        lease = with_egress(lease, subject, sent_bytes, now)
    subjects = live_on(ledger, lease)
    is_over = lease.state is LeaseState.RELEASING and lease.machine_try is None
    subjects = {} if is_over else subjects
    return counted(lease, subjects, now) if subjects != live_uses(lease) else lease


def _read(
    renting: Renting, site: str, port: RentingSite, rental: SiteRental, leases: Sequence[Lease]
) -> RentingSituation:
    snapshot = renting.ledger.snapshot
    deployments = tuple(one for one in snapshot.deployments.values() if one.site == site)
    declared = snapshot.sites.get(site)
    traits = port.cloud().traits
    nodes = declared.nodes if declared is not None else ()
    terms = _terms(rental, declared, deployments)
    return RentingSituation(
        site=site,
        provider=provider_of(snapshot.sites, site),
        owner=port.owner,
        traits=traits,
        market=Market(
            offers=rental.offers,
            quotas=rental.quotas,
            capacities={one.name.rpartition("#")[0]: one.capacity for one in nodes},
            self_end=traits.self_end,
            is_known=rental.market_at is not None,
            charges=traits.charges,
        ),
        deployments=deployments,
        leases=tuple(leases),
        closed={
            key: one.tokens
            for key, one in rental.closed.items()
            if one.provider == site or one.provider not in renting.sites
        },
        elsewhere=_elsewhere(renting, site, rental),
        terms=terms,
        halted=renting.rentals.halted(RESOURCE),
        halted_projects=renting.rentals.halted(PROJECT),
        projects=_projects(snapshot, deployments, renting.rentals.halted(PROJECT)),
        in_containers=_in_containers(snapshot, deployments),
        silent_seconds=_silent_seconds(renting),
        used_seconds=_used_seconds(port, leases),
        awaits_used=isinstance(port, TimedSite),
        latest=rental.latest,
        sightings=rental.sightings(),
        calls=rental.calls(),
    )


def _elsewhere(renting: Renting, site: str, rental: SiteRental) -> frozenset[str]:
    """Return the ids of leases of other sites, which may use the same account. The machines of a closed lease
    are left to its site as long as the site exists."""
    other = {key for key, one in renting.ledger.snapshot.leases.items() if one.provider != site}
    other |= {
        key for key, one in rental.closed.items() if one.provider != site and one.provider in renting.sites
    }
    return frozenset(other)


def _in_containers(snapshot: Snapshot, deployments: Iterable[Deployment]) -> frozenset[str]:
    """Return the resources of these deployments for which a job in a container waits. Of jobs that request
    the same amounts, only the first one is read."""
    found: set[str] = set()
    for name in {one.resource for one in deployments}:
        queue = snapshot.lines.waiting.get(name)
        groups = () if queue is None else queue.classes.values()
        heads = (one.members.first() for one in groups)
        waiting = (snapshot.job_runs.get(head[JOB_RUN_ID]) for head in heads if head is not None)
        if any(one is not None and one.job.container is not None for one in waiting):
            found.add(name)
    return frozenset(found)


def _projects(
    snapshot: Snapshot, deployments: Iterable[Deployment], halted: Collection[str]
) -> Mapping[str, str]:
    """Return the project for which the next machine of each resource of these deployments is rented: the
    project of the first waiting job, or of a later job, if the budget of this project is used up."""
    found: dict[str, str] = {}
    for name in {one.resource for one in deployments}:
        queue = snapshot.lines.waiting.get(name)
        groups = () if queue is None else (one for one in queue.classes.values() if one.members)
        heads = [(one.project in halted, next(iter(one.members))[:JOB_CLASS], one.project) for one in groups]
        if heads:
            found[name] = min(heads)[2]
    return found


def _silent_seconds(renting: Renting) -> Mapping[str, float]:
    now = renting.starting.timeline.clock.monotonic()
    return {pod_id: now - since for pod_id, since in renting.bring_ups.unknown_since.items()}


def _used_seconds(port: RentingSite, leases: Iterable[Lease]) -> Mapping[str, float]:
    if not isinstance(port, TimedSite):
        return {}
    used = {one.id: port.used_seconds(one.id) for one in leases}
    return {key: seconds for key, seconds in used.items() if seconds is not None}


def _terms(
    rental: SiteRental, site: Site | None, deployments: Sequence[Deployment]
) -> Mapping[str, RentalTerms]:
    """Return the terms of the resources of deployments, from the settings with which the deployments were
    made. A resource with settings that are invalid now has no terms, so that no machine is rented for it. The
    settings of a deployment are parsed once, because parsing them in each tick takes milliseconds if there
    are many machines."""
    known, rental.terms = rental.terms, {}
    found: dict[str, RentalTerms] = {}
    if site is None:
        return found
    for one in deployments:
        read = known.get(one.id)
        if read is None or read.site is not site or read.settings != one.settings:
            read = ReadTerms(site=site, settings=one.settings, terms=_read_terms(site, one))
        rental.terms[one.id] = read
        if read.terms is not None:
            found[one.resource] = read.terms
    return found


def _read_terms(site: Site, deployment: Deployment) -> RentalTerms | None:
    resource = Resource(
        name=deployment.resource, type=deployment.type, site=deployment.site, settings=deployment.settings
    )
    with suppress(InputError):  # the settings were checked when the resource was configured
        return rental_terms(resource, site)
    return None


def _commit(
    renting: Renting,
    transaction: Transaction,
    site: str,
    port: RentingSite,
    rental: SiteRental,
    plan: RentPlan,
    final: dict[str, Lease],
) -> None:
    """Write the decisions, and register the calls that follow after the commit."""
    for one in plan.tries:
        token = f"{final[one.lease_id].owner}-{one.lease_id}-{renting.new_token()}"[:64]
        account = rental.latest.account if rental.latest is not None else ""
        final[one.lease_id] = with_new_try(
            final[one.lease_id], one.candidate, token, transaction.now, account
        )
    for new in plan.opened:
        lease = _opened(new, site, port.owner, f"lease-{renting.counters.next('lease')}", transaction.now)
        final[lease.id] = lease
    for lease in final.values():
        put_lease(renting, transaction, rental, lease)
    told = tuple(one for one in final.values() if one.is_open)
    if rental.told != told or rental.port is not port:
        transaction.then(partial(_tell_site, port, rental, told))
    for lease in final.values():
        if not lease.is_open:
            # another key, because the connections of the lease may still be closing
            forget = Action(call=Call.FORGET, key=f"{lease.id} closed", lease=lease)
            transaction.then(partial(_start, renting, site, port, rental, forget))
    for action in plan.actions:
        current = action.lease and replace(action, lease=final.get(action.lease.id, action.lease))
        transaction.then(partial(_start, renting, site, port, rental, current or action))


def _tell_site(port: RentingSite, rental: SiteRental, leases: tuple[Lease, ...]) -> None:
    rental.port, rental.told = port, leases
    port.use_leases(leases)


def _opened(new: NewLease, site: str, owner: str, lease_id: str, now: float) -> Lease:
    return Lease(
        id=lease_id,
        provider=site,
        owner=owner,
        resource=new.resource,
        deployment_id=new.deployment_id,
        pod_id=new.pod_id,
        state=LeaseState.PLANNED,
        terms=new.terms,
        needs_cpus=new.cpus,
        needs_memory_bytes=new.memory_bytes,
        needs_gpus=new.gpus,
        needs_container=new.needs_container,
        project=new.project,
        opened=now,
        counted=now,
    )


_BACKOFF = {
    Call.PREPARE: PREPARE_AGAIN_SECONDS,
    Call.BUILD: PREPARE_AGAIN_SECONDS,
    Call.LIST: LIST_AGAIN_SECONDS,
    Call.TERMINATE: TERMINATE_AGAIN_SECONDS,
}


def _start(renting: Renting, site: str, port: RentingSite, rental: SiteRental, action: Action) -> None:
    """Start a call in the background. Until its success is known, the call counts as failed, so that an
    unexpected error does not repeat it without a pause."""
    now = renting.now()
    rental.running.add(action.id)
    rental.failed(action.id, now, _BACKOFF.get(action.call, LONGEST_BACKOFF_SECONDS))
    if action.call not in OWN:
        rental.last_call = now
    if action.call is Call.LAUNCH:
        rental.last_launch = now
    rentals = renting.rentals
    runner = {
        Call.PREPARE: rentals.preparing,
        Call.BUILD: rentals.preparing,
        Call.FORGET: rentals.forgetting,
    }.get(action.call, rentals.calls)
    then: Callable[[Future[Any]], None] = partial(finish_call, renting, site, rental, action)
    runner.submit(f"{site} {action.id}", action_call(port, action, now), then)


def _unpriced(rental: SiteRental, strangers: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the regions and types of machines of no lease whose offers were not read yet, so that their
    cost per hour can be shown."""
    machines = rental.latest.machines if rental.latest is not None else ()
    kinds = {(one.region, one.instance_type) for one in machines if one.id in strangers}
    return frozenset(
        kinds - {(one.region, one.instance_type) for one in rental.offers} - rental.market_wanted
    )


def _chooses(lease: Lease) -> bool:
    """Return whether a lease may need offers. A machine that boots may have ended while the control node did
    not run."""
    is_without = lease.state is LeaseState.BOOTING and not lease.counts_as_machine
    return is_without or lease.state in (LeaseState.PLANNED, LeaseState.LAUNCHING)


def _refresh_market(
    renting: Renting,
    site: str,
    port: RentingSite,
    rental: SiteRental,
    situation: RentingSituation,
    unpriced: frozenset[tuple[str, str]],
) -> float:
    """Read the offers and quotas again if a lease needs them, or if the prices of `unpriced` regions and
    types are needed. The function returns the seconds until they may be read again."""
    choosing = [one for one in situation.leases if _chooses(one)]
    wanted = frozenset((one.terms.region, one.terms.instance_type) for one in choosing) | unpriced
    now = renting.now()
    call = market_call(port, rental, wanted, now)
    if call is None:
        return inf
    act, wait = call
    if wait <= 0:
        rental.failed("market", now)
        then = partial(finish_market, rental, wanted, now)
        renting.rentals.calls.submit(f"{site} market", act, then)
        return inf
    return wait


def _show_problems(
    renting: Renting,
    site: str,
    rental: SiteRental,
    leases: Sequence[Lease],
    problem: str,
    strangers: Mapping[str, str] | None = None,
) -> None:
    """Show the problems of leases and machines until they are over. Each problem names the machine, its cost
    per hour, and the command that ends it."""
    shown = {**(strangers or {})}
    provider = provider_of(renting.ledger.snapshot.sites, site)
    for lease in leases:
        account = rental.latest.account if rental.latest is not None else ""
        text = problem or account_problem(lease, account) or lease.problem or rental.problems.get("list", "")
        if text:
            shown[lease.id] = f"lease {lease.id} at {site}: {with_machine(text, lease, provider)}"
    # a lease that waits for offers shows that they are missing, and the site shows why
    for key, text in rental.problems.items():
        if key != "list" or not leases:
            shown[key] = f"site {site}: {text}"
    set_problems(renting.problems, f"rental at {site}", shown)
