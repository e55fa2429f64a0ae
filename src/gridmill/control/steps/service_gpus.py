"""This module gives services their part of a GPU, records the GPU memory that their versions need, and takes
back what they do not need."""

from collections.abc import Sequence

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
    GpuNeed,
    GpuRoom,
    HeldShares,
    check_change,
    check_return,
    claim_after,
    claim_for,
    gpu_room,
    least_for,
    measurement_for,
)
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service import Service, has_own_code, is_on
from gridmill.domain.service_rollback import is_return
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
    if not _code_versions(catalog, service):
        return replace(service, gpu_claim=GpuClaim(shares=0, gpu_shares=gpu_shares))
    room = _room(snapshot, service.name, resource, gpu_shares)
    need = _need(snapshot, service, (service.version,))
    claim = claim_for(service.name, need, room)
    return replace(service, gpu_claim=claim, gpu_measured=_known(service, need.measured))


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
    need = GpuNeed(versions=(version.id,), replicas=1, max_batch=_MAX_BATCH)
    return claim_for("", need, room).shares


def check_gpu_memory(catalog: Catalog, before: Service, after: Service) -> None:
    """Raise CapacityError if a running service has too little GPU memory for a change that replaces or adds
    replicas: an update, a promotion, a rollback, or another version of its alias. A version that was not
    measured is measured by its first replica, which cannot exceed the part of the service."""
    claim = before.gpu_claim
    if claim is None or not _needs_replicas(before, after):
        return
    present, wanted = _code_versions(catalog, before), _code_versions(catalog, after)
    if not claim.shares:
        _check_computes_on_cpus(before, [one for one in wanted if one not in present])
        return
    snapshot = catalog.ledger.snapshot
    need = _need(snapshot, after, wanted)
    if is_return(before, after):
        check_return(after.name, claim, _need(snapshot, before, present), need)
        return
    check_change(after.name, claim, _need(snapshot, before, present), need)
    terms = before.terms_before if not before.is_in_effect else None
    if terms is not None:
        # replicas from before an update that is not in effect may run, too
        earlier = replace(before, version=terms.version, settings=terms.settings, replicas=terms.replicas)
        earlier = replace(earlier, canary="")
        check_change(after.name, claim, _need(snapshot, earlier, _code_versions(catalog, earlier)), need)


def _needs_replicas(before: Service, after: Service) -> bool:
    """Return whether a change replaces or adds replicas. Other API keys need no new replicas."""
    if after.generation == before.generation:
        return False
    same = replace(after, generation=before.generation, changed=before.changed, keys=before.keys)
    return same != before


def _check_computes_on_cpus(service: Service, versions: Sequence[str]) -> None:
    if not versions:
        return
    raise CapacityError(
        f"service {service.name!r} has no part of a GPU, because it started with a version that computes on "
        f"CPUs, and {versions[0]} predicts with its own code",
        hint=f"Start it again: gridmill stop service {service.name}; gridmill start service {service.name} "
        f"--model {versions[0]} --trust",
        place="model",
    )


def with_gpu_limit(catalog: Catalog, service: Service, order: ServiceOrder) -> ServiceOrder:
    """Return the order with the GPU memory that each version may use in one replica. It is not set while no
    GPU memory was measured: the replicas then divide the share with which their attempt started."""
    claim, known = service.gpu_claim, tuple(service.gpu_measured.values())
    if claim is None or not claim.shares or not known:
        return order
    need = _need(catalog.ledger.snapshot, service, _code_versions(catalog, service))
    gpu_bytes = (need.measured or known[0]).gpu_bytes
    return replace(order, gpu_memory_bytes=need.version_limit(claim, gpu_bytes))


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


def _need(snapshot: Snapshot, service: Service, versions: Sequence[str]) -> GpuNeed:
    """Return what a service needs of a GPU for these versions, which predict with their own code. The
    measurements of the service itself count before those of other services."""
    batch = _max_batch(service)
    own = [service.gpu_measured]
    others = [one.gpu_measured for one in snapshot.services.values() if one.name != service.name]
    exact = [measurement_for(own, one, batch) or measurement_for(others, one, batch) for one in versions]
    least = [least_for([*own, *others], one, batch) for one in versions]
    return GpuNeed(
        versions=tuple(versions),
        replicas=service.replicas,
        max_batch=batch,
        measured=_largest(exact) if all(exact) else None,
        at_least=None if all(exact) else _largest([*exact, *least]),
    )


def _largest(measured: Sequence[GpuMeasurement | None]) -> GpuMeasurement | None:
    return max((one for one in measured if one), key=lambda one: one.replica_bytes, default=None)


def _max_batch(service: Service) -> int:
    return service.settings.max_batch or _MAX_BATCH


def _known(service: Service, measured: GpuMeasurement | None) -> dict[str, GpuMeasurement]:
    """Return the measurements of the versions that the service needs, with that of its version."""
    kept = {one: service.gpu_measured[one] for one in service.versions if one in service.gpu_measured}
    return kept if measured is None else {**kept, service.version: measured}


def _code_versions(catalog: Catalog, service: Service) -> tuple[str, ...]:
    """Return the version of a service and its canary, as far as they, or versions that predict features of
    them, predict with their own code."""
    return tuple(one for one in (service.version, service.canary) if one and _has_code(catalog, service, one))


def _has_code(catalog: Catalog, service: Service, version: str) -> bool:
    stages = chain_stages(catalog, service.features.get(version))
    return any(map(has_own_code, (fetch_artifact(catalog, version), *stages)))
