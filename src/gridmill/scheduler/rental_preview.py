"""This module predicts which machine would be rented for a planned job, and what the machine would cost."""

from collections.abc import Mapping, Sequence
from math import ceil

from gridmill.domain.amounts import Amounts, about, show_bytes, show_count, show_number
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job
from gridmill.domain.lease import DISK_BYTES, HOUR_SECONDS, Lease, RentalTerms
from gridmill.domain.machine import Offer
from gridmill.domain.rental_estimate import Charges, Phase, RentalEstimate, show_money
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource, Sizing, TransferEstimate
from gridmill.domain.site import Site
from gridmill.domain.views import PlannedJob
from gridmill.scheduler.rental_choice import (
    BOOT_SECONDS,
    MOST_MACHINES,
    Market,
    misfit,
    price_of,
    quota_limit,
)
from gridmill.scheduler.rental_estimate import (
    TermsChoice,
    TimeAndCost,
    choose_within,
    estimate,
    measured_boot,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMarket:
    """What a cloud site offers now. `problem` is the reason why its offers are unknown. The provider
    announces the end of a spot machine `spot_notice_seconds` before."""

    market: Market
    charges: Charges | None = None
    problem: str = ""
    spot_notice_seconds: float = 0.0


def market_of(site: Site) -> SiteMarket:
    """Return the offers of a site when it was last observed."""
    if site.market is None:
        return SiteMarket(market=Market(capacities={}), problem="the offers were not read yet")
    market = Market(offers=site.market.offers, capacities={})
    return SiteMarket(market=market, charges=site.market.charges)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalPreview:
    """The machine that would be rented for a job. `bound_micros` is the highest cost that the terms of the
    resource allow, or None if they allow any cost. `problem` is the reason why no machine can be rented, and
    `unchecked` the reason why it is unknown whether a machine can be rented."""

    rental: RentalEstimate | None = None
    bound_micros: int | None = None
    problem: str = ""
    unchecked: str = ""

    @property
    def boot_seconds(self) -> float:
        """The expected seconds until the machine is ready."""
        return 0.0 if self.rental is None else self.rental.seconds.get(Phase.BOOT, 0.0)

    @property
    def micros(self) -> int | None:
        """The expected cost in micro-units. If it is unknown, the highest possible cost."""
        expected = None if self.rental is None else self.rental.total_micros
        return self.bound_micros if expected is None else expected


def preview_rental(
    resource: Resource,
    site: Site,
    sizing: Sizing,
    place: SiteMarket,
    leases: Sequence[Lease],
    *,
    run_seconds: float | None,
    transfer: TransferEstimate | None,
) -> RentalPreview:
    """Return the cheapest machine that fits the size of a job and the terms of its resource. Raises
    InputError if a setting of the resource is invalid."""
    terms = rental_terms(resource, site)
    if place.problem:
        return RentalPreview(unchecked=f"what {site.name} offers: {place.problem}")
    needs = _pod_amounts(resource, sizing.amounts)
    offer, reasons = _cheapest(terms, needs, place.market)
    if offer is None:
        return RentalPreview(
            problem=f"no offer of {site.name} fits {_shown(needs)}: {', '.join(reasons)}. `gridmill offers"
            f" {site.name}` lists the offers, and `gridmill alter resource {resource.name}` changes the terms"
        )
    price = price_of(offer, spot=terms.spot)
    disk_bytes = terms.disk_bytes or DISK_BYTES
    charges = offer.charges or place.charges
    if charges is not None and charges.currency != offer.currency:
        charges = None
    rental = estimate(
        instance_type=offer.instance_type,
        region=offer.region,
        price_micros=price,
        currency=offer.currency,
        boot=measured_boot(leases, site.name, offer.instance_type),
        run_seconds=run_seconds,
        transfer=transfer,
        charges=charges,
        disk_bytes=disk_bytes,
    )
    machines = max(1, sizing.workers)
    return RentalPreview(
        rental=replace(rental, machines=machines, warning=_quota_warning(terms, place.market, offer)),
        bound_micros=_bound(terms, price, machines, charges, disk_bytes),
    )


def spot_warning(terms: RentalTerms, place: SiteMarket, transfer: TransferEstimate | None) -> str:
    """Return the warning that a checkpoint cannot be downloaded between the notice of the provider and the
    end of a spot machine. A checkpoint is assumed to be as large as the result of the job. The warning is
    empty for other machines, and if there is enough time."""
    notice = place.spot_notice_seconds
    if not terms.spot:
        return ""
    if not notice:
        return "the provider ends spot machines without a notice: work since the last checkpoint is lost"
    seconds = None if transfer is None else transfer.download_seconds
    if seconds is None or seconds <= notice:
        return ""
    return (
        f"the download of a checkpoint is expected to take {about(seconds)} (as long as that of the result),"
        f" longer than the notice of {about(notice)} before a spot machine ends: work since the last"
        " checkpoint may be lost"
    )


def _quota_warning(terms: RentalTerms, market: Market, offer: Offer) -> str:
    """Return the warning that the quota of the account permits no machine of the cheapest offer. It is empty
    if a quota permits one, because offers with a larger quota are preferred."""
    quota = quota_limit(market, offer, spot=terms.spot)
    if not quota:
        return ""
    return (
        f"{quota} permits no {offer.instance_type}{' (spot)' if terms.spot else ''}, and no other offer fits:"
        " the job waits until you have a higher quota; ask the provider for it"
    )


def _shown(needs: Amounts) -> str:
    gpus = f" and {show_count(needs.gpus, 'GPU')}" if needs.gpus else ""
    cpus = f"{show_number(needs.cpus)} CPU{'' if needs.cpus == 1 else 's'}"
    return f"{show_bytes(needs.memory_bytes)}{', ' if gpus else ' and '}{cpus}{gpus}"


def _pod_amounts(resource: Resource, job: Amounts) -> Amounts:
    """Return the amounts of the pod on the machine, which are those of the resource where it sets them."""
    return Amounts(
        cpus=max(job.cpus, resource.cpus or 0.0),
        memory_bytes=max(job.memory_bytes, resource.memory_bytes or 0),
        gpus=max(job.gpus, resource.gpus),
    )


def _cheapest(terms: RentalTerms, needs: Amounts, market: Market) -> tuple[Offer | None, list[str]]:
    reasons = {offer: misfit(terms, needs, market, offer) for offer in market.offers}
    fitting = [offer for offer, reason in reasons.items() if not reason]
    if not fitting:
        asked = f"{terms.instance_type}{f' in {terms.region}' if terms.region else ''}".strip()
        return None, sorted(set(reasons.values())) or [f"the provider offers no machine {asked}".rstrip()]

    def order(offer: Offer) -> tuple[bool, bool, int, int, int, str, str]:
        price = price_of(offer, spot=terms.spot)
        is_limited = bool(quota_limit(market, offer, spot=terms.spot))
        # among equal prices, the same order as that of the machines that are rented (rental_choice)
        size = (offer.gpus, offer.memory_bytes)
        return is_limited, price is None, price or 0, *size, offer.instance_type, offer.region

    return min(fitting, key=order), []


def _bound(
    terms: RentalTerms, price_micros: int | None, machines: int, charges: Charges | None, disk_bytes: int
) -> int | None:
    """Return the cost at which the machines of the job are ended in any case, with their disks and public
    addresses if their prices are known. It includes machines that do not become ready and are replaced. It
    does not include transferred data, the time for which the provider cannot be asked to end a machine, and
    a machine that appears after its request counted as over."""
    price = terms.max_price_micros if price_micros is None else price_micros
    seconds = terms.max_seconds + (MOST_MACHINES - 1) * min(BOOT_SECONDS, terms.max_seconds)
    longest = None if price is None else ceil(price * seconds / HOUR_SECONDS)
    if longest is not None and charges is not None:
        longest += charges.disk_cost_micros(disk_bytes, seconds) + charges.address_cost_micros(seconds)
    limits = [one for one in (longest, terms.max_cost_micros) if one is not None]
    return min(limits) * machines if limits else None


def chosen_within(job: Job, planned: PlannedJob, previews: Mapping[str, RentalPreview]) -> TermsChoice:
    """Return the resource of a job with a deadline or a budget. `previews` has the possible machines, by the
    name of the resource; resources that are not in it cost nothing."""
    options = [
        TimeAndCost(
            resource=one.resource,
            seconds=_seconds(one.seconds, previews, one.resource),
            micros=_micros(previews, one.resource),
        )
        for one in planned.alternatives
        if not one.problem and not one.unreachable and not _problem(previews, one.resource)
    ]
    if not options:
        seconds = planned.sizing.expected_seconds
        options = [
            TimeAndCost(
                resource=planned.resource,
                seconds=_seconds(seconds, previews, planned.resource),
                micros=_micros(previews, planned.resource),
            )
        ]
    currency = next((one.rental.currency for one in previews.values() if one.rental is not None), "USD")
    return choose_within(
        options,
        deadline_seconds=job.deadline_seconds,
        budget_micros=job.budget_micros,
        currency=currency,
    )


def _problem(previews: Mapping[str, RentalPreview], resource: str) -> str:
    return previews[resource].problem if resource in previews else ""


def _micros(previews: Mapping[str, RentalPreview], resource: str) -> int | None:
    return previews[resource].micros if resource in previews else 0


def _seconds(seconds: float | None, previews: Mapping[str, RentalPreview], resource: str) -> float | None:
    """Return the time until the result is at home. On a rented machine, the boot of the machine is added."""
    rental = previews[resource].rental if resource in previews else None
    return seconds if rental is None else rental.total_seconds


def budget_problem(job: Job, choice: TermsChoice) -> str:
    """Return the reason why a job is refused because of its budget, with what to do; empty if it is not."""
    if not choice.refused or job.budget_micros is None:
        return ""
    most = show_money(job.budget_micros)
    return (
        f"{choice.refused}. Increase `budget`, set `max_cost` of the resource to at most {most}, or run the"
        " job once without `budget`, so that its duration is known"
    )
