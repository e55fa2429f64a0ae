"""This module has the cost and the limits of a service on a rented machine, as `gridmill start service` and
`gridmill show service` print them."""

from math import ceil

from gridmill.control.ledger import Ledger
from gridmill.control.usecases.rental_preview import away_text
from gridmill.domain.amounts import about, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import JobKind
from gridmill.domain.lease import HOUR_SECONDS, Lease, RentalTerms, lease_of_pod
from gridmill.domain.rental_estimate import show_money
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt
from gridmill.domain.service import Service
from gridmill.domain.service_succession import lead_seconds
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.scheduler.nodes_within_terms import lowest_price
from gridmill.scheduler.rental_preview import market_of
from gridmill.scheduler.service_succession import boot_forecast

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


def rental_text_of(ledger: Ledger, service: Service, attempt: Attempt | None) -> str:
    """Return the cost and the limits of a service on a rented machine; empty for all other services.
    `attempt` runs its replicas now (None: they do not run)."""
    site = ledger.read(Site, service.site)
    resource = ledger.read(Resource, service.resource)
    if site is None or resource is None or site.kind is not SiteKind.CLOUD:
        return ""
    lease = lease_of_pod(ledger.snapshot.leases.values(), attempt.pod_id) if attempt else None
    boot_seconds = boot_forecast(ledger.snapshot, lease)
    return rental_text(resource, site, lease, boot_seconds, service.succession.start_seconds)


def rental_text(
    resource: Resource, site: Site, lease: Lease | None, boot_seconds: float, start_seconds: float
) -> str:
    """Return the price per hour of a service on a rented machine, when the machine ends, what the change to
    another machine costs, and what happens while no control node runs. `lease` is the lease of its machine,
    or None if it has none yet. The times are the forecasts for another machine and for the replicas on it."""
    terms = rental_terms(resource, site)
    away = away_text(JobKind.SERVICE, resource, site, market_of(site).market.self_end)
    price, lead = _price(terms, site, lease), lead_seconds(boot_seconds, start_seconds, terms.max_seconds)
    longest = f"after {show_seconds(terms.max_seconds)} ({LIMIT}) its machine ends"
    single = _single_machine(resource, site)
    if single:
        change = f"{longest}, and the service starts again on another one ({single})"
    else:
        cost = price.times(lead / HOUR_SECONDS)
        change = (
            f"{longest}; another one starts {about(lead)} before and takes over when it is ready, which "
            f"costs {cost} more"
        )
    return "; ".join((f"costs {price.text} an hour", change, away))


def _single_machine(resource: Resource, site: Site) -> str:
    """Return the limit that permits only one machine; empty if there is none."""
    if resource.workers == 1:
        return f"resource {resource.name} has at most 1 worker"
    return f"site {site.name} has at most 1 machine" if site.most_machines == 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """A price per hour in micro-units of a currency, or None if it is unknown. A price `is_least` if the
    machine was not chosen yet."""

    micros: int | None
    currency: str
    is_least: bool = False

    @property
    def text(self) -> str:
        return self.times(1.0)

    def times(self, hours: float) -> str:
        if self.micros is None:
            return "an unknown amount"
        money = show_money(ceil(self.micros * hours), self.currency)
        return f"at least {money}" if self.is_least else money


def _price(terms: RentalTerms, site: Site, lease: Lease | None) -> _Price:
    """Return the price of the rented machine, or the lowest price of the offers within the terms."""
    prices = [(one.price_micros, one.currency) for one in lease.tries] if lease is not None else []
    micros, currency = prices[-1] if prices else (None, terms.currency)
    if micros is not None:
        return _Price(micros=micros, currency=currency)
    return _Price(micros=lowest_price(site, terms), currency=terms.currency, is_least=True)
