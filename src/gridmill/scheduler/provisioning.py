"""This module decides which deployments to start: for ready jobs without a pod, and early for jobs that will
soon be ready."""

from collections.abc import Collection, Iterable, Iterator

from gridmill.domain.amounts import GIB, Amounts, show_bytes, show_cpus
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.plan import BringUp
from gridmill.domain.resource import Resource, Sizing, asks_for_need
from gridmill.scheduler.capacity import most_jobs, slot_of
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.feasibility import (
    POD_STEP,
    asked_of,
    cpus_of,
    gpus_of,
    may_use,
    ranks_on,
    sizes_by_ranks,
)
from gridmill.scheduler.lane import Lane
from gridmill.scheduler.queue import Demand
from gridmill.scheduler.sizing import size_resource

FLOOR = GIB
"""The smallest memory of a deployment in bytes, so that a later job that is slightly larger also fits into
the deployment."""
SERVICES_FLOOR = 2 * GIB
"""The smallest memory of a deployment for services, which share a pod although each of them starts alone and
never ends by itself."""
FLOOR_SHARE = 8
"""On small nodes, the smallest memory of a deployment is at most the memory of the node divided by this
number."""
PART_OF_CPU = 1.0
"""A pod starts with at least this many CPUs, or with all CPUs of a smaller node."""


def bring_up(draft: DraftPlan, lane: Lane, demand: Demand, *, urgent: bool, pods: int | None = None) -> bool:
    """Plan a deployment that is large enough for `demand`. The function returns False if no node is free
    enough now.

    With `urgent`, the job may get another pod on a node whose CPUs this resource already keeps busy. If the
    number of pods of the resource is limited, the deployment gets all pods that the resource may still have.
    If the resource has no limit, the deployment has up to `pods` pods, or one pod.
    """
    left = pods if lane.workers_left is None else lane.workers_left
    if demand.node:
        left = None  # the limit does not apply, because a job for one node has no other choice
    most = draft.machines_left(lane.resource.site)
    if 0 in (left, most):
        return False
    wish = _wanted_amounts(draft, lane)
    by_ranks = demand.workers > 1 and pods is not None and _sizes_by_ranks(draft, lane)
    if by_ranks:
        wish = _of_ranks(demand, 1)
    node = _find_node(draft, lane, demand, wish, urgent=urgent)
    if node is None:
        return False
    if by_ranks:
        amounts, left = _for_ranks(draft, lane, demand, node, pods or 1)
    else:
        amounts = _amounts_on(draft, lane, demand, wish, node)
    left = left if left is None or most is None else min(left, most)
    nodes = [node]
    _claim(draft, lane, amounts, node)
    while left is not None and len(nodes) < left:
        further = _find_node(draft, lane, demand, amounts, urgent=True, exactly=True)
        if further is None:
            break
        nodes.append(further)
        _claim(draft, lane, amounts, further)
    why = (
        *_why(lane, amounts, needed=_asks_for_need(draft, lane)),
        *(f"on {node}" for node in dict.fromkeys(nodes)),
    )
    sizing = Sizing(amounts=amounts, workers=len(nodes), why=why)
    draft.bring_up(
        BringUp(resource=lane.resource, sizing=sizing, nodes=tuple(nodes), pinned=bool(demand.node))
    )
    return True


def can_bring_up(draft: DraftPlan, lane: Lane, demand: Demand) -> bool:
    """Return whether `bring_up` for an urgent job would find a node that is free enough."""
    wish = _wanted_amounts(draft, lane)
    allowed = lane.workers_left != 0 or bool(demand.node)
    allowed = allowed and draft.machines_left(lane.resource.site) != 0
    return allowed and _find_node(draft, lane, demand, wish, urgent=True) is not None


def _wanted_amounts(draft: DraftPlan, lane: Lane) -> Amounts:
    """Return the CPUs, memory and GPUs that one pod should have if they are free: enough memory for the jobs
    that are expected to run at the same time."""
    if lane.wanted_amounts is None:
        lane.wanted_amounts = _compute_wanted(draft, lane)
    return lane.wanted_amounts


