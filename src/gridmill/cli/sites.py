"""`add`: a site or a farm, a named place where resources can be brought up."""

import sys
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer

from gridmill.cli.farms import seat_words
from gridmill.cli.render import table
from gridmill.cli.session import Json, console, emit, session, settings_of
from gridmill.cli.words import amounts
from gridmill.errors import InputError
from gridmill.model.amounts import GIB, Amounts, show_count
from gridmill.model.node import NodeLook, NodeView
from gridmill.model.site import Site, SiteKind
from gridmill.settings import Settings


class Added(StrEnum):
    """What can be added."""

    SITE = "site"
    CLUSTER = "cluster"


Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Where the site is reached; what it looks like is the kind's."),
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the site's kind; repeatable."),
]
ExportBucket = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="s3://BUCKET/PREFIX",
        help="Of a cluster: the bucket for resources with `staging: export`.",
        show_default=False,
    ),
]
SharedBucket = Annotated[
    str | None,
    typer.Option(
        "--shared",
        metavar="s3://BUCKET/PREFIX",
        help="Of a cluster: the bucket in which what goes there is kept, for `staging: shared`.",
        show_default=False,
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Of a cluster: the bucket's server, if not the cloud's own."),
]


def add(
    context: typer.Context,
    what: Annotated[Added, typer.Argument(metavar="NOUN", help="site or cluster.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What jobs call it (`at: NAME`).", show_default=False)
    ],
    kind: Annotated[
        SiteKind | None,
        typer.Option(help="Of a site: how resources are brought up there.", show_default=False),
    ] = None,
    address: Address = None,
    export: ExportBucket = None,
    shared: SharedBucket = None,
    endpoint: Endpoint = None,
    set: Setting = None,
    controller: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Of a cluster: where its farm listens.", show_default=False),
    ] = None,
    join: Annotated[
        str,
        typer.Option(
            metavar="FINGERPRINT:SECRET",
            help="Of a cluster: as `gridmill up --light` there says it; better in GRIDMILL_TOKEN, or `-` to "
            "read it from standard input.",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Add a site: resources can then be configured, and jobs run, at it. It is opened and looked at at once.

    gridmill add site lab --kind slurm --set partition=gpu

    gridmill add cluster gpu-farm --controller 10.1.0.7:8700 --join FINGERPRINT:SECRET
    """
    if what == Added.CLUSTER:
        kind = _joined(settings_of(context), name, kind, controller, join)
        address = controller
    if kind is None:
        raise InputError("a site has a kind", place="--kind", hint="--kind ray, --kind slurm ...")
    settings = {**read_settings(set or ()), **bucket_settings(export, shared, endpoint)}
    site = Site(name=name, kind=kind, address=address, settings=settings)
    with session(context) as client:
        return say(client.add_site(site), json)


def _joined(
    settings: Settings, name: str, kind: SiteKind | None, controller: str | None, line: str
) -> SiteKind:
    """Become a source of the farm, unless this home is one already and no line is given."""
    if kind not in (None, SiteKind.CLUSTER) or controller is None:
        raise InputError(
            "a cluster has a controller, and no other kind",
            place="--controller" if controller is None else "--kind",
            hint="`gridmill up --light` on the farm says the whole line.",
        )
    told = sys.stdin.readline().strip() if line == "-" else line or settings.token
    become: Any = import_module("gridmill.sites.cluster.joining").become_source
    become(settings.home, name, controller, told)
    return SiteKind.CLUSTER


def nodes(context: typer.Context, json: Json = False) -> None:
    """Show every provider node: what it has, what is claimed, what runs there, and what its owner uses."""
    with session(context) as client:
        views = client.list_nodes()
    if json:
        return emit(views)
    rows = [_node_row(view) for view in views]
    return console().print(
        table("site", "node", "has", "claimed", "busy CPUs", "owner's", "GPUs", "runs", rows=rows)
    )


def _node_row(view: NodeView) -> tuple[object, ...]:
    look = view.look
    busy, owners = (f"{look.busy_cpus:.1f}", f"{look.owner_cpus:.1f}") if look else ("?", "?")
    gpus = _gpu_words(look) if look else []
    has, claimed = amounts(view.node.capacity), amounts(view.claimed) if view.claimed != Amounts() else ""
    return view.site, view.node.name, has, claimed, busy, owners, "; ".join(gpus), ", ".join(view.running)


def _gpu_words(look: NodeLook) -> list[str]:
    """What the driver says of each, and whose a farm's are."""
    seen = [f"{one.model} {one.used_bytes / GIB:.0f}/{one.memory_bytes / GIB:.0f} GiB" for one in look.gpus]
    seats = seat_words(look.seats)
    if len(seats) != len(seen):
        return seats or seen
    return [f"{seat} ({gpu})" for seat, gpu in zip(seats, seen, strict=True)]


def read_settings(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE words as a mapping. Raises InputError."""
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {word!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found


def bucket_settings(export: str | None, shared: str | None, endpoint: str | None) -> dict[str, str]:
    """Those that were given."""
    given = {"export": export, "shared": shared, "endpoint": endpoint}
    return {name: value for name, value in given.items() if value is not None}


def say(site: Site, as_json: bool) -> None:
    """The site and what is there."""
    if as_json:
        return emit(site)
    print(f"site {site.name} ({site.kind}): {show_count(len(site.nodes), 'node')}")
    rows = [(node.name, amounts(node.capacity)) for node in site.nodes]
    return console().print(table("node", "gives", rows=rows))
