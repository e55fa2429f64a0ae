"""This module has the cost and the limits of a service on a rented machine, as `gridmill start service` and
`gridmill show service` print them."""

from collections.abc import Iterable

from gridmill.control.usecases.rental_preview import away_text
from gridmill.domain.amounts import show_seconds
from gridmill.domain.job import JobKind
from gridmill.domain.lease import Lease, RentalTerms
from gridmill.domain.rental_estimate import show_money
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.service import Service
from gridmill.domain.site import Site
from gridmill.errors import InputError
from gridmill.scheduler.nodes_within_terms import lowest_price
from gridmill.scheduler.rental_preview import market_of

LIMIT = "max_hours"


def check_limit(service: Service, resource: Resource, site: Site) -> None:
    """Raise InputError if the resource of a service has no limit for the time of a machine, because a service
    does not end by itself."""
    if not resource.settings.get(LIMIT) and not site.settings.get(LIMIT):
        raise InputError(
            f"service {service.name!r} would run on a rented machine without a limit, because resource "
            f"{resource.name!r} has no {LIMIT}",
            hint=f"gridmill configure resource {resource.name} --max-hours 8",
            place="resource",
        )


def rental_text(resource: Resource, site: Site, lease: Lease | None) -> str:
    """Return the price per hour of a service on a rented machine, when the machine ends, and what happens
    while no control node runs. `lease` is the lease of its machine, or None if it has none yet."""
    terms = rental_terms(resource, site)
    away = away_text(JobKind.SERVICE, resource, site, market_of(site).market.self_end)
    longest = show_seconds(terms.max_seconds)
    return "; ".join(
        (
            f"costs {_price(terms, site, lease)} an hour",
            f"after {longest} ({LIMIT}) its machine ends, and the service starts again on another one",
            away,
        )
    )


def _price(terms: RentalTerms, site: Site, lease: Lease | None) -> str:
    """Return the price of the rented machine, or the lowest price of the offers within the terms."""
    prices = [(one.price_micros, one.currency) for one in lease.tries] if lease is not None else []
    micros, currency = prices[-1] if prices else (None, terms.currency)
    if micros is not None:
        return show_money(micros, currency)
    lowest = lowest_price(site, terms)
    return f"at least {show_money(lowest, terms.currency)}" if lowest is not None else "an unknown amount"


def lease_of_pod(leases: Iterable[Lease], pod_id: str) -> Lease | None:
    """Return the lease of the machine of a pod."""
    return next((one for one in leases if one.pod_id == pod_id), None)
