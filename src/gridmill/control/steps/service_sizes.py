"""This module reads what the size of a service depends on: the calibration of its version, and the CPUs and
memory that are left on its resource."""

from collections.abc import Iterable

from gridmill.control.ledger import Ledger
from gridmill.control.steps.run_lifecycle import resource_of
from gridmill.domain.amounts import Amounts, show_count
from gridmill.domain.footprint import REPLICA_BYTES, service_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import lease_of_pod
from gridmill.domain.resource import Resource, default_name
from gridmill.domain.service import CALIBRATION_NAME, JOB, Service
from gridmill.domain.service_measuring import rented_type
from gridmill.domain.service_size import Calibration, ServiceSize, calibration_name, sharing_lines
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.service_spread import PodRooms
from gridmill.domain.site import LOCAL, SiteKind
from gridmill.errors import ConflictError, InputError, UnavailableError
from gridmill.machine_type import machine_type
from gridmill.scheduler.feasibility import cpus_of
from gridmill.scheduler.service_pods import node_of, pod_capacity, room_in_pod
from gridmill.scheduler.service_rooms import pod_rooms
from gridmill.scheduler.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlace:
    """A resource on which a service runs: the type of its machines, the CPUs and memory of one pod, and those
    that its other services leave (`room`). `rooms` are those on each node where the service may run. `sizes`
    are the sizes of the other services, if measured.

    At a cloud site, the place is the rented machine of the service. It is the node `node`, and `free` are its
    CPUs, memory and GPUs that no job uses."""

    resource: Resource
    machine: str
    pod: Amounts
    room: Amounts
    rooms: PodRooms
    sizes: tuple[ServiceSize, ...] = ()
    node: str = ""
    free: Amounts = Amounts()

    @property
    def label(self) -> str:
        """The resource as messages name it."""
        others = " beside its other services" if self.room != self.pod else ""
        return f"resource {self.resource.name}{others}"

    def sharing(self, size: ServiceSize) -> tuple[str, ...]:
        """Return what this service and the others save, because they are admitted by measurement."""
        return sharing_lines(self.resource.name, (*self.sizes, size), REPLICA_BYTES)


def place_of(ledger: Ledger, resource: str, service: str) -> ServicePlace:
    """Return the place of a service. An empty `resource` means the default resource. Raises PipelineError for
    a resource that does not exist or has another type, InputError for a resource at another site, and
    ConflictError for a service without a rented machine at a cloud site."""
    job = Job(name=JOB, resource=resource or None, service=ServiceSpec(name=service))
    used = resource_of(job, CALIBRATION_NAME, ledger.snapshot.resources, "resource")
    others = _others(ledger, used.name, service)
    sizes = tuple(one.size for one in others if one.size is not None)
    if is_rented(ledger.snapshot, used):
        return replace(_rented_place(ledger.snapshot, used, service), sizes=sizes)
    node = _measured_node(ledger, used)
    pod = Amounts(cpus=cpus_of(used, node), memory_bytes=used.memory_bytes or node.memory_bytes)
    room = _left(pod, used.workers or 1, map(_amounts_of, others))
    machine = machine_type() if used.site == LOCAL else _machine_at(used.site, node)
    site = ledger.snapshot.sites.get(used.site)
    if site is not None and site.kind is SiteKind.RAY:
        assumed = {one.name: _amounts_of(one) for one in ledger.snapshot.services.values()}
        rooms = pod_rooms(ledger.snapshot, site, used, service, assumed)
    else:
        why_one = _ONE_POD.get(site.kind if site is not None else SiteKind.LOCAL, "")
        rooms = PodRooms(free=(room,), empty=pod, why_one=why_one)
    return ServicePlace(resource=used, machine=machine, pod=pod, room=room, rooms=rooms, sizes=sizes)


def _others(ledger: Ledger, resource: str, service: str) -> list[Service]:
    """Return the other services that use a resource."""
    usual = default_name(JobKind.SERVICE)
    return [
        one
        for one in ledger.snapshot.services.values()
        if one.is_meant_to_run and one.name != service and (one.resource or usual) == resource
    ]


def is_rented(snapshot: Snapshot, resource: Resource) -> bool:
    """Return whether the machines of a resource are rented."""
    site = snapshot.sites.get(resource.site)
    return site is not None and site.kind is SiteKind.CLOUD


