"""This module finds requests that can never run on the present sites, and explains the reason in a sentence.

`leave_room` limits the memory of pods that run side by side on one node.
"""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import NamedTuple

from gridmill.domain.amounts import GIB, MIB, Amounts, show_bytes, show_count, show_cpus
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import JOB_CPUS, Resource, asks_for_need
from gridmill.domain.site import ELSEWHERE, LOCAL, Node, Site, SiteKind
from gridmill.scheduler.capacity import most_jobs, places_in
from gridmill.scheduler.queue import Demand
from gridmill.scheduler.snapshot import Snapshot

NO_GANGS_HINT = "Use a resource at another site, or `workers: 1`."


class RefusalReason(NamedTuple):
    """The reason why a job is refused, and the remedy for the user."""

    message: str
    hint: str


def at(job: Job, pipeline: Pipeline, sites: Mapping[str, Site]) -> str | None:
    """Return the site of a job or of its pipeline. Farms and rented machines do not load sinks. If the site
    of a pipeline is a farm or a provider of machines, this grid loads the sinks of the pipeline at home."""
    site = sites.get(pipeline.at or "")
    stays = job.sink is not None and site is not None and site.kind in ELSEWHERE
    return job.at or (LOCAL if stays else pipeline.at)


def gpus_of(resource: Resource) -> int:
    """Return the number of GPUs per worker. A default resource never has GPUs."""
    return 0 if resource.default else resource.gpus


def fitting_shapes(snapshot: Snapshot, resource: Resource) -> tuple[Amounts, ...]:
    """Return the sizes of nodes at the resource's site on which one worker of the resource fits. Unavailable
    nodes are included, because jobs for these nodes wait until the nodes are available again."""
    amounts = Amounts(
        cpus=resource.cpus or 0.0, memory_bytes=resource.memory_bytes or 0, gpus=gpus_of(resource)
    )
    site = snapshot.sites.get(resource.site)
    if site is not None and (site.kind is SiteKind.CLOUD or "partition" in resource.settings):
        return snapshot.places.usable_shapes(site, resource.settings, amounts)
    past = (*site.past, *(node.capacity for node in site.away)) if site else ()
    shapes = (*snapshot.places.shapes.get(resource.site, ()), *past)
    return tuple(shape for shape in shapes if amounts.fits_in(shape))


def may_use(snapshot: Snapshot, resource: Resource, node: str) -> bool:
    """Return whether deployments of the resource may use a node; see CapacityIndex.may_use."""
    site = snapshot.sites.get(resource.site)
    return site is None or snapshot.places.may_use(site, resource.settings, node)


def _nodes_of(snapshot: Snapshot, site: Site, resource: Resource, *, away: bool = False) -> tuple[Node, ...]:
    """Return the nodes that deployments of the resource may use; see CapacityIndex.usable_nodes."""
    return snapshot.places.usable_nodes(site, resource.settings, away=away)


def fits_now(snapshot: Snapshot, site: str, need: Amounts) -> bool:
    """Return whether these CPUs, memory and GPUs would fit on an available node if the node were empty."""
    return any(need.fits_in(shape) for shape in snapshot.places.shapes.get(site, ()))


def most_memory(snapshot: Snapshot, resource: Resource) -> int:
    """Return the largest memory in bytes that one attempt can have. The result is 0 if no node is known."""
    if resource.memory_bytes is not None:
        return resource.memory_bytes
    return max((shape.memory_bytes for shape in fitting_shapes(snapshot, resource)), default=0)


def problem_of_resource(snapshot: Snapshot, name: str, resource: Resource | None) -> RefusalReason | None:
    """Return the reason why no job of a resource can run. The result is None if jobs of the resource can
    run. If a site has no nodes, the jobs are not refused, because the site may get nodes later."""
    if resource is None:
        return RefusalReason(f"there is no resource {name!r}", "See `gridmill list resources`.")
    if resource.site not in snapshot.sites:
        return RefusalReason(
            f"resource {name!r} is at site {resource.site!r}, which does not exist",
            "See `gridmill list sites`.",
        )
    site = snapshot.sites[resource.site]
    if unknown := _unknown_partition(snapshot, resource, site):
        return unknown
    if nothing := _nothing_to_rent(snapshot, resource, site):
        return nothing
    if _has_nodes(snapshot, site, resource) and not fitting_shapes(snapshot, resource):
        return RefusalReason(
            f"resource {name!r} asks for {_request_text(resource)} per worker; "
            f"{_largest_of(site, resource)} has {show(_largest(snapshot, site, resource))}",
            f"Lower the request with `gridmill configure resource {name}`, or use a larger site.",
        )
    return None


