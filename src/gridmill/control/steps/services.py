"""This module has what several ticks and use cases do with services: it makes the order for the process of a
service, sends it to the pod, records reports, and changes the version of a service."""

from collections.abc import Iterable
from functools import partial

from gridmill.codec import from_builtins
from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Channels
from gridmill.control.steps.gangs import send_to_pod
from gridmill.control.steps.references import fetch_artifact
from gridmill.control.steps.service_chains import stage_folders
from gridmill.control.steps.service_features import view_orders, with_definitions
from gridmill.control.steps.service_gpus import note_gpu_memory, with_gpu_limit
from gridmill.control.steps.service_logs import ended_log, new_losses, with_log_report
from gridmill.domain.artifact import Artifact
from gridmill.domain.deployment import Deployment
from gridmill.domain.drift import changes, drift_of_pods, drift_periods
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import (
    PROTOCOL,
    SERVICES_PROTOCOL,
    AttemptOutcome,
    Event,
    PodEvent,
    ServiceUpdate,
)
from gridmill.domain.run import Attempt, JobRun, attempt_id_of
from gridmill.domain.service import (
    MOST_MESSAGE,
    ROUTE,
    Service,
    ServiceState,
    calibration_order,
    order_of,
    route_order_of,
)
from gridmill.domain.service_counters import with_reported
from gridmill.domain.service_features import ViewOrders, view_copy_folder
from gridmill.domain.service_log import request_log_uri, writer_of
from gridmill.domain.service_pods import FurtherPod
from gridmill.domain.service_settings import DEFAULT_HOST
from gridmill.domain.service_shadow import with_shadow_order
from gridmill.domain.service_size import CALIBRATION, Calibration
from gridmill.domain.service_succession import WarmUp
from gridmill.domain.service_totals import reports_of
from gridmill.domain.serving import ServedVersion, ServiceOrder, ServiceReport
from gridmill.domain.site import SiteKind
from gridmill.domain.states import RunState
from gridmill.domain.storage_uri import below
from gridmill.errors import ConflictError, GridmillError, NotFoundError, explained
from gridmill.ports.storage import Storage
from gridmill.scheduler.service_succession import is_in_effect

ENVIRONMENT_SECONDS = 1800.0
"""The time in which a replica builds the Python environment of a version and becomes ready."""
SERVICE_EVENT = "service"
"""The type of the events of services."""
_NO_ORDER = "its order cannot be made"
"""The beginning of the problem of a service whose version has no record."""


def service_order(
    catalog: Catalog, storage: Storage, transaction: Transaction, job: Job, attempt: Attempt
) -> ServiceOrder | None:
    """Return the present order of the service that an attempt of a job runs; None for a job of another kind.
    Raises NotFoundError if the service has no record."""
    if job.service is None:
        return None
    if job.service.calibrates:
        model = fetch_artifact(catalog, job.service.calibrates)
        order = calibration_order(model, str(below(storage.location, model.output.uri)))
        return _with_time_for_environments(order, (model,))
    service = transaction.get(Service, job.service.name)
    if service is None:
        raise NotFoundError(f"there is no service {job.service.name!r}")
    if job.service.routes and service.route is not None:
        return route_order_of(service, service.route)
    order = order_for_process(catalog, storage, size_of_job(service, job.name))
    return _at_node(catalog, transaction, service, attempt, order)


def _at_node(
    catalog: Catalog, transaction: Transaction, service: Service, attempt: Attempt, order: ServiceOrder
) -> ServiceOrder:
    """Return the order for the node of an attempt, with the GPU memory of its replicas. The router connects
    to a node of a Ray site directly, so the replicas listen at the address by which this machine reaches the
    node. The files of the request log of other attempts, which may still run, have other names."""
    order = with_gpu_limit(catalog, service, order)
    if service.route is None:
        return order
    if order.request_log is not None:
        log = replace(order.request_log, writer=writer_of(attempt.id, attempt.token))
        order = replace(order, request_log=log)
    if not _is_on_ray(catalog, service):
        return order
    deployment = transaction.get(Deployment, attempt.deployment_id)
    pods = deployment.pods if deployment is not None else ()
    address = next((one.address for one in pods if one.id == attempt.pod_id), "")
    changed = order.changed(_with_view_copy)
    return replace(changed, host=address or DEFAULT_HOST, port=0, counts_drift=True)