def _compute_wanted(draft: DraftPlan, lane: Lane) -> Amounts:
    resource = lane.resource
    if _asks_for_need(draft, lane) and not gpus_of(resource):
        return _needed(draft, lane)
    site = draft.snapshot.places.shapes.get(resource.site, ())
    most_cpus = max((shape.cpus for shape in site), default=1.0)
    largest = draft.snapshot.largest(resource.site)
    cpus = cpus_of(resource, replace(largest, cpus=most_cpus))
    if resource.memory_bytes is not None:
        return Amounts(cpus=cpus, memory_bytes=resource.memory_bytes, gpus=gpus_of(resource))
    wanted = _expected(draft, lane, cpus)
    if resource.size is not None:
        sized = size_resource(resource, draft.snapshot.history, largest)
        wanted = max(wanted, sized.amounts.memory_bytes)
    least = SERVICES_FLOOR if resource.type == JobKind.SERVICE else FLOOR
    floor = min(least, largest.memory_bytes // FLOOR_SHARE)
    memory = -(-max(wanted, floor) // POD_STEP) * POD_STEP
    return Amounts(cpus=cpus, memory_bytes=memory, gpus=gpus_of(resource))


def _asks_for_need(draft: DraftPlan, lane: Lane) -> bool:
    return asks_for_need(draft.snapshot.sites[lane.resource.site].kind)


def _sizes_by_ranks(draft: DraftPlan, lane: Lane) -> bool:
    return sizes_by_ranks(draft.snapshot.sites[lane.resource.site].kind, lane.resource)


def _needed(draft: DraftPlan, lane: Lane) -> Amounts:
    """Return the CPUs and memory that the ready jobs need side by side, at most all CPUs of a node. The CPUs
    and memory that blocked jobs need are not included. The function is used for sites where unused amounts
    make other users wait or cost money."""
    resource = lane.resource
    shapes = draft.snapshot.places.shapes.get(resource.site, ())
    most = max((shape.cpus for shape in shapes), default=1.0)
    workers = resource.workers or 1
    unit = asked_of(draft.snapshot, resource, Amounts(cpus=most)).cpus
    cpus, memory, largest = 0.0, 0, 0
    for group in lane.queue.largest_first():
        if group.demand.workers > 1:
            of_ranks = _of_ranks(group.demand, _ranks_in_pod(resource, group.demand, most))
            cpus, largest = max(cpus, of_ranks.cpus * workers), max(largest, of_ranks.memory_bytes)
            continue
        each = group.demand.cpus or unit
        count = min(len(group.members), max(int((most * workers - cpus) // each), 0 if cpus else 1))
        cpus, memory = cpus + each * count, memory + group.demand.memory_bytes * count
        largest = max(largest, group.demand.memory_bytes)
    share = max(largest, -(-memory // workers))
    if resource.size is not None:
        node = draft.snapshot.largest(resource.site)
        share = max(share, size_resource(resource, draft.snapshot.history, node).amounts.memory_bytes)
    return Amounts(
        cpus=resource.cpus or max(1.0, min(most, -(-cpus // workers))),
        memory_bytes=resource.memory_bytes or -(-share // POD_STEP) * POD_STEP,
    )


def _ranks_in_pod(resource: Resource, demand: Demand, most_cpus: float) -> int:
    """Return the number of a gang's ranks in each pod: the ranks divided by the resource's number of
    workers, or, if this number is not set, as many ranks as the pod has CPUs for."""
    if resource.workers:
        return -(-demand.workers // resource.workers)
    return min(demand.workers, max(1, int((resource.cpus or most_cpus) // (demand.cpus or 1.0))))


def _of_ranks(demand: Demand, count: int) -> Amounts:
    return Amounts(
        cpus=(demand.cpus or 1.0) * count, memory_bytes=demand.memory_bytes * count, gpus=demand.gpus * count
    )


def _for_ranks(draft: DraftPlan, lane: Lane, demand: Demand, node: str, missing: int) -> tuple[Amounts, int]:
    """Return the size of a pod for a gang's ranks, and the number of such pods. There are as few pods as the
    size of the node allows, and the pods are as equal as possible, so that the ranks use all requested
    amounts."""
    on_node = max(1, ranks_on(draft.nodes(lane.resource.site).free(node), demand))
    pods = -(-missing // min(missing, on_node))
    if lane.workers_left is not None:
        pods = min(max(pods, lane.workers_left), missing) if lane.workers_left else pods
    each = min(on_node, -(-missing // pods))
    return _of_ranks(demand, each), pods


def _expected(draft: DraftPlan, lane: Lane, cpus: float) -> int:
    """Return the memory of the largest jobs, ready or blocked, that can run side by side in one pod."""
    at_once = most_jobs(cpus)
    workers = lane.resource.workers or 1
    blocked = draft.snapshot.lines.blocked.get(lane.name)
    memories = list(lane.queue.largest_memories(at_once * workers))
    memories += list(blocked.largest_memories(at_once * workers)) if blocked else []
    memories = sorted(memories, reverse=True)[: at_once * workers]
    return max(memories[0], -(-sum(memories) // workers)) if memories else 0


def _find_node(
    draft: DraftPlan, lane: Lane, demand: Demand, wish: Amounts, *, urgent: bool, exactly: bool = False
) -> str | None:
    resource, site = lane.resource, lane.resource.site
    nodes = draft.nodes(site)
    explicit = exactly or resource.memory_bytes is not None
    least = wish.memory_bytes if explicit else demand.memory_bytes
    names = nodes.candidates(wish.memory_bytes, least, wish.gpus)
    excluded = draft.excluded_nodes(lane) if not demand.node else ()
    for name in _willing_first(names, draft.refusing_nodes.get(lane.name, ())):
        free = nodes.free(name)
        if demand.node not in ("", name) or (site, name) in draft.reserved or free.gpus < wish.gpus:
            continue
        if name in excluded or not may_use(draft.snapshot, resource, name):
            continue
        if free.cpus + 1e-9 < (wish.cpus if exactly else _least_cpus(draft, lane, demand, name)):
            continue
        if resource.workers is None and not urgent and keeps_busy(draft, lane, name):
            continue
        return name
    return None


def _willing_first(names: Iterable[str], unwilling: Collection[str]) -> Iterator[str]:
    put_off: list[str] = []
    for name in names:
        if name in unwilling:
            put_off.append(name)
        else:
            yield name
    yield from put_off


def _least_cpus(draft: DraftPlan, lane: Lane, demand: Demand, node: str) -> float:
    whole = draft.snapshot.places.capacities[(lane.resource.site, node)].cpus
    return lane.resource.cpus or max(demand.cpus or 0.0, min(PART_OF_CPU, whole))


def keeps_busy(draft: DraftPlan, lane: Lane, node: str) -> bool:
    """Return whether the resource's pods on a node already run enough jobs to keep all CPUs of the node
    busy."""
    places, site = draft.snapshot.places, lane.resource.site
    pods = [*places.claims.get((site, node), ()), *lane.planned.get(node, ())]
    slots = [pods_.slot(pod) for pod in pods for pods_ in (lane.open, lane.coming) if pod in pods_]
    return sum(slot.jobs for slot in slots) >= most_jobs(places.capacities[(site, node)].cpus)


def _amounts_on(draft: DraftPlan, lane: Lane, demand: Demand, wish: Amounts, node: str) -> Amounts:
    """Return the wanted CPUs, memory and GPUs, reduced to what is free on the node. If the number of CPUs is
    not set, the CPUs of the node are divided among the workers of the resource. On a node with GPUs, the pod
    gets the same fraction of the CPUs as of the GPUs, so that CPUs are left for the other GPUs."""
    resource = lane.resource
    free = draft.nodes(resource.site).free(node)
    if resource.cpus:
        cpus = resource.cpus
    elif _asks_for_need(draft, lane) and not wish.gpus:
        cpus = min(max(wish.cpus, demand.cpus or 0.0), free.cpus)
    else:
        site = draft.snapshot.sites[resource.site]
        capacity = draft.snapshot.places.capacities[(resource.site, node)]
        whole, per_node = capacity.cpus, -(-(resource.workers or 1) // len(site.nodes))
        share = min(1 / per_node, wish.gpus / capacity.gpus) if wish.gpus else 1 / per_node
        cpus = min(max(whole * share, demand.cpus or 0.0, min(PART_OF_CPU, whole)), free.cpus)
    return Amounts(cpus=cpus, memory_bytes=min(wish.memory_bytes, free.memory_bytes), gpus=wish.gpus)


def _claim(draft: DraftPlan, lane: Lane, amounts: Amounts, node: str) -> None:
    nodes = draft.nodes(lane.resource.site)
    nodes.set(node, nodes.free(node) - amounts)
    pod_id = f"+{lane.alive}"
    lane.planned.setdefault(node, []).append(pod_id)
    lane.alive += 1
    lane.coming.set(slot_of(pod_id, amounts, (), "", node))


def _why(lane: Lane, amounts: Amounts, *, needed: bool) -> tuple[str, ...]:
    resource = lane.resource
    memory = show_bytes(amounts.memory_bytes)
    need = "as the jobs need" if needed else "all that are free on the node"
    return (
        f"{memory}: set for {resource.name}"
        if resource.memory_bytes is not None
        else f"{memory} for the jobs expected to run at once",
        f"{show_cpus(amounts.cpus)}: {'set' if resource.cpus else need}",
    )