def _nothing_to_rent(snapshot: Snapshot, resource: Resource, site: Site) -> RefusalReason | None:
    """Return the reason why no machine can be rented for a resource at a cloud site."""
    why = snapshot.places.types_and_reason(site, resource.settings)[1] if site.kind is SiteKind.CLOUD else ""
    if not why:
        return None
    return RefusalReason(
        f"no machine of {site.name} can be rented within the terms of resource {resource.name!r}: {why}",
        f"`gridmill offers {site.name}` lists the offers, and `gridmill alter resource {resource.name}`"
        " changes the terms.",
    )


def _has_nodes(snapshot: Snapshot, site: Site, resource: Resource) -> bool:
    """Return whether the nodes for the resource are known. The machines of a cloud site that its offers for
    the terms of the resource permit are known after the offers were read."""
    if site.kind is SiteKind.CLOUD and snapshot.places.types_and_reason(site, resource.settings)[0] is None:
        return bool(_nodes_of(snapshot, site, resource))
    return bool(site.nodes or site.away)


def _largest_of(site: Site, resource: Resource) -> str:
    if site.kind is SiteKind.CLOUD:
        return f"the largest machine of {site.name} within the terms of resource {resource.name}"
    return f"the largest node of site {site.name}"


def _largest(snapshot: Snapshot, site: Site, resource: Resource) -> Amounts:
    """Return the node of the site with the most memory. Unavailable nodes are considered only if no node is
    available."""
    if site.kind is SiteKind.CLOUD:
        usable = (node.capacity for node in _nodes_of(snapshot, site, resource))
        return max(usable, key=lambda one: one.memory_bytes, default=Amounts())
    away = (node.capacity for node in site.away)
    return snapshot.largest(site.name) if site.nodes else max(away, key=lambda one: one.memory_bytes)


def _unknown_partition(snapshot: Snapshot, resource: Resource, site: Site) -> RefusalReason | None:
    named = resource.settings.get("partition", "")
    unknown = [name for name in named.split(",") if name and name not in site.partitions]
    if not named or not site.partitions:
        return None
    if unknown:
        return RefusalReason(
            f"resource {resource.name!r} is in partition {unknown[0]!r}, which site {site.name} does"
            " not have",
            f"Its partitions are {', '.join(site.partitions)}.",
        )
    nodes = _nodes_of(snapshot, site, resource) or _nodes_of(snapshot, site, resource, away=True)
    if (site.nodes or site.away) and not nodes:
        return RefusalReason(
            f"partition {named!r} of site {site.name} has no nodes", "Use another partition."
        )
    return None


def problem_of(snapshot: Snapshot, resource: Resource, demand: Demand) -> RefusalReason | None:
    """Return the reason why jobs with `demand` can never run on a resource, although the resource itself is
    valid. The result is None if they can run."""
    if demand.kind != resource.type:
        return RefusalReason(
            f"resource {resource.name!r} is for {resource.type} jobs, this is a {demand.kind} job",
            f"Use a resource of type {demand.kind}, or leave out `resource` to use the default.",
        )
    # a service whose node has left waits until another node is chosen for it
    is_bound = demand.node and demand.kind is not JobKind.SERVICE
    if is_bound and (resource.site, demand.node) not in snapshot.places.capacities:
        return RefusalReason(f"node {demand.node} has left site {resource.site}", "See `gridmill nodes`.")
    if is_bound:
        capacity = snapshot.places.capacities[(resource.site, demand.node)]
        if not Amounts(memory_bytes=demand.memory_bytes, gpus=demand.gpus, cpus=demand.cpus).fits_in(
            capacity
        ):
            message = f"node {demand.node} has only {show(capacity)}"
            return RefusalReason(message, "Ask for less in the job, or select larger nodes with `each`.")
    site = snapshot.sites[resource.site]
    if demand.workers > 1 and site.why_no_gangs:
        return RefusalReason(f"cannot run at site {site.name}: {site.why_no_gangs}", NO_GANGS_HINT)
    if not _has_nodes(snapshot, site, resource):
        return None
    if demand.gpus > gpus_of(resource):
        return RefusalReason(
            f"needs {show_count(demand.gpus, 'GPU')}; resource {resource.name!r} has "
            f"{gpus_of(resource)} per worker",
            f"`gridmill configure resource {resource.name} --gpus {demand.gpus}`.",
        )
    return _too_large(snapshot, resource, demand) or _too_many(snapshot, resource, demand)


