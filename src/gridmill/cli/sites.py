"""The commands `add` and `nodes` add a site, a farm, a cloud provider or a secret, and show provider
nodes."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.cloud_providers import (
    AccessKeyId,
    Profile,
    ProviderOptions,
    Region,
    SecretName,
    add_provider,
)
from gridmill.cli.farm_status import gpu_slot_texts
from gridmill.cli.format import amounts, node_count
from gridmill.cli.secrets import add_secret
from gridmill.cli.service_keys import add_key
from gridmill.cli.session import Json, console, emit, host_of, session, settings_of
from gridmill.cli.session import print_error as tell
from gridmill.cli.tables import table
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.naming import check_name
from gridmill.domain.site import NodeUtilization, NodeView, Site, SiteKind
from gridmill.errors import ConflictError, InputError
from gridmill.ports.host import Host
from gridmill.sdk.client import Client
from gridmill.settings import Settings


class Addable(StrEnum):
    """The kinds of records that the command `add` can add."""

    SITE = "site"
    CLUSTER = "cluster"
    SECRET = "secret"
    CLOUDPROVIDER = "cloudprovider"
    KEY = "key"


Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of the site. The form of the address depends on the kind of the site.",
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a setting of the site, resource or cloud provider. Repeatable.",
    ),
]
ExportBucket = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="s3://BUCKET/PREFIX",
        help="For a cluster: bucket for resources with `staging: export`.",
        show_default=False,
    ),
]
SharedBucket = Annotated[
    str | None,
    typer.Option(
        "--shared",
        metavar="s3://BUCKET/PREFIX",
        help="For a cluster: bucket that keeps transferred data, for `staging: shared`.",
        show_default=False,
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="For a cluster: server of the bucket. Default: the server of the cloud provider."
    ),
]


def add(
    context: typer.Context,
    what: Annotated[
        Addable,
        typer.Argument(
            metavar="NOUN", help="site, cluster, cloudprovider, secret or key.", show_default=False
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the site, as in `at: NAME`, or of the secret or cloud provider. For a key: "
            "SERVICE/NAME.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="ray|slurm|batch|aws|gcp|lambda",
            help="Kind of the site or of the cloud provider. Default for a cloud provider: its name.",
            show_default=False,
        ),
    ] = None,
    address: Address = None,
    export: ExportBucket = None,
    shared: SharedBucket = None,
    endpoint: Endpoint = None,
    set: Setting = None,
    controller: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="For a cluster: address at which the farm listens.", show_default=False
        ),
    ] = None,
    join: Annotated[
        str,
        typer.Option(
            metavar="FINGERPRINT:SECRET",
            help="For a cluster: the join line of the farm. Better set it in GRIDMILL_TOKEN, or pass `-` to "
            "read it from standard input.",
            show_default=False,
        ),
    ] = "",
    region: Region = None,
    profile: Profile = None,
    access_key_id: AccessKeyId = None,
    secret: SecretName = None,
    file: Annotated[
        Path | None,
        typer.Option(help="For a secret: file with the value. `-`: standard input.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Add a site, a farm (`cluster`), a cloud provider, a secret or an API key of a service.

    Gridmill connects to a site immediately. For a cloud provider, Gridmill checks the credentials, the rights
    and the quotas. The value of a secret is read from --file, from standard input, or from a prompt without
    echo. The value is stored encrypted and never shown. If the secret exists, its value is replaced.
    `gridmill add key SERVICE/NAME` makes an API key of a service, and prints it once.
    """
    options = ProviderOptions(region=region, profile=profile, access_key_id=access_key_id, secret=secret)
    if what != Addable.CLOUDPROVIDER:
        options.check_none(what)
    if what in (Addable.SECRET, Addable.KEY):
        _check_secret_options(kind, address, controller, join)
        return (
            add_secret(context, name, file, json) if what == Addable.SECRET else add_key(context, name, json)
        )
    if file is not None:
        raise InputError("only a secret is read from a file", place="--file")
    settings = {**read_settings(set or ()), **bucket_settings(export, shared, endpoint)}
    if what == Addable.CLOUDPROVIDER:
        return add_provider(context, name, kind, {**settings, **options.settings(kind or name)}, json)
    if what == Addable.CLUSTER:
        host = host_of(context)
        site = _cluster(host, name, kind, controller, address, settings)
        with session(context) as client:
            return print_site(client.add_site(_joined(host, settings_of(context), client, site, join)), json)
    site = Site(name=name, kind=_kind(kind, controller, join), address=address, settings=settings)
    with session(context) as client:
        return print_site(client.add_site(site), json)


def _check_secret_options(kind: str | None, address: str | None, controller: str | None, join: str) -> None:
    """Raise InputError for options that a secret does not have."""
    given = {"--kind": kind, "--address": address, "--controller": controller, "--join": join or None}
    for option, value in given.items():
        if value is not None:
            raise InputError(
                f"a secret has no {option}", place=option, hint="gridmill add secret NAME [--file FILE]"
            )


_KINDS = "Pass --kind slurm, --kind ray or --kind batch."


def _kind(kind: str | None, controller: str | None, line: str) -> SiteKind:
    """Return the kind of the site. Raises InputError if the kind is missing, and for options that only sites
    of kind `cluster` have."""
    if controller is not None or line:
        raise InputError(
            "only a cluster has a controller and a join line",
            place="--controller" if controller is not None else "--join",
            hint="gridmill add cluster NAME --controller HOST:PORT --join ...",
        )
    if kind is None:
        raise InputError(
            "the kind of the site is missing",
            place="--kind",
            hint=_KINDS,
        )
    if kind not in list(SiteKind):
        raise InputError(
            f"{kind!r} is not a kind of site",
            place="--kind",
            hint=_KINDS,
        )
    return SiteKind(kind)