def _is_on_ray(catalog: Catalog, service: Service) -> bool:
    site = catalog.ledger.snapshot.sites.get(service.site)
    return service.route is not None and site is not None and site.kind is SiteKind.RAY


def _with_view_copy(version: ServedVersion) -> ServedVersion:
    """Return the version with the folder of a copy of its view on the node."""
    return replace(version, view=view_copy_folder(version.view)) if version.view else version


def order_for_process(catalog: Catalog, storage: Storage, service: Service) -> ServiceOrder:
    """Return the order for the process of a service. Raises NotFoundError if its version has no record."""
    model = fetch_artifact(catalog, service.version)
    log_folder = str(below(storage.location, request_log_uri(service.name)))
    canary = fetch_artifact(catalog, service.canary) if service.canary else None
    canary_folder = str(below(storage.location, canary.output.uri)) if canary is not None else ""
    order = order_of(service, str(below(storage.location, model.output.uri)), log_folder, canary_folder)
    shadow = fetch_artifact(catalog, service.shadow.version) if service.shadow is not None else None
    if shadow is not None:
        order = with_shadow_order(order, service, str(below(storage.location, shadow.output.uri)))
    stages = [fetch_artifact(catalog, one) for one in stage_folders(catalog, service)]
    order = _with_time_for_environments(order, (model, canary, shadow, *stages))
    return with_definitions(catalog, storage, service, order)


def _with_time_for_environments(order: ServiceOrder, versions: Iterable[Artifact | None]) -> ServiceOrder:
    has_environment = any(one is not None and one.output.details.get("environment") for one in versions)
    return replace(order, start_seconds=ENVIRONMENT_SECONDS) if has_environment else order


def size_of_job(service: Service, job: str) -> Service:
    """Return a service with the size that its replicas in this job have. A successor on another type of
    machine has a size of its own."""
    successor = service.succession.successor
    if successor is None or successor.job != job or successor.size is None:
        return service
    size = successor.size
    return replace(service, size=size, scaling=successor.scaling, replicas=size.replicas)


def service_views(
    catalog: Catalog, storage: Storage, transaction: Transaction, job: Job
) -> ViewOrders | None:
    """Return the present content of the views of the service that a job runs; None if it has no views. At
    home, the process of the router keeps the views that are sent to replicas at another site."""
    service = transaction.get(Service, job.service.name) if job.service is not None else None
    if service is None or job.service is None or job.service.calibrates:
        return None
    if not job.service.routes:
        return _views_of_replicas(catalog, storage, service, transaction.now)
    views = view_orders(catalog, storage, service, transaction.now)
    return views.sent() if views is not None else None


def _views_of_replicas(catalog: Catalog, storage: Storage, service: Service, now: float) -> ViewOrders | None:
    """Return the present content of the views that the replicas of a service read. All nodes of a Ray site
    read the files of a view from the storage root. The files for a farm are sent by its site."""
    views = view_orders(catalog, storage, service, now)
    return views.copied() if views is not None and _is_on_ray(catalog, service) else views


def can_run_services(channels: Channels, pod_id: str) -> bool:
    """Return whether the Gridmill of the pod knows all fields of the orders of services."""
    return channels.protocols.get(pod_id, PROTOCOL) >= SERVICES_PROTOCOL


def outdated_pod(
    channels: Channels, service: Service, attempts: Iterable[Attempt | None]
) -> ConflictError | None:
    """Return the error for a change of a service with these attempts, if one of them runs in a pod of an
    older Gridmill, which would leave out parts of a new order."""
    for one in attempts:
        if one is not None and not can_run_services(channels, one.pod_id):
            return ConflictError(
                f"service {service.name!r} runs in pod {one.pod_id} of an older Gridmill, so it cannot be "
                "changed, and serves as before",
                hint=f"Start it in a new pod: gridmill stop service {service.name}; gridmill remove "
                f"deployment {one.deployment_id}; gridmill start service {service.name}",
            )
    return None


def live_attempts(transaction: Transaction, service: Service) -> tuple[Attempt | None, ...]:
    """Return the attempts in which the replicas and the router of a service run now."""
    return (*_replica_attempts(transaction, service), live_attempt(transaction, service, ROUTE))


