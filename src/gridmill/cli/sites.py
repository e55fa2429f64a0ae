"""`add`: a site, a named place where resources can be brought up."""

from enum import StrEnum
from typing import Annotated

import typer

from gridmill.cli.render import table
from gridmill.cli.session import Json, console, emit, session
from gridmill.cli.words import amounts
from gridmill.errors import InputError
from gridmill.model.amounts import GIB, Amounts, show_count
from gridmill.model.node import NodeView
from gridmill.model.site import Site, SiteKind


class Added(StrEnum):
    """What can be added."""

    SITE = "site"


Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Where the site is reached; what it looks like is the kind's."),
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the site's kind; repeatable."),
]


def add(
    context: typer.Context,
    what: Annotated[Added, typer.Argument(metavar="NOUN", help="site.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What jobs call it (`at: NAME`).", show_default=False)
    ],
    kind: Annotated[SiteKind, typer.Option(help="How resources are brought up there.", show_default=False)],
    address: Address = None,
    set: Setting = None,
    json: Json = False,
) -> None:
    """Add a site: resources can then be configured, and jobs run, at it. It is opened and looked at at once.

    gridmill add site lab --kind slurm --set partition=gpu
    """
    site = Site(name=name, kind=kind, address=address, settings=read_settings(set or ()))
    with session(context) as client:
        return say(client.add_site(site), json)


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
    gpus = (
        [f"{one.model} {one.used_bytes / GIB:.0f}/{one.memory_bytes / GIB:.0f} GiB" for one in look.gpus]
        if look
        else []
    )
    has, claimed = amounts(view.node.capacity), amounts(view.claimed) if view.claimed != Amounts() else ""
    return view.site, view.node.name, has, claimed, busy, owners, "; ".join(gpus), ", ".join(view.running)


def read_settings(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE words as a mapping. Raises InputError."""
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {word!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found


def say(site: Site, as_json: bool) -> None:
    """The site and what is there."""
    if as_json:
        return emit(site)
    print(f"site {site.name} ({site.kind}): {show_count(len(site.nodes), 'node')}")
    rows = [(node.name, amounts(node.capacity)) for node in site.nodes]
    return console().print(table("node", "gives", rows=rows))
