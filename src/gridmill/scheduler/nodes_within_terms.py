"""This module computes the nodes of a cloud site, which stand for machines that could be rented, and finds
the nodes that the offers can serve within the terms of a resource."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.lease import RentalTerms
from gridmill.domain.machine import Offer, capacity_of
from gridmill.domain.rental_nodes import chosen_offers, nodes_of_offers, price_order, type_of
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Node, Site
from gridmill.errors import InputError
from gridmill.scheduler.rental_choice import Market, misfit, price_of

MOST_EXAMPLES = 8
"""The number of offers that are kept as the reason why no offer is within the terms of a resource."""
_NO_MARKET = Market(capacities={})


def nodes_within_terms(
    offers: Sequence[Offer], terms: Iterable[RentalTerms], machines: int
) -> tuple[tuple[Node, ...], tuple[Offer, ...]]:
    """Return the nodes for the offers that are within at least one of the terms, and the offers that the
    planner needs: those of the nodes. If no offer is within some terms, the cheapest of the offers with the
    type and the region of these terms are also returned, as the reason."""
    nodes: dict[str, Node] = {}
    needed: dict[tuple[str, str], Offer] = {}
    for one in sorted(terms, key=repr):
        fitting = [offer for offer in offers if not _outside(one, offer)]
        chosen = chosen_offers(fitting, spot=one.spot) or _examples(one, offers)
        needed |= {(offer.region, offer.instance_type): offer for offer in chosen}
        nodes |= {node.name: node for node in nodes_of_offers(fitting, machines, spot=one.spot)}
    kept = (replace(offer, zones=(), read=None) for _, offer in sorted(needed.items()))
    return tuple(nodes.values()), tuple(kept)


def types_and_reason(site: Site, settings: Mapping[str, str]) -> tuple[frozenset[str] | None, str]:
    """Return the results of `types_within_terms` and `why_none_within_terms`."""
    return types_within_terms(site, settings), why_none_within_terms(site, settings)


def types_within_terms(site: Site, settings: Mapping[str, str]) -> frozenset[str] | None:
    """Return the types of the nodes that an offer within the terms of a resource with these settings can
    serve: an offer with the size of the node or a larger one. The result is None if it is unknown what the
    provider offers for these terms."""
    terms = _known_terms(site, settings)
    if terms is None or site.market is None:
        return None
    sizes = {capacity_of(offer) for offer in site.market.offers if not _outside(terms, offer)}
    types = {type_of(node.name): node.capacity for node in site.nodes}
    return frozenset(name for name, size in types.items() if any(size.fits_in(other) for other in sizes))


def lowest_price(site: Site, terms: RentalTerms) -> int | None:
    """Return the lowest price per hour of the offers within the terms, in micro-units of their currency. The
    result is None if no such offer or no price is known."""
    offers = site.market.offers if site.market is not None else ()
    prices = (price_of(offer, spot=terms.spot) for offer in offers if not _outside(terms, offer))
    return min((price for price in prices if price is not None), default=None)


def why_none_within_terms(site: Site, settings: Mapping[str, str]) -> str:
    """Return the reason why no offer is within the terms of a resource with these settings. The result is
    empty if there is such an offer, or if the offers are unknown."""
    terms = _known_terms(site, settings)
    if terms is None or site.market is None:
        return ""
    reasons = {_outside(terms, offer) for offer in site.market.offers if _is_named(terms, offer)}
    if "" in reasons:
        return ""
    asked = " ".join(filter(None, (terms.instance_type, f"in {terms.region}" if terms.region else "")))
    if not reasons:
        return f"the provider offers no machine{f' {asked}' if asked else ''}"
    return f"the offers{f' for {asked}' if asked else ''} have {', '.join(sorted(reasons))}"


def _known_terms(site: Site, settings: Mapping[str, str]) -> RentalTerms | None:
    terms = terms_of(site, settings)
    if terms is None or site.market is None:
        return None
    return terms if (terms.region, terms.instance_type) in site.market.asked else None


def terms_of(site: Site, settings: Mapping[str, str]) -> RentalTerms | None:
    """Return the terms of a resource with these settings. The result is None if the settings are invalid,
    because the settings were checked when the resource was configured."""
    resource = Resource(name=site.name, type=JobKind.COMMAND, site=site.name, settings=settings)
    try:
        return rental_terms(resource, site)
    except InputError:
        return None


def _outside(terms: RentalTerms, offer: Offer) -> str:
    return misfit(terms, Amounts(), _NO_MARKET, offer)


def _is_named(terms: RentalTerms, offer: Offer) -> bool:
    return offer.region.startswith(terms.region) and terms.instance_type in ("", offer.instance_type)


def _examples(terms: RentalTerms, offers: Iterable[Offer]) -> Collection[Offer]:
    named = [offer for offer in offers if _is_named(terms, offer)]
    return sorted(named, key=lambda one: (price_order(one, spot=terms.spot), one.instance_type))[
        :MOST_EXAMPLES
    ]