def _replica_attempts(transaction: Transaction, service: Service) -> tuple[Attempt | None, ...]:
    """Return the attempts of the replicas, also of those in further pods and on another machine."""
    successor = service.succession.successor
    further = tuple(one.job for one in service.further_pods)
    jobs = (service.serving_job, *((successor.job,) if successor is not None else ()), *further)
    return tuple(live_attempt(transaction, service, job) for job in jobs)


def send_order(
    catalog: Catalog, storage: Storage, channels: Channels, transaction: Transaction, service: Service
) -> None:
    """Send the order of a service, also to its replicas on another machine, and the order of its router, to
    their pods after the commit. A pod that is not connected gets the order after its next Hello."""
    for attempt in filter(None, _replica_attempts(transaction, service)):
        job_run = transaction.get(JobRun, attempt.job_run_id)
        spec = job_run.job.service if job_run is not None else None
        if job_run is None or (spec is not None and spec.measures_first):
            continue  # a process that measures must not get the order of the replicas
        order = order_for_process(catalog, storage, size_of_job(service, job_run.job.name))
        order = _at_node(catalog, transaction, service, attempt, order)
        views = _views_of_replicas(catalog, storage, service, transaction.now)
        order = replace(order, generation=0) if _keeps_order(service, attempt) else order
        _send(channels, transaction, attempt, order, views)
    views = view_orders(catalog, storage, service, transaction.now) if service.route is not None else None
    send_route_order(channels, transaction, service, views)


def send_order_again(
    catalog: Catalog, storage: Storage, channels: Channels, transaction: Transaction, service: Service
) -> None:
    """Send the present order of a service, which its pod may have missed. If the record of a version is
    damaged, the service goes on with the order that its pod has, and its record gets the reason: one service
    must not end the tick for all others."""
    problem = ""
    try:
        send_order(catalog, storage, channels, transaction, service)
    except NotFoundError as error:
        problem = f"{_NO_ORDER}, and it serves as before: {explained(error)}"
    if problem != service.problem and (problem or service.problem.startswith(_NO_ORDER)):
        noted = replace(service, problem=problem)
        transaction.put(noted)
        if problem:
            add_event(transaction, noted, ServiceState.FAILING, problem)


def _keeps_order(service: Service, attempt: Attempt) -> bool:
    """Return whether the replicas of an attempt keep their earlier order, which has a greater generation than
    0, until the pods that were added serve."""
    reports = [(service.report, service.reported_by)]
    reports += [(one.report, one.reported_by) for one in service.further_pods]
    report = next((one for one, reported_by in reports if reported_by == attempt.id), None)
    return service.waits_for_pods and report is not None and report.generation < service.generation


def note_calibration(
    ledger: Ledger, transaction: Transaction, job_run: JobRun, outcome: AttemptOutcome
) -> None:
    """Record the measurement of a calibration that has succeeded, in place of an earlier one. Raises
    InputError for a measurement that cannot be read."""
    spec = job_run.job.service
    if spec is None or not spec.calibrates or not outcome.outputs:
        return
    measured = from_builtins(outcome.outputs[0].details.get(CALIBRATION), Calibration)
    noted = replace(
        measured,
        version=spec.calibrates,
        machine=spec.machine,
        hardware=measured.machine,
        created=transaction.now,
    )
    ledger.look_up(Calibration, noted.name)
    transaction.put(noted)


def send_route_order(
    channels: Channels, transaction: Transaction, service: Service, views: ViewOrders | None = None
) -> None:
    """Send the order of the router of a service to its pod after the commit, if the service has a router.
    `views` is the content of the views that the process of the router keeps for its replicas; if it is None,
    the content stays as it is."""
    router = live_attempt(transaction, service, ROUTE)
    if router is not None and service.route is not None:
        order = route_order_of(service, service.route)
        _send(channels, transaction, router, order, views.sent() if views is not None else None)


def _send(
    channels: Channels,
    transaction: Transaction,
    attempt: Attempt,
    order: ServiceOrder,
    views: ViewOrders | None = None,
) -> None:
    if not can_run_services(channels, attempt.pod_id):
        if views is None:
            return
        # an older pod keeps its order, which has a greater generation, and only gets the views
        order = replace(order, generation=0)
    update = ServiceUpdate(attempt_id=attempt.id, order=order, views=views, given=attempt.given)
    transaction.then(partial(send_to_pod, channels, attempt.pod_id, update))


