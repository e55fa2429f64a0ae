"""This module frees memory, CPUs and GPUs for a job: it releases idle deployments and, if the job has waited
too long, drains busy deployments."""

from collections.abc import Collection, Iterator

from gridmill.domain.amounts import Amounts
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import replace
from gridmill.domain.states import DeploymentState, PodState
from gridmill.scheduler.capacity import PodCapacity
from gridmill.scheduler.capacity_index import expiry
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.feasibility import fits_now, gpus_of, may_use
from gridmill.scheduler.lane import Lane
from gridmill.scheduler.provisioning import PART_OF_CPU, keeps_busy
from gridmill.scheduler.queue import Demand


def reclaim(draft: DraftPlan, lane: Lane, demand: Demand, *, urgent: bool) -> bool:
    """Release idle deployments if this frees enough for `demand`. The function returns False if the release
    of idle deployments would not free enough.

    If enough is already being released, the function only reserves the node for the job. If a rented machine
    ends, it releases nothing else, because the job can have its place. With `urgent`, idle
    deployments that jobs of other resources will need may be released too.
    """
    if lane.workers_left == 0 and not demand.node:
        return _replace_worker(draft, lane, demand, busy=False)
    if draft.waits_for_machines(lane.resource.site):
        lane.reclaimed = True
        return True
    site, need = lane.resource.site, needed_of(draft, lane, demand)
    best: tuple[int, str, list[Deployment]] | None = None
    own = {whole.deployment_id for whole in _of_use(lane, demand)}
    for node, idle_pods in sorted(_idle_by_node(draft, site, urgent=urgent).items()):
        idle = [one for one in idle_pods if one.id not in own]
        if demand.node not in ("", node) or not may_use(draft.snapshot, lane.resource, node):
            continue
        if lane.resource.workers is None and not urgent and keeps_busy(draft, lane, node):
            continue
        chosen = _enough(draft, site, node, need, idle)
        if chosen is not None and (best is None or (_to_release(chosen), node) < best[:2]):
            best = (_to_release(chosen), node, chosen)
    if best is None:
        return False
    _, node, chosen = best
    _release_all(draft, lane, chosen)
    draft.reserved.add((site, node))
    lane.reclaimed = True
    return True


def _of_use(lane: Lane, demand: Demand) -> list[PodCapacity]:
    """Return the pods of the resource into which ranks of a gang fit, if new pods would be no larger. A gang
    that needs these pods also needs additional pods, so these pods must not be replaced."""
    if demand.workers == 1 or lane.resource.memory_bytes is None:
        return []
    return [
        slot.whole
        for _, slot in lane.open.items()
        if slot.free_memory >= demand.memory_bytes and slot.free_gpus >= demand.gpus
    ]


def drain(draft: DraftPlan, lane: Lane, demand: Demand) -> None:
    """Close the deployments of one node for later jobs until `demand` fits on the node. Only one node of
    each site is drained at a time."""
    if lane.workers_left == 0 and not demand.node:
        _replace_worker(draft, lane, demand, busy=True)
        return
    site, need = lane.resource.site, needed_of(draft, lane, demand)
    own = {whole.node for whole in _of_use(lane, demand)}
    node = None if site in draft.draining else _node_to_drain(draft, site, need, demand.node, own)
    if node is None:
        return
    victims = _enough(draft, site, node, need, _by_attempts(draft, site, node)) or []
    draft.draining.add(site)
    draft.reserved.add((site, node))
    lane.reclaimed, lane.drained = True, node
    for deployment in victims:
        if _is_idle(draft, deployment):
            _release_all(draft, lane, [deployment])
        elif deployment.state is not DeploymentState.RELEASING:
            draft.close_pods(deployment.id)


