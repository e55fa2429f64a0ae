"""Computes the nodes of a cloud site: one node for each machine that could be rented."""

from collections.abc import Iterable, Sequence
from math import inf

from gridmill.domain.amounts import Amounts
from gridmill.domain.machine import Offer
from gridmill.domain.site import Node

MEMORY_SHARE = 0.85
"""The fraction of a machine's nominal memory that pods may use. A machine has a little less memory than its
type promises, and the system and the light server need a part of it."""
_MOST_TYPES = 64
"""The largest number of types among the nodes. Providers offer hundreds of types, and the planner reads all
nodes."""


def slots(offers: Iterable[Offer], max_machines: int) -> tuple[Node, ...]:
    """Returns the nodes `TYPE#K`, with K from 1 to `max_machines`. Of several types with the same size, only
    the cheapest is used. If there are too many types, the largest of them and the cheapest of them are
    used."""
    return tuple(
        Node(name=f"{offer.instance_type}#{number}", capacity=_capacity(offer))
        for offer in _chosen(_cheapest(offers))
        for number in range(1, max_machines + 1)
    )


def type_of(node: str) -> str:
    """Returns the type of machine that the node stands for."""
    return node.rpartition("#")[0]


def _capacity(offer: Offer) -> Amounts:
    return Amounts(
        cpus=float(offer.cpus), memory_bytes=int(offer.memory_bytes * MEMORY_SHARE), gpus=offer.gpus
    )


def _price(offer: Offer) -> float:
    return inf if offer.price_micros is None else float(offer.price_micros)


def _cheapest(offers: Iterable[Offer]) -> list[Offer]:
    sizes: dict[tuple[object, ...], Offer] = {}
    for offer in sorted(offers, key=lambda one: (_price(one), one.instance_type)):
        size = (offer.cpus, offer.memory_bytes, offer.gpus, offer.gpu_model, offer.gpu_memory_bytes)
        sizes.setdefault(size, offer)
    return list(sizes.values())


def _chosen(offers: Sequence[Offer]) -> list[Offer]:
    largest = [one for one in offers if not any(_exceeds(other, one) for other in offers)]
    kept = {one.instance_type: one for one in (*largest, *offers)}
    chosen = list(kept.values())[:_MOST_TYPES]
    return sorted(chosen, key=lambda one: (_price(one), one.instance_type))


def _exceeds(other: Offer, one: Offer) -> bool:
    size, mine = ((each.cpus, each.memory_bytes, each.gpus) for each in (other, one))
    return size != mine and all(a >= b for a, b in zip(size, mine, strict=True))
