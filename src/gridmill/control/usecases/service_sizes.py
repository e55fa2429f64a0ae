"""This module has the use case that computes the size of a service for a rate of requests, and the sizes with
which services start and are updated."""

from collections.abc import Sequence

from gridmill.control.ledger import Transaction
from gridmill.control.steps.references import fetch_artifact, find_version
from gridmill.control.steps.run_lifecycle import begin_run
from gridmill.control.steps.service_features import has_stages
from gridmill.control.steps.service_gpus import shares_to_calibrate
from gridmill.control.steps.service_sizes import (
    ServicePlace,
    calibration_of,
    place_of,
    running_calibration,
)
from gridmill.control.steps.services import job_run_of, live_attempt
from gridmill.control.usecases.base import UseCases
from gridmill.control.usecases.rented_service_sizes import (
    check_free_cpus,
    check_not_again,
    check_one_pod,
    on_node,
    plan_later,
    rented_resource,
    with_request,
)
from gridmill.domain.amounts import MIB, Amounts, show_bytes, show_cpus
from gridmill.domain.artifact import Artifact
from gridmill.domain.footprint import REPLICA_BYTES
from gridmill.domain.frozen import replace
from gridmill.domain.run import Attempt
from gridmill.domain.service import (
    Service,
    calibration_pipeline,
    check_trusted,
    has_own_code,
    memory_beside,
    memory_needed,
    why_not_served,
)
from gridmill.domain.service_canary import room_needed, why_no_room
from gridmill.domain.service_measuring import SizeRequest
from gridmill.domain.service_settings import ServiceSettings, check_settings
from gridmill.domain.service_size import (
    MOST_REPLICAS,
    Calibration,
    ServicePlan,
    ServiceSize,
    scaling_of,
)
from gridmill.domain.service_spread import size_in_pods
from gridmill.errors import CapacityError, ConflictError, InputError
from gridmill.scheduler.capacity_index import ProjectTotals
from gridmill.scheduler.fair_share import bounds
from gridmill.scheduler.service_pods import pod_capacity, room_in_pod
from gridmill.scheduler.snapshot import Snapshot

_STEP_BYTES = 64 * MIB
"""The memory that a hint names is a multiple of this."""