def needed_of(draft: DraftPlan, lane: Lane, demand: Demand) -> Amounts:
    """Return the smallest CPUs, memory and GPUs of a pod for that job. For a gang, the function returns the
    CPUs, memory and GPUs for the ranks in one pod."""
    resource = lane.resource
    nodes = max(1, draft.snapshot.sites[resource.site].machine_count)
    return Amounts(
        cpus=resource.cpus or demand.cpus or 0.0,
        memory_bytes=resource.memory_bytes or demand.memory_bytes * -(-demand.workers // nodes),
        gpus=gpus_of(resource),
    )


def _replace_worker(draft: DraftPlan, lane: Lane, demand: Demand, *, busy: bool) -> bool:
    """Release a pod so that a larger pod can replace it, if the resource already has its largest number of
    pods and each of these pods is too small."""
    if lane.holds(demand) or len(lane.coming):
        return False
    if not fits_now(draft.snapshot, lane.resource.site, needed_of(draft, lane, demand)):
        return False
    own = {slot.whole.deployment_id for _, slot in lane.open.items()}
    ordered = sorted(own, key=lambda key: (len(draft.snapshot.places.on.get(key, ())), key))
    for deployment in (draft.snapshot.deployments[key] for key in ordered[:1]):
        if _is_idle(draft, deployment):
            _release_all(draft, lane, [deployment])
            return True
        if busy:
            draft.close_pods(deployment.id)
    return False


def _release_all(draft: DraftPlan, lane: Lane, deployments: list[Deployment]) -> None:
    for deployment in deployments:
        if deployment.state is not DeploymentState.RELEASING and deployment.id not in draft.released:
            draft.release(deployment.id, f"`{lane.name}` needs its room")


def _is_idle(draft: DraftPlan, deployment: Deployment) -> bool:
    return (
        deployment.state is DeploymentState.UP
        and deployment.id not in draft.snapshot.places.on
        and deployment.id not in draft.used
    )


def _to_release(deployments: list[Deployment]) -> int:
    return sum(deployment.state is not DeploymentState.RELEASING for deployment in deployments)


def _idle_by_node(draft: DraftPlan, site: str, *, urgent: bool) -> dict[str, list[Deployment]]:
    """Return the deployments that are being released, then the idle deployments, by node. Among the idle
    deployments, deployments that no job needs come first. Deployments that have been idle longer come before
    other deployments."""
    places = draft.snapshot.places
    found = [(-1, 0.0, key) for key in places.removed_nodes]
    for name, entries in places.idle.items():
        needed = name in draft.snapshot.lines.waiting or name in draft.snapshot.lines.blocked
        if urgent or not needed:
            found += [(int(needed), until, key) for until, key in entries if key not in draft.used]
    by_node: dict[str, list[Deployment]] = {}
    for _, _, key in sorted(found):
        deployment = draft.snapshot.deployments[key]
        if deployment.site == site:
            for node in {pod.node for pod in deployment.pods}:
                by_node.setdefault(node, []).append(deployment)
    return by_node


def _enough(
    draft: DraftPlan, site: str, node: str, need: Amounts, deployments: list[Deployment]
) -> list[Deployment] | None:
    """Return as many of the first deployments as must be released so that enough memory, CPUs and GPUs
    become free. The result is None if all these deployments together are not enough."""
    whole = draft.snapshot.places.capacities.get((site, node))
    if whole is None or (site, node) in draft.reserved or not need.fits_in(whole):
        return None
    need = replace(need, cpus=need.cpus or min(PART_OF_CPU, whole.cpus))
    free, chosen = draft.nodes(site).free(node), list[Deployment]()
    for deployment in deployments:
        if need.fits_in(free):
            break
        chosen.append(deployment)
        for claim in _claims(deployment, node):
            free = free + claim
    return chosen if need.fits_in(free) else None


def _claims(deployment: Deployment, node: str) -> Iterator[Amounts]:
    return (pod.capacity for pod in deployment.pods if pod.node == node and pod.state is not PodState.GONE)


def _node_to_drain(
    draft: DraftPlan, site: str, need: Amounts, only: str, but: Collection[str] = ()
) -> str | None:
    """Return the node to drain: among the nodes that are large enough, the node with the most free memory,
    CPUs and GPUs. While the node is drained, its free memory, CPUs and GPUs never shrink. If `only` is set,
    the function considers only that node. The nodes in `but` are left out of the search."""
    capacities = draft.snapshot.places.capacities
    large = [
        (free.gpus if need.gpus else 0, free.memory_bytes, name)
        for name, free in draft.snapshot.places.nodes[site].items()
        if only in ("", name)
        and name not in but
        and (site, name) not in draft.reserved
        and need.fits_in(capacities[(site, name)])
    ]
    return max(large)[2] if large else None


def _by_attempts(draft: DraftPlan, site: str, node: str) -> list[Deployment]:
    """Return the deployments of the node. Deployments that are expected to be empty soonest come first."""
    places = draft.snapshot.places
    owners = {places.owners[pod] for pod in places.claims.get((site, node), ())}
    order = sorted(
        owners,
        key=lambda key: (
            draft.snapshot.deployments[key].state is not DeploymentState.RELEASING,
            len(places.on.get(key, ())),
            expiry(draft.snapshot.deployments[key]),
            key,
        ),
    )
    return [draft.snapshot.deployments[key] for key in order]
