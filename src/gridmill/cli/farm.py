"""The commands on the machine of a farm, where `farm` manages the tenants, and `up --light` runs the farm in
the foreground."""

import logging
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from gridmill.cli.session import InterruptHandler, Json, console, emit, host_of, print_error, settings_of
from gridmill.cli.tables import table
from gridmill.domain.amounts import parse_bytes, parse_seconds, show_bytes, show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import is_loopback, read_address
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.ports.host import FarmAddress, Host, ServedFarm, TenantRecords, TenantView
from gridmill.process_log import log_to_standard_error
from gridmill.settings import Settings


class FarmAction(StrEnum):
    """The actions of the command `gridmill farm`."""

    INVITE = "invite"
    TENANTS = "tenants"
    ROTATE = "rotate"
    REVOKE = "revoke"


def farm(
    context: typer.Context,
    action: Annotated[
        FarmAction,
        typer.Argument(metavar="invite|tenants|rotate|revoke", help="Action."),
    ],
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="Name of the tenant to rotate or revoke.", show_default=False),
    ] = "",
    json: Json = False,
) -> None:
    """Manage the tenants of the farm on this machine (see `gridmill up --light`).

    `invite` prints a join line, which is valid once and for one hour. `tenants` lists the tenants. `rotate
    NAME` prints a line with which this tenant gets a new certificate and token. The old certificate and
    token are valid until then. `revoke NAME` refuses all further requests of the tenant, ends its pods and
    deletes its data.
    """
    with host_of(context).farm_desk(settings_of(context)) as desk:
        _check_name(action, name)
        _act(desk, action, name, json)


def notes(address: str, one_user: str) -> list[str]:
    """Return notes about limits of this farm that its administrator should know. Examples of such limits:
    the farm listens only on loopback, or the farm serves only a single tenant for the reason `one_user`."""
    host, port = read_address(address)
    alone = (
        f"{host} is reachable only from this machine. From another machine, join with "
        f"`--controller ssh://USER@{socket.gethostname()}/{address}`, or start the farm with "
        f"`--listen ADDRESS:{port}` and an address of this machine that tenants can reach"
    )
    one = f"this farm serves one tenant only: {one_user}"
    return [*([alone] if is_loopback(host) else []), *([one] if one_user else [])]


def _check_name(action: FarmAction, name: str) -> None:
    """Raise InputError if the action needs the name of a tenant and no name was given, or if it needs no
    name and a name was given."""
    names_one = action in (FarmAction.ROTATE, FarmAction.REVOKE)
    if names_one and not name:
        raise InputError(
            f"`gridmill farm {action.value}` needs the name of a tenant",
            hint="`gridmill farm tenants` lists them.",
        )
    if name and not names_one:
        raise InputError(
            f"`gridmill farm {action.value}` takes no name of a tenant",
            hint="Omit the name: a tenant is named after its machine and its home.",
        )


def _act(desk: TenantRecords, action: FarmAction, name: str, json: bool) -> None:
    if action == FarmAction.TENANTS:
        return _list(desk.tenants(), json)
    if action == FarmAction.REVOKE:
        desk.revoke(name)
        print_error(
            f"tenant {name} is revoked; while the farm runs, it stops the tenant's pods and deletes its data"
        )
        return emit({"revoked": name}) if json else None
    for note in notes(desk.listening.address, ""):
        print_error(note)
    line = join_line(desk.listening, desk.invite(name))
    return emit({"join": line}) if json else print(line)


def _list(lines: Sequence[TenantView], json: bool) -> None:
    if json:
        return emit(lines)
    if not lines:
        return print_error("no tenant has joined; to invite one: gridmill farm invite")
    rows = [
        (
            line.name,
            line.version,
            _when(line.added),
            _when(line.last_contact),
            line.user or "",
            line.deployments,
            show_bytes(line.disk_bytes),
            _state(line),
        )
        for line in lines
    ]
    head = ("tenant", "version", "joined", "last heard", "Unix user", "deployments", "disk", "")
    return console().print(table(*head, rows=rows))


def _state(line: TenantView) -> str:
    return "revoked" if line.revoked else ""


