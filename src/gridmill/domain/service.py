"""This module has services: a version of a model that replicas serve at a stable address, the order for its
processes, and the view that the user interfaces show."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from gridmill.domain.artifact import LATEST, Artifact, ArtifactKind, split_reference
from gridmill.domain.drift import DriftPeriod, VersionDrift
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.gpu_sharing import GpuClaim, GpuMeasurement, SharingService, gpu_lines
from gridmill.domain.job import Job, JobKind
from gridmill.domain.log_counts import NO_LOG, NO_LOSSES, LogLosses, ServiceLog
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import DEFAULT
from gridmill.domain.promotion import Promotion
from gridmill.domain.resource import default_name
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service_counters import PodCounters, ServiceTotals
from gridmill.domain.service_features import FeatureDefinition, FeatureSettings, view_bytes
from gridmill.domain.service_keys import ServiceKey, key_lines
from gridmill.domain.service_measuring import SizeRequest
from gridmill.domain.service_pods import FurtherPod, job_of_pod
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings, with_settings
from gridmill.domain.service_size import ServiceSize, memory_for
from gridmill.domain.service_spec import DRAIN_SECONDS, ServiceSpec
from gridmill.domain.service_succession import NO_SUCCESSION, Succession
from gridmill.domain.serving import (
    MOST_OPEN,
    NO_UPSTREAM,
    ReplicaState,
    Scaling,
    ServedVersion,
    ServiceOrder,
    ServiceReport,
    Upstream,
)
from gridmill.domain.serving import ServiceState as ProcessState
from gridmill.domain.signature_changes import signature_differences
from gridmill.domain.site import LOCAL
from gridmill.domain.states import JobState, RunState
from gridmill.errors import InputError

JOB = "serve"
"""The name of the job in the run of a service that runs its replicas."""
SECOND_JOB = job_of_pod(JOB, 2)
"""The name of the job that takes turns with JOB when the replicas move to another machine, and of the second
pod of a service that runs in several pods."""
ROUTE = "route"
"""The name of the job in the run of a service that runs its router, if its replicas run at another site."""
CALIBRATION_NAME = "service-calibration"
"""The name of the pipeline in whose runs models are calibrated."""
CALIBRATION_JOB = "calibrate"
CALIBRATION_CPUS = 2.0
"""The CPUs of a calibration: one for the replica, and one for the client that sends requests to it. A model
with its own code needs one more."""
MOST_MESSAGE = 2000
"""The largest number of characters of a message that a report adds to the record of a service."""


class ServiceState(StrEnum):
    """The states of a service, which follow from its record, its run and the report of its processes."""

    STARTING = "starting"
    """No replica is ready yet."""
    RUNNING = "running"
    """All replicas are ready and serve the version of the service."""
    UPDATING = "updating"
    """Some replicas are ready, and the newest version or number of replicas is not in effect yet."""
    FAILING = "failing"
    """The replicas of the newest update fail. Replicas of the version before may serve."""
    RESTARTING = "restarting"
    """The process of the service has ended, and starts again after a pause."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    """The service cannot run, and does not start again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRoute:
    """The router of a service whose replicas run at `site`. The router runs at the site `local`, and listens
    at the address of the service. `upstream` is how it connects to the replicas, and `further_upstreams` how
    it connects to those in further pods. `generation` increases with each change of the upstreams. `report`
    is the last report of the router, which belongs to the attempt `reported_by`. `problem` is the reason why
    an update cannot be transferred to the site; empty if there is none. `most_open` is the largest number of
    connections of the router to the site."""

    site: str
    upstream: Upstream = NO_UPSTREAM
    generation: int = 1
    problem: str = ""
    most_open: int = MOST_OPEN
    further_upstreams: tuple[Upstream, ...] = ()
    report: ServiceReport | None = None
    reported_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTerms:
    """What a service had when all its replicas served the generation `generation`. The fields are those of
    the service. A rollback returns to them after an update that does not take effect."""

    generation: int
    version: str
    settings: ServiceSettings
    port: int
    replicas: int
    rate: float = 0.0
    scaling: Scaling | None = None
    size: ServiceSize | None = None
    size_request: SizeRequest | None = None
    features: Mapping[str, FeatureDefinition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceShadow:
    """The shadow of a service: it gets copies of `percent` percent of the requests that the version of the
    service answers. `model` is the reference to it, and `memory_bytes` the memory of its process."""

    version: str
    model: str
    percent: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service: the version `version` (`pipeline/job@number`) of a model, which `replicas` processes serve
    at `host` and `port`.

    `model` is the reference from which the version follows, as a user gave it. `follows` is the alias
    (`pipeline/job@alias`) that the service follows, or empty if its version only changes by an update.
    `previous` is the version that the service served before the last update; empty if there is none.
    `generation` increases with each change that the processes of the service must know. `port` is 0 until the
    first replica listens; after that, the port stays the same unless a user changes it. `settings` has the
    settings that a user has changed, and `keys` the API keys.

    `failures` is the number of runs in succession that failed before the service was in effect. `retry_at` is
    the time at which a service whose run failed starts again; None while it runs, or if it does not start
    again.

    `run_id` is the run in which the service runs, and `started` the time of its start. `changed` is the time
    of the last change of the version or of the number of replicas. `ended` is the time at which the run
    ended; None while the service is meant to run. `problem` is the reason why the run failed. `refused` is
    the id of the last version of the followed alias that the service cannot serve, and `refusal` is the
    reason.

    `rate` is the rate of requests per second for which the service was sized (0: none). If the number of
    replicas follows the load, `scaling` has its terms, and `replicas` is the largest number. `size` is the
    size by measurement; None if the version was not calibrated. On rented machines, it is computed from the
    `size_request` on each machine. `gpu_claim` is the part of a GPU that the service has; None if it shares
    none. `gpu_measured` has the measured GPU memory of its versions by id.

    `canary` is a second version, which gets `canary_percent` of the requests that name no version; empty if
    there is none. `canary_model` is the reference to it, and `canary_follows` the alias that the service
    follows after the canary became its version. `canary_bytes` is the memory that each replica is assumed to
    need for it.

    `shadow` is a version that gets copies of requests, and whose answers are compared.

    `features` are the definitions of the contextual features that the service computes, by the ids of the
    versions of the model. If a version is missing, requests send all its features. `features_before` are
    definitions that an update has replaced, and that replicas use until the update is in effect.

    `declared_by` is the id of the last job of a run (`pipeline-7/job`) that has started, updated or confirmed
    the service, because its pipeline declares it; empty if no pipeline declares it.

    `terms_before` are the settings and the size to which `rollback` returns if the newest update does not
    take effect. `drifting` are the versions whose requests drift. `report` is the last report of the process
    of the service, which belongs to the attempt `reported_by`. `counted` has the counters of the attempts
    since the start, and `drift_of_pods` the drift of all pods. `route` is the router if the replicas run at
    another site; None if they run at the site `local` and accept connections at the address of the service
    themselves. `serving_job` is the job of the run whose replicas get the requests. The `further_pods` get
    requests too, and a ready one takes the place of a serving pod that ends. With `waits_for_pods`, replicas
    keep an earlier order until the added pods serve. `succession` is the change to another rented machine.
    `log` has the counts of the request log. Times are Unix times in seconds.
    """

    name: str
    model: str
    version: str
    follows: str = ""
    previous: str = ""
    generation: int = 1
    replicas: int = 1
    port: int = 0
    settings: ServiceSettings = NO_SETTINGS
    keys: tuple[ServiceKey, ...] = ()
    resource: str = ""
    project: str = DEFAULT
    run_id: str = ""
    created: float = 0.0
    started: float = 0.0
    changed: float = 0.0
    ended: float | None = None
    problem: str = ""
    failures: int = 0
    retry_at: float | None = None
    refused: str = ""
    refusal: str = ""
    canary: str = ""
    canary_percent: float = 0.0
    canary_model: str = ""
    canary_follows: str = ""
    canary_bytes: int = 0
    shadow: ServiceShadow | None = None
    report: ServiceReport | None = None
    reported_by: str = ""
    rate: float = 0.0
    scaling: Scaling | None = None
    size: ServiceSize | None = None
    size_request: SizeRequest | None = None
    gpu_claim: GpuClaim | None = None
    gpu_measured: Mapping[str, GpuMeasurement] = field(default_factory=dict)
    route: ServiceRoute | None = None
    serving_job: str = JOB
    further_pods: tuple[FurtherPod, ...] = ()
    waits_for_pods: bool = False
    succession: Succession = NO_SUCCESSION
    features: Mapping[str, FeatureDefinition] = field(default_factory=dict)
    features_before: tuple[FeatureDefinition, ...] = ()
    declared_by: str = ""
    drifting: tuple[DriftPeriod, ...] = ()
    terms_before: ServiceTerms | None = None
    counted: tuple[PodCounters, ...] = ()
    drift_of_pods: tuple[VersionDrift, ...] = ()
    log: ServiceLog = NO_LOG

    @property
    def drift(self) -> DriftPeriod | None:
        """The drift of the version that the service serves; None if it does not drift."""
        served = (one for one in self.drifting if one.version == self.version and self.is_meant_to_run)
        return next(served, None)

    @property
    def site(self) -> str:
        """The site at which the replicas run."""
        return self.route.site if self.route is not None else LOCAL

    @property
    def is_meant_to_run(self) -> bool:
        """Whether the service was started and has not ended."""
        return self.ended is None

    @property
    def host(self) -> str:
        """The address at which the service listens."""
        return self.settings.listening_host

    @property
    def url(self) -> str:
        """The address of the service; empty until a replica has listened for the first time."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "https" if self.settings.has_tls else "http"
        return f"{scheme}://{host}:{self.port}" if self.port else ""

    @property
    def shadow_version(self) -> str:
        """The id of the version of the shadow; empty if there is none."""
        return self.shadow.version if self.shadow is not None else ""

    @property
    def gpu_share(self) -> SharingService | None:
        """The part of a GPU that the service has; None if it has none, or if it has GPUs of its own."""
        if self.gpu_claim is None or not self.gpu_claim.shares or not self.is_meant_to_run:
            return None
        measured = self.gpu_measured.get(self.version)
        return SharingService(name=self.name, claim=self.gpu_claim, measured=measured, replicas=self.replicas)

    @property
    def feature_settings(self) -> FeatureSettings:
        """The settings of the contextual features."""
        return self.settings.features or FeatureSettings()

    @property
    def definitions(self) -> tuple[FeatureDefinition, ...]:
        """The definitions of contextual features that processes of the service may use."""
        present = (self.features[one] for one in self.versions if one in self.features)
        used = (*present, *self.features_before)
        return tuple(one for number, one in enumerate(used) if one not in used[:number])

    @property
    def pods(self) -> int:
        """The number of pods in which the service runs when all its pods are ready."""
        return self.settings.pods or (self.size.pods if self.size else 1)

    @property
    def ready_pods(self) -> int:
        """The number of ready pods, if the pod of the `serving_job` is ready."""
        return 1 + sum(one.is_ready(self.generation) for one in self.further_pods)

    @property
    def is_in_effect(self) -> bool:
        """Whether all replicas serve the newest version. A pod that has ended gets it with its next start."""
        further = (one.report for one in self.further_pods if one.leaving is None and one.report)
        return all(one is not None and one.generation >= self.generation for one in (self.report, *further))

    @property
    def versions(self) -> tuple[str, ...]:
        """The ids of the versions that the service needs: the version that it serves, the version to which
        `rollback` returns, the versions that replicas still serve, and the stages of these versions. The
        stages of a canary that was rolled back are not needed."""
        loaded = [one.label for replica in self._replicas for one in replica.versions]
        named = (self.version, self.canary, self.previous, self.shadow_version, *loaded)
        defined = (*(self.features[one] for one in named if one in self.features), *self.features_before)
        stages = [part.version for one in defined for part in one.all_stages()]
        return tuple(dict.fromkeys(filter(None, (*named, *stages))))

    @property
    def _replicas(self) -> tuple[Any, ...]:
        reports = (self.report, *(one.report for one in self.further_pods)) if self.is_meant_to_run else ()
        return tuple(replica for one in reports if one is not None for replica in one.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
    """A service as the user interfaces show it. `state` is its present state, and `message` is the reason if
    it does not run as it should. `url` is its address; empty until a replica has listened for the first time.
    `rental` is the price and the limits of the rented machine on which it runs; empty if there is none.
    `promotion` is the last comparison of a new version with that of the followed alias. `log` has the lost
    lines of the request log.
    `ready` is the number of replicas that are ready, and `since` is the time since which the process of the
    service runs (None: it does not run). `last_end` is the number of its starts, and the reason why it ended
    before; empty if it has started once. The record `service` has the reports with each replica, and `totals`
    has the numbers of the whole service."""

    service: Service
    state: ServiceState
    url: str = ""
    ready: int = 0
    since: float | None = None
    message: str = ""
    rental: str = ""
    promotion: Promotion | None = None
    totals: ServiceTotals | None = None
    last_end: str = ""
    log: LogLosses = NO_LOSSES

    @property
    def name(self) -> str:
        """The name of the service."""
        return self.service.name


def is_on(service: Service, resource: str) -> bool:
    """Return whether a service uses the resource with this name."""
    return (service.resource or default_name(JobKind.SERVICE)) == resource


def gpu_lines_on(resource: str, services: Iterable[Service]) -> tuple[str, ...]:
    """Return lines about the part of a GPU of each of the services that use this resource, and the number of
    GPUs that they save."""
    ordered = sorted(services, key=lambda one: one.name)
    shares = [one.gpu_share for one in ordered if is_on(one, resource)]
    return gpu_lines([one for one in shares if one is not None])


def shadow_bytes(service: Service) -> int:
    """Return the memory of the process of the shadow of a service; 0 if it has none."""
    return service.shadow.memory_bytes if service.shadow is not None else 0


def pipeline_of(service: Service) -> Pipeline:
    """Return the pipeline with the job of a service, and with the job of its router if it has one."""
    size, has_view = service.size, service.version in service.features
    extra_bytes = extra_memory(service, service.replicas)
    asked = service.size_request if size is None else None
    memory_bytes = size.memory_bytes if size is not None else asked.memory_bytes if asked is not None else 0
    job = Job(
        name=JOB,
        resource=service.resource or None,
        cpus=size.cpus if size is not None else asked.cpus if asked is not None else float(service.replicas),
        memory_bytes=memory_bytes + extra_bytes if memory_bytes else None,
        service=ServiceSpec(
            name=service.name,
            replicas=service.replicas,
            has_view=has_view,
            canary_bytes=service.canary_bytes,
            gpus=service.gpu_claim.shares if service.gpu_claim is not None else None,
            shadow_bytes=shadow_bytes(service),
        ),
    )
    # the process beside the router keeps the view that is sent to the replicas
    routes = ServiceSpec(name=service.name, routes=True, has_view=has_view)
    router = Job(name=ROUTE, at=LOCAL, cpus=1.0, service=routes)
    jobs = (job,) if service.route is None else (job, router)
    return Pipeline(name=run_name(service.name), jobs=jobs, project=service.project)


def calibration_pipeline(
    version: Artifact, machine: str, resource: str, most_cpus: float, gpus: int | None = None
) -> Pipeline:
    """Return the pipeline with the one job that calibrates a version of a model with at most `most_cpus`.
    `gpus` is the number of its GPU shares (None: the GPUs of the resource)."""
    spec = ServiceSpec(calibrates=version.id, machine=machine, gpus=gpus)
    cpus = min(CALIBRATION_CPUS + has_own_code(version), most_cpus)
    job = Job(name=CALIBRATION_JOB, resource=resource or None, cpus=cpus, service=spec)
    return Pipeline(name=CALIBRATION_NAME, jobs=(job,))


def memory_needed(service: Service, replicas: int, assumed_bytes: int) -> int:
    """Return the memory of the service with this number of replicas: by measurement, or from the assumed
    memory of one replica."""
    size, extra_bytes = service.size, extra_memory(service, replicas)
    if size is None:
        return (replicas + 1) * assumed_bytes + extra_bytes
    return memory_for(replicas, size.replica_bytes + size.code_bytes, size.parent_bytes) + extra_bytes


def extra_memory(service: Service, replicas: int) -> int:
    """Return the memory of a service in bytes that its size does not contain: that of its views, its canary
    and its shadow, with this number of replicas."""
    extra_bytes = view_bytes(replicas) if service.version in service.features else 0
    return extra_bytes + (replicas + 1) * service.canary_bytes + shadow_bytes(service)


def memory_beside(service: Service, replicas_beside: Callable[[int], int]) -> int:
    """Return the memory in bytes that a new size must leave for the views, the canary and the shadow.
    `replicas_beside` returns the number of replicas of the size that leaves so much memory."""
    left, needed = 0, extra_memory(service, 1)
    while needed > left:  # at most once for each number of replicas
        left, needed = needed, extra_memory(service, replicas_beside(needed))
    return left


def run_name(service: str) -> str:
    """Return the name of the pipeline in whose runs a service runs."""
    return f"service-{service}"


def calibration_order(version: Artifact, folder: str) -> ServiceOrder:
    """Return the order for the process that calibrates a version, whose files are in `folder`. A version with
    its own code is only calibrated if a user trusts it (`check_trusted`)."""
    served = ServedVersion(label=version.id, folder=folder, trust=has_own_code(version))
    return ServiceOrder(name="calibration", versions=(served,), calibrates=True)


def order_of(service: Service, folder: str, log_folder: str, canary_folder: str = "") -> ServiceOrder:
    """Return the order for the process of a service. `folder` and `canary_folder` are the absolute paths of
    the files of its versions, and `log_folder` that of the request log. The memory of the replicas is limited
    if it was measured for this version."""
    size, scaling, rate = service.size, service.scaling, service.rate / service.pods
    replicas = service.replicas if scaling is None else first_replicas(rate, scaling)
    # a replica with a canary needs more memory than a replica with the measured version alone
    is_measured = size is not None and size.version == service.version and not service.canary
    order = ServiceOrder(
        name=service.name,
        versions=_served_versions(service, folder, canary_folder),
        generation=service.generation,
        port=service.port,
        replicas=replicas,
        drain_seconds=DRAIN_SECONDS,
        memory_bytes=size.replica_bytes if size is not None and is_measured else None,
        scaling=scaling,
        api_keys=key_lines(service.keys) if service.settings.require_keys else None,
    )
    order = with_settings(order, service.settings, log_folder)
    # the router ends TLS, so that the key stays on this machine
    return order if service.route is None else replace(order, certificate_file="", key_file="")


def _served_versions(service: Service, folder: str, canary_folder: str) -> tuple[ServedVersion, ...]:
    if not service.canary:
        return (ServedVersion(label=service.version, folder=folder),)
    percent = service.canary_percent
    return (
        ServedVersion(label=service.version, folder=folder, weight=100.0 - percent),
        ServedVersion(label=service.canary, folder=canary_folder, weight=percent),
    )


def first_replicas(rate: float, scaling: Scaling) -> int:
    """Return the number of replicas with which a service begins: as many as its expected rate needs."""
    return max(1, scaling.least, min(scaling.most, math.ceil(rate / scaling.rate_per_replica - 1e-9)))


def route_order_of(service: Service, route: ServiceRoute) -> ServiceOrder:
    """Return the order for the router of a service, which listens at the address of the service and ends
    TLS."""
    settings = service.settings
    return ServiceOrder(
        name=service.name,
        versions=(),
        # greater after each change of the service or of its upstream
        generation=service.generation + route.generation,
        host=settings.listening_host,
        port=service.port,
        certificate_file=settings.certificate_file or "",
        key_file=settings.key_file or "",
        drain_seconds=DRAIN_SECONDS,
        upstream=route.upstream,
        further_upstreams=route.further_upstreams,
        most_open=route.most_open,
    )


def alias_followed(reference: str, artifact: Artifact) -> str:
    """Return the id of the alias that a service with this reference follows. A reference with a number, with
    `latest` or without a part after the `@` means one version, so that nothing is followed."""
    version = split_reference(reference)[1]
    return "" if version in ("", LATEST) or version.isdecimal() else f"{artifact.name}@{version}"


def state_of(
    service: Service, run: Run | None, job_run: JobRun | None, router: JobRun | None = None
) -> ServiceState:
    """Return the state of a service from its record, its run, and the jobs of the run: that of the replicas,
    and that of the router. They are None if they have ended."""
    if service.ended is not None:
        return ServiceState.FAILED if service.problem else ServiceState.STOPPED
    if service.retry_at is not None:
        return ServiceState.RESTARTING
    if run is not None and run.state is RunState.STOPPING:
        return ServiceState.STOPPING
    if job_run is None or job_run.state is not JobState.RUNNING:
        return ServiceState.RESTARTING if job_run is not None and job_run.attempts else ServiceState.STARTING
    report = service.report
    if report is None or service.reported_by != job_run.attempt_id:
        return ServiceState.STARTING
    if report.state is ProcessState.FAILED:
        return ServiceState.FAILING
    if report.state is ProcessState.STARTING:
        return ServiceState.STARTING
    if service.route is not None and not _routes(service.route, router):
        return ServiceState.STARTING
    if report.generation < service.generation or report.state is ProcessState.UPDATING:
        return ServiceState.UPDATING
    if any(
        one.report is not None and one.report.state is ProcessState.FAILED for one in service.further_pods
    ):
        return ServiceState.FAILING
    if service.route is not None and service.ready_pods < service.pods:
        return ServiceState.UPDATING
    return ServiceState.STOPPING if report.state is ProcessState.DRAINING else ServiceState.RUNNING


def _routes(route: ServiceRoute, router: JobRun | None) -> bool:
    """Return whether the router accepts requests. The report of an earlier attempt says nothing."""
    if router is None or router.state is not JobState.RUNNING or route.reported_by != router.attempt_id:
        return False
    return route.report is not None and route.report.state in (ProcessState.READY, ProcessState.UPDATING)


def ready_replicas(report: ServiceReport | None) -> int:
    """Return the number of replicas that are ready."""
    replicas = report.replicas if report is not None else ()
    return sum(replica.state is ReplicaState.READY for replica in replicas)


def has_own_code(version: Artifact) -> bool:
    """Return whether a version predicts with its own code."""
    return bool(version.output.details.get("predict"))


def check_trusted(version: Artifact, settings: ServiceSettings) -> None:
    """Raise InputError if a version predicts with its own code, and the settings do not allow this code."""
    if has_own_code(version) and not settings.trust:
        raise InputError(
            f"{version.id} predicts with its own code, which can execute anything on the machine",
            hint="If you trust the author of the model, add --trust. ONNX models need no trust.",
            place="trust",
        )


def why_not_served(version: Artifact, current: Artifact | None) -> str:
    """Return the reason why a service cannot serve a version; empty if it can. `current` is the version that
    the service serves now, whose features and predictions the clients of the service know."""
    if version.kind != ArtifactKind.MODEL:
        return f"it is a {version.kind}, not a model"
    if version.removed:
        return "it was removed"
    if current is None:
        return ""
    differences = signature_differences(current.output.details, version.output.details)
    return f"it differs from {current.id}: {'; '.join(differences)}" if differences else ""