def _cluster(
    host: Host,
    name: str,
    kind: str | None,
    controller: str | None,
    address: str | None,
    settings: dict[str, str],
) -> Site:
    """Return the site, checked as far as possible without a connection to the farm. Raises InputError."""
    if controller is None:
        raise InputError(
            "the address of the farm is missing",
            place="--controller",
            hint="Run `gridmill farm invite` on the farm, and paste the whole line that it prints.",
        )
    if kind not in (None, SiteKind.CLUSTER) or address is not None:
        raise InputError(
            "a cluster has no --kind, and its address is --controller",
            place="--address" if address is not None else "--kind",
            hint="Leave the option out, or add a site: gridmill add site NAME --kind ray --address HOST:PORT",
        )
    check_name("site", name)
    site = Site(name=name, kind=SiteKind.CLUSTER, address=controller, settings=settings)
    host.check_site(site)
    return site


def _joined(host: Host, settings: Settings, client: Client, site: Site, line: str) -> Site:
    """Join the farm as a tenant, unless this home is a tenant already and no join line is given. Everything
    else is checked before the join line is used, because a join line is valid only once. If the site exists
    already, its settings are not changed."""
    existing = next((one for one in client.list_sites() if one.name == site.name), None)
    if existing is not None and (existing.kind, existing.address) != (site.kind, site.address):
        raise ConflictError(
            f"site {site.name!r} exists already, of kind {existing.kind}"
            + (f", at {existing.address}" if existing.address else ""),
            hint=f"Choose another name, or change the address: gridmill configure site {site.name} "
            "--address HOST:PORT",
        )
    answer = _line_of_input() if line == "-" else line or settings.token
    host.join_farm(settings, site.name, site.address or "", answer)
    return site if existing is None or site.settings else existing


def _line_of_input() -> str:
    """Read the join line from standard input. Raises InputError if standard input is empty."""
    line = sys.stdin.readline().strip()
    if not line:
        raise InputError(
            "`--join -` reads the join line from standard input, which is empty",
            place="--join",
            hint="Run `gridmill farm invite` on the farm, and pass the part of its line after --join.",
        )
    return line


def nodes(context: typer.Context, json: Json = False) -> None:
    """Show the provider nodes: their capacity, what is reserved, what runs, and what their owners use."""
    with session(context) as client:
        views = tuple(client.list_nodes())
    if json:
        return emit(views)
    rows = [_node_row(view) for view in views]
    return console().print(
        table("site", "node", "has", "claimed", "busy CPUs", "owner's", "GPUs", "runs", rows=rows)
    )


def _node_row(view: NodeView) -> tuple[object, ...]:
    utilization = view.utilization
    # an owner may want more CPUs than the machine has, but the share must be at most 100 %
    owners_cpus = min(utilization.owner_cpus, utilization.busy_cpus) if utilization else 0.0
    busy, owners = (f"{utilization.busy_cpus:.1f}", f"{owners_cpus:.1f}") if utilization else ("?", "?")
    gpus = _gpu_texts(utilization) if utilization else []
    has, claimed = amounts(view.node.capacity), amounts(view.claimed) if view.claimed != Amounts() else ""
    return view.site, view.node.name, has, claimed, busy, owners, "; ".join(gpus), ", ".join(view.running)


def _gpu_texts(use: NodeUtilization) -> list[str]:
    """Return a text for each GPU with its measured usage, and at a farm with the deployment that uses it."""
    seen = [f"{one.model} {one.used_bytes / GIB:.0f}/{one.memory_bytes / GIB:.0f} GiB" for one in use.gpus]
    seats = gpu_slot_texts(use.seats)
    if len(seats) != len(seen):
        return seats or seen
    return [f"{seat} ({gpu})" for seat, gpu in zip(seats, seen, strict=True)]


def read_settings(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Parse words of the form NAME=VALUE into a mapping. Raises InputError."""
    result: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {word!r} is not of the form NAME=VALUE")
        if name.strip() in result:
            raise InputError(
                f"--set {name.strip()} is given twice: {result[name.strip()]!r} and {value!r}",
                hint="Pass each name once.",
            )
        result[name.strip()] = value
    return result


def bucket_settings(export: str | None, shared: str | None, endpoint: str | None) -> dict[str, str]:
    """Return the settings for the given bucket options."""
    given = {"export": export, "shared": shared, "endpoint": endpoint}
    return {name: value for name, value in given.items() if value is not None}


def print_site(site: Site, as_json: bool) -> None:
    """Print a site and its provider nodes."""
    if as_json:
        return emit(site)
    print(f"site {site.name} ({site.kind}): {node_count(site)}")
    rows = [(node.name, amounts(node.capacity)) for node in site.kinds_of_nodes]
    head = "node" if site.most_machines is None else "type of machine"
    return console().print(table(head, "capacity", rows=rows))


def warn_unreachable(client: Client, name: str) -> None:
    """Print a warning if the site cannot be reached, so that its new settings are not tested."""
    problem = next((one.problem for one in client.list_farms() if one.site == name), "")
    if problem:
        tell(
            f"{name}: {problem}; the new settings are stored but not tested, and apply as soon as the "
            "site is reachable"
        )
