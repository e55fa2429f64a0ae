"""This module adds to the plan of a run the machines that would be rented, with their time and cost.

The offers of the providers are read without the node's lock, because a provider may answer slowly.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field

from gridmill.control.steps.inputs import leaves_checkpoints
from gridmill.domain.amounts import Amounts, show_seconds
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import Lease
from gridmill.domain.lease_cost import PROJECT, RESOURCE, month_costs, month_of
from gridmill.domain.machine import Quota, SelfEnd
from gridmill.domain.project import Project
from gridmill.domain.rental_terms import AFTER_CAP_SECONDS, EXPORT, rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.views import PlannedJob
from gridmill.errors import GridmillError, UnavailableError, explained
from gridmill.ports.cloud import CloudPort, RentingSite
from gridmill.ports.site import SitePort
from gridmill.scheduler.rental_budgets import Budget, used_budgets
from gridmill.scheduler.rental_choice import Market
from gridmill.scheduler.rental_preview import (
    RentalPreview,
    SiteMarket,
    budget_problem,
    chosen_within,
    preview_rental,
    spot_warning,
)

NO_MARKET = Market(capacities={})


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalFacts:
    """What is known about renting before a run: the cloud sites by name, what each of them offers, and all
    leases. `used_budgets` has the resources whose budgets for this month are used up, with the reasons."""

    sites: Mapping[str, Site]
    markets: Mapping[str, SiteMarket]
    leases: Sequence[Lease] = ()
    used_budgets: Mapping[str, str] = field(default_factory=dict)


_UNTIL_BUDGET = "the job waits until the next month begins or you increase the budget"
NOTHING_RENTED = RentalFacts(sites={}, markets={})


def cloud_sites(sites: Mapping[str, Site], resources: Iterable[Resource]) -> dict[str, list[Resource]]:
    """Return the resources at cloud sites, by site."""
    used: dict[str, list[Resource]] = {}
    for one in resources:
        site = sites.get(one.site)
        if site is not None and site.kind is SiteKind.CLOUD:
            used.setdefault(site.name, []).append(one)
    return used


def used_budgets_of(
    resources: Sequence[Resource],
    project: Project | None,
    sites: Mapping[str, Site],
    leases: Sequence[Lease],
    now: float,
) -> Mapping[str, str]:
    """Return the resources for which no machine is rented for a job of the project in the present month,
    because the budget of the resource or of the project is used up, with the reasons."""
    month, budgets = month_of(now), list[Budget]()
    if project is not None and project.budget_micros is not None:
        owner = (PROJECT, project.name)
        budgets.append(Budget(owner=owner, micros=project.budget_micros, currency=project.currency))
    for one in resources:
        terms = rental_terms(one, sites[one.site])
        if terms.budget_micros is not None:
            owner = (RESOURCE, one.name)
            budgets.append(Budget(owner=owner, micros=terms.budget_micros, currency=terms.currency))
    spent = month_costs(leases, now, month).bounds if budgets else {}
    used = used_budgets(budgets, [spent], month)
    whole = next((text for (kind, _), text in used.items() if kind == PROJECT), "")
    texts = {one.name: whole or used.get((RESOURCE, one.name), "") for one in resources}
    return {name: text for name, text in texts.items() if text}


def read_markets(
    sites: Mapping[str, Site],
    used: Mapping[str, Sequence[Resource]],
    ports: Mapping[str, SitePort],
    open_site: Callable[[Site], SitePort],
) -> Mapping[str, SiteMarket]:
    """Return what each cloud site offers for its resources. The providers are asked in parallel. A site that
    is not open, because no control node runs, is opened for this question. A provider that does not answer
    gives a market with the reason."""

    def read(name: str) -> SiteMarket:
        try:
            port = ports.get(name)
            opened = open_site(sites[name]) if port is None else None
            try:
                return _market(port or opened, sites[name], used[name])
            finally:
                if opened is not None:
                    opened.close()
        except GridmillError as error:
            return SiteMarket(market=NO_MARKET, problem=explained(error))

    with ThreadPoolExecutor(max(1, len(used)), "gridmill-offers") as pool:
        return dict(zip(used, pool.map(read, used), strict=True))


def _market(port: SitePort | None, site: Site, resources: Sequence[Resource]) -> SiteMarket:
    if not isinstance(port, RentingSite):
        return SiteMarket(market=NO_MARKET, problem=f"site {site.name} rents no machines")
    cloud = port.cloud()
    terms = {rental_terms(one, site) for one in resources}
    wanted = {(one.region, one.instance_type) for one in terms}
    offers = {offer for region, kind in sorted(wanted) for offer in cloud.offers(region, kind)}
    regions = {region for region, _ in wanted}
    quotas = {quota for region in sorted(regions) for quota in _quotas(cloud, region)}
    return SiteMarket(
        market=Market(
            offers=tuple(sorted(offers, key=lambda one: (one.instance_type, one.region))),
            quotas=tuple(sorted(quotas, key=lambda one: (one.region, one.name, one.spot))),
            capacities=_capacities(port, site),
            self_end=cloud.traits.self_end,
        ),
        charges=cloud.traits.charges,
        spot_notice_seconds=cloud.traits.spot_notice_seconds,
    )


def _quotas(cloud: CloudPort, region: str) -> tuple[Quota, ...]:
    """Return the quotas of an account. If they cannot be read, the plan is made without them, as the provider
    itself refuses machines beyond them."""
    try:
        return cloud.check_account(region).quotas
    except UnavailableError:
        return ()


def _capacities(port: SitePort, site: Site) -> Mapping[str, Amounts]:
    nodes = site.nodes or port.nodes()
    return {one.name.rpartition("#")[0]: one.capacity for one in nodes}


def with_rentals(
    planned: PlannedJob, job: Job, resources: Mapping[str, Resource], facts: RentalFacts
) -> PlannedJob:
    """Return the planned job with the machines that would be rented, and with the resource that its deadline
    and its budget choose. Raises InputError if a setting of a resource is invalid."""
    previews = _previews(planned, job, resources, facts)
    if leaves_checkpoints(job):
        previews = _with_warnings(previews, planned, resources, facts)
    rentals = {name: one.rental for name, one in previews.items() if one.rental is not None}
    own = previews.get(planned.resource)
    planned = replace(planned, rentals=rentals, unchecked=planned.unchecked or _unchecked(own))
    if job.deadline_seconds is None and job.budget_micros is None:
        return replace(planned, problem=planned.problem or _problem(own))
    choice = chosen_within(job, planned, previews)
    if refused := budget_problem(job, choice):
        return replace(planned, problem=planned.problem or refused)
    own = previews.get(choice.resource)
    return replace(
        planned,
        resource=choice.resource,
        problem=planned.problem or _problem(own),
        choice=f"{choice.resource}: {choice.why}",
    )


def _problem(preview: RentalPreview | None) -> str:
    return "" if preview is None else preview.problem


def _unchecked(preview: RentalPreview | None) -> str:
    return "" if preview is None else preview.unchecked


def _with_warnings(
    previews: Mapping[str, RentalPreview],
    planned: PlannedJob,
    resources: Mapping[str, Resource],
    facts: RentalFacts,
) -> dict[str, RentalPreview]:
    """Return the previews of a job with checkpoints, with the warnings about the notice of spot machines."""
    transfers = {one.resource: one.transfer for one in planned.alternatives}
    transfers.setdefault(planned.resource, planned.transfer)
    warned: dict[str, RentalPreview] = {}
    for name, preview in previews.items():
        site = facts.sites[resources[name].site]
        terms = rental_terms(resources[name], site)
        warning = spot_warning(terms, facts.markets[site.name], transfers.get(name))
        rental = preview.rental and preview.rental.with_warning(warning)
        warned[name] = replace(preview, rental=rental)
    return warned


def _previews(
    planned: PlannedJob, job: Job, resources: Mapping[str, Resource], facts: RentalFacts
) -> dict[str, RentalPreview]:
    times = {one.resource: (one.run_seconds, one.transfer) for one in planned.alternatives}
    times.setdefault(planned.resource, (planned.sizing.expected_seconds, planned.transfer))
    previews: dict[str, RentalPreview] = {}
    for name, (run_seconds, transfer) in times.items():
        resource = resources.get(name)
        if resource is None or resource.site not in facts.markets:
            continue
        site = facts.sites[resource.site]
        preview = preview_rental(
            resource,
            site,
            planned.sizing,
            facts.markets[resource.site],
            facts.leases,
            run_seconds=run_seconds,
            transfer=transfer,
        )
        away = away_text(job.kind, resource, site, facts.markets[resource.site].market.self_end)
        rental = preview.rental and replace(preview.rental, away=away)
        if rental is not None and name in facts.used_budgets:
            rental = rental.with_warning(f"{facts.used_budgets[name]}; {_UNTIL_BUDGET}")
        previews[name] = replace(preview, rental=rental)
    return previews


def away_text(kind: JobKind, resource: Resource, site: Site, self_end: SelfEnd) -> str:
    """Return one sentence about the machine of a job of this kind while the control node is away: whether a
    running job holds off the dead-man timer, because a bucket takes its result."""
    terms, bucket = rental_terms(resource, site), site.settings.get(EXPORT, "")
    dead_man, longest = show_seconds(terms.dead_man_seconds), show_seconds(terms.max_seconds)
    if bucket and kind is not JobKind.SERVICE:
        until = f"until {show_seconds(AFTER_CAP_SECONDS)} after max_hours"
        return (
            f"the job continues, at most until the machine has run for {longest}, and its result is "
            f"uploaded to {bucket} by signed URLs that are valid {until}; without a running job, "
            f"{_timer(self_end, dead_man)}"
        )
    why = (
        "a service does not count as a running job"
        if kind is JobKind.SERVICE
        else f"site {site.name} has no bucket for results (`export`)"
    )
    return f"{_timer(self_end, dead_man)}, also while the job runs, because {why}; then the job runs again"


def _timer(self_end: SelfEnd, dead_man: str) -> str:
    if self_end is SelfEnd.PROVIDER_TIMER:
        return "the machine waits for the control node until the provider ends it after max_hours"
    if self_end is SelfEnd.NONE:
        return "the machine does not end until `gridmill reap` or the control node ends it"
    return f"the machine ends itself after {dead_man} without contact"
