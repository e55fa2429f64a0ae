"""The command `up --light`: runs a farm in the foreground, which executes jobs of others."""

import logging
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from gridmill.cli.farm import join_line, notes
from gridmill.cli.session import Interrupts, emit, say
from gridmill.domain.amounts import parse_bytes, parse_seconds, show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import read_address
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.ports.host import Host, Listening, ServedFarm
from gridmill.settings import Settings

T = TypeVar("T")
_LOOK_SECONDS = 0.2
_EVERYWHERE = ("0.0.0.0", "::")
_SERVED = (SiteKind.LOCAL, SiteKind.SLURM, SiteKind.RAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """What `up --light` was told."""

    listen: str
    site: str
    settings: dict[str, str]
    quota: str
    retain: str
    name: str


def read_place(text: str, settings: dict[str, str], host: Host) -> Site:
    """KIND or KIND:ADDRESS. Raises InputError, also for settings that cannot be, UnavailableError."""
    kind, _, address = text.partition(":")
    known = {one.value: one for one in _SERVED}
    if kind not in known:
        raise InputError(
            f"a farm has no site of kind {kind!r}", hint=f"There are: {', '.join(known)}.", place="--site"
        )
    if kind == SiteKind.RAY and not address:
        raise InputError(
            "a Ray cluster has an address",
            hint="Write ray:HOST:6379 of the head where this machine is a node of it, or ray:ray://HOST:10001.",
            place="--site",
        )
    place = Site(name="farm", kind=known[kind], address=address or None, settings=settings)
    host.check_site(place)
    return place


def stay(host: Host, settings: Settings, told: Light, json: bool) -> None:
    """Until Ctrl-C. Raises InputError, UnavailableError, HomeInUseError."""
    address = read_address(told.listen, place="--listen")
    place = read_place(told.site, told.settings, host)
    quota = _read("--quota", parse_bytes, told.quota)
    retain = _read("--retain", parse_seconds, told.retain)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with host.serve_farm(settings, place, address, quota_bytes=quota, retain_seconds=retain) as served:
        _announce(served, settings, told.name, json)
        with Interrupts() as interrupts:
            while not interrupts.asked:
                time.sleep(_LOOK_SECONDS)
    say("farm down; jobs that run go on")


def _read(place: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=place) from error


def reachable(address: str) -> str:
    """HOST:PORT as others dial it: where all addresses of this machine are listened at, by its name."""
    host, port = read_address(address)
    return f"{socket.gethostname()}:{port}" if host in _EVERYWHERE else address


def _announce(served: ServedFarm, settings: Settings, name: str, json: bool) -> None:
    """The first time with a join line; later ones come from `gridmill farm invite`."""
    place, fingerprint = reachable(served.address), served.fingerprint
    known = Listening(name=name, address=place, fingerprint=fingerprint)
    served.announce(known)
    say(f"farm up at {place}, home {settings.home}")
    for note in notes(place, served.one_user):
        say(note)
    if joined := served.count_sources():
        more = "" if served.one_user else "; `gridmill farm invite` prints a line for another one"
        say(f"{show_count(joined, 'source')}{more}")
        return emit({"address": place, "fingerprint": fingerprint}) if json else None
    line = join_line(known, served.invite())
    say("Within an hour, once, at home:")
    return (
        emit({"address": place, "fingerprint": fingerprint, "join": line})
        if json
        else print(line, flush=True)
    )
