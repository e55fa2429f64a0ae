"""This module gives services their part of a GPU, records the GPU memory that their versions need, and takes
back what they do not need."""

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Transaction
from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.service_chains import chain_stages
from gridmill.domain.amounts import GPU_SHARES
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import replace
from gridmill.domain.gpu_sharing import (
    GpuClaim,
    GpuMeasurement,
    GpuRoom,
    HeldShares,
    check_update,
    claim_after,
    claim_for,
    gpu_room,
    measurement_for,
    replica_limit,
)
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import Service, has_own_code, is_on
from gridmill.domain.serving import ServiceOrder, ServiceReport
from gridmill.domain.site import LOCAL
from gridmill.errors import CapacityError
from gridmill.scheduler.feasibility import gpus_of
from gridmill.scheduler.snapshot import Snapshot

_MAX_BATCH = ServiceOrder(name="", versions=()).max_batch


def with_gpu_claim(catalog: Catalog, service: Service, resource: Resource) -> Service:
    """Return a service that starts, with its part of a GPU if services share the GPUs of its resource. A
    service without own code computes on CPUs, and gets none. Raises CapacityError if its part is not free."""
    snapshot = catalog.ledger.snapshot
    gpu_shares = shares_of(snapshot, resource)
    # the measurements of a stopped service outlast its stop
    before = snapshot.services.get(service.name)
    service = replace(service, gpu_measured=before.gpu_measured if before is not None else {})
    if gpu_shares is None:
        return service
    if not _has_code(catalog, service):
        return replace(service, gpu_claim=GpuClaim(shares=0, gpu_shares=gpu_shares))
    room = _room(snapshot, service.name, resource, gpu_shares)
    measured = _measurement(snapshot, service, service.version)
    claim = claim_for(service.name, service.version, measured, service.replicas, room)
    return replace(service, gpu_claim=claim, gpu_measured=_known(service, measured))


def shares_to_calibrate(catalog: Catalog, version: Artifact, resource: Resource) -> int | None:
    """Return the number of GPU shares with which a version is calibrated, if services share the GPUs of the
    resource: all free shares, or none for a version without own code. The result is None on other resources.
    Raises CapacityError if no share is free."""
    gpu_shares = shares_of(catalog.ledger.snapshot, resource)
    if gpu_shares is None:
        return None
    if not has_own_code(version):
        return 0
    room = _room(catalog.ledger.snapshot, "", resource, gpu_shares)
    return claim_for("", version.id, None, 1, room).shares


def check_gpu_memory(catalog: Catalog, before: Service, after: Service) -> None:
    """Raise CapacityError if a running service has too little GPU memory for another version or number of
    replicas, or for a canary. A version that was not measured is measured by its first replica, which cannot
    exceed the part of the service."""
    claim, is_other = before.gpu_claim, before.version != after.version
    if claim is not None and claim.shares and after.canary not in ("", before.canary):
        raise CapacityError(
            f"{after.canary} cannot be a canary: service {after.name!r} shares a GPU, and its part has no "
            "GPU memory for a second version",
            hint="Try the version as a service of its own: gridmill start service NAME --model "
            f"{after.canary}",
            place="canary",
        )
    if claim is None or not (is_other or before.replicas != after.replicas):
        return
    measured = _measurement(catalog.ledger.snapshot, after, after.version)
    if claim.shares and measured is not None:
        check_update(after.name, claim, measured, after.version, after.replicas)
    if not claim.shares and is_other and _has_code(catalog, after):
        raise CapacityError(
            f"service {after.name!r} has no part of a GPU, because it started with {before.version}, which "
            f"computes on CPUs, and {after.version} predicts with its own code",
            hint=f"Start it again: gridmill stop service {after.name}; gridmill start service {after.name} "
            f"--model {after.version} --trust",
            place="model",
        )


