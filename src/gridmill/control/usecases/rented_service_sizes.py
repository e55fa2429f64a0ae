"""This module has the sizes of services whose machine is not rented yet: the request for a size with which
such a service starts, and what can be stated about its size before."""

from collections.abc import Iterator
from datetime import UTC, datetime

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.run_lifecycle import resource_of
from gridmill.control.steps.service_sizes import ServicePlace, calibration_of, is_rented
from gridmill.domain.amounts import Amounts, show_cpus, show_number
from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import service_bytes
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_nodes import type_of
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.service import CALIBRATION_NAME, JOB, Service, has_own_code
from gridmill.domain.service_measuring import SizeRequest, amounts_needed, fitting_size, type_at
from gridmill.domain.service_size import Calibration, ServicePlan, ServiceSize
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.site import Site
from gridmill.errors import CapacityError, InputError
from gridmill.scheduler.feasibility import cpus_of
from gridmill.scheduler.nodes_within_terms import types_within_terms
from gridmill.scheduler.rental_preview import market_of, preview_rental
from gridmill.scheduler.rented_sizes import calibration_cpus, enough_text

LATER = "is measured on the machine that is rented for the service, before its replicas start"


def day_of(time: float) -> str:
    """Return the day of a Unix time in seconds, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


def rented_resource(ledger: Ledger, resource: str) -> Resource | None:
    """Return the resource of a service if its machines are rented, or None. Raises PipelineError for a
    resource that does not exist or has another type."""
    job = Job(name=JOB, resource=resource or None, service=ServiceSpec())
    used = resource_of(job, CALIBRATION_NAME, ledger.snapshot.resources, "resource")
    return used if is_rented(ledger.snapshot, used) else None


def check_free_cpus(place: ServicePlace, version: Artifact) -> None:
    """Raise CapacityError if the rented machine of a running service has too few free CPUs or GPUs to
    measure a version. No other machine is rented for it."""
    if place.node and has_own_code(version) and place.free.gpus < place.resource.gpus:
        raise CapacityError(
            f"{version.id} cannot be measured on {place.machine}: the service uses its GPU",
            hint="Stop the service and start it with the rate: its machine then measures first.",
            place="rate",
        )
    needed = min(calibration_cpus(version), place.pod.cpus)
    if place.node and place.free.cpus < needed:
        raise CapacityError(
            f"{version.id} cannot be measured on {place.machine}: the measurement needs "
            f"{show_cpus(needed)}, and {show_number(place.free.cpus)} of "
            f"{show_number(place.pod.cpus)} are free",
            hint="Change the number of replicas with --replicas N, or stop the service and start it with the "
            "rate: its machine then measures first.",
            place="rate",
        )


def on_node(pipeline: Pipeline, node: str) -> Pipeline:
    """Return the pipeline of a measurement that runs only on this node (empty: on each)."""
    jobs = (
        replace(one, service=replace(one.service, node=node)) if one.service is not None else one
        for one in pipeline.jobs
    )
    return replace(pipeline, jobs=tuple(jobs)) if node else pipeline


def check_not_again(again: bool) -> None:
    """Raise InputError if a version is to be measured again, but has no machine."""
    if again:
        raise InputError(
            "no machine is rented only for a measurement",
            hint="Start the service with its rate; its machine measures a version that was not measured on "
            "machines of its type.",
            place="again",
        )


def check_one_pod(pods: int, resource: Resource) -> None:
    """Raise InputError if a service on a rented machine is to have several pods."""
    if pods > 1:
        raise InputError(
            f"a service cannot run in {pods} pods on a rented machine of resource {resource.name!r}: only "
            "services on a Ray cluster run in several pods",
            hint="Leave out --pods, or name a resource of type service at a site of kind ray (--resource).",
            place="pods",
        )


def with_request(
    catalog: Catalog,
    service: Service,
    version: Artifact,
    resource: Resource,
    least_replicas: int | None,
) -> Service:
    """Return a service that starts on a rented machine with its request for a size. The size is computed when
    the machine is there."""
    request = service.size_request or SizeRequest(
        rate=service.rate, replicas=service.replicas, least_replicas=least_replicas
    )
    request = with_amounts(catalog.ledger, request, version, resource)
    return replace(service, size_request=request, size=None, scaling=None, replicas=request.replicas or 1)


def with_amounts(ledger: Ledger, request: SizeRequest, version: Artifact, resource: Resource) -> SizeRequest:
    """Return the request with the amounts of the machine to rent: those that it needs by the newest
    measurement of the version on any machine of the site, or one CPU for each replica, if the site offers
    them; and at least the CPUs of a measurement."""
    least = min(calibration_cpus(version), max((one.cpus for one in _pods(ledger, resource)), default=1e9))
    needed = Amounts(cpus=max(least, float(request.replicas)))
    known = [
        one
        for one in ledger.read_all(Calibration, parent=version.id)
        if one.machine.endswith(type_at("", resource.site))
    ]
    if known:
        by_measurement = amounts_needed(max(known, key=lambda one: one.created), request)
        needed = by_measurement if by_measurement is not None else needed
        needed = replace(needed, cpus=max(least, needed.cpus))
    if not any(needed.fits_in(one) for one in _pods(ledger, resource)):
        return replace(request, cpus=least, memory_bytes=0)
    return replace(request, cpus=needed.cpus, memory_bytes=needed.memory_bytes)


def _pods(ledger: Ledger, resource: Resource) -> Iterator[Amounts]:
    """Yield the CPUs and the memory of a pod on each type of machine within the terms of the resource."""
    site = ledger.snapshot.sites.get(resource.site)
    types = types_within_terms(site, resource.settings) if site is not None else None
    for node in site.nodes if site is not None else ():
        if (types is None or type_of(node.name) in types) and node.capacity.gpus >= resource.gpus:
            memory_bytes = resource.memory_bytes or node.capacity.memory_bytes
            yield Amounts(cpus=cpus_of(resource, node.capacity), memory_bytes=memory_bytes)


def plan_later(catalog: Catalog, version: Artifact, resource: Resource, request: SizeRequest) -> ServicePlan:
    """Return what can be stated about the size of a service before its machine is rented: an estimate, if the
    version was measured on a machine of the type that would be rented. Nothing is rented."""
    ledger = catalog.ledger
    site = ledger.snapshot.sites[resource.site]
    request = with_amounts(ledger, request, version, resource)
    machine, pod = _expected(ledger, resource, site, request)
    plan = ServicePlan(version=version.id, machine=machine, site=site.name, later=f"the size {LATER}")
    calibration = calibration_of(ledger, version.id, machine) if machine else None
    if calibration is None:
        return plan
    size, _ = fitting_size(calibration, request, pod)
    return replace(plan, calibration=calibration, size=_explained(size, calibration, request, resource, site))


def _explained(
    size: ServiceSize, calibration: Calibration, request: SizeRequest, resource: Resource, site: Site
) -> ServiceSize:
    if not size.shortage:
        return size
    return replace(size, shortage=f"{size.shortage}; {enough_text(calibration, request, resource, site)}")


def _expected(ledger: Ledger, resource: Resource, site: Site, request: SizeRequest) -> tuple[str, Amounts]:
    """Return the type of the machine that would be rented now, and the amounts of its pod. The type is empty
    if it is unknown."""
    amounts = Amounts(
        cpus=resource.cpus or request.cpus,
        memory_bytes=resource.memory_bytes or request.memory_bytes or service_bytes(1),
        gpus=resource.gpus,
    )
    leases = tuple(ledger.snapshot.leases.values())
    rental = preview_rental(
        resource, site, Sizing(amounts=amounts), market_of(site), leases, run_seconds=None, transfer=None
    ).rental
    if rental is None:
        return "", amounts
    nodes = (one.capacity for one in site.nodes if type_of(one.name) == rental.instance_type)
    node = next(nodes, amounts)
    pod = Amounts(cpus=cpus_of(resource, node), memory_bytes=resource.memory_bytes or node.memory_bytes)
    return type_at(rental.instance_type, site.name), pod