def is_ending(ledger: Ledger, service: Service) -> bool:
    """Return whether the run of a service ends or has just ended, so that a change of the service would have
    no effect."""
    if not service.is_meant_to_run or service.retry_at is not None:
        return False
    run = ledger.snapshot.runs.get(service.run_id)
    return run is None or run.state is not RunState.ACTIVE


def job_run_of(transaction: Transaction, service: Service, job: str = "") -> JobRun | None:
    """Return a job of a service, by default that of its replicas, if its run has not ended."""
    return transaction.get(JobRun, f"{service.run_id}/{job or service.serving_job}")


def live_attempt(transaction: Transaction, service: Service, job: str = "") -> Attempt | None:
    """Return the attempt in which a job of a service runs now, by default that of its replicas."""
    job_run = job_run_of(transaction, service, job)
    return transaction.get(Attempt, job_run.attempt_id or "") if job_run is not None else None


def further_jobs(ledger: Ledger, service: Service) -> tuple[JobRun | None, ...]:
    """Return the jobs of the further pods of a service from the store."""
    names = (f"{service.run_id}/{one.job}" for one in service.further_pods)
    return tuple(ledger.read(JobRun, name) for name in names)


def note_report(transaction: Transaction, job_run: JobRun | None, event: PodEvent) -> None:
    """Record the report of the process of a service. The port of the first report stays the port of the
    service. A report that cannot be read is ignored."""
    spec = job_run.job.service if job_run is not None else None
    service = transaction.get(Service, spec.name) if spec is not None else None
    if service is None or job_run is None or service.run_id != job_run.run_id:
        return
    try:
        report = from_builtins(event.body.get("report"), ServiceReport)
    except GridmillError:
        return
    report = replace(
        report, problem=report.problem[:MOST_MESSAGE], last_failure=report.last_failure[:MOST_MESSAGE]
    )
    if service.route is not None and spec is not None and spec.routes:
        route = replace(service.route, report=report, reported_by=event.attempt_id)
        transaction.put(replace(service, route=route, port=service.port or report.port))
        return
    live = [one.id for one in _replica_attempts(transaction, service) if one is not None]
    counted = with_reported(service.counted, event.attempt_id, report, live)
    service = _note_log(transaction, replace(service, counted=counted), report, event.attempt_id)
    service = _with_warm_up(transaction, service, report, event.attempt_id)
    if job_run.job.name != service.serving_job:
        _note_other(transaction, service, job_run.job.name, report, event.attempt_id)
        return
    # the port of a service with a router is the port of the router
    port = service.port or (report.port if service.route is None else 0)
    noted = replace(service, report=report, reported_by=event.attempt_id, port=port)
    noted = _with_drift(transaction, service, noted)
    noted = note_gpu_memory(transaction, noted, job_run, event.attempt_id, report)
    if noted.is_in_effect and (noted.failures or noted.features_before):
        noted = replace(noted, failures=0, problem="", features_before=())
    transaction.put(noted)
    if noted.is_in_effect and not service.is_in_effect:
        where = report.address if service.route is None else f"site {service.route.site}"
        add_event(transaction, noted, ServiceState.RUNNING, f"serves {service.version} at {where}")
    elif report.problem and report.problem != (service.report.problem if service.report else ""):
        add_event(transaction, noted, ServiceState.FAILING, report.problem)


def _with_drift(transaction: Transaction, before: Service, noted: Service) -> Service:
    """Return a service after a report, with the drift of all its pods. A version that begins or ends to drift
    is an event."""
    reports = reports_of(noted)
    known = before.drift_of_pods or (before.report.drift if before.report is not None else ())
    drift = drift_of_pods([one.drift for one in reports], [one.drift_counts for one in reports], known)
    for change, one in changes(known, drift):
        add_event(transaction, noted, ServiceState.RUNNING, f"drift of {one.label} {change}: {one.text}")
    drifting = drift_periods(noted.drifting, drift, transaction.now)
    return replace(noted, drift_of_pods=drift, drifting=drifting)


def _note_log(transaction: Transaction, service: Service, report: ServiceReport, attempt_id: str) -> Service:
    """Record the counts of the request log, also of replicas that were replaced and have not ended."""
    noted = with_log_report(service, attempt_id, report)
    if noted.log != service.log:
        transaction.put(noted)
        if message := new_losses(service, noted, attempt_id):
            add_event(transaction, noted, ServiceState.RUNNING, message)
    return noted


