"""`farm`: on the farm's machine, who may use it."""

import os
import socket
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridmill.cli.session import Json, console, emit, say, settings_of
from gridmill.cli.tables import table
from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import is_loopback, read_address
from gridmill.errors import InputError, NotFoundError
from gridmill.settings import Settings

if TYPE_CHECKING:
    from gridmill.farm.store import Records


class Action(StrEnum):
    """What is done."""

    INVITE = "invite"
    SOURCES = "sources"
    ROTATE = "rotate"
    REVOKE = "revoke"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """What a join line says of the farm: nothing of it is secret."""

    name: str
    address: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A source as `farm sources` tells of it; times are Unix times."""

    name: str
    version: str
    added: float
    heard: float
    user: int | None
    deployments: int
    revoked: bool


def farm(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(metavar="invite|sources|rotate|revoke", help="What is done.")],
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Of the source, to rotate or revoke.", show_default=False)
    ] = "",
    json: Json = False,
) -> None:
    """Say who may use the farm on this machine (see `gridmill up --light`).

    invite prints a join line, which holds once and for an hour; sources lists who has joined; rotate NAME
    prints a line by which that source gets a new certificate and token (its old ones hold until then);
    revoke NAME takes nothing more from it, ends its pods and removes what it had here.
    """
    settings = settings_of(context)
    known = listening(settings)
    _check_name(action, name)
    from gridmill.farm.main import open_records

    records = open_records(settings)
    try:
        _act(records, action, name, known, json)
    finally:
        records.close()


def notes(address: str, one_user: str) -> list[str]:
    """What whoever starts a farm may not expect of it; `one_user` says why it serves one source only."""
    host, port = read_address(address)
    alone = (
        f"{host} is this machine alone: from elsewhere it is joined with "
        f"`--controller ssh://USER@{socket.gethostname()}/{address}`, or start it with "
        f"`--listen ADDRESS:{port}`, an address of this machine that sources reach"
    )
    one = f"it serves one source only: {one_user}"
    return [*([alone] if is_loopback(host) else []), *([one] if one_user else [])]


def _check_name(action: Action, name: str) -> None:
    """Raises InputError where a source is to be named and is not, and the other way round."""
    names_one = action in (Action.ROTATE, Action.REVOKE)
    if names_one and not name:
        raise InputError(
            f"`gridmill farm {action.value}` needs the name of a source",
            hint="`gridmill farm sources` lists them.",
        )
    if name and not names_one:
        raise InputError(
            f"`gridmill farm {action.value}` names no source",
            hint="Leave the name out: a source has the name of its machine and a mark of its home.",
        )


def _act(records: "Records", action: Action, name: str, known: Listening, json: bool) -> None:
    from gridmill.farm import join as joining

    if action == Action.SOURCES:
        return _list(records, json)
    if action == Action.REVOKE:
        source = joining.revoke(records, name)
        say(f"source {source.name} is revoked; its pods end, and what it had here goes, while the farm is up")
        return emit({"revoked": source.name}) if json else None
    for note in notes(known.address, ""):
        say(note)
    line = join_line(known, joining.invite(records, time.time(), name))
    return emit({"join": line}) if json else print(line)


def _list(records: "Records", json: bool) -> None:
    from gridmill.farm import deployment as lodging
    from gridmill.farm import tenant as nouns

    heard = {one.source: one.time for one in records.all(nouns.Heard)}
    here = [one.source for one in records.all(lodging.Lodging) if one.state in lodging.HAS_ROOM]
    lines = [
        SourceLine(
            name=one.name,
            version=one.version,
            added=one.added,
            heard=heard.get(one.name, one.added),
            user=one.user,
            deployments=here.count(one.name),
            revoked=one.revoked,
        )
        for one in records.all(nouns.Source)
    ]
    if json:
        return emit(lines)
    if not lines:
        return say("no source has joined; `gridmill farm invite` prints a line for one")
    rows = [
        (
            one.name,
            one.version,
            _when(one.added),
            _when(one.heard),
            one.user or "",
            one.deployments,
            _state(one),
        )
        for one in lines
    ]
    head = ("source", "version", "joined", "last heard", "Unix user", "deployments", "")
    return console().print(table(*head, rows=rows))


def _state(line: SourceLine) -> str:
    return "revoked" if line.revoked else ""


def _when(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def join_line(known: Listening, secret: str) -> str:
    """What is pasted at home."""
    told = f"--controller {known.address} --join {known.fingerprint}:{secret}"
    return f"gridmill add cluster {known.name} {told}"


def note_address(settings: Settings, known: Listening) -> Listening:
    """Keep what later join lines say."""
    path = _path(settings)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(encode(known))
    draft.rename(path)
    return known


def listening(settings: Settings) -> Listening:
    """What the home's farm said when it was up last. Raises NotFoundError where there is none."""
    try:
        return decode(_path(settings).read_bytes(), Listening)
    except OSError as error:
        raise NotFoundError(
            f"there is no farm in {settings.home}",
            hint="`gridmill up --light --listen HOST:PORT` starts one; GRIDMILL_HOME says where it lives.",
        ) from error


def _path(settings: Settings) -> Path:
    return settings.home / "farm" / "listening.json"
