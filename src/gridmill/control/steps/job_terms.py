"""This module applies the `deadline` and the `budget` of a job when the job becomes ready, while it waits,
and before it is tried again. The time that is left and the cost of earlier attempts count."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from gridmill.control.ledger import Ledger
from gridmill.control.renting_state import Rentals
from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease
from gridmill.domain.lease_cost import CostBy, costs
from gridmill.domain.rental_estimate import CostForecast, show_money
from gridmill.domain.resource import Resource, ResourceAlternative, ResourceChoice, Sizing
from gridmill.domain.run import JobRun
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import PipelineError
from gridmill.scheduler.rental_estimate import TimeAndCost, choose_within, meets
from gridmill.scheduler.rental_preview import RentalPreview, market_of, preview_rental
from gridmill.scheduler.site_choice import is_worth_it
from gridmill.scheduler.snapshot import Snapshot

_HINT = "Increase `budget`, or set `max_cost` of the resource"


def awaits_offers(snapshot: Snapshot, resources: Iterable[Resource]) -> bool:
    """Return whether the offers of a cloud site of these resources were not read yet."""
    return any(snapshot.sites[one.site].market is None for one in resources if _is_rented(snapshot, one))


def choice_within_terms(
    ledger: Ledger,
    rentals: Rentals,
    job_run: JobRun,
    choice: ResourceChoice,
    resources: Mapping[str, Resource],
    sizings: Mapping[str, Sizing],
    now: float,
    *,
    standing: bool,
) -> ResourceChoice:
    """Return the resource that meets the deadline of a job with the time that is left, at the lowest cost and
    within the rest of its budget. If a site's offers are not known yet, the first resource is returned, which
    was planned at the start of the run, and the job is checked later. A job that waits for a resource keeps
    this resource as long as the resource meets the deadline and the budget, or if no resource meets the
    deadline and no other resource is much quicker. Raises PipelineError if no resource is within the
    budget."""
    snapshot, job = ledger.snapshot, job_run.job
    rented = [one for one in resources.values() if _is_rented(snapshot, one)]
    if awaits_offers(snapshot, rented):
        first = job_run.resource if standing else next(iter(resources))
        return replace(choice, resource=first)
    leases = _known_leases(ledger, rentals) if rented else ()
    previews = {
        one.resource: _preview(snapshot, resources[one.resource], sizings[one.resource], one, leases)
        for one in choice.alternatives
        if resources[one.resource] in rented
    }
    options = _options(snapshot, choice.alternatives, previews, now)
    currency = next((one.rental.currency for one in previews.values() if one.rental is not None), "USD")
    spent = spent_micros(leases, job_run, currency, now)
    waited = now - job_run.ready if standing and job_run.ready is not None else 0.0
    deadline = None if job.deadline_seconds is None else job.deadline_seconds - waited
    budget = None if job.budget_micros is None else job.budget_micros - spent
    current = next((one for one in options if standing and one.resource == job_run.resource), None)
    if current is not None and meets(current, deadline_seconds=deadline, budget_micros=budget):
        return replace(choice, resource=current.resource)
    if not options:
        return choice
    made = choose_within(options, deadline_seconds=deadline, budget_micros=budget, currency=currency)
    if made.refused:
        raise PipelineError(_refusal(made.refused, spent, currency), place=f"jobs.{job.name}.budget")
    best = next(one for one in options if one.resource == made.resource)
    is_late = not meets(best, deadline_seconds=deadline, budget_micros=budget)
    if current is not None and is_late and meets(current, deadline_seconds=None, budget_micros=budget):
        # each move gives up a machine that boots
        moves = is_worth_it(current.seconds, best.seconds, job_run.moves)
        return replace(choice, resource=best.resource if moves else current.resource)
    return replace(choice, resource=made.resource, why=f"{choice.why}; {made.resource}: {made.why}")


def _known_leases(ledger: Ledger, rentals: Rentals) -> tuple[Lease, ...]:
    """Return all leases. Closed leases are read from the store once, because a tick may choose the resources
    of many jobs."""
    closed = rentals.closed_leases(partial(ledger.read_all, Lease))
    return tuple({**closed, **ledger.snapshot.leases}.values())


def _is_rented(snapshot: Snapshot, resource: Resource) -> bool:
    site = snapshot.sites.get(resource.site)
    return site is not None and site.kind is SiteKind.CLOUD


def _preview(
    snapshot: Snapshot,
    resource: Resource,
    sizing: Sizing,
    one: ResourceAlternative,
    leases: Sequence[Lease],
) -> RentalPreview:
    site: Site = snapshot.sites[resource.site]
    place = market_of(site)
    return preview_rental(
        resource, site, sizing, place, leases, run_seconds=one.run_seconds, transfer=one.transfer
    )


def _options(
    snapshot: Snapshot,
    alternatives: Sequence[ResourceAlternative],
    previews: Mapping[str, RentalPreview],
    now: float,
) -> list[TimeAndCost]:
    options: list[TimeAndCost] = []
    for one in alternatives:
        preview = previews.get(one.resource)
        if one.problem or one.unreachable or (preview is not None and preview.problem):
            continue
        options.append(
            TimeAndCost(
                resource=one.resource,
                seconds=one.seconds if preview is None else _rented_seconds(snapshot, one, preview, now),
                micros=0 if preview is None else preview.micros,
            )
        )
    return options


def _rented_seconds(
    snapshot: Snapshot, one: ResourceAlternative, preview: RentalPreview, now: float
) -> float | None:
    """Return the expected seconds until the result is at home, with the boot of the machine. If a machine of
    the resource boots already, the wait of the job is the rest of this boot."""
    places = snapshot.places
    if one.seconds is None or one.quickest_seconds is None or one.resource in places.open:
        return one.seconds
    coming = places.coming.get(one.resource)
    if coming is None:
        return one.seconds + preview.boot_seconds
    owners = {places.owners[pod_id] for pod_id, _ in coming.items()}
    begun = min((snapshot.deployments[key].created for key in owners), default=now)
    return one.quickest_seconds + max(0.0, preview.boot_seconds - (now - begun))


def spent_micros(leases: Sequence[Lease], job_run: JobRun, currency: str, now: float) -> int:
    """Return the cost of the earlier attempts of a job in its run, in micro-units of the currency. The job's
    part of the time in which no job ran is included, such as the boot, because it is also a part of the
    expected cost of an attempt."""
    used = [one for one in leases if any(use.run_id == job_run.run_id for use in one.uses)]
    name = f"{job_run.run_id}/{job_run.job.name}"
    rows = costs(used, CostBy.JOB, now)
    own = (row for row in rows if row.name == name and row.currency == currency)
    return sum(row.micros + row.overhead_micros for row in own)


def over_budget(ledger: Ledger, job_run: JobRun, now: float) -> str:
    """Return the reason why a job is not tried again on its rented machine: its earlier attempts and the
    expected cost of the next one exceed its budget. The result is empty if they do not."""
    budget, snapshot = job_run.job.budget_micros, ledger.snapshot
    resource = snapshot.resource_of(job_run.resource, job_run.job.kind)
    if budget is None or resource is None or not _is_rented(snapshot, resource):
        return ""
    site, leases = snapshot.sites[resource.site], tuple(ledger.read_all(Lease))
    preview = preview_rental(
        resource,
        site,
        job_run.sizing,
        market_of(site),
        leases,
        run_seconds=job_run.sizing.expected_seconds,
        transfer=None,
    )
    currency = "USD" if preview.rental is None else preview.rental.currency
    spent = spent_micros(leases, job_run, currency, now)
    forecast = job_run.forecast or CostForecast()
    # until the offers are read, the cost that was expected at the start of the run is the best estimate
    expected = forecast.micros.get(currency, 0) if preview.micros is None else preview.micros
    if spent + expected <= budget:
        return ""
    return (
        f"the cost of the earlier attempts ({show_money(spent, currency)}) plus the expected cost of the next"
        f" attempt ({show_money(expected, currency)}) exceeds the budget of {show_money(budget, currency)}."
        f" {_HINT}"
    )


def _refusal(text: str, spent: int, currency: str) -> str:
    before = f" that is left after earlier attempts ({show_money(spent, currency)})" if spent else ""
    return f"{text}{before}. {_HINT}"
