"""This module reads which machines can be rented at a cloud site within the terms of its resources.

The offers of a provider change rarely, so they are read again only after some minutes, or if a resource has
new terms.
"""

from collections.abc import Callable, Iterable

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import RentalTerms
from gridmill.domain.machine import Offer
from gridmill.domain.rental_nodes import nodes_of_offers
from gridmill.domain.resource import Resource
from gridmill.domain.site import USUAL_MACHINES, Node, Site, SiteOffers
from gridmill.errors import UnavailableError
from gridmill.ports.cloud import CloudPort, RentingSite
from gridmill.ports.site import SitePort
from gridmill.scheduler.nodes_within_terms import nodes_within_terms, terms_of

OFFERS_SECONDS = 300.0
"""The time for which offers are used again. Prices of spot machines change often."""
ASK_AGAIN_SECONDS = 60.0
"""The time after which a provider that did not answer is asked for its offers again. Sites are polled more
often, and providers limit the rate of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNodes:
    """The nodes of a site, and the offers of a cloud site (None for other sites)."""

    nodes: tuple[Node, ...]
    market: SiteOffers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The nodes and offers that were read through an interface for these terms. They are read again
    OFFERS_SECONDS after the time `at` of the monotonic clock."""

    port: SitePort
    terms: frozenset[RentalTerms]
    at: float
    found: SiteNodes


class RentableNodes:
    """The nodes of sites, with the last reading of each cloud site. This class is safe to call from several
    threads that read different sites."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._readings: dict[str, _Reading] = {}

    def read(self, site: Site, port: SitePort, resources: Iterable[Resource]) -> SiteNodes:
        """Return the nodes of a site. For a cloud site, these are the machines that can be rented within the
        terms of the site and of its `resources`. If the provider does not answer, the last reading for the
        same terms is used. Raises what the site raises."""
        if not isinstance(port, RentingSite):
            return SiteNodes(nodes=port.nodes())
        terms = frozenset(filter(None, (terms_of(site, one) for one in _settings(site, resources))))
        last, now = self._readings.get(site.name), self._monotonic()
        same = last if last is not None and last.port is port and last.terms == terms else None
        if same is not None and now - same.at < OFFERS_SECONDS:
            return same.found
        try:
            found = _rentable(site, port.cloud(), terms)
        except UnavailableError:
            if same is None:
                raise
            self._readings[site.name] = replace(same, at=now - OFFERS_SECONDS + ASK_AGAIN_SECONDS)
            return same.found
        self._readings[site.name] = _Reading(port=port, terms=terms, at=now, found=found)
        return found


def _settings(site: Site, resources: Iterable[Resource]) -> list[dict[str, str]]:
    """Return the settings of the resources of a site, and of a resource without settings of its own."""
    return [{}, *(dict(one.settings) for one in resources if one.site == site.name)]


def _rentable(site: Site, cloud: CloudPort, terms: frozenset[RentalTerms]) -> SiteNodes:
    asked = tuple(sorted({(one.region, one.instance_type) for one in terms}))
    offers: dict[tuple[str, str], Offer] = {}
    for region, instance_type in asked:
        offers |= {(one.region, one.instance_type): one for one in cloud.offers(region, instance_type)}
    machines = site.most_machines or USUAL_MACHINES
    nodes, kept = nodes_within_terms(tuple(offers.values()), terms, machines)
    # if prices are unknown, nothing is within terms without max_price, but the sizes of machines are known
    nodes = nodes or nodes_of_offers(offers.values(), machines)
    return SiteNodes(nodes=nodes, market=SiteOffers(offers=kept, asked=asked, charges=cloud.traits.charges))