class ServiceSizeUseCases(UseCases):
    """The use case `plan_service` (ports.services.Services), and the sizes of services."""

    def plan_service(
        self,
        model: str,
        *,
        rate: float = 0.0,
        replicas: int = 0,
        least_replicas: int | None = None,
        pods: int = 0,
        resource: str = "",
        name: str = "",
        again: bool = False,
        trust: bool = False,
    ) -> ServicePlan:
        """Return the size that a service would have. If its version was not calibrated on this type of
        machine, or with `again`, a calibration is started. Raises InputError for a version with its own code
        that neither `trust` nor the settings of the service permit."""
        check_rate(rate)
        check_range(replicas, least_replicas)
        check_settings(ServiceSettings(pods=pods))
        with self._node.changing() as transaction:
            version = find_version(self._control.catalog, model)
            if why := why_not_served(version, None):
                raise InputError(f"{version.id} cannot be served: {why}", place="model")
            service = self._ledger.read(Service, name) if name else None
            is_trusted = trust or (service is not None and bool(service.settings.trust))
            check_trusted(version, ServiceSettings(trust=is_trusted))
            if has_stages(self._control.catalog, version):
                raise not_measured(version.id)
            rented = rented_resource(self._ledger, resource)
            if rented is not None and (service is None or not service.is_meant_to_run):
                request = SizeRequest(rate=rate, replicas=replicas, least_replicas=least_replicas)
                check_not_again(again)
                check_one_pod(pods, rented)
                return plan_later(self._control.catalog, version, rented, request)
            place = place_of(self._ledger, resource, name)
            calibration = calibration_of(self._ledger, version.id, place.machine)
            if calibration is None or again:
                check_free_cpus(place, version)
                run_id = self._calibrate(transaction, version, resource, place)
                return ServicePlan(
                    version=version.id, machine=place.machine, site=place.resource.site, run_id=run_id
                )
        size = size_in_pods(calibration, rate, replicas, least_replicas, pods, place.rooms, place.label)
        return ServicePlan(
            version=version.id,
            machine=place.machine,
            site=place.resource.site,
            calibration=calibration,
            size=size,
            sharing=place.sharing(size),
        )

    def _calibrate(
        self, transaction: Transaction, version: Artifact, resource: str, place: ServicePlace
    ) -> str:
        """Start the calibration of a version, unless it runs already. Returns the id of its run."""
        running = running_calibration(self._ledger, version.id, place.machine)
        if running:
            return running
        gpus = shares_to_calibrate(self._control.catalog, version, place.resource)
        if place.node and not has_own_code(version):
            gpus = 0  # the GPU of the machine belongs to the service, and only own code uses one
        pipeline = calibration_pipeline(version, place.machine, resource, place.pod.cpus, gpus)
        pipeline = on_node(pipeline, place.node)
        return begin_run(self._control.run_creation, transaction, pipeline, force=False).id

    def _with_size(self, service: Service, least_replicas: int | None) -> Service:
        """Return a service that starts, with its size by measurement. If the service has neither a rate nor a
        range of replicas, its version need not be calibrated. Raises CapacityError, ConflictError if the
        version is not calibrated."""
        needed = bool(service.rate) or least_replicas is not None
        count = service.replicas or (0 if needed else 1)
        rented = rented_resource(self._ledger, service.resource) if needed else None
        if rented is not None:
            check_no_stages(service)
            version = fetch_artifact(self._control.catalog, service.version)
            return with_request(self._control.catalog, service, version, rented, least_replicas)
        service = replace(service, replicas=count, size_request=None)
        place = place_of(self._ledger, service.resource, service.name) if needed else None
        if place is None:
            return service
        check_no_stages(service)
        calibration = self._calibration(service.version, place)
        pods = service.pods if count else service.settings.pods or 0
        size = size_in_pods(calibration, service.rate, count, least_replicas, pods, place.rooms, place.label)
        return with_size(service, size, calibration, least_replicas)

    def _calibration(self, version: str, place: ServicePlace) -> Calibration:
        calibration = calibration_of(self._ledger, version, place.machine)
        if calibration is None:
            raise not_calibrated(version)
        return calibration

    def _sized_for(
        self,
        transaction: Transaction,
        service: Service,
        rate: float,
        replicas: int | None,
        least_replicas: int | None,
        pods: int | None,
    ) -> Service:
        """Return a running service with the size for another rate or another range of replicas, which fits
        into the free part of its pods. `pods` is the number of pods that a user requests (0: as many as the
        rate needs, None: as before). With another rate alone, a range stays as it is. Raises CapacityError,
        ConflictError if the version is not calibrated."""
        place = place_of(self._ledger, service.resource, service.name)
        if has_stages(self._control.catalog, fetch_artifact(self._control.catalog, service.version)):
            raise not_measured(service.version)
        calibration = self._calibration(service.version, place)
        keeps_range = replicas is None and service.scaling is not None
        if keeps_range and service.scaling is not None:
            replicas, least_replicas = service.replicas, service.scaling.least
        attempt = live_attempt(transaction, service)
        rooms = place.rooms
        if attempt is not None and not rooms.site:
            rooms = replace(rooms, held=(room_in_pod(self._ledger.snapshot, attempt),), free=())
        chosen = service.settings.pods if pods is None else pods
        if replicas is not None:
            chosen = chosen or service.pods
        where = f"the pod of {service.name}" if not rooms.site else f"service {service.name}"

        def size_beside(other_bytes: int) -> ServiceSize:
            left = rooms.less(other_bytes)
            return size_in_pods(calibration, rate, replicas or 0, least_replicas, chosen or 0, left, where)

        size = size_beside(memory_beside(service, lambda other: size_beside(other).replicas))
        service = replace(service, rate=rate or service.rate)
        if place.node:  # on a rented machine, the next machine gets the size for the same request
            size = replace(size, machine=place.machine)
            request = service.size_request or SizeRequest(cpus=size.cpus)
            request = replace(request, rate=service.rate)
            if not keeps_range:
                request = replace(request, replicas=replicas or 0, least_replicas=least_replicas)
            service = replace(service, size_request=request)
        return with_size(service, size, calibration, least_replicas)

    def _give(self, transaction: Transaction, service: Service) -> None:
        """Give the running attempt of a service, and its next attempts, the CPUs and the memory of its size.
        The running attempt keeps what it has, because its old replicas use it until the update is in
        effect. Without a measurement, each replica gets one CPU. Raises CapacityError if the quota of its
        project has no room for the growth."""
        size = Amounts(
            cpus=service.size.cpus if service.size is not None else float(service.replicas),
            memory_bytes=memory_needed(service, service.replicas, REPLICA_BYTES),
        )
        names = (service.serving_job, *(one.job for one in service.further_pods))
        attempts = [live_attempt(transaction, service, name) for name in names]
        running = [one for one in attempts if one is not None]
        check_quota(self._ledger.snapshot, service, running, size, max(0, service.pods - len(names)))
        for name in names:
            self._give_to(transaction, service, name, size)

    def _give_to(self, transaction: Transaction, service: Service, name: str, size: Amounts) -> None:
        job_run, attempt = job_run_of(transaction, service, name), live_attempt(transaction, service, name)
        if job_run is None:
            return
        needed = replace(job_run.sizing.amounts, cpus=size.cpus, memory_bytes=size.memory_bytes)
        job = replace(job_run.job, cpus=needed.cpus, memory_bytes=needed.memory_bytes)
        transaction.put(replace(job_run, job=job, sizing=replace(job_run.sizing, amounts=needed)))
        if attempt is None:
            return
        given = replace(
            attempt.given,
            cpus=max(needed.cpus, attempt.given.cpus),
            memory_bytes=max(needed.memory_bytes, attempt.given.memory_bytes),
        )
        transaction.put(replace(attempt, given=given, asked_cpus=max(needed.cpus, attempt.asked_cpus)))


