"""This module checks, before a run, the jobs that start or update a service, and predicts what they do."""

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.steps.references import fetch_artifact, find_version
from gridmill.control.steps.service_features import check_feature_names
from gridmill.domain.artifact import Artifact
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.service import Service, why_not_served
from gridmill.domain.service_features import FeatureSettings
from gridmill.domain.service_job import pipeline_of_job, service_name, spec_of
from gridmill.domain.service_settings import merged
from gridmill.errors import InputError, NotFoundError


def check_service_jobs(catalog: Catalog, pipeline: Pipeline) -> None:
    """Raise InputError, with the field, for a job that cannot start or update its service."""
    for job in pipeline.jobs:
        problem = service_job_problem(catalog, pipeline.name, job)
        if problem is not None:
            raise problem


def service_job_problem(catalog: Catalog, pipeline: str, job: Job) -> InputError | None:
    """Return why a job cannot start or update its service, as far as this is known before the run."""
    if not job.starts_service:
        return None
    service = _service(catalog.ledger, job)
    if service is not None and service.declared_by:
        owner = pipeline_of_job(service.declared_by)
        if owner != pipeline:
            return InputError(
                f"service {service.name!r} belongs to pipeline {owner!r} ({service.declared_by})",
                hint="Give this service another `name`, or delete the other service: gridmill stop service "
                f"{service.name}; gridmill remove service {service.name}",
                place=f"jobs.{job.name}.service.name",
            )
    return _port_problem(catalog.ledger, job) or _version_problem(catalog, job, service)


def _service(ledger: Ledger, job: Job) -> Service | None:
    return ledger.read(Service, service_name(job))


def _port_problem(ledger: Ledger, job: Job) -> InputError | None:
    port, name = spec_of(job).port, service_name(job)
    for other in ledger.snapshot.services.values() if port else ():
        if other.port == port and other.name != name:
            return InputError(
                f"port {port} belongs to service {other.name!r}",
                hint="Choose another port, or leave out `port`.",
                place=f"jobs.{job.name}.service.port",
            )
    return None


def _version_problem(catalog: Catalog, job: Job, service: Service | None) -> InputError | None:
    version = _named_version(catalog, job)
    if version is None:
        return None
    runs = service is not None and service.is_meant_to_run
    current = fetch_artifact(catalog, service.version) if service is not None and runs else None
    why = why_not_served(version, current)
    if not why:
        return _feature_problem(catalog, job, service, version)
    message = f"service {service_name(job)!r} cannot serve {version.id}: {why}"
    return InputError(message, place=f"jobs.{job.name}.service.model")


def _feature_problem(
    catalog: Catalog, job: Job, service: Service | None, version: Artifact
) -> InputError | None:
    settings = spec_of(job).settings
    settings = merged(service.settings, settings) if service is not None else settings
    try:
        check_feature_names(catalog, version, settings.features or FeatureSettings())
    except InputError as error:
        place = f"jobs.{job.name}.service.{error.place}"
        return InputError(error.message, hint=error.hint, place=place)
    return None


def _named_version(catalog: Catalog, job: Job) -> Artifact | None:
    """Return the version of another pipeline that the job names, if it exists."""
    for name in job.external_names:
        try:
            return find_version(catalog, name)
        except NotFoundError:
            return None
    return None


def service_job_reason(catalog: Catalog, job: Job) -> str:
    """Return what a run would do with the service of a job."""
    service, name = _service(catalog.ledger, job), service_name(job)
    if service is None or not service.is_meant_to_run:
        return f"starts service {name}"
    version = _named_version(catalog, job)
    if version is not None and version.id == service.version:
        return f"service {name} serves {service.version} already; other settings would be updated"
    return f"updates service {name}, which serves {service.version}"
