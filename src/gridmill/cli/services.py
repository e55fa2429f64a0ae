"""The commands of services: `start service`, `stop service`, `update` and `rollback`, and the texts of
`show service` and `list services`."""

import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from gridmill.cli.completion import complete_services
from gridmill.cli.format import moment
from gridmill.cli.parameters import finite
from gridmill.cli.service_options import (
    AcceptOpen,
    Canary,
    Certificate,
    Cors,
    Features,
    FollowWeight,
    Host,
    KeyFile,
    LogBodies,
    LogRequests,
    MaxBatch,
    MaxBody,
    MaxWait,
    Pods,
    QueueLimit,
    RequireKeys,
    Shadow,
    ShadowWeight,
    Timeout,
    Trust,
    Weight,
    service_settings,
    settings_facts,
    shadow_facts,
)
from gridmill.cli.session import InterruptHandler, Json, emit, print_error, session
from gridmill.cli.tables import COLOURS, table
from gridmill.domain.amounts import show_bytes, show_count, show_number
from gridmill.domain.artifact import Alias
from gridmill.domain.frozen import dataclass
from gridmill.domain.gpu_sharing import claim_text
from gridmill.domain.naming import LAST_PORT
from gridmill.domain.project import DEFAULT
from gridmill.domain.promotion import Promotion
from gridmill.domain.service import Service, ServiceState, ServiceView, ready_replicas
from gridmill.domain.service_features import FeatureDefinition, ViewReport
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.domain.service_size import ServicePlan, ServiceSize, show_latency
from gridmill.domain.service_spec import read_replicas
from gridmill.domain.serving import ReplicaReport, ServiceReport, loaded_versions
from gridmill.domain.site import LOCAL
from gridmill.errors import InputError, UnavailableError
from gridmill.sdk.client import Client

_LOOK_SECONDS = 0.2
HEAD = ("service", "state", "version", "follows", "replicas", "url", "since", "")
_ENDED = (ServiceState.FAILED, ServiceState.STOPPED)
_IN_TROUBLE = (ServiceState.FAILING, ServiceState.RESTARTING, *_ENDED)


class Updatable(StrEnum):
    """The kinds of records that `update` changes."""

    SERVICE = "service"


class Promotable(StrEnum):
    """The kinds of records that `promote` and `rollback` change."""

    SERVICE = "service"
    MODEL = "model"


Noun = Annotated[Updatable, typer.Argument(metavar="service", help="What is changed.", show_default=False)]
PromotedNoun = Annotated[
    Promotable, typer.Argument(metavar="service|model", help="What is changed.", show_default=False)
]
PromotedName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the service, or PIPELINE/JOB@ALIAS.",
        show_default=False,
        autocompletion=complete_services,
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the service.", show_default=False, autocompletion=complete_services
    ),
]
Model = Annotated[
    str,
    typer.Option(
        metavar="PIPELINE/JOB@VERSION",
        help="Version of a model: a number, or an alias that the service follows.",
        show_default=False,
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the change is in effect.")]


Replicas = Annotated[
    str,
    typer.Option(
        metavar="N|MIN..MAX",
        help="Number of processes that answer. A range (1..8, or 0..8) follows the load.",
        show_default=False,
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        callback=finite,
        min=0.0,
        metavar="REQUESTS/S",
        help="Expected requests per second. Gridmill chooses the size by a short measurement.",
        show_default=False,
    ),
]
OfService = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Resource of type service. Default: default-service.", show_default=False
    ),
]
Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=LAST_PORT,
        metavar="PORT",
        help="Port of the service. Default: a free port, which stays the same.",
        show_default=False,
    ),
]
OfProject = Annotated[
    str,
    typer.Option(metavar="NAME", help="Project whose share and quota the service uses.", show_default=False),
]
WaitForService = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the service answers.", show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options with which a service starts."""

    model: str = ""
    replicas: int = 0
    least_replicas: int | None = None
    rate: float = 0.0
    resource: str = ""
    port: int = 0
    project: str = ""
    settings: ServiceSettings = NO_SETTINGS


