"""This module lets a rented machine measure the version of a service before it runs the replicas.

The machine is rented for the service. The first attempt of the service on a type of machine measures the
version, and ends. Then the job of the service waits again with the size that follows from the measurement,
and its next attempt runs the replicas on the same machine.
"""

from collections.abc import Iterable

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Transaction
from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.services import add_event
from gridmill.domain.amounts import Amounts, show_count, show_number
from gridmill.domain.footprint import REPLICA_BYTES
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.lease import lease_of_pod
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import Service, ServiceState, memory_beside, memory_needed
from gridmill.domain.service_measuring import SizeRequest, fitting_size, rented_type
from gridmill.domain.service_size import Calibration, ServiceSize, calibration_name
from gridmill.domain.serving import Scaling
from gridmill.domain.states import JobState
from gridmill.errors import CapacityError, explained
from gridmill.scheduler.rented_sizes import calibration_cpus, enough_text
from gridmill.scheduler.service_pods import room_in_pod

_LEAST = 1e-6
"""The smallest difference between two numbers of CPUs."""


def measured_start(catalog: Catalog, transaction: Transaction, job_run: JobRun, attempt: Attempt) -> JobRun:
    """Return the job of a service as it starts with `attempt` on a rented machine.

    If the version was not measured on this type of machine, the attempt measures it. If the service has the
    size for another type of machine, or if the measurement needs more CPUs than the attempt has, the job
    waits with other amounts and must not start now. If no replica fits on the machine, the job has failed.
    All other jobs are returned as they are.
    """
    service = _service_of(transaction, job_run)
    request = service.size_request if service is not None else None
    job_run = _measuring(job_run, "", "") if service is not None else job_run
    snapshot = catalog.ledger.snapshot
    lease = lease_of_pod(snapshot.leases.values(), attempt.pod_id)
    if service is None or request is None or lease is None:
        return job_run
    machine, size = rented_type(lease), _size_of(service, job_run)
    if size is not None and (size.version, size.machine) == (service.version, machine):
        return job_run
    room = room_in_pod(snapshot, attempt)
    calibration = catalog.ledger.read(Calibration, calibration_name(service.version, machine))
    if calibration is not None:
        return _with_size(catalog, transaction, service, job_run, calibration, room)
    cpus = min(calibration_cpus(fetch_artifact(catalog, service.version)), room.cpus)
    if attempt.given.cpus < cpus - _LEAST:
        return _with_amounts(job_run, replace(job_run.sizing.amounts, cpus=cpus))
    message = f"{machine} measures {service.version} before its replicas start"
    add_event(transaction, service, ServiceState.STARTING, message)
    return replace(_measuring(job_run, service.version, machine), message=message)


def after_measuring(catalog: Catalog, transaction: Transaction, ended: JobRun, attempt: Attempt) -> JobRun:
    """Return the job of a service after its attempt has measured the version: the job waits with its size,
    unless the service was stopped. All other jobs are returned as they are."""
    spec = ended.job.service
    if spec is None or not spec.measures_first:
        return ended
    job_run = _measuring(ended, "", "")
    if attempt.stop_requested:
        return replace(job_run, state=JobState.STOPPED, message="stopped")
    waits = replace(job_run, state=JobState.WAITING, ended=None, ready=transaction.now, message="")
    service = _service_of(transaction, waits)
    calibration = transaction.get(Calibration, calibration_name(spec.calibrates, spec.machine))
    if service is None or calibration is None or service.version != spec.calibrates:
        return waits  # another version is measured by the next attempt
    room = room_in_pod(catalog.ledger.snapshot, attempt)
    return _with_size(catalog, transaction, service, waits, calibration, room)


def _service_of(transaction: Transaction, job_run: JobRun) -> Service | None:
    """Return the service whose replicas a job runs; None if it runs none."""
    spec = job_run.job.service
    if spec is None or spec.routes or spec.is_declared or not spec.name:
        return None
    service = transaction.get(Service, spec.name)
    return service if service is not None and service.run_id == job_run.run_id else None


def _measuring(job_run: JobRun, version: str, machine: str) -> JobRun:
    """Return the job whose next attempt measures a version (empty: it runs the replicas)."""
    spec = job_run.job.service
    if spec is None:
        return job_run
    measuring = replace(spec, calibrates=version, machine=machine)
    return replace(job_run, job=replace(job_run.job, service=measuring))


def _is_successor(service: Service, job_run: JobRun) -> bool:
    successor = service.succession.successor
    return successor is not None and successor.job == job_run.job.name


def _size_of(service: Service, job_run: JobRun) -> ServiceSize | None:
    successor = service.succession.successor
    own = successor.size if successor is not None and _is_successor(service, job_run) else None
    return own or service.size


def _with_size(
    catalog: Catalog,
    transaction: Transaction,
    service: Service,
    job_run: JobRun,
    calibration: Calibration,
    room: Amounts,
) -> JobRun:
    """Return the job with the amounts of the size that fits into the room, and record this size."""
    request = service.size_request or SizeRequest()

    def size_beside(other_bytes: int) -> tuple[ServiceSize, Scaling | None]:
        left = replace(room, memory_bytes=max(0, room.memory_bytes - other_bytes))
        return fitting_size(calibration, request, left)

    try:
        size, scaling = size_beside(memory_beside(service, lambda other: size_beside(other)[0].replicas))
    except CapacityError as error:
        failed = _measuring(job_run, service.version, calibration.machine)
        return replace(failed, state=JobState.FAILED, message=explained(error), ended=transaction.now)
    if size.shortage:
        snapshot = catalog.ledger.snapshot
        site, resource = (
            snapshot.sites.get(service.site),
            snapshot.resource_of(service.resource, JobKind.SERVICE),
        )
        enough = enough_text(calibration, request, resource, site)
        size = replace(size, shortage=f"{size.shortage}; {enough}")
    sized = replace(service, size=size, scaling=scaling, replicas=size.replicas)
    successor = service.succession.successor
    if successor is not None and _is_successor(service, job_run):
        own = replace(successor, size=size, scaling=scaling)
        transaction.put(replace(service, succession=replace(service.succession, successor=own)))
    else:
        transaction.put(sized)
    add_event(transaction, service, ServiceState.STARTING, _event_text(size))
    memory_bytes = memory_needed(sized, size.replicas, REPLICA_BYTES)
    return _with_amounts(job_run, replace(job_run.sizing.amounts, cpus=size.cpus, memory_bytes=memory_bytes))


def _event_text(size: ServiceSize) -> str:
    if size.shortage:
        return size.shortage
    can = f"which can serve {show_number(size.most_rate)} requests/s"
    return f"gets {show_count(size.replicas, 'replica')} for {size.machine}, {can}"


def _with_amounts(job_run: JobRun, amounts: Amounts) -> JobRun:
    """Return the job that waits for these amounts."""
    job: Job = replace(job_run.job, cpus=amounts.cpus, memory_bytes=amounts.memory_bytes)
    sizing = replace(job_run.sizing, amounts=amounts)
    return replace(job_run, state=JobState.WAITING, job=job, sizing=sizing)


def size_message(service: Service, jobs: Iterable[JobRun | None]) -> str:
    """Return what a user should know about the size of a service on a rented machine: that its machine
    measures it, or that the machine is too small."""
    if not service.is_meant_to_run:
        return ""
    for one in jobs:
        spec = one.job.service if one is not None else None
        if one is not None and spec is not None and spec.measures_first and one.state is JobState.RUNNING:
            return one.message
    return service.size.shortage if service.size is not None else ""
