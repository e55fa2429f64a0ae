"""The commands of services: `start service`, `stop service`, `update` and `rollback`."""

import time
from enum import StrEnum
from typing import Annotated

import typer

from gridmill.cli.completion import complete_services
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
)
from gridmill.cli.service_texts import size_text
from gridmill.cli.session import InterruptHandler, Json, emit, print_error, session
from gridmill.domain.artifact import Alias
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import LAST_PORT
from gridmill.domain.service import ServiceState, ServiceView
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.domain.service_spec import read_replicas
from gridmill.domain.service_totals import reports_of
from gridmill.domain.serving import loaded_versions
from gridmill.errors import InputError, UnavailableError
from gridmill.sdk.client import Client

_LOOK_SECONDS = 0.2
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
    version with other features or other predictions is refused. An empty value returns a setting to its
    default: --follow-weight ''
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


def wait_until_in_effect(client: Client, view: ServiceView) -> ServiceView:
    """Wait until the newest order is in effect or fails. Ctrl-C ends the wait, and the service goes on."""
    name, wanted = view.service.name, view.service.generation
    with InterruptHandler() as interrupts:
        while not interrupts.requested:
            done = view.state is ServiceState.RUNNING and view.service.is_in_effect
            seen = (one.seen_generation >= wanted for one in reports_of(view.service))
            is_late = view.state is ServiceState.FAILING and any(seen)
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
    for one in dict.fromkeys(one for report in reports_of(service) for one in loaded_versions(report)):
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
    failures = (one.last_failure for one in reports_of(view.service) if one.last_failure)
    return view.message or next(failures, "")
