"""`up --light`: a farm in the foreground, where jobs of others run."""

import logging
import socket
import time
from importlib import import_module
from typing import Any

from gridmill.cli.interrupts import Interrupts
from gridmill.cli.session import emit, say
from gridmill.errors import InputError
from gridmill.model.address import read_address
from gridmill.model.amounts import parse_bytes, parse_seconds, show_count
from gridmill.model.noun import dataclass
from gridmill.model.site import Site, SiteKind
from gridmill.settings import Settings

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


def read_place(text: str, settings: dict[str, str]) -> Site:
    """KIND or KIND:ADDRESS. Raises InputError."""
    kind, _, address = text.partition(":")
    known = {one.value: one for one in _SERVED}
    if kind not in known:
        raise InputError(
            f"a farm has no site of kind {kind!r}", hint=f"There are: {', '.join(known)}.", place="--site"
        )
    return Site(name="farm", kind=known[kind], address=address or None, settings=settings)


def stay(settings: Settings, told: Light, json: bool) -> None:
    """Until Ctrl-C. Raises InputError, UnavailableError, HomeInUseError."""
    address = read_address(told.listen, place="--listen")
    place = read_place(told.site, told.settings)
    quota, retain = parse_bytes(told.quota), parse_seconds(told.retain)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    start: Any = import_module("gridmill.farm.start")
    start.want_tls()
    with import_module("gridmill.bootstrap").lock_home(settings.home):
        running = start.start(settings, place, address, quota_bytes=quota, retain_seconds=retain)
        try:
            _announce(running, settings, told.name, json)
            with Interrupts() as interrupts:
                while not interrupts.asked:
                    time.sleep(_LOOK_SECONDS)
        finally:
            running.stop()
    say("farm down; jobs that run go on")


def reachable(address: str) -> str:
    """HOST:PORT as others dial it: where all addresses of this machine are listened at, by its name."""
    host, port = read_address(address)
    return f"{socket.gethostname()}:{port}" if host in _EVERYWHERE else address


def _announce(running: Any, settings: Settings, name: str, json: bool) -> None:  # noqa: ANN401  loaded late
    """The first time with a join line; later ones come from `gridmill farm invite`."""
    inviting: Any = import_module("gridmill.cli.farm")
    place = reachable(running.server.address.removeprefix("https://"))
    fingerprint = running.farm.authority.fingerprint
    known = inviting.note_address(
        settings, inviting.Listening(name=name, address=place, fingerprint=fingerprint)
    )
    say(f"farm up at {place}, home {settings.home}")
    joined = running.farm.records.all(import_module("gridmill.farm.source").Source)
    if joined:
        say(f"{show_count(len(joined), 'source')}; `gridmill farm invite` prints a line for another one")
        return emit({"address": place, "fingerprint": fingerprint}) if json else None
    secret = import_module("gridmill.farm.joining").invite(running.farm.records, time.time())
    line = inviting.join_line(known, secret)
    say("Within an hour, once, at home:")
    return (
        emit({"address": place, "fingerprint": fingerprint, "join": line})
        if json
        else print(line, flush=True)
    )