def _rented_place(snapshot: Snapshot, resource: Resource, name: str) -> ServicePlace:
    """Return the machine on which a service runs now. Raises ConflictError if it has none, or if it measures
    its version or changes its machine now."""
    service = snapshot.services.get(name)
    job_run = snapshot.job_runs.get(f"{service.run_id}/{service.serving_job}") if service else None
    attempt = snapshot.attempts.get(job_run.attempt_id or "") if job_run is not None else None
    lease = lease_of_pod(snapshot.leases.values(), attempt.pod_id) if attempt is not None else None
    spec = job_run.job.service if job_run is not None else None
    if service is None or attempt is None or lease is None:
        why = "it has no machine now, and no machine is rented only for a measurement"
    elif spec is not None and spec.measures_first:
        why = "its machine measures the version now"
    elif service.succession.successor is not None:
        why = "another machine replaces its machine now"
    else:
        pod, room = pod_capacity(snapshot, attempt), room_in_pod(snapshot, attempt)
        return ServicePlace(
            resource=resource,
            machine=rented_type(lease),
            pod=pod,
            room=room,
            rooms=PodRooms(free=(room,), empty=pod, why_one=_ONE_POD[SiteKind.CLOUD]),
            free=Amounts(
                cpus=max(0.0, room.cpus - attempt.given.cpus),
                memory_bytes=max(0, room.memory_bytes - attempt.given.memory_bytes),
                gpus=max(0, room.gpus - attempt.given.gpus),
            ),
            node=node_of(snapshot, attempt),
        )
    raise ConflictError(
        f"the size of service {name!r} cannot change: {why}",
        hint=f"Wait until it runs: gridmill show service {name}",
    )


def _measured_node(ledger: Ledger, resource: Resource) -> Amounts:
    """Return the CPUs, the memory and the GPUs of the node with the most memory at the site of a resource.
    Raises InputError for a site at which sizes are not measured, and UnavailableError for a site without
    nodes."""
    site = ledger.snapshot.sites.get(resource.site)
    why = _NOT_MEASURED.get(site.kind if site is not None else SiteKind.LOCAL)
    if why:
        raise InputError(
            f"resource {resource.name!r} is at site {resource.site!r}, where no size is measured: {why}",
            hint="Start the service with --replicas N and without a rate, or use a resource at `local`, at a "
            "farm, on Ray or at a cloud site.",
            place="resource",
        )
    node = ledger.snapshot.largest(resource.site)
    if not node.cpus:
        raise UnavailableError(
            f"site {resource.site!r} has no nodes now, so the size of a service is not known",
            hint=f"`gridmill show site {resource.site}` shows why.",
            place="resource",
        )
    return node


_NOT_MEASURED = {
    SiteKind.SLURM: "no services run there",
    SiteKind.BATCH: "no services run there",
}
"""The kinds of sites at which the sizes of services are not measured, each with the reason."""


_ONE_POD = {
    SiteKind.CLUSTER: "At a farm, a service runs in one pod; only on a Ray cluster, it runs in several pods.",
    SiteKind.CLOUD: "On a rented machine, a service runs in one pod; only on a Ray cluster, it runs in "
    "several pods.",
}
"""The kinds of sites at which a service runs in one pod although they have several nodes, each with a
sentence about it."""


def _machine_at(site: str, node: Amounts) -> str:
    """Return the type of the machines at another site. Before the first pod runs there, only the size of the
    nodes is known."""
    return f"a node with {show_count(round(node.cpus), 'CPU')} at site {site}"


def _left(pod: Amounts, pods: int, taken: Iterable[Amounts]) -> Amounts:
    """Return the largest part of one pod that can be free when these amounts are taken from all pods."""
    cpus, memory = pod.cpus * pods, pod.memory_bytes * pods
    for one in taken:
        cpus, memory = cpus - one.cpus, memory - one.memory_bytes
    return Amounts(cpus=min(pod.cpus, max(0.0, cpus)), memory_bytes=min(pod.memory_bytes, max(0, memory)))


def _amounts_of(service: Service) -> Amounts:
    if service.size is not None:
        return service.size.amounts
    return Amounts(cpus=float(service.replicas), memory_bytes=service_bytes(service.replicas))


def calibration_of(ledger: Ledger, version: str, machine: str) -> Calibration | None:
    """Return the calibration of a version on a type of machine, if there is one."""
    return ledger.read(Calibration, calibration_name(version, machine))


def running_calibration(ledger: Ledger, version: str, machine: str) -> str:
    """Return the id of the run that calibrates the version now; empty if there is none."""
    for job_run in ledger.snapshot.job_runs.values():
        spec = job_run.job.service
        if spec is not None and not spec.name and (spec.calibrates, spec.machine) == (version, machine):
            return job_run.run_id
    return ""