def check_quota(
    snapshot: Snapshot, service: Service, attempts: Sequence[Attempt], needed: Amounts, added: int = 0
) -> None:
    """Raise CapacityError if the running attempts of a service may not each grow to the amounts `needed`, or
    if so many attempts may not be `added`, because the live attempts of its project would then hold more than
    its quota."""
    project = snapshot.projects.get(service.project)
    more = Amounts(
        cpus=added * needed.cpus + sum(max(0.0, needed.cpus - one.asked_cpus) for one in attempts),
        memory_bytes=added * needed.memory_bytes
        + sum(max(0, needed.memory_bytes - one.given.memory_bytes) for one in attempts),
    )
    if project is None or not (more.cpus or more.memory_bytes):
        return
    limits = bounds(project, snapshot.places.tallies.get(project.name, ProjectTotals()), more)
    exceeded = ", ".join(f"{one.in_use}, and {one.wanted} more needed" for one in limits)
    if exceeded:
        raise CapacityError(
            f"the quota of project {project.name!r} has no room for the new size of service "
            f"{service.name!r}: {exceeded}",
            hint="Choose a lower rate or fewer replicas, or change the quota: gridmill configure project "
            f"{project.name} --cpus N --memory SIZE",
        )


def check_replicas_fit(snapshot: Snapshot, attempt: Attempt | None, service: Service, replicas: int) -> None:
    """Raise InputError if the running attempt of a service has too little memory for this number of replicas,
    or its pod too few CPUs: without a measurement each replica gets one, and the service could not start
    again."""
    if attempt is None:
        return
    cpus = pod_capacity(snapshot, attempt).cpus
    if replicas > service.replicas and replicas > cpus > 0:
        raise InputError(
            f"{replicas} replicas need {show_cpus(replicas)}, and the pod of service {service.name!r} has "
            f"{cpus:g}",
            hint="Replicas that are measured can share a CPU: gridmill update service "
            f"{service.name} --rate REQUESTS_PER_SECOND",
            place="replicas",
        )
    needed = memory_needed(service, replicas, REPLICA_BYTES)
    if attempt.given.memory_bytes and needed > attempt.given.memory_bytes:
        raise InputError(
            f"service {service.name!r} has {show_bytes(attempt.given.memory_bytes)}, and {replicas} "
            f"replicas need about {show_bytes(needed)}",
            hint=f"Start it again: gridmill stop service {service.name}; gridmill start service "
            f"{service.name} --replicas {replicas}",
            place="replicas",
        )


def with_size(
    service: Service, size: ServiceSize, calibration: Calibration, least_replicas: int | None
) -> Service:
    """Return the service with a size, and with a range of replicas if `least_replicas` is given."""
    scaling = None
    if least_replicas is not None:
        scaling = scaling_of(calibration, least_replicas, size.replicas)
    return replace(service, size=size, scaling=scaling, replicas=size.replicas)


