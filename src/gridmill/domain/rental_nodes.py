"""This module computes the nodes of a cloud site, which stand for machines that could be rented."""

from collections.abc import Iterable, Iterator
from math import inf

from gridmill.domain.machine import Offer, capacity_of
from gridmill.domain.site import Node

MOST_TYPES = 64
"""The largest number of types among the nodes. Providers offer hundreds of types, and the planner reads all
nodes."""


def nodes_of_offers(offers: Iterable[Offer], machines: int, *, spot: bool = False) -> tuple[Node, ...]:
    """Return the nodes `TYPE#K`, with K from 1 to `machines`. Of several types with the same size, only the
    cheapest is used. If there are too many types, the largest of them and the cheapest of them are used."""
    return tuple(
        Node(name=f"{offer.instance_type}#{number}", capacity=capacity_of(offer))
        for offer in chosen_offers(offers, spot=spot)
        for number in range(1, machines + 1)
    )


def type_of(node: str) -> str:
    """Return the type of machine that the node stands for."""
    return node.rpartition("#")[0]


def chosen_offers(offers: Iterable[Offer], *, spot: bool) -> list[Offer]:
    """Return the cheapest offer of each size, the cheapest first, and at most MOST_TYPES offers."""
    cheapest = list(_cheapest(offers, spot=spot))
    largest = [one for one in cheapest if not any(_exceeds(other, one) for other in cheapest)]
    kept = {one.instance_type: one for one in (*largest, *cheapest)}
    chosen = list(kept.values())[:MOST_TYPES]
    return sorted(chosen, key=lambda one: (price_order(one, spot=spot), one.instance_type))


def price_order(offer: Offer, *, spot: bool) -> float:
    """Return the price by which offers are sorted: offers with an unknown price come last."""
    price = offer.spot_price_micros if spot else offer.price_micros
    return inf if price is None else float(price)


def _cheapest(offers: Iterable[Offer], *, spot: bool) -> Iterator[Offer]:
    sizes: set[tuple[object, ...]] = set()
    for offer in sorted(offers, key=lambda one: (price_order(one, spot=spot), one.instance_type)):
        size = (offer.cpus, offer.memory_bytes, offer.gpus, offer.gpu_model, offer.gpu_memory_bytes)
        if size not in sizes:
            sizes.add(size)
            yield offer


def _exceeds(other: Offer, one: Offer) -> bool:
    size, mine = ((each.cpus, each.memory_bytes, each.gpus) for each in (other, one))
    return size != mine and all(a >= b for a, b in zip(size, mine, strict=True))