def _too_large(snapshot: Snapshot, resource: Resource, demand: Demand) -> RefusalReason | None:
    memory = most_memory(snapshot, resource)
    if demand.memory_bytes > memory:
        whose = (
            f"resource {resource.name} has"
            if resource.memory_bytes is not None
            else f"{_largest_of(snapshot.sites[resource.site], resource)} has"
        )
        return RefusalReason(
            f"needs {show_bytes(demand.memory_bytes)}; {whose} {show_bytes(memory)}",
            "Lower `memory` of the job, or use a larger resource or site.",
        )
    if not demand.cpus:
        return None
    roomy = [
        shape for shape in fitting_shapes(snapshot, resource) if shape.memory_bytes >= demand.memory_bytes
    ]
    cpus = resource.cpus or max(shape.cpus for shape in roomy)
    if demand.cpus > cpus:
        extra = f" beside {show_bytes(demand.memory_bytes)}" if demand.memory_bytes else ""
        return RefusalReason(
            f"needs {show_cpus(demand.cpus)}{extra}; a worker of resource {resource.name} has at most "
            f"{cpus:g}",
            "Lower `cpus` of the job, or use a larger resource or site.",
        )
    return None


def _too_many(snapshot: Snapshot, resource: Resource, demand: Demand) -> RefusalReason | None:
    """Return the reason why a gang does not fit, even if all nodes of the site were available and empty."""
    if demand.workers == 1:
        return None
    most = places_ever(snapshot, resource, demand)
    if most is None or most >= demand.workers:
        return None
    return RefusalReason(
        f"needs room for {demand.workers} workers at once: resource {resource.name} at site "
        f"{resource.site} has room for {most} of {demand.workers} ranks",
        "Lower `workers` or `memory` of the job, or use a larger resource or site.",
    )


def places_ever(snapshot: Snapshot, resource: Resource, demand: Demand) -> int | None:
    """Return the number of ranks that would fit if all configured nodes of the site were available and
    empty. The result is None if the number is unknown because the site may grow."""
    site = snapshot.sites[resource.site]
    if site.most_nodes is None:
        return None
    nodes = [*_nodes_of(snapshot, site, resource), *_nodes_of(snapshot, site, resource, away=True)]
    counts = [_places_on(node.capacity, resource, demand, site.kind) for node in nodes]
    # nodes that were never seen count as copies of the best node, because their sizes are unknown
    further = max(counts, key=sum, default=[])
    counts += [further] * (site.most_nodes - len(site.nodes) - len(site.away))
    places = sorted((count for each in counts for count in each), reverse=True)
    return sum(places[: _most_pods(site, resource)])


def _most_pods(site: Site, resource: Resource) -> int | None:
    """Return the largest number of pods of a resource, or None if there is no limit. Each pod at a cloud site
    has a machine of its own."""
    limits = [one for one in (resource.workers, site.most_machines) if one is not None]
    return min(limits, default=None)


def why_unchecked(snapshot: Snapshot, resource: Resource, demand: Demand) -> str:
    """Return a sentence with the reason why it is unknown whether a job can ever start. The result is empty
    if it is known that the job can start, or if the job fits now."""
    site = snapshot.sites[resource.site]
    if not _has_nodes(snapshot, site, resource):
        return f"whether site {site.name} has room for the job: no node of the site was seen yet"
    if demand.workers == 1 or places_ever(snapshot, resource, demand) is not None:
        return ""
    now = most_places(snapshot, resource, demand)
    if now >= demand.workers:
        return ""
    return (
        f"whether site {site.name} will have room for all ranks: it has room for {now} of {demand.workers} "
        f"with the nodes that it has now, and may get more (its setting `max_nodes` says how many)"
    )


def will_do_without(snapshot: Snapshot, resource: Resource, nodes: Collection[str]) -> bool:
    """Return whether each waiting job of a resource, considered alone, fits on the nodes that remain without
    these nodes."""
    queue = snapshot.lines.waiting.get(resource.name)
    if queue is None or resource.site not in snapshot.sites:
        return True
    largest = [group.demand for group in islice(queue.largest_first(), 1)]
    gangs = [demand for demand in queue.classes if demand.workers > 1]
    return all(
        most_places(snapshot, resource, demand, nodes) >= demand.workers for demand in (*largest, *gangs)
    )


