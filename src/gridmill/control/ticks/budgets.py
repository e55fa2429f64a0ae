"""This module has the tick that compares the cost of rented machines and of jobs at batch services in the
present month with the budgets of resources and projects, and records an event when a budget is used up."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import field
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.renting_state import Rentals
from gridmill.control.state import Starting
from gridmill.control.steps.lease_records import LEASE_EVENT, MOST_RUNS
from gridmill.control.steps.problems import set_problems
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import Lease
from gridmill.domain.lease_cost import PROJECT, RESOURCE, Bounds, month_costs, month_of
from gridmill.domain.pod_protocol import Event
from gridmill.domain.project import Project
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.site import PAID, Site, SiteKind
from gridmill.errors import InputError
from gridmill.scheduler.queue import JOB_RUN_ID
from gridmill.scheduler.rental_budgets import Budget, Owner, doubtful_budgets, used_budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run with a job that waits for a rented machine or at a batch site. `reported` has the reasons about
    which the run has an event."""

    run_id: str
    job: str
    project: str
    resource: str
    reported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDecision:
    """The budgets that are used up, and those that may be used up, with the reasons, and the events to
    record: a run with the owner of the budget."""

    used: Mapping[Owner, str]
    doubtful: Mapping[Owner, str] = field(default_factory=dict)
    events: tuple[tuple[WaitingRun, Owner], ...] = ()


def check_budgets(starting: Starting, rentals: Rentals) -> None:
    """Find the budgets that are used up, and record an event in the runs whose jobs wait for this reason.
    Machines that are rented already continue. Until a site has listed its machines, it is unknown which of
    them ended while the control node did not run. Until then, the highest possible costs of its leases count,
    but no event is recorded for them."""
    ledger, now = starting.ledger, starting.timeline.now()
    snapshot, problems = ledger.snapshot, starting.endings.problems
    budgets = (*_budgets(snapshot.resources.values(), snapshot.sites, snapshot.projects.values()),)
    month = month_of(now)
    costs = _read_costs(ledger, rentals, month, now) if budgets else NO_COSTS
    waiting = tuple(_waiting(ledger)) if budgets or rentals.used_budgets else ()
    decision = decide_budgets(budgets, costs, month, waiting)
    rentals.used_budgets = {**decision.doubtful, **decision.used}
    shown = {f"{kind} {name}": text for (kind, name), text in rentals.used_budgets.items()}
    set_problems(problems, "budget of", shown)
    owners = sorted({one.owner for one in budgets} & costs.uncounted)
    uncounted = {f"{kind} {name}": _uncounted_text(kind, name, month) for kind, name in owners}
    set_problems(problems, "uncounted costs of", uncounted)
    if decision.events:
        transaction = ledger.begin(now)
        for one, owner in decision.events:
            _tell(transaction, one, owner, decision.used[owner])
        ledger.stage(transaction)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCosts:
    """The highest possible costs in a month: `spent` are those of closed leases and of the open leases of
    sites that have listed their machines, and `unlisted` those of the other open leases, by site.
    `uncounted` has the owners with further costs, whose prices are unknown."""

    spent: Sequence[Bounds] = ()
    unlisted: Mapping[str, Bounds] = field(default_factory=dict)
    uncounted: Set[Owner] = frozenset()


NO_COSTS = BudgetCosts()


def _read_costs(ledger: Ledger, rentals: Rentals, month: str, now: float) -> BudgetCosts:
    listed = {name for name, rental in rentals.sites.items() if rental.latest is not None}
    leases: dict[str, list[Lease]] = {}
    for one in ledger.snapshot.leases.values():
        leases.setdefault(one.provider, []).append(one)
    closed = rentals.month_costs(month, partial(ledger.read_all, Lease))
    going = {name: month_costs(some, now, month) for name, some in leases.items()}
    return BudgetCosts(
        spent=(closed.bounds, *(one.bounds for name, one in going.items() if name in listed)),
        unlisted={name: one.bounds for name, one in going.items() if name not in listed},
        uncounted=closed.uncounted.union(*(one.uncounted for one in going.values())),
    )


def decide_budgets(
    budgets: Sequence[Budget], costs: BudgetCosts, month: str, waiting: Sequence[WaitingRun]
) -> BudgetDecision:
    """Decide which budgets are used up, and which of the waiting runs get an event. Each run gets one event
    about a reason."""
    used = used_budgets(budgets, costs.spent, month)
    events: dict[tuple[str, Owner], WaitingRun] = {}
    for run in waiting:
        for owner in ((PROJECT, run.project), (RESOURCE, run.resource)):
            if owner in used and used[owner] not in run.reported:
                events.setdefault((run.run_id, owner), run)
    return BudgetDecision(
        used=used,
        doubtful=doubtful_budgets(budgets, costs.spent, costs.unlisted, month),
        events=tuple((run, owner) for (_, owner), run in events.items()),
    )


def _uncounted_text(kind: str, name: str, month: str) -> str:
    return (
        f"the budget of {kind} {name} for {month} does not include the disks, addresses and data of some"
        f" machines, because their prices are unknown; `gridmill costs --by {kind} --month {month}` shows"
        " the costs"
    )


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
    """Yield runs with jobs that wait for rented machines or at batch sites, each once for each resource."""
    snapshot, seen = ledger.snapshot, set[tuple[str, str]]()
    sites = {one.name for one in snapshot.sites.values() if one.kind in PAID}
    for name, queue in snapshot.lines.waiting.items():
        resource = snapshot.resources.get(name)
        if resource is None or resource.site not in sites:
            continue
        for group in queue.classes.values():
            for ticket, _ in zip(group.members, range(MOST_RUNS), strict=False):
                job_run = snapshot.job_runs.get(ticket[JOB_RUN_ID])
                if job_run is not None and (job_run.run_id, name) not in seen:
                    seen.add((job_run.run_id, name))
                    run = snapshot.runs.get(job_run.run_id)
                    yield WaitingRun(
                        run_id=job_run.run_id,
                        job=job_run.job.name,
                        project=job_run.project,
                        resource=name,
                        reported=() if run is None else run.used_budgets,
                    )


def _tell(transaction: Transaction, waiting: WaitingRun, owner: Owner, reason: str) -> None:
    """Record an event of a run about a used budget, and that the run has it."""
    kind, name = owner
    message = f"no further machine is rented: {reason}"
    body = {"what": "budget", "id": f"{kind} {name}", "state": "used", "message": message}
    transaction.events.append(
        Event(time=transaction.now, type=LEASE_EVENT, run_id=waiting.run_id, job=waiting.job, body=body)
    )
    run = transaction.get(Run, waiting.run_id)
    if run is not None:
        transaction.put(replace(run, used_budgets=(*run.used_budgets, reason)))