def check_no_stages(service: Service) -> None:
    """Raise InputError if the version of a service is computed together with other versions."""
    definition = service.features.get(service.version)
    if definition is not None and definition.stages:
        raise not_measured(service.version)


def not_measured(version: str) -> InputError:
    """Return the error about a version that is computed together with other versions."""
    return InputError(
        f"{version} reads predictions of other versions, so the size of a service is not measured",
        hint="Start the service with --replicas N, without a rate or a range.",
        place="model",
    )


def make_room(snapshot: Snapshot, transaction: Transaction, before: Service, after: Service) -> None:
    """Give the running attempts of a service the memory that they need for its canary or its shadow. Raises
    InputError if a pod has less memory, and CapacityError if the quota of its project has no room for the
    growth."""
    needed = room_needed(after, before)
    names = (before.serving_job, *(one.job for one in before.further_pods))
    attempts = {name: one for name in names if (one := live_attempt(transaction, before, name)) is not None}
    short = {name: one for name, one in attempts.items() if 0 < one.given.memory_bytes < needed}
    for attempt in short.values():
        room_bytes = room_in_pod(snapshot, attempt).memory_bytes
        if needed > room_bytes:
            raise _no_room(snapshot, attempt, before, after, room_bytes)
    check_quota(snapshot, before, [*short.values()], Amounts(memory_bytes=needed))
    for name, attempt in short.items():
        transaction.put(replace(attempt, given=replace(attempt.given, memory_bytes=needed)))
        job_run = job_run_of(transaction, before, name)
        if job_run is not None:
            amounts = replace(job_run.sizing.amounts, memory_bytes=needed)
            job = replace(job_run.job, memory_bytes=needed)
            transaction.put(replace(job_run, job=job, sizing=replace(job_run.sizing, amounts=amounts)))


def _no_room(
    snapshot: Snapshot, attempt: Attempt, before: Service, after: Service, room_bytes: int
) -> InputError:
    is_shadow = after.shadow is not None and after.shadow != before.shadow
    kind, version = ("shadow", after.shadow_version) if is_shadow else ("canary", after.canary)
    needed, capacity = room_needed(after, before), pod_capacity(snapshot, attempt).memory_bytes
    why = why_no_room(after, before, attempt.given.memory_bytes)
    others = max(0, capacity - room_bytes)
    wanted = -(-(needed + others) // _STEP_BYTES) * _STEP_BYTES
    deployment = snapshot.deployments.get(attempt.deployment_id)
    resource = snapshot.resources.get(deployment.resource) if deployment is not None else None
    name = resource.name if resource is not None else before.resource
    hint = f"Try {version} as a service of its own."
    if resource is not None and resource.memory_bytes:
        hint = (
            f"Start the service in a larger pod, and repeat the update: gridmill stop service {before.name}; "
            f"gridmill alter resource {name} --memory {wanted // MIB}MiB; gridmill start service "
            f"{before.name}"
        )
    elif others:
        hint = f"Stop other jobs of resource {name!r}, or try {version} as a service of its own."
    return InputError(
        f"{version} cannot be a {kind}: {why}. Its pod has room for {show_bytes(room_bytes)}",
        hint=hint,
        place=kind,
    )


def not_calibrated(version: str) -> ConflictError:
    """Return the error about a version that was not calibrated on this type of machine."""
    return ConflictError(
        f"{version} was not measured on this type of machine",
        hint="Call `plan_service` (POST /service-plans), and wait for the run that it starts. `gridmill "
        "start service` does both.",
    )


def check_rate(rate: float) -> None:
    """Raise InputError for a rate of requests that a service cannot have."""
    if not 0 <= rate < 1e9:
        raise InputError(
            f"rate is {rate:g}; it must be a number of requests per second, at least 0", place="rate"
        )


def check_range(replicas: int, least_replicas: int | None) -> None:
    """Raise InputError for a range of replicas that a service cannot have. 0 replicas without a range means
    that the number follows from the rate."""
    if not 0 <= replicas <= MOST_REPLICAS:
        raise InputError(f"replicas is {replicas}; it must be from 1 to {MOST_REPLICAS}", place="replicas")
    if least_replicas is not None and not 0 <= least_replicas <= replicas != 0:
        raise InputError(
            f"the range of replicas is {least_replicas}..{replicas}; write for example 1..8, or 0..8",
            place="replicas",
        )
