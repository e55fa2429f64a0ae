"""This module compares the terms of a resource that is configured with what its provider offers, so that an
unknown region or type of machine is refused before a job needs it."""

from collections.abc import Iterable

from gridmill.control.usecases.rental_preview import NO_MARKET
from gridmill.domain.amounts import Amounts
from gridmill.domain.lease import RentalTerms
from gridmill.domain.machine import Offer
from gridmill.domain.naming import similar_name
from gridmill.domain.rental_nodes import type_of
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.ports.cloud import CloudPort
from gridmill.scheduler.rental_choice import misfit

_OFFERED = frozenset(
    {"region", "instance_type", "gpu_memory", "spot", "max_price", "max_cost", "budget", "currency"}
)
"""The settings of a resource that decide which offers are within its terms."""
_MOST_NAMES = 8
"""The number of known names in a hint if none of them is similar."""


def is_offered(resource: Resource, site: Site) -> bool:
    """Return whether a provider of machines can check settings of a resource."""
    return site.kind is SiteKind.CLOUD and bool(_OFFERED.intersection(resource.settings))


def check_offered(cloud: CloudPort, resource: Resource, site: Site) -> None:
    """Raise InputError, with the place of the setting and similar names, if the provider rents no machine
    within the terms of a resource. Raises the errors of CloudPort."""
    terms = rental_terms(resource, site)
    offers = cloud.offers(terms.region, terms.instance_type)
    reasons = {misfit(terms, Amounts(), NO_MARKET, offer) for offer in offers}
    if "" in reasons:
        return
    if not offers:
        _check_names(cloud, terms, resource, site)
    raise InputError(
        f"no machine of {site.name} can be rented within the terms of resource {resource.name!r}: the offers "
        f"{_asked(terms)}have {', '.join(sorted(reasons))}",
        hint=f"`gridmill offers {site.name}` lists the offers.",
        place=f"resource {resource.name}: settings",
    )


def _check_names(cloud: CloudPort, terms: RentalTerms, resource: Resource, site: Site) -> None:
    """Raise InputError for the type of machine or the region for which there is no offer."""
    kind = terms.instance_type
    elsewhere = cloud.offers("", kind) if kind and terms.region else ()
    if kind and not elsewhere:
        known = [*(one.instance_type for one in cloud.offers(terms.region, "")), *_types(site)]
        raise _unknown(
            resource, site, "instance_type", f"rents no machines of type {kind!r}", _names(kind, known)
        )
    # one type of machine is enough to find all regions
    offers = elsewhere or cloud.offers("", next(iter(_types(site)), ""))
    raise _unknown(
        resource,
        site,
        "region",
        f"rents no machines{f' of type {kind!r}' if kind else ''} in a region whose name begins with "
        f"{terms.region!r}",
        _names(terms.region, _regions(offers)),
    )


def _types(site: Site) -> list[str]:
    return [type_of(node.name) for node in site.nodes]


def _regions(offers: Iterable[Offer]) -> list[str]:
    return [one.region for one in offers]


def _names(name: str, known: Iterable[str]) -> str:
    """Return the similar name, or the known names, as a hint."""
    names = sorted(set(known))
    similar = similar_name(name, names)
    if similar:
        return f"Did you mean `{similar}`?"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"Known are {', '.join(names[:_MOST_NAMES])}{more}." if names else ""


def _unknown(resource: Resource, site: Site, setting: str, problem: str, names: str) -> InputError:
    owner = f"resource {resource.name}" if resource.settings.get(setting) else f"site {site.name}"
    return InputError(
        f"{site.name} {problem}",
        hint=f"{names} `gridmill offers {site.name}` lists the offers.".lstrip(),
        place=f"{owner}: settings.{setting}",
    )


def _asked(terms: RentalTerms) -> str:
    where = f"in {terms.region}" if terms.region else ""
    asked = " ".join(filter(None, (terms.instance_type, where)))
    return f"for {asked} " if asked else ""
