"""This module finds the CPUs and the memory that a service can have on each node of a Ray cluster, beside the
other services. Jobs that end leave their room to a service, so they are not counted."""

from collections.abc import Iterable, Iterator

from gridmill.domain.amounts import Amounts
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt
from gridmill.domain.service import Service
from gridmill.domain.service_spread import PodRooms
from gridmill.domain.site import Site
from gridmill.domain.states import PodState
from gridmill.scheduler.feasibility import cpus_of, gpus_of
from gridmill.scheduler.service_pods import jobs_by_use, node_of
from gridmill.scheduler.snapshot import Snapshot

_NOTHING = Amounts()


def pod_rooms(
    snapshot: Snapshot, site: Site, resource: Resource, name: str, assumed: dict[str, Amounts]
) -> PodRooms:
    """Return the rooms for the pods of the service `name` on the nodes of the site of a resource. `assumed`
    are the amounts of one pod of each other service at the site, by its name."""
    nodes = {one.name: one.capacity for one in snapshot.places.usable_nodes(site, resource.settings)}
    service = snapshot.services.get(name)
    own = _attempts(snapshot, service) if service is not None and service.is_meant_to_run else ()
    held = {node: one for one in own if (node := node_of(snapshot, one))}
    pods = _pods_of(snapshot, resource)
    pods |= {node: (one.pod_id, _pod_of(snapshot, one)) for node, one in held.items()}
    others = [
        one
        for one in snapshot.services.values()
        if one.is_meant_to_run and one.name != name and one.site == site.name
    ]
    taken: dict[str, Amounts] = {}
    blocked: dict[str, dict[str, Amounts]] = {}
    for attempt in (one for other in others for one in _attempts(snapshot, other)):
        node = node_of(snapshot, attempt)
        if node in pods and attempt.pod_id == pods[node][0]:
            taken[node] = taken.get(node, _NOTHING) + attempt.given
        else:
            blocked.setdefault(node, {})[attempt.pod_id] = _pod_of(snapshot, attempt)
    rooms = {}
    for node, capacity in nodes.items():
        left = _less(capacity, blocked.get(node, {}).values())
        whole = pods[node][1] if node in pods else _pod_on(resource, left)
        if whole is not None:
            rooms[node] = _less(whole, (taken.get(node, _NOTHING),))
    for other in others:
        _take_for_waiting_pods(snapshot, other, assumed.get(other.name, _NOTHING), rooms)
    largest = snapshot.largest(site.name)
    return PodRooms(
        free=tuple(room for node, room in rooms.items() if node not in held),
        held=tuple(rooms[node] for node in held if node in rooms),
        empty=_pod_on(resource, largest) or largest,
        site=site.name,
    )


def _pods_of(snapshot: Snapshot, resource: Resource) -> dict[str, tuple[str, Amounts]]:
    """Return the running pods of a resource with their amounts, by their nodes."""
    found: dict[str, tuple[str, Amounts]] = {}
    for index in (snapshot.places.coming, snapshot.places.open):
        pods = index.get(resource.name)
        for pod_id, slot in pods.items() if pods is not None else ():
            found[slot.whole.node] = (pod_id, slot.whole.capacity)
    return found


def _attempts(snapshot: Snapshot, service: Service) -> Iterator[Attempt]:
    """Yield the attempts of the pods of a service, in the order in which the pods stay."""
    for job in jobs_by_use(service):
        job_run = snapshot.job_runs.get(f"{service.run_id}/{job}")
        attempt = snapshot.attempts.get(job_run.attempt_id or "") if job_run is not None else None
        if attempt is not None:
            yield attempt


def _pod_of(snapshot: Snapshot, attempt: Attempt) -> Amounts:
    deployment = snapshot.deployments.get(attempt.deployment_id)
    pods = deployment.pods if deployment is not None else ()
    there = (one.capacity for one in pods if one.id == attempt.pod_id and one.state is not PodState.GONE)
    return next(there, attempt.given)


def _pod_on(resource: Resource, left: Amounts) -> Amounts | None:
    """Return the amounts of a new pod of the resource on a node with these amounts; None if it has no
    room."""
    least = Amounts(
        cpus=resource.cpus or 0.0, memory_bytes=resource.memory_bytes or 0, gpus=gpus_of(resource)
    )
    if not least.fits_in(left):
        return None
    return Amounts(cpus=cpus_of(resource, left), memory_bytes=resource.memory_bytes or left.memory_bytes)


def _take_for_waiting_pods(
    snapshot: Snapshot, service: Service, each: Amounts, rooms: dict[str, Amounts]
) -> None:
    """Take the amounts of the pods of a service that have not started from the nodes with the most memory."""
    placed = [node_of(snapshot, one) for one in _attempts(snapshot, service)]
    others = sorted((node for node in rooms if node not in placed), key=lambda one: -rooms[one].memory_bytes)
    for node in others[: max(0, service.pods - len(placed))]:
        rooms[node] = _less(rooms[node], (each,))


def _less(whole: Amounts, taken: Iterable[Amounts]) -> Amounts:
    cpus, memory, gpus = whole.cpus, whole.memory_bytes, whole.gpus
    for one in taken:
        cpus, memory, gpus = cpus - one.cpus, memory - one.memory_bytes, gpus - one.gpus
    return Amounts(cpus=max(0.0, cpus), memory_bytes=max(0, memory), gpus=max(0, gpus))
