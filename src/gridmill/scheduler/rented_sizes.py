"""This module finds the offers of a cloud site on which a service of a requested size would fit."""

from gridmill.domain.amounts import Amounts, show_bytes, show_cpus, show_number
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import replace
from gridmill.domain.machine import Offer, capacity_of
from gridmill.domain.rental_estimate import show_money
from gridmill.domain.rental_nodes import price_order
from gridmill.domain.resource import Resource
from gridmill.domain.service import CALIBRATION_CPUS, has_own_code
from gridmill.domain.service_measuring import SizeRequest, amounts_needed
from gridmill.domain.service_size import MOST_REPLICAS, Calibration
from gridmill.domain.site import Site
from gridmill.scheduler.nodes_within_terms import terms_of
from gridmill.scheduler.rental_choice import Market, misfit, price_of

_NO_MARKET = Market(capacities={})


def calibration_cpus(version: Artifact) -> float:
    """Return the CPUs that a calibration of a version uses."""
    return CALIBRATION_CPUS + has_own_code(version)


def enough_offer(
    calibration: Calibration, request: SizeRequest, resource: Resource | None, site: Site | None
) -> Offer | None:
    """Return the cheapest offer of a site that is large enough for a request, within the terms of the
    resource except for its type of machine. Each request is assumed to take as much CPU time as in the
    calibration. The result is None if there is no such offer, or if the offers are unknown."""
    needed = amounts_needed(calibration, request)
    terms = terms_of(site, resource.settings) if resource is not None and site is not None else None
    if needed is None or terms is None or resource is None or site is None or site.market is None:
        return None
    terms = replace(terms, instance_type="")
    needed = replace(needed, gpus=resource.gpus or 0)
    fitting = [one for one in site.market.offers if not misfit(terms, needed, _NO_MARKET, one)]
    by_price = sorted(
        fitting, key=lambda one: (price_order(one, spot=terms.spot), one.gpus, one.memory_bytes)
    )
    return next(iter(by_price), None)


def enough_text(
    calibration: Calibration, request: SizeRequest, resource: Resource | None, site: Site | None
) -> str:
    """Return which type of machine would be large enough for a request, with the assumption of this
    estimate."""
    if amounts_needed(calibration, request) is None:
        return f"a service has at most {MOST_REPLICAS} replicas, and more would be needed"
    offer = enough_offer(calibration, request, resource, site)
    if offer is None or resource is None or site is None:
        where = f" of site {site.name}" if site is not None else ""
        return f"no known offer{where} within the terms of the resource is large enough"
    needed = amounts_needed(calibration, request) or Amounts()
    limits = []
    if resource.cpus and resource.cpus < needed.cpus:
        limits.append(f"--cpus {show_number(needed.cpus)}")
    if resource.memory_bytes and resource.memory_bytes < needed.memory_bytes:
        limits.append(f"--memory {show_bytes(needed.memory_bytes).replace(' ', '')}")
    terms = terms_of(site, resource.settings)
    price = price_of(offer, spot=terms is not None and terms.spot)
    cost = f", {show_money(price, offer.currency)} an hour" if price is not None else ""
    size = capacity_of(offer)
    return (
        f"{offer.instance_type} ({show_cpus(offer.cpus)}, {show_bytes(size.memory_bytes)}{cost}) would be "
        "enough if each request takes as much CPU time there; name it as the --instance-type of a "
        f"resource{f' with {chr(32).join(limits)}' if limits else ''}"
    )
