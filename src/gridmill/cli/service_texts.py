"""The texts of services: `show service`, `list services`, and the size of a service."""

import time
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from gridmill.cli.format import moment
from gridmill.cli.tables import COLOURS, table
from gridmill.domain.amounts import show_bytes, show_count, show_cpus, show_number
from gridmill.domain.gpu_sharing import claim_text
from gridmill.domain.project import DEFAULT
from gridmill.domain.promotion import Promotion
from gridmill.domain.service import Service, ServiceView
from gridmill.domain.service_counters import PodNumbers, ServiceTotals
from gridmill.domain.service_features import FeatureDefinition, ViewReport
from gridmill.domain.service_size import ServicePlan, ServiceSize, show_latency
from gridmill.domain.service_totals import reported_pods, totals_of
from gridmill.domain.serving import ReplicaReport, ServiceReport, loaded_versions
from gridmill.domain.site import LOCAL

HEAD = ("service", "state", "version", "follows", "replicas", "url", "since", "")


def size_text(size: ServiceSize) -> str:
    """Return the size of a service in one line, with its expected latency."""
    pods = f"{show_count(size.pods, 'pod')}, each with " if size.pods > 1 else ""
    at = f" for {show_number(size.rate)} requests/s" if size.rate else ""
    latency = f", expected p99 {show_latency(size.p99_seconds)}" if size.rate else ""
    return (
        f"{pods}{show_count(size.replicas, 'replica')}, {show_cpus(size.cpus)}, "
        f"{show_bytes(size.memory_bytes)}{at}{latency}; can serve {show_number(size.most_rate)} requests/s"
    )


def plan_lines(plan: ServicePlan) -> Iterator[str]:
    """Yield the lines about the size of a service that `configure resource` prints."""
    if plan.size is None and plan.later:
        where = f" ({plan.machine})" if plan.machine else ""
        yield f"service of {plan.version}: {plan.later}{where}"
    if plan.size is not None:
        about = "an estimate: " if plan.later else ""
        yield f"service of {plan.version}: {about}{size_text(plan.size)}"
        yield from (f"  {one}" for one in (plan.size.shortage,) if one)
        yield from (f"  {why}" for why in plan.size.why)
        yield from _measured_lines(plan)
        yield from plan.sharing


def _measured_lines(plan: ServicePlan) -> Iterator[str]:
    calibration = plan.calibration
    created = calibration.created if calibration is not None else None
    at = f" at {moment(created)}" if created else ""
    if plan.site == LOCAL:
        yield f"  measured on {plan.machine}{at}"
        return
    hardware = calibration.hardware if calibration is not None else ""
    yield f"  measured on {plan.machine}{f' ({hardware})' if hardware else ''}{at}"
    if plan.later:
        yield f"  if the rented machine has another type, {plan.later}"
    yield f"  the p99 does not include the router and the network to site {plan.site}"


def promotion_text(alias_id: str, promotion: Promotion | None) -> str:
    """Return the last comparison of an alias in one line, with the commands that decide if it waits."""
    if promotion is None:
        return ""
    commands = f" (gridmill promote model {alias_id}, or gridmill rollback model {alias_id})"
    return f"{promotion.text}{commands if promotion.is_waiting else ''}"


def service_row(view: ServiceView) -> tuple[object, ...]:
    """Return the table cells of a service."""
    service = view.service
    return (
        service.name,
        view.state,
        service.version,
        service.follows.partition("@")[2],
        f"{view.ready} of {_range(service, service.pods)}",
        view.url,
        moment(view.since),
        view.message,
    )


def service_list(views: Sequence[ServiceView]) -> RenderableType:
    """Return the table of services that `status` prints."""
    return table(*HEAD, rows=[service_row(one) for one in views])


def describe_service(view: ServiceView) -> Iterator[RenderableType]:
    """Yield the parts of the text of `show service`."""
    head = Text(view.service.name, style="bold")
    head.append(f"  {view.state}", style=COLOURS.get(str(view.state), "not bold"))
    yield head
    facts = table("", "", rows=[fact for fact in _facts(view) if fact[1] not in (None, "")])
    facts.show_header = False
    facts.columns[1].overflow = "fold"
    yield facts
    service = view.service
    reports = _reports(view)
    # the first column is the pod, if there are several
    pod, first = (("pod",), 0) if service.further_pods else ((), 1)
    views = [(name, *_view_row(one))[first:] for name, report in reports for one in report.views]
    if views:
        yield table(*pod, "view", "version", "behind", "checked", "why", rows=views)
    if service.further_pods and service.is_meant_to_run:
        yield table(*_HEAD_OF_PODS, rows=[_pod_row(service, one) for one in _totals(view).pods])
    replicas = [(name, *_replica_row(one))[first:] for name, report in reports for one in report.replicas]
    if replicas:
        head_of_replicas = ("replica", "state", "pid", "version", "since", "restarts", "last failure")
        yield table(*pod, *head_of_replicas, rows=replicas)