def most_places(snapshot: Snapshot, resource: Resource, demand: Demand, without: Collection[str] = ()) -> int:
    """Return the number of ranks that would fit at the same time if the available nodes were empty. The
    nodes in `without` are left out."""
    site = snapshot.sites[resource.site]
    nodes = [node for node in _nodes_of(snapshot, site, resource) if node.name not in without]
    places = [count for node in nodes for count in _places_on(node.capacity, resource, demand, site.kind)]
    return sum(sorted(places, reverse=True)[: _most_pods(site, resource)])


def _places_on(node: Amounts, resource: Resource, demand: Demand, kind: SiteKind) -> list[int]:
    """Return, for each pod that an empty node can hold, the number of ranks that fit into this pod."""
    if sizes_by_ranks(kind, resource):
        return [ranks_on(node, demand)]
    count = int(node.cpus // resource.cpus) if resource.cpus else 1
    if resource.memory_bytes:
        count = min(count, node.memory_bytes // resource.memory_bytes)
    if gpus_of(resource):
        count = min(count, node.gpus // gpus_of(resource))
    if count < 1:
        return []
    most = most_jobs(resource.cpus or node.cpus)
    pod = Amounts(memory_bytes=resource.memory_bytes or node.memory_bytes, gpus=gpus_of(resource))
    places = places_in(pod, most, demand.memory_bytes, demand.gpus)
    if resource.memory_bytes or not demand.memory_bytes:
        return [places] * count
    # the pods of a node share its memory as their ranks need it
    whole = node.memory_bytes // demand.memory_bytes
    return [max(0, min(places, whole - places * number)) for number in range(count)]


def _request_text(resource: Resource) -> str:
    parts = [
        show_cpus(resource.cpus) if resource.cpus else "",
        show_bytes(resource.memory_bytes) if resource.memory_bytes else "",
        show_count(gpus_of(resource), "GPU") if gpus_of(resource) else "",
    ]
    return ", ".join(part for part in parts if part) or "nothing"


def show(amounts: Amounts) -> str:
    """Return amounts of CPUs, memory and GPUs as text, such as `2 CPUs, 4 GiB, 0 GPUs`."""
    return f"{show_cpus(amounts.cpus)}, {show_bytes(amounts.memory_bytes)}, {show_count(amounts.gpus, 'GPU')}"


POD_STEP, MIN_SHARE = 256 * MIB, GIB
"""The memory of deployments is a multiple of the first number of bytes. The memory of a job that spills to
disk is not reduced below the second number of bytes."""


def cpus_of(resource: Resource, node: Amounts) -> float:
    """Return the CPUs of one pod of the resource: the number that is set, otherwise all CPUs of the node. On
    a node with GPUs, the pod gets the same fraction of the CPUs as of the GPUs."""
    gpus = gpus_of(resource)
    part = gpus / node.gpus if 0 < gpus < node.gpus else 1.0
    return resource.cpus or node.cpus * part


def sizes_by_ranks(kind: SiteKind, resource: Resource) -> bool:
    """Return whether the pods for a gang are exactly as large as the ranks in them need, because the
    resource declares no size."""
    return asks_for_need(kind) and not (resource.cpus or resource.memory_bytes or gpus_of(resource))


def ranks_on(free: Amounts, demand: Demand) -> int:
    """Return the number of a gang's ranks that fit into the free memory, CPUs and GPUs."""
    by_cpus = int((free.cpus + 1e-9) // (demand.cpus or 1.0))
    return min(by_cpus, free.memory_bytes // demand.memory_bytes if demand.memory_bytes else by_cpus)


def asked_of(snapshot: Snapshot, resource: Resource, node: Amounts) -> Amounts:
    """Return the largest amounts of CPUs, memory and GPUs of a node that one job of the resource can get. If
    the pods of the site request only the amounts that they need, the CPUs are at most the CPUs that a job of
    this kind needs."""
    site = snapshot.sites.get(resource.site)
    if site is None or not asks_for_need(site.kind) or resource.cpus or gpus_of(resource):
        return node
    return replace(node, cpus=min(node.cpus, JOB_CPUS.get(resource.type, 1.0)))


def leave_room(memory: int, resource: Resource, largest: Amounts, nodes: int) -> tuple[int, list[str]]:
    """Return the memory in bytes for a job that also works with less memory than estimated, and the reason
    for this value. The memory is reduced so that all pods of the resource fit on the site's nodes at the
    same time."""
    on_each = -(-(resource.workers or 1) // max(1, nodes))
    share = largest.memory_bytes // on_each // POD_STEP * POD_STEP
    if on_each < 2 or not MIN_SHARE <= share < memory:
        return memory, []
    return share, [f"cut to {show_bytes(share)}, so that {show_count(on_each, 'pod')} fit on a node"]
