"""Memory of pods that stand side by side on a node."""

from gridmill.model.amounts import GIB, MIB, Amounts, show_bytes, show_count
from gridmill.model.resource import Resource
from gridmill.planning.limits import gpus_of

POD_STEP, MIN_SHARE = 256 * MIB, GIB
"""Deployments are sized in such steps. With a smaller share of a node, what spills leaves no room."""


def cpus_of(resource: Resource, node: Amounts) -> float:
    """Of one of its pods: as set, else all of a node's; of a node with GPUs as many as go with its own."""
    gpus = gpus_of(resource)
    part = gpus / node.gpus if 0 < gpus < node.gpus else 1.0
    return resource.cpus or node.cpus * part


def leave_room(memory: int, resource: Resource, largest: Amounts, nodes: int) -> tuple[int, list[str]]:
    """Bytes for a job that gets by with less, and why: so that as many pods as the resource is set to have
    fit on the site's nodes at a time."""
    on_each = -(-(resource.workers or 1) // max(1, nodes))
    share = largest.memory_bytes // on_each // POD_STEP * POD_STEP
    if on_each < 2 or not MIN_SHARE <= share < memory:
        return memory, []
    return share, [f"cut to {show_bytes(share)}, so that {show_count(on_each, 'pod')} fit on a node"]
