"""The command `build`, and the list of the images of machines."""

import time
from enum import StrEnum
from typing import Annotated

import typer

from gridmill.cli.format import moment
from gridmill.cli.leases import tell_leases
from gridmill.cli.session import InterruptHandler, Json, emit, print_error, session, show
from gridmill.cli.tables import FittedTable
from gridmill.domain.amounts import show_bytes
from gridmill.domain.lease import LeaseState
from gridmill.domain.lease_cost import LeaseView
from gridmill.domain.machine_image import BUILD_HOURS
from gridmill.errors import UnavailableError
from gridmill.sdk.client import Client

_LOOK_SECONDS = 1.0
_HEAD = ("image", "id", "site", "region", "state", "Gridmill", "disk", "made")


class Buildable(StrEnum):
    """What `gridmill build` makes."""

    IMAGE = "image"


def build(
    context: typer.Context,
    noun: Annotated[Buildable, typer.Argument(metavar="image", help="What is built.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the image.", show_default=False)],
    at: Annotated[str, typer.Option("--at", metavar="SITE", help="Cloud provider.", show_default=False)],
    region: Annotated[
        str,
        typer.Option(
            metavar="REGION", help="Region, or beginning of the names of regions.", show_default=False
        ),
    ] = "",
    instance_type: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Type of the machine. Default: the cheapest with 2 CPUs and 3 GiB.",
            show_default=False,
        ),
    ] = "",
    base: Annotated[
        str,
        typer.Option(
            metavar="IMAGE",
            help="Image from which the machine boots. Default: the provider's image for the type.",
            show_default=False,
        ),
    ] = "",
    max_hours: Annotated[
        str, typer.Option(metavar="HOURS", help="Longest time for which the machine is rented.")
    ] = BUILD_HOURS,
    max_price: Annotated[
        str,
        typer.Option(metavar="PRICE", help="Highest price per hour, for example 0.50.", show_default=False),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the image is finished.")] = True,
    json: Json = False,
) -> None:
    """Build an image that contains this version of Gridmill, on a rented machine.

    Machines that boot from the image need no installation. The image is built from the provider's image for
    the type of machine: for machines with GPUs, give the type that you will rent. The machine is ended when
    the image is finished or the build fails. Ctrl-C stops the build. The image costs money until you delete
    it: gridmill remove image NAME.
    """
    del noun
    with session(context) as client:
        view = client.build_image(
            name,
            at,
            region=region,
            instance_type=instance_type,
            base=base,
            max_hours=max_hours,
            max_price=max_price,
        )
        if wait:
            view = _wait(client, view)
            tell_leases(client)
    if json:
        emit(view)
    else:
        _print(view, name, at)
    if wait and not view.lease.image_id:
        raise UnavailableError(view.lease.reason or f"the image {name} was not built")


def _wait(client: Client, view: LeaseView) -> LeaseView:
    """Wait until the machine of the build is ended. Ctrl-C stops the build."""
    lease, phase = view.lease.id, ""
    with InterruptHandler() as interrupts:
        while view.lease.state not in (LeaseState.RELEASING, LeaseState.CLOSED):
            if interrupts.requested:
                return client.stop_lease(lease)
            if view.phase != phase:
                phase = view.phase
                print_error(f"{lease}: {phase}")
            time.sleep(_LOOK_SECONDS)
            view = client.grid.lease(lease)
    return view


def _print(view: LeaseView, name: str, site: str) -> None:
    lease = view.lease
    if lease.image_id:
        print(f"image {name}: {lease.image_id}")
        print(f"to use it: gridmill alter resource RESOURCE --set image={lease.image_id}")
    elif lease.state not in (LeaseState.RELEASING, LeaseState.CLOSED):
        print(f"image {name} is built at {site} on the machine of {lease.id}: gridmill show lease {lease.id}")


def list_images(context: typer.Context, as_json: bool) -> None:
    """Print the images of machines, which the providers are asked for."""
    with session(context) as client:
        images = client.list_images()
    if as_json:
        return emit(images)
    if not images:
        return print_error("there are no images; to make one: gridmill build image NAME --at PROVIDER")
    rows = [
        (
            one.name,
            one.id,
            one.site,
            one.region,
            one.state,
            one.version if one.is_current else f"{one.version} (another version)",
            show_bytes(one.disk_bytes),
            "" if one.created is None else moment(one.created),
        )
        for one in images
    ]
    return show(FittedTable(_HEAD, rows, left_out=("disk", "site", "region")))