def _totals(view: ServiceView) -> ServiceTotals:
    """Return the numbers of the whole service. A control node of an older Gridmill does not send them."""
    return view.totals if view.totals is not None else totals_of(view.service)


def _reports(view: ServiceView) -> Sequence[tuple[str, ServiceReport]]:
    """Return the names of the pods of a running service that have reported, with their reports."""
    if view.since is None:
        return ()
    pods = {one.job: one for one in _totals(view).pods}
    known = (
        one for one in reported_pods(view.service) if one.job in pods and pods[one.job].state is not None
    )
    return [(one.job, one.report) for one in known if one.report is not None]


_HEAD_OF_PODS = ("pod", "state", "replicas", "memory", "restarts", "lost lines", "address")


def _pod_row(service: Service, pod: PodNumbers) -> tuple[object, ...]:
    """Return the table cells of one pod of a service that runs in several pods."""
    if pod.state is None:
        return pod.job, "starting", "", "", "", "", ""
    state = "leaving" if pod.is_leaving else str(pod.state)
    if pod.is_silent:
        state = f"{state} at {moment(pod.reported_at)}, no contact"
    ready = "" if pod.is_leaving else f"{pod.ready} of {_range(service)}"
    memory = show_bytes(pod.memory_bytes) if pod.memory_bytes else ""
    return pod.job, state, ready, memory, pod.restarts or "", pod.log_lost or "", pod.address


def _range(service: Service, pods: int = 1) -> str:
    most, scaling = service.replicas * pods, service.scaling
    return str(most) if scaling is None else f"{scaling.least * pods}..{most}"


def _size(service: Service) -> str:
    """Return the measured size of a service. If it was measured with another version, for example because the
    alias has moved since, the text contains this version."""
    size = service.size
    if size is None or size.replicas != service.replicas:
        return ""
    if size.version == service.version:
        return size_text(size)
    again = f" (gridmill update service {service.name} --rate {service.rate:g})" if service.rate else ""
    return f"{size_text(size)}; measured with {size.version}, and not with {service.version}{again}"


def _last_change(service: Service, totals: ServiceTotals) -> str:
    """Return the reason for the last change of the number of replicas by rate and latency."""
    if not totals.scale_reason:
        return ""
    where = " in one pod" if service.pods > 1 else ""
    return f"{totals.scale_reason}{where} ({moment(totals.scaled_at)})"


def _facts(view: ServiceView) -> Sequence[tuple[str, object]]:
    service, totals, reports = view.service, _totals(view), _reports(view)
    return [
        ("url", view.url),
        ("version", service.version),
        *_chains(service),
        *_loaded(reports),
        ("follows", service.follows),
        ("last comparison", promotion_text(service.follows, view.promotion)),
        ("declared by", service.declared_by),
        ("canary", f"{service.canary} gets {service.canary_percent:g} %" if service.canary else ""),
        *shadow_facts(service, totals),
        ("version before", service.previous),
        ("replicas", f"{view.ready} of {_range(service, service.pods)} ready"),
        ("pods", f"{service.ready_pods} of {service.pods} ready" if service.pods > 1 and view.ready else ""),
        ("memory", show_bytes(totals.memory_bytes) if service.pods > 1 and totals.memory_bytes else ""),
        ("last change", _last_change(service, totals)),
        ("size", _size(service)),
        ("GPU", claim_text(service.gpu_share) if service.gpu_share is not None else ""),
        ("GPU memory", _gpu_memory(reports)),
        ("generation", service.generation),
        ("run", service.run_id),
        *settings_facts(service),
        ("resource", service.resource),
        ("site", service.site if service.route is not None else ""),
        ("rental", view.rental),
        ("project", service.project if service.project != DEFAULT else ""),
        *_drifts(totals if view.since is not None else None),
        ("log", view.log.text or (f"{show_count(totals.log_lost, 'line')} lost" if totals.log_lost else "")),
        ("since", moment(view.since)),
        ("changed", moment(service.changed)),
        ("ended", moment(service.ended)),
        ("process", view.last_end),
        ("restarts", show_count(totals.restarts, "restart") if totals.restarts else ""),
        ("last failure", totals.last_failure),
        ("why", view.message),
    ]


