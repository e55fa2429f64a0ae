"""This module previews the jobs of a run that start or update a service: whether they change the service, and
the replicas, the CPUs and the memory that the service would take."""

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.service_sizes import ServicePlace, calibration_of, place_of
from gridmill.control.usecases.rented_service_sizes import LATER, day_of, plan_later, rented_resource
from gridmill.domain.amounts import Amounts, show_bytes, show_count, show_cpus, show_number
from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import REPLICA_BYTES, service_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.service import Service, memory_needed
from gridmill.domain.service_job import is_as_declared, needs_size, service_name, spec_of
from gridmill.domain.service_measuring import SizeRequest
from gridmill.domain.service_size import Calibration, show_latency
from gridmill.domain.service_spec import read_replicas
from gridmill.domain.service_spread import size_in_pods
from gridmill.domain.views import PlannedJob
from gridmill.errors import GridmillError, explained


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreseen:
    """The size that a service would have, as a sentence and as amounts. `problem` is the reason why it cannot
    have this size. `start_seconds` is the measured time until a replica is ready; None if it is unknown."""

    text: str = ""
    amounts: Amounts = Amounts()
    problem: str = ""
    start_seconds: float | None = None


def with_service(
    catalog: Catalog, pipeline: Pipeline, planned: PlannedJob, version: Artifact | None
) -> PlannedJob:
    """Return the planned job with the size of its service, if it starts or updates one. `version` is the
    version that the service would get; None if it is unknown before the run."""
    job = pipeline.job(planned.job)
    if not job.starts_service:
        return planned
    service = catalog.ledger.read(Service, service_name(job))
    if service is not None and not service.is_meant_to_run:
        service = None
    is_same = service is not None and is_as_declared(service, job, version, pipeline)
    seen = _kept(service) if service is not None and is_same else _foreseen(catalog, job, service, version)
    seconds = 0.0 if is_same else seen.start_seconds
    starts = planned.starts
    return replace(
        planned,
        unchanged=is_same,
        reason=f"service {service_name(job)} is as declared" if is_same else planned.reason,
        sizing=Sizing(
            amounts=seen.amounts,
            why=(f"service {service_name(job)}: {seen.text}",) if seen.text else (),
            expected_seconds=seconds,
        ),
        most_cpus=None,
        problem=planned.problem or seen.problem,
        ends=None if starts is None or seconds is None else starts + seconds,
    )


def _kept(service: Service) -> _Foreseen:
    cpus = service.size.cpus if service.size is not None else float(service.replicas)
    amounts = Amounts(cpus=cpus, memory_bytes=memory_needed(service, service.replicas, REPLICA_BYTES))
    text = f"has {_amounts_text(service.replicas, amounts, service.pods)}"
    return _Foreseen(text=text, amounts=amounts)


def _foreseen(catalog: Catalog, job: Job, service: Service | None, version: Artifact | None) -> _Foreseen:
    spec = spec_of(job)
    most, least = read_replicas(spec.count)
    served = version.id if version is not None else ""
    by_measurement = needs_size(service, spec.rate, most, least, served)
    try:
        if by_measurement and service is None:
            rented = rented_resource(catalog.ledger, job.resource or "")
            if rented is not None:
                request = SizeRequest(rate=spec.rate, replicas=most, least_replicas=least)
                return _later(catalog, version, rented, request)
        place = place_of(catalog.ledger, job.resource or "", service_name(job)) if by_measurement else None
        measured = _measured(catalog.ledger, version, place)
        if place is None:
            return _by_count(service, most)
        pods = spec.settings.pods
        if pods is None and service is not None:
            pods = service.settings.pods
        return _by_rate(place, measured, spec.rate, most, least, pods or 0, version)
    except GridmillError as error:
        return _Foreseen(problem=explained(error))


def _by_rate(
    place: ServicePlace,
    measured: Calibration | None,
    rate: float,
    most: int,
    least: int | None,
    pods: int,
    version: Artifact | None,
) -> _Foreseen:
    wanted = f" for {show_number(rate)} requests/s" if rate else ""
    if measured is None:
        named = version.id if version is not None else "the new version"
        text = f"replicas, CPUs and memory{wanted} are unknown until {named} is measured"
        return _Foreseen(text=text)
    size = size_in_pods(measured, rate, most, least, pods, place.rooms, place.label)
    latency = f", expected p99 {show_latency(size.p99_seconds)}" if rate else ""
    return _Foreseen(
        text=f"takes {_amounts_text(size.replicas, size.amounts, size.pods)}{wanted}{latency}",
        amounts=size.amounts,
        start_seconds=measured.start_seconds,
    )


def _later(catalog: Catalog, version: Artifact | None, resource: Resource, request: SizeRequest) -> _Foreseen:
    """Return the size of a service whose machine is not rented yet, which is at most an estimate."""
    wanted = f" for {show_number(request.rate)} requests/s" if request.rate else ""
    plan = plan_later(catalog, version, resource, request) if version is not None else None
    if plan is None or plan.size is None or plan.calibration is None:
        return _Foreseen(text=f"its size{wanted} {LATER}")
    size = plan.size
    latency = f", expected p99 {show_latency(size.p99_seconds)}" if size.rate else ""
    short = f"; {size.shortage}" if size.shortage else ""
    return _Foreseen(
        text=f"takes about {_amounts_text(size.replicas, size.amounts)}{wanted}{latency}, by the "
        f"measurement of {day_of(plan.calibration.created)} on {plan.machine}; on another type, it "
        f"{LATER}{short}",
        amounts=size.amounts,
    )


def _by_count(service: Service | None, most: int) -> _Foreseen:
    if service is not None and most in (0, service.replicas):
        return _kept(service)
    count = most or 1
    memory = memory_needed(service, count, REPLICA_BYTES) if service is not None else service_bytes(count)
    amounts = Amounts(cpus=float(count), memory_bytes=memory)
    how = "" if service is not None and service.size is not None else ", estimated"
    return _Foreseen(text=f"takes {_amounts_text(count, amounts)}{how}", amounts=amounts)


def _measured(ledger: Ledger, version: Artifact | None, place: ServicePlace | None) -> Calibration | None:
    if version is None or place is None:
        return None
    return calibration_of(ledger, version.id, place.machine)


def _amounts_text(replicas: int, amounts: Amounts, pods: int = 1) -> str:
    several = f"{show_count(pods, 'pod')}, each with " if pods > 1 else ""
    return (
        f"{several}{show_count(replicas, 'replica')}, {show_cpus(amounts.cpus)}, "
        f"{show_bytes(amounts.memory_bytes)}"
    )
