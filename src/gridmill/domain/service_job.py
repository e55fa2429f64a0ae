"""This module has the jobs of pipelines that start or update a service: what such a job requests, and how it
ends."""

from pathlib import PurePath

from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import DEFAULT
from gridmill.domain.resource import default_name
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import Service, ServiceState, alias_followed
from gridmill.domain.service_features import FeatureDefinition
from gridmill.domain.service_settings import ServiceSettings, merged
from gridmill.domain.service_spec import ServiceSpec, read_replicas
from gridmill.domain.states import JobState

MOST_ENDS = 3
"""If the process of a new service has ended this many times, the job fails. The service goes on trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRequest:
    """The service that the job `job` (the id of its JobRun) requests.

    `version` is the version to serve, `reference` the reference from which it follows, and `follows` the
    alias that the service follows (empty: none). `replicas` is 0 if the number follows from `rate` or stays
    as it is. `definition` is the definition of the contextual features of the version (None: requests send
    all features). `measured` means that a measurement of the version has ended for this request.
    """

    job: str
    name: str
    version: Artifact
    reference: str
    follows: str
    settings: ServiceSettings
    replicas: int = 0
    least_replicas: int | None = None
    rate: float = 0.0
    resource: str = ""
    port: int = 0
    project: str = DEFAULT
    definition: FeatureDefinition | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """What a request has done. `service` is the record of the service; None if the version is measured first,
    in the run `measuring`. `changed` is false if the service was as requested."""

    service: Service | None = None
    changed: bool = False
    measuring: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProgress:
    """The state of a service for the job that has requested it.

    `wanted` is the version that the job requested, or empty if the service follows an alias. `why` is the
    reason if the service does not run as it should. `is_refused` means that the replicas of the newest update
    have failed. `ends` is the number of times that the process of the service has ended. `changed` is false
    if the service was as requested when the job began.
    """

    service: Service
    state: ServiceState
    wanted: str = ""
    why: str = ""
    is_refused: bool = False
    ends: int = 0
    changed: bool = True


def spec_of(job: Job) -> ServiceSpec:
    """Return the declaration of a job that starts a service."""
    return job.service or ServiceSpec()


def service_name(job: Job) -> str:
    """Return the name of the service that a job starts."""
    return spec_of(job).name or job.name


def pipeline_of_job(job_run_id: str) -> str:
    """Return the pipeline of the run to which a job belongs (`weather` for `weather-7/rain`)."""
    return job_run_id.partition("/")[0].rpartition("-")[0]


def request_of(
    run: Run, job_run: JobRun, version: Artifact, reference: str, follows: str, *, measured: bool
) -> ServiceRequest:
    """Return the request of a job for its service. Relative paths begin in the folder of the pipeline."""
    spec = spec_of(job_run.job)
    replicas, least = read_replicas(spec.count)
    is_default = job_run.resource == default_name(JobKind.SERVICE)
    return ServiceRequest(
        job=job_run.id,
        name=service_name(job_run.job),
        version=version,
        reference=reference,
        follows=follows,
        settings=_with_folder(spec.settings, run.folder),
        replicas=replicas,
        least_replicas=least,
        rate=spec.rate,
        resource="" if is_default else job_run.resource,
        port=spec.port,
        project=run.project,
        measured=measured,
    )


def is_as_declared(service: Service, job: Job, version: Artifact | None, pipeline: Pipeline) -> bool:
    """Return whether a running service is as a job declares it, so that a run changes nothing. `version` is
    the version that the job would request; None if it is unknown."""
    spec = spec_of(job)
    replicas, least = read_replicas(spec.count)
    if version is None or needs_size(service, spec.rate, replicas, least, version.id):
        return False
    present = _present_replicas(service)
    settings = merged(service.settings, _with_folder(spec.settings, pipeline.folder))
    return (
        (service.version, service.settings, service.project) == (version.id, settings, pipeline.project)
        and service.follows == follows_of(job, version)
        and service.resource == (job.resource or "")
        and spec.port in (0, service.port)
        and (not replicas or (replicas, least) == present)
        and service.is_in_effect
    )


def needs_size(
    service: Service | None, rate: float, replicas: int, least_replicas: int | None, version: str
) -> bool:
    """Return whether a service gets a size by measurement when it is requested with this rate, or with this
    range of replicas: the service does not run, or its rate, its version or its range is another one."""
    if service is None:
        return bool(rate) or least_replicas is not None
    sized_for = service.size.version if service.size is not None else ""
    if service.size is None and service.size_request is not None:
        sized_for = service.version  # its machine measures it, or will measure it
    has_other_range = least_replicas is not None and (replicas, least_replicas) != _present_replicas(service)
    return has_other_range or (bool(rate) and (rate, version) != (service.rate, sized_for))


def _present_replicas(service: Service) -> tuple[int, int | None]:
    """Return the largest and the smallest number of replicas that a user has requested."""
    request = service.size_request
    if request is not None and request.replicas:
        return request.replicas, request.least_replicas
    return service.replicas, service.scaling.least if service.scaling is not None else None


def follows_of(job: Job, version: Artifact) -> str:
    """Return the alias that the service of a job follows; empty if it follows none."""
    model = spec_of(job).model
    return alias_followed(model, version) if "/" in model else ""


def _with_folder(settings: ServiceSettings, folder: str) -> ServiceSettings:
    certificate, key = settings.certificate_file, settings.key_file
    return replace(
        settings,
        certificate_file=_in_folder(folder, certificate),
        key_file="" if certificate == "" else _in_folder(folder, key),
    )


def _in_folder(folder: str, file: str | None) -> str | None:
    return str(PurePath(folder, file)) if file and folder else file


def decide_service_job(job_run: JobRun, progress: ServiceProgress, now: float) -> JobRun:
    """Decide how a job goes on whose service was started, was updated, or is as requested."""
    service, state = progress.service, progress.state
    if progress.wanted not in ("", service.version):
        return failed(job_run, f"service {service.name} was changed meanwhile to {service.version}", now)
    if state is ServiceState.RUNNING and service.is_in_effect:
        done = JobState.SUCCEEDED if progress.changed else JobState.UNCHANGED
        message = f"service {service.name} serves {service.version} at {service.url}"
        return replace(job_run, state=done, message=message, ended=now)
    if why := _why_failed(progress):
        hint = f"gridmill show service {service.name}; gridmill logs service {service.name}"
        return failed(job_run, f"{why.removesuffix('.')}. {hint}", now)
    message = f"service {service.name} is {state}" + (f": {progress.why}" if progress.why else "")
    return job_run if job_run.message == message else replace(job_run, message=message)


def _why_failed(progress: ServiceProgress) -> str:
    service, state = progress.service, progress.state
    name, why = service.name, progress.why or "its process has ended"
    if progress.is_refused:
        return f"service {name} cannot serve {service.version}: {why}"
    if state in (ServiceState.FAILED, ServiceState.STOPPED, ServiceState.STOPPING):
        return f"service {name} was stopped" if not progress.why else f"service {name} is {state}: {why}"
    if service.retry_at is not None or progress.ends >= MOST_ENDS:
        return f"service {name} does not run: {why}"
    return ""


def failed(job_run: JobRun, message: str, now: float) -> JobRun:
    """Return the job that has failed with this message."""
    return replace(job_run, state=JobState.FAILED, message=message, ended=now)
