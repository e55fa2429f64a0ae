"""This module has the change of a service that a job of a pipeline requests."""

from gridmill.control.ledger import Transaction
from gridmill.control.node import ControlNode
from gridmill.control.steps.certificates import check_certificate
from gridmill.control.steps.service_sizes import calibration_of, place_of
from gridmill.control.usecases.rented_service_sizes import check_free_cpus, rented_resource
from gridmill.control.usecases.service_canaries import ServiceCanaryUseCases
from gridmill.control.usecases.service_checks import (
    ChosenModel,
    DefinedFeatures,
    check_same,
    check_served,
)
from gridmill.domain.frozen import replace
from gridmill.domain.service import Service, check_trusted
from gridmill.domain.service_job import RequestOutcome, ServiceRequest, needs_size, pipeline_of_job
from gridmill.domain.service_settings import check_settings, merged
from gridmill.domain.service_totals import is_refused
from gridmill.errors import ConflictError, UnavailableError


class ServiceJobUseCases(ServiceCanaryUseCases):
    """The use cases of services (ports.services.Services). The tick of the jobs that start services changes
    services by the same methods."""

    def __init__(self, node: ControlNode) -> None:
        super().__init__(node)
        node.control.service_jobs.serve = self.serve

    def serve(self, transaction: Transaction, request: ServiceRequest) -> RequestOutcome:
        """Start the service, or update it. The record of the service names the job, so that the request has
        an effect only once. The caller holds the node's lock. Raises ConflictError for a service of another
        pipeline; InputError, CapacityError, UnavailableError."""
        before = transaction.get(Service, request.name)
        if before is not None:
            _check_owner(before, request)
        check_served(request.version, None)
        settings = merged(before.settings, request.settings) if before is not None else request.settings
        check_settings(settings)
        check_certificate(settings)
        check_trusted(request.version, settings)
        runs = before is not None and before.is_meant_to_run and before.retry_at is None
        measuring = self._measure(transaction, before if runs else None, request)
        if measuring:
            return RequestOutcome(measuring=measuring)
        if before is None or not runs:
            after = self._start_for(transaction, before, request)
        else:
            after = self._update_for(transaction, before, request)
        after = replace(after, declared_by=request.job)
        transaction.put(after)
        has_changed = before is None or not runs or after.generation != before.generation
        return RequestOutcome(service=after, changed=has_changed)

    def _start_for(
        self, transaction: Transaction, before: Service | None, request: ServiceRequest
    ) -> Service:
        is_again = before is not None and not (request.replicas or request.rate)
        return self._start(
            transaction,
            request.name,
            _chosen(request),
            request.definition,
            replicas=request.replicas,
            least_replicas=request.least_replicas,
            rate=request.rate,
            resource=request.resource,
            port=request.port,
            project=request.project,
            settings=request.settings,
            is_again=is_again,
        )

    def _update_for(self, transaction: Transaction, before: Service, request: ServiceRequest) -> Service:
        check_same(before, replace(before, resource=request.resource, project=request.project))
        is_same = (before.version, before.follows) == (request.version.id, request.follows)
        features = DefinedFeatures(version=request.version.id, definition=request.definition)
        return self._update(
            transaction,
            before,
            None if is_same else _chosen(request),
            None if is_same and request.settings.features is None else features,
            replicas=request.replicas or None,
            least_replicas=request.least_replicas,
            rate=request.rate if _needs_size(before, request) else 0.0,
            port=request.port,
            settings=request.settings,
            may_replace=is_refused(before),
        )

    def _measure(self, transaction: Transaction, running: Service | None, request: ServiceRequest) -> str:
        """Return the id of the run that measures the version first; empty if the version is measured, or need
        not be measured. Raises UnavailableError if the measurement has failed."""
        if not _needs_size(running, request):
            return ""
        if running is None and rented_resource(self._ledger, request.resource) is not None:
            return ""  # the machine that is rented for the service measures first
        place = place_of(self._ledger, request.resource, request.name)
        if calibration_of(self._ledger, request.version.id, place.machine) is not None:
            return ""
        if request.measured:
            raise UnavailableError(
                f"{request.version.id} could not be measured",
                hint="`gridmill list runs` shows the run of the pipeline service-calibration that failed.",
            )
        check_free_cpus(place, request.version)
        return self._calibrate(transaction, request.version, request.resource, place)


def _chosen(request: ServiceRequest) -> ChosenModel:
    return ChosenModel(reference=request.reference, version=request.version, follows=request.follows)


def _needs_size(running: Service | None, request: ServiceRequest) -> bool:
    return needs_size(running, request.rate, request.replicas, request.least_replicas, request.version.id)


def _check_owner(service: Service, request: ServiceRequest) -> None:
    """Raise ConflictError if another pipeline has declared the service."""
    owner, pipeline = pipeline_of_job(service.declared_by), pipeline_of_job(request.job)
    if service.declared_by and owner != pipeline:
        raise ConflictError(
            f"service {service.name!r} belongs to pipeline {owner!r} ({service.declared_by})",
            hint=f"Give the service of pipeline {pipeline!r} another `name`, or delete the other service: "
            f"gridmill stop service {service.name}; gridmill remove service {service.name}",
            place="name",
        )
