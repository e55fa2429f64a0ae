"""This module has the tick that compares the cost of rented machines in the present month with the budgets of
resources and projects, and records an event when a budget is used up."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial

from gridmill.control.ledger import Ledger
from gridmill.control.renting_state import Rentals
from gridmill.control.state import Starting
from gridmill.control.steps.lease_records import LEASE_EVENT, MOST_RUNS
from gridmill.control.steps.problems import set_problems
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import Lease
from gridmill.domain.lease_cost import PROJECT, RESOURCE, Bounds, month_bounds_micros, month_of
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.scheduler.queue import JOB_RUN_ID
from gridmill.scheduler.rental_budgets import Budget, Owner, used_budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run with a job that waits for a rented machine."""

    run_id: str
    job: str
    project: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDecision:
    """The budgets that are used up, with the reasons, and the events to record: a run with the owner of the
    budget."""

    used: Mapping[Owner, str]
    events: tuple[tuple[WaitingRun, Owner], ...] = ()


def check_budgets(starting: Starting, rentals: Rentals) -> None:
    """Find the budgets that are used up, and record an event in the runs whose jobs wait for this reason.
    Machines that are rented already continue. Until a site has listed its machines, it is unknown which of
    them ended while the control node did not run. Until then, the leases of the site do not count, and
    nothing is rented there."""
    ledger, now = starting.ledger, starting.timeline.now()
    snapshot = ledger.snapshot
    listed = {name for name, rental in rentals.sites.items() if rental.latest is not None}
    budgets = (*_budgets(snapshot.resources.values(), snapshot.sites, snapshot.projects.values()),)
    spent: Sequence[Bounds] = ()
    month = month_of(now)
    if budgets:
        closed = rentals.month_bounds(month, partial(ledger.read_all, Lease))
        going = (one for one in snapshot.leases.values() if one.provider in listed)
        spent = (closed, month_bounds_micros(going, now, month))
    is_needed = bool(budgets or rentals.used_budgets)
    waiting = tuple(_waiting(ledger)) if is_needed else ()
    decision = decide_budgets(budgets, spent, month, waiting, rentals.reported_budgets)
    rentals.used_budgets = decision.used
    rentals.reported_budgets = {
        one for one in rentals.reported_budgets if one[1] in decision.used and one[0] in snapshot.runs
    } | {(run.run_id, owner) for run, owner in decision.events}
    shown = {f"{kind} {name}": text for (kind, name), text in decision.used.items()}
    set_problems(starting.endings.problems, "budget of", shown)
    if decision.events:
        transaction = ledger.begin(now)
        transaction.events.extend(_event(now, run, owner, decision.used) for run, owner in decision.events)
        ledger.stage(transaction)


def decide_budgets(
    budgets: Sequence[Budget],
    spent: Sequence[Bounds],
    month: str,
    waiting: Sequence[WaitingRun],
    reported: Set[tuple[str, Owner]],
) -> BudgetDecision:
    """Decide which budgets are used up, and which of the waiting runs get an event. `reported` has the runs
    that already have the event about a budget."""
    used = used_budgets(budgets, spent, month)
    events = tuple(
        (run, owner)
        for run in waiting
        for owner in ((PROJECT, run.project), (RESOURCE, run.resource))
        if owner in used and (run.run_id, owner) not in reported
    )
    return BudgetDecision(used=used, events=events)


def _budgets(
    resources: Iterable[Resource], sites: Mapping[str, Site], projects: Iterable[Project]
) -> Iterator[Budget]:
    for one in resources:
        site = sites.get(one.site)
        if site is None or site.kind is not SiteKind.CLOUD:
            continue
        if not ("budget" in one.settings or "budget" in site.settings):
            continue
        with suppress(InputError):  # invalid settings were reported when the resource was configured
            terms = rental_terms(one, site)
            if terms.budget_micros is not None:
                owner = (RESOURCE, one.name)
                yield Budget(owner=owner, micros=terms.budget_micros, currency=terms.currency)
    for project in projects:
        if project.budget_micros is not None:
            owner = (PROJECT, project.name)
            yield Budget(owner=owner, micros=project.budget_micros, currency=project.currency)


def _waiting(ledger: Ledger) -> Iterator[WaitingRun]:
    """Yield runs with jobs that wait for rented machines, each once for each resource."""
    snapshot, seen = ledger.snapshot, set[tuple[str, str]]()
    clouds = {one.name for one in snapshot.sites.values() if one.kind is SiteKind.CLOUD}
    for name, queue in snapshot.lines.waiting.items():
        resource = snapshot.resources.get(name)
        if resource is None or resource.site not in clouds:
            continue
        for group in queue.classes.values():
            for ticket, _ in zip(group.members, range(MOST_RUNS), strict=False):
                job_run = snapshot.job_runs.get(ticket[JOB_RUN_ID])
                if job_run is not None and (job_run.run_id, name) not in seen:
                    seen.add((job_run.run_id, name))
                    yield WaitingRun(
                        run_id=job_run.run_id, job=job_run.job.name, project=job_run.project, resource=name
                    )


def _event(now: float, run: WaitingRun, owner: Owner, used: Mapping[Owner, str]) -> Event:
    kind, name = owner
    message = f"no further machine is rented: {used[owner]}"
    body = {"what": "budget", "id": f"{kind} {name}", "state": "used", "message": message}
    return Event(time=now, type=LEASE_EVENT, run_id=run.run_id, job=run.job, body=body)