def _drifts(totals: ServiceTotals | None) -> Iterator[tuple[str, str]]:
    """Yield the drift of each version. With a canary, each line names its version."""
    drifts = totals.drift if totals is not None else ()
    for one in drifts:
        yield "drift", f"{one.label}: {one.text}" if len(drifts) > 1 else one.text


def _gpu_memory(reports: Sequence[tuple[str, ServiceReport]]) -> str:
    """Return the GPU memory of each replica whose model uses a GPU."""
    return ", ".join(
        f"{f'{pod} ' if len(reports) > 1 else ''}replica {one.number}: {show_bytes(one.gpu_memory_bytes)}"
        for pod, report in reports
        for one in report.replicas
        if one.gpu_memory_bytes
    )


def _loaded(reports: Sequence[tuple[str, ServiceReport]]) -> Iterator[tuple[str, str]]:
    """Yield the facts about the versions that the replicas of all pods have loaded: whether they reproduced
    golden rows, and the packages that differ."""
    for one in dict.fromkeys(one for _, report in reports for one in loaded_versions(report)):
        yield "golden rows", f"{one.label} is {one.verification}"
        yield from (("warning", f"{one.label}: {text}") for text in one.differences)


def _chains(service: Service) -> Iterator[tuple[str, str]]:
    """Yield the facts about the versions of the service that read predictions of other versions."""
    for version, definition in service.features.items():
        if definition.stages and version in (service.version, service.canary):
            yield from _reads(version, definition)


def _reads(version: str, definition: FeatureDefinition) -> Iterator[tuple[str, str]]:
    yield "chain", f"{version} reads {', '.join(one.version for one in definition.stages)}"
    for stage in definition.stages:
        if stage.definition.stages:
            yield from _reads(stage.version, stage.definition)


def _view_row(one: ViewReport) -> tuple[object, ...]:
    held = ", ".join(one.held.values()) or ("no tables" if one.is_complete else "not complete")
    behind = f"{max(0.0, time.time() - one.behind_since):.0f} s" if one.behind_since else ""
    return one.state, held, behind, moment(one.checked_at or None), one.problem


def _replica_row(one: ReplicaReport) -> tuple[object, ...]:
    versions = ", ".join(version.label for version in one.versions)
    pid = "" if one.pid is None else one.pid
    return one.number, one.state, pid, versions, moment(one.ready_at), one.restarts, one.last_failure


def settings_facts(service: Service) -> Sequence[tuple[str, object]]:
    """Return the settings that `show service` prints."""
    settings = service.settings
    logged = settings.log_fraction or 0.0
    return [
        ("TLS", settings.certificate_file),
        ("API keys", _keys(service)),
        ("origins", ", ".join(settings.cors_origins or ())),
        (
            "logged",
            f"{100 * logged:.6g} % of requests"
            f"{' with features and predictions' if settings.log_bodies else ''}"
            if logged
            else "",
        ),
    ]


def _keys(service: Service) -> str:
    names = ", ".join(one.name for one in service.keys)
    if not service.settings.require_keys:
        return f"{names} (not required)" if names else ""
    return names or "required, but no key exists"


def shadow_facts(service: Service, totals: ServiceTotals) -> Iterator[tuple[str, object]]:
    """Yield the facts about the shadow of a service and the comparison of its answers."""
    shadow = service.shadow
    if shadow is None:
        return
    yield "shadow", f"{shadow.version} gets copies of {shadow.percent:g} %"
    report = totals.shadow
    if report is None:
        return
    rows = report.equal + report.different
    text = f"{show_count(rows, 'row')} compared, {show_number(report.different)} different"
    if report.different:
        text += f" (mean {report.mean_difference:.4g}, largest {report.largest_difference:.4g})"
    yield "shadow rows", text
    yield (
        "shadow requests",
        f"{show_number(report.requests)} predicted in {report.mean_seconds * 1000:.3g} ms (mean), "
        f"{show_number(report.failed)} failed, {show_number(report.dropped)} dropped",
    )
    if report.p99_seconds:
        own, served = (
            f"median {median * 1000:.3g} ms, 99 % within {late * 1000:.3g} ms"
            for median, late in (
                (report.p50_seconds, report.p99_seconds),
                (report.served_p50_seconds, report.served_p99_seconds),
            )
        )
        yield "shadow times", f"{own}; served: {served}"
    if report.problem:
        yield "shadow problem", report.problem