def _when(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def join_line(known: FarmAddress, secret: str) -> str:
    """Return the command line that a tenant pastes on the machine of its home."""
    message = f"--controller {known.address} --join {known.fingerprint}:{secret}"
    return f"gridmill add cluster {known.name} {message}"


T = TypeVar("T")
_POLL_SECONDS = 0.2
_EVERYWHERE = ("0.0.0.0", "::")
_SERVED = (SiteKind.LOCAL, SiteKind.SLURM, SiteKind.RAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmOptions:
    """The options of the command `up --light`."""

    listen: str
    site: str
    settings: dict[str, str]
    quota: str
    retain: str
    tenant_disk: str
    tenant_files: int | None
    name: str


def read_place(text: str, settings: dict[str, str], host: Host) -> Site:
    """Parse the site of a farm from a text of the form KIND or KIND:ADDRESS. Raises InputError, also for
    invalid settings, and UnavailableError."""
    kind, _, address = text.partition(":")
    kinds = {one.value: one for one in _SERVED}
    if kind not in kinds:
        raise InputError(
            f"a farm cannot run jobs at a site of kind {kind!r}",
            hint=f"The kinds are {', '.join(kinds)}.",
            place="--site",
        )
    if kind == SiteKind.RAY and not address:
        raise InputError(
            "the address of the Ray cluster is missing",
            hint="Write --site ray:HOST:6379 if this machine is a node of the cluster, else"
            " --site ray:ray://HOST:10001.",
            place="--site",
        )
    place = Site(name="farm", kind=kinds[kind], address=address or None, settings=settings)
    host.check_site(place)
    return place


def run_until_interrupted(host: Host, settings: Settings, told: FarmOptions, json: bool) -> None:
    """Run the farm until the user presses Ctrl-C. Raises InputError, UnavailableError, HomeInUseError."""
    address = read_address(told.listen, place="--listen")
    place = read_place(told.site, told.settings, host)
    quota = _read("--quota", parse_bytes, told.quota)
    retain = _read("--retain", parse_seconds, told.retain)
    limits = (read_limit("--tenant-disk", told.tenant_disk), told.tenant_files)
    log_to_standard_error(logging.INFO)
    with host.serve_farm(
        settings, place, address, quota_bytes=quota, retain_seconds=retain, limits=limits
    ) as served:
        _announce(served, settings, told.name, json)
        with InterruptHandler() as interrupts:
            while not interrupts.requested:
                time.sleep(_POLL_SECONDS)
    print_error("farm stopped; running jobs continue")


def read_limit(place: str, text: str) -> int | None:
    """Parse a number of bytes. The number 0 means no limit, and no value means the default. Raises
    InputError."""
    if not text:
        return None
    return 0 if text == "0" else _read(place, parse_bytes, text)


def _read(place: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=place) from error


def reachable(address: str) -> str:
    """Return the address HOST:PORT at which other machines reach the farm. If the farm listens on all
    addresses, HOST is the name of this machine."""
    host, port = read_address(address)
    return f"{socket.gethostname()}:{port}" if host in _EVERYWHERE else address


def _announce(served: ServedFarm, settings: Settings, name: str, json: bool) -> None:
    """Print the address of the farm. If no tenant has joined yet, also print a join line, which `gridmill
    farm invite` prints later."""
    place, fingerprint = reachable(served.address), served.fingerprint
    address = FarmAddress(name=name, address=place, fingerprint=fingerprint)
    served.announce(address)
    print_error(f"farm running at {place}, home {settings.home}")
    for note in notes(place, served.one_user):
        print_error(note)
    if joined := served.count_tenants():
        more = "" if served.one_user else "; to invite another one: gridmill farm invite"
        print_error(f"{show_count(joined, 'tenant')}{more}")
        return emit({"address": place, "fingerprint": fingerprint}) if json else None
    line = join_line(address, served.invite())
    print_error("At home, run this line within an hour (it is valid once):")
    return (
        emit({"address": place, "fingerprint": fingerprint, "join": line})
        if json
        else print(line, flush=True)
    )