def note_log_end(storage: Storage, transaction: Transaction, job_run: JobRun, attempt_id: str) -> None:
    """Record the lines of the request log that are lost with an attempt that has ended."""
    ended = ended_log(storage, transaction, job_run, attempt_id)
    if ended is not None:
        service, message = ended
        transaction.put(service)
        if message:
            add_event(transaction, service, ServiceState.RUNNING, message)


def _with_warm_up(
    transaction: Transaction, service: Service, report: ServiceReport, attempt_id: str
) -> Service:
    """Return the service with the time until the replicas of an attempt were ready for the first time."""
    known = service.succession.warm_up
    is_measured = known is not None and known.attempt_id == attempt_id
    attempt = transaction.get(Attempt, attempt_id)
    if attempt is None or is_measured or not is_in_effect(report, service.generation):
        return service
    warm_up = WarmUp(attempt_id=attempt_id, seconds=transaction.now - attempt.placed)
    return replace(service, succession=replace(service.succession, warm_up=warm_up))


def _note_other(
    transaction: Transaction, service: Service, job: str, report: ServiceReport, attempt_id: str
) -> None:
    """Record the report of replicas in a further pod, or of replicas that get no requests yet. Replicas that
    were replaced are ignored."""
    further = next((one for one in service.further_pods if one.job == job), None)
    if further is not None:
        noted = replace(further, report=report, reported_by=attempt_id)
        return _note_further(transaction, service, further, noted)
    successor = service.succession.successor
    if successor is not None and successor.job == job:
        successor = replace(successor, report=report, reported_by=attempt_id)
        service = replace(service, succession=replace(service.succession, successor=successor))
    transaction.put(service)  # with its counters


def _note_further(transaction: Transaction, service: Service, before: FurtherPod, noted: FurtherPod) -> None:
    """Record the report of the replicas in a further pod."""
    others = service.further_pods
    after = replace(service, further_pods=tuple(noted if one is before else one for one in others))
    after = _with_drift(transaction, service, after)
    problem = noted.report.problem if noted.report is not None else ""
    if problem and problem != (before.report.problem if before.report is not None else ""):
        add_event(transaction, after, ServiceState.FAILING, problem)
    is_done = after.is_in_effect and after.features_before
    transaction.put(replace(after, features_before=()) if is_done else after)


def replica_address(report: ServiceReport | None, reported_by: str, attempt: Attempt) -> str:
    """Return the address that the process of a service has reported in this attempt, or an empty text."""
    if report is None or reported_by != attempt.id or not report.port:
        return ""
    return f"{report.host}:{report.port}"


def changed_version(service: Service, version: Artifact, follows: str, model: str, now: float) -> Service:
    """Return the service with another version. The version before is the version to which `rollback` returns,
    if it was in effect. A change of the version ends the canary and the shadow."""
    if version.id == service.version:
        return replace(service, follows=follows, model=model, refused="", refusal="")
    previous = service.version if service.is_in_effect or not service.previous else service.previous
    return replace(
        service,
        version=version.id,
        previous="" if previous == version.id else previous,
        follows=follows,
        model=model,
        generation=service.generation + 1,
        changed=now,
        canary="",
        canary_model="",
        canary_follows="",
        canary_percent=0.0,
        canary_bytes=0,
        shadow=None,
        refused="",
        refusal="",
    )


def users_of_version(ledger: Ledger, version_ids: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the services that serve one of these versions or can return to it."""
    services = ledger.snapshot.services.values()
    return tuple(
        sorted(one.name for one in services if one.is_meant_to_run and version_ids.intersection(one.versions))
    )


def add_event(transaction: Transaction, service: Service, state: ServiceState, message: str) -> None:
    """Add an event about a service to its run."""
    body = {"what": "service", "id": service.name, "state": state.value, "message": message}
    transaction.events.append(
        Event(
            time=transaction.now,
            type=SERVICE_EVENT,
            run_id=service.run_id,
            job=service.serving_job,
            body=body,
        )
    )


def earlier_end(ledger: Ledger, job_run: JobRun | None) -> str:
    """Return how often the process of a service has started in its run, and why it ended before; empty if it
    has started once."""
    if job_run is None or job_run.attempts <= 1:
        return ""
    before = ledger.read(Attempt, attempt_id_of(job_run.id, job_run.attempts - 1))
    reason = (before.message or str(before.cause or before.state)) if before is not None else "unknown"
    return f"started {job_run.attempts} times; the process before: {reason}"