def with_gpu_limit(snapshot: Snapshot, service: Service, order: ServiceOrder) -> ServiceOrder:
    """Return the order with the GPU memory of one replica. It is not set while no GPU memory was measured:
    the replicas then divide the share with which their attempt started."""
    claim, known = service.gpu_claim, tuple(service.gpu_measured.values())
    if claim is None or not claim.shares or not known:
        return order
    # a canary needs its own part
    measured = _measurement(snapshot, service, service.version) if not service.canary else None
    limit = replica_limit(claim, measured, known[0].gpu_bytes, service.replicas)
    return replace(order, gpu_memory_bytes=limit // len(order.versions))


def note_gpu_memory(
    transaction: Transaction, service: Service, job_run: JobRun, attempt_id: str, report: ServiceReport
) -> Service:
    """Return the service with the GPU of its attempt, and with the GPU memory that its replicas have measured
    for its version. After the first measurement, its attempt keeps only the shares that it needs, so that
    other services can have the others."""
    attempt = transaction.get(Attempt, attempt_id)
    claim = service.gpu_claim
    if claim is None or attempt is None or not attempt.gpu_indices:
        return service
    claim = replace(claim, shares=len(attempt.gpu_indices), gpu=attempt.gpu_indices[0] // claim.gpu_shares)
    measured = _measured_by(service, report)
    known = service.gpu_measured.get(service.version)
    if measured is not None and (known is None or known.max_batch <= measured.max_batch):
        if (
            known is None
            or measured.replica_bytes > known.replica_bytes
            or measured.max_batch > known.max_batch
        ):
            known = measured
        claim = claim_after(claim, known, service.replicas)
        _give_back(transaction, job_run, attempt, claim.shares)
    noted = replace(service, gpu_claim=claim, gpu_measured=_known(service, known))
    return service if noted == service else noted


def _measured_by(service: Service, report: ServiceReport) -> GpuMeasurement | None:
    """Return the measurement of the version, if all replicas serve it alone and all were measured."""
    replicas = report.replicas
    is_alone = all([one.label for one in each.versions] == [service.version] for each in replicas)
    if not replicas or report.generation < service.generation or not is_alone:
        return None
    if not all(one.gpu_needed_bytes and one.gpu_size_bytes for one in replicas):
        return None
    return GpuMeasurement(
        replica_bytes=max(one.gpu_needed_bytes for one in replicas),
        gpu_bytes=min(one.gpu_size_bytes for one in replicas),
        max_batch=_max_batch(service),
    )


def _give_back(transaction: Transaction, job_run: JobRun, attempt: Attempt, shares: int) -> None:
    """Give the attempt of a service, and its next attempts, fewer shares of the GPU."""
    if shares >= len(attempt.gpu_indices) or job_run.job.service is None:
        return
    job = replace(job_run.job, service=replace(job_run.job.service, gpus=shares))
    amounts = replace(job_run.sizing.amounts, gpus=shares)
    transaction.put(replace(job_run, job=job, sizing=replace(job_run.sizing, amounts=amounts)))
    given = replace(attempt.given, gpus=shares)
    transaction.put(replace(attempt, given=given, gpu_indices=attempt.gpu_indices[:shares]))


def shares_of(snapshot: Snapshot, resource: Resource) -> int | None:
    """Return the number of shares of a GPU if services share the GPUs of a resource: at the site `local`,
    where GPUs have several shares, and with at most one GPU for each worker. None otherwise."""
    site = snapshot.sites.get(LOCAL)
    gpu_shares = int(site.settings.get(GPU_SHARES, "1")) if site is not None else 1
    is_shared = resource.site == LOCAL and resource.type is JobKind.SERVICE and gpu_shares > 1
    return gpu_shares if is_shared and 0 < gpus_of(resource) <= gpu_shares else None


def _room(snapshot: Snapshot, service: str, resource: Resource, gpu_shares: int) -> GpuRoom:
    gpus = snapshot.largest(LOCAL).gpus // gpu_shares
    shares = gpus_of(resource)
    held = tuple(_held(snapshot, one, resource) for one in _running(snapshot) if one.name != service)
    return gpu_room(
        resource.name,
        gpu_shares,
        shares,
        workers=resource.workers or max(1, gpus * gpu_shares // shares),
        gpus=gpus,
        held=tuple(one for one in held if one.shares),
    )


def _held(snapshot: Snapshot, service: Service, resource: Resource) -> HeldShares:
    job_run = snapshot.job_runs.get(f"{service.run_id}/{service.serving_job}")
    attempt = snapshot.attempts.get(job_run.attempt_id or "") if job_run is not None else None
    claim = service.gpu_claim
    place = attempt.gpu_indices if attempt is not None else ()
    return HeldShares(
        service=service.name,
        shares=len(place) or (claim.shares if claim is not None else 0),
        pod_id=attempt.pod_id if attempt is not None else None,
        gpu=place[0] // claim.gpu_shares if place and claim is not None else None,
        on_resource=is_on(service, resource.name),
    )


def _running(snapshot: Snapshot) -> list[Service]:
    return [one for one in snapshot.services.values() if one.is_meant_to_run and one.site == LOCAL]


def _measurement(snapshot: Snapshot, service: Service, version: str) -> GpuMeasurement | None:
    """Return the measurement of a version: that of the service itself, or that of another service."""
    others = (one.gpu_measured for one in snapshot.services.values() if one.name != service.name)
    own = measurement_for([service.gpu_measured], version, _max_batch(service))
    return own or measurement_for(others, version, _max_batch(service))


def _max_batch(service: Service) -> int:
    return service.settings.max_batch or _MAX_BATCH


def _known(service: Service, measured: GpuMeasurement | None) -> dict[str, GpuMeasurement]:
    """Return the measurements of the versions that the service needs, with that of its version."""
    kept = {one: service.gpu_measured[one] for one in service.versions if one in service.gpu_measured}
    return kept if measured is None else {**kept, service.version: measured}


def _has_code(catalog: Catalog, service: Service) -> bool:
    """Return whether the version of a service, or a version that predicts features of it, has own code."""
    stages = chain_stages(catalog, service.features.get(service.version))
    return any(map(has_own_code, (fetch_artifact(catalog, service.version), *stages)))