def start_service(
    context: typer.Context, name: str, options: StartOptions, *, wait: bool, as_json: bool
) -> None:
    """Start a service, and print its address. Raises UnavailableError if it does not start."""
    with session(context) as client:
        view = client.start_service(
            name,
            model=options.model,
            replicas=options.replicas,
            least_replicas=options.least_replicas,
            rate=options.rate,
            resource=options.resource,
            port=options.port,
            project=options.project,
            settings=options.settings,
        )
        view = wait_until_in_effect(client, view) if wait else view
    _print(view, as_json=as_json)
    size = view.service.size
    if size is not None and not as_json:
        print(f"  {size_text(size)}")
    check_in_effect(view, waited=wait)


def size_text(size: ServiceSize) -> str:
    """Return the size of a service in one line, with its expected latency."""
    at = f" for {show_number(size.rate)} requests/s" if size.rate else ""
    latency = f", expected p99 {show_latency(size.p99_seconds)}" if size.rate else ""
    return (
        f"{show_count(size.replicas, 'replica')}, {show_number(size.cpus)} CPUs, "
        f"{show_bytes(size.memory_bytes)}{at}{latency}; can serve {show_number(size.most_rate)} requests/s"
    )


def plan_lines(plan: ServicePlan) -> Iterator[str]:
    """Yield the lines about the size of a service that `configure resource` prints."""
    if plan.size is not None:
        yield f"service of {plan.version}: {size_text(plan.size)}"
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
    yield f"  the p99 does not include the router and the network to site {plan.site}"


def refuse_service_options(settings: ServiceSettings, **options: object) -> None:
    """Raise InputError if an option of a service is given, but the noun is not `service`."""
    given = next((name for name, value in options.items() if value), None)
    if given is None and settings != NO_SETTINGS:
        raise InputError(
            "an option of a service is given, but the noun is not `service`",
            hint="gridmill start --help shows the options of services.",
        )
    if given is not None:
        raise InputError(
            f"--{given} is an option of services", hint="gridmill start service NAME --model PIPELINE/JOB@3"
        )


def stop_service(context: typer.Context, name: str, as_json: bool) -> None:
    """Stop a service, and wait until it has ended."""
    with session(context) as client:
        view = client.stop_service(name)
        with InterruptHandler() as interrupts:
            while view.state not in _ENDED and not interrupts.requested:
                time.sleep(_LOOK_SECONDS)
                view = client.service(name)
    return emit(view) if as_json else print(f"service {name} {view.state}")


def update(
    context: typer.Context,
    noun: Noun,
    name: Name,
    model: Model = "",
    replicas: Replicas = "",
    rate: Rate = 0.0,
    port: Port = 0,
    canary: Canary = "",
    weight: Weight = None,
    shadow: Shadow = "",
    shadow_weight: ShadowWeight = None,
    host: Host = None,
    certificate: Certificate = None,
    key: KeyFile = None,
    require_keys: RequireKeys = None,
    accept_open: AcceptOpen = None,
    cors: Cors = None,
    follow_weight: FollowWeight = None,
    log_requests: LogRequests = None,
    log_bodies: LogBodies = None,
    max_batch: MaxBatch = None,
    max_wait: MaxWait = None,
    timeout: Timeout = None,
    queue_limit: QueueLimit = None,
    max_body: MaxBody = None,
    trust: Trust = None,
    pods: Pods = None,
    features: Features = None,
    expected: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="GENERATION",
            help="Refuse the update if the service has another generation.",
            show_default=False,
        ),
    ] = None,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Change the version, the size or the settings of a running service, without a failed request.

    The new replicas start first, and the old replicas answer their running requests before they end. A
    version with other features or other predictions is refused.
    """
    del noun
    settings = service_settings(
        host=host,
        certificate=certificate,
        key=key,
        require_keys=require_keys,
        accept_open=accept_open,
        cors=cors,
        follow_weight=follow_weight,
        log_requests=log_requests,
        log_bodies=log_bodies,
        max_batch=max_batch,
        max_wait=max_wait,
        timeout=timeout,
        queue_limit=queue_limit,
        max_body=max_body,
        trust=trust,
        pods=pods,
        features=features,
    )
    is_changed = any((model, port, canary, rate, shadow, replicas, settings != NO_SETTINGS))
    if not is_changed and weight is None and shadow_weight is None:
        raise InputError("nothing to change", hint=f"gridmill update service {name} --model PIPELINE/JOB@3")
    most, least = read_replicas(replicas)
    with session(context) as client:
        view = client.update_service(
            name,
            model=model,
            replicas=most or None,
            least_replicas=least,
            rate=rate,
            port=port,
            settings=settings,
            canary=canary,
            weight_percent=weight,
            shadow=shadow,
            shadow_percent=shadow_weight,
            expected=expected,
        )
        view = wait_until_in_effect(client, view) if wait else view
    _print(view, as_json=json)
    check_in_effect(view, waited=wait)


def promote(
    context: typer.Context, noun: PromotedNoun, name: PromotedName, wait: Wait = True, json: Json = False
) -> None:
    """Make the canary of a service its version, without a failed request; or move the alias of a model to the
    version that waits for approval.

    If a service has a shadow and no canary, the shadow becomes the canary.

    `gridmill rollback` with the same arguments returns to the version before.
    """
    with session(context) as client:
        if noun is Promotable.MODEL:
            return _print_alias(client.promote_alias(name), as_json=json)
        view = client.promote_service(name)
        view = wait_until_in_effect(client, view) if wait else view
    _print(view, as_json=json)
    check_in_effect(view, waited=wait)


def rollback(
    context: typer.Context, noun: PromotedNoun, name: PromotedName, wait: Wait = True, json: Json = False
) -> None:
    """Remove the canary of a service, or else its shadow. Without both, return to the version before the last
    update.

    No request fails. If the last update is not in effect, the settings and the size before it also return;
    an update of these alone leaves the version as it is. After it has returned to a version, the service
    follows no alias. To follow one again: gridmill update service NAME --model PIPELINE/JOB@ALIAS. For the
    alias of a model, refuse the version that waits for approval; without one, return to the version before
    the last move by a comparison.
    """
    with session(context) as client:
        if noun is Promotable.MODEL:
            return _print_alias(client.rollback_alias(name), as_json=json)
        view = client.rollback_service(name)
        view = wait_until_in_effect(client, view) if wait else view
    _print(view, as_json=json)
    check_in_effect(view, waited=wait)


def _print_alias(alias: Alias, *, as_json: bool) -> None:
    if as_json:
        return emit(alias)
    print(f"alias {alias.id} names {alias.version}")
    if alias.promotion is not None:
        print(f"  {alias.promotion.measured.candidate} {alias.promotion.text}")


def promotion_text(alias_id: str, promotion: Promotion | None) -> str:
    """Return the last comparison of an alias in one line, with the commands that decide if it waits."""
    if promotion is None:
        return ""
    commands = f" (gridmill promote model {alias_id}, or gridmill rollback model {alias_id})"
    return f"{promotion.text}{commands if promotion.is_waiting else ''}"


def wait_until_in_effect(client: Client, view: ServiceView) -> ServiceView:
    """Wait until the newest order is in effect or fails. Ctrl-C ends the wait, and the service goes on."""
    name, wanted = view.service.name, view.service.generation
    with InterruptHandler() as interrupts:
        while not interrupts.requested:
            report = view.service.report
            done = view.state is ServiceState.RUNNING and view.service.is_in_effect
            is_late = view.state is ServiceState.FAILING and report and report.seen_generation >= wanted
            if done or is_late or view.state in (*_ENDED, ServiceState.RESTARTING):
                break
            time.sleep(_LOOK_SECONDS)
            view = client.service(name)
    return view


def _print(view: ServiceView, *, as_json: bool) -> None:
    if as_json:
        emit(view)
        return
    service = view.service
    what = f"service {service.name} {view.state}: {service.version}"
    if service.canary:
        what += f", {service.canary_percent:g} % by {service.canary}"
    print(f"{what} at {view.url}" if view.url else what)
    if view.rental and view.state not in _ENDED:
        print(f"  {view.rental}")
    for one in loaded_versions(service.report):
        for text in one.differences:
            print(f"  warning: {one.label}: {text}")


def check_in_effect(view: ServiceView, *, waited: bool) -> None:
    """Raise UnavailableError if the service does not run although the command has waited for it."""
    name = view.service.name
    if waited and view.state in _IN_TROUBLE:
        raise UnavailableError(
            f"service {name} is {view.state}: {_why(view) or 'its process has ended'}",
            hint=f"gridmill logs service {name}",
        )
    if view.service.refusal:
        print_error(view.service.refusal)


def _why(view: ServiceView) -> str:
    report = view.service.report
    return view.message or (report.last_failure if report is not None else "")


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
    report = view.service.report
    if report is not None and view.since is not None and report.views:
        head_of_views = ("view", "version", "behind", "checked", "why")
        yield table(*head_of_views, rows=[_view_row(one) for one in report.views])
    if view.service.further_pods and view.service.is_meant_to_run:
        yield table("pod", "state", "replicas", "address", rows=_pod_rows(view.service))
    if report is not None and view.since is not None and report.replicas:
        head_of_replicas = ("replica", "state", "pid", "version", "since", "restarts", "last failure")
        yield table(*head_of_replicas, rows=[_replica_row(one) for one in report.replicas])


def _pod_rows(service: Service) -> Sequence[tuple[object, ...]]:
    """Return the table cells of the pods of a service that runs in several pods."""
    reports = [(service.serving_job, service.report, False)]
    reports += [(one.job, one.report, one.leaving is not None) for one in service.further_pods]
    return [_pod_row(service, *one) for one in sorted(reports, key=lambda one: one[0])]


def _pod_row(
    service: Service, job: str, report: ServiceReport | None, is_leaving: bool
) -> tuple[object, ...]:
    if report is None:
        return job, "starting", "", ""
    if is_leaving:
        return job, "leaving", "", report.address
    return job, report.state, f"{ready_replicas(report)} of {_range(service)}", report.address


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


def _last_change(report: ServiceReport | None) -> str:
    """Return the reason for the last change of the number of replicas by rate and latency."""
    if report is None or not report.scale_reason:
        return ""
    return f"{report.scale_reason} ({moment(report.scaled_at)})"


def _facts(view: ServiceView) -> Sequence[tuple[str, object]]:
    service, report = view.service, view.service.report
    return [
        ("url", view.url),
        ("version", service.version),
        *_chains(service),
        *_loaded(report if view.since is not None else None),
        ("follows", service.follows),
        ("last comparison", promotion_text(service.follows, view.promotion)),
        ("declared by", service.declared_by),
        ("canary", f"{service.canary} gets {service.canary_percent:g} %" if service.canary else ""),
        *shadow_facts(service),
        ("version before", service.previous),
        ("replicas", f"{view.ready} of {_range(service, service.pods)} ready"),
        ("pods", f"{service.ready_pods} of {service.pods} ready" if service.pods > 1 and view.ready else ""),
        ("last change", _last_change(report)),
        ("size", _size(service)),
        ("GPU", claim_text(service.gpu_share) if service.gpu_share is not None else ""),
        ("GPU memory", _gpu_memory(report)),
        ("generation", service.generation),
        ("run", service.run_id),
        *settings_facts(service),
        ("resource", service.resource),
        ("site", service.site if service.route is not None else ""),
        ("rental", view.rental),
        ("project", service.project if service.project != DEFAULT else ""),
        *_drifts(report if view.since is not None else None),
        ("log", f"{show_count(report.log_lost, 'line')} lost" if report and report.log_lost else ""),
        ("since", moment(view.since)),
        ("changed", moment(service.changed)),
        ("ended", moment(service.ended)),
        ("restarts", show_count(report.restarts, "restart") if report and report.restarts else ""),
        ("last failure", report.last_failure if report else ""),
        ("why", view.message),
    ]


def _drifts(report: ServiceReport | None) -> Iterator[tuple[str, str]]:
    """Yield the drift of each version. With a canary, each line names its version."""
    drifts = report.drift if report is not None else ()
    for one in drifts:
        yield "drift", f"{one.label}: {one.text}" if len(drifts) > 1 else one.text


def _gpu_memory(report: ServiceReport | None) -> str:
    """Return the GPU memory of each replica whose model uses a GPU."""
    used = [one for one in (report.replicas if report is not None else ()) if one.gpu_memory_bytes]
    return ", ".join(f"replica {one.number}: {show_bytes(one.gpu_memory_bytes)}" for one in used)


def _loaded(report: ServiceReport | None) -> Iterator[tuple[str, str]]:
    """Yield the facts about the versions that the replicas have loaded: whether they reproduced golden rows,
    and the packages that differ."""
    for one in loaded_versions(report):
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
