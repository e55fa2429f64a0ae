"""The command `farm`: manages on the farm's machine who may use the farm."""

import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from gridmill.cli.session import Json, console, emit, host_of, say, settings_of
from gridmill.cli.tables import table
from gridmill.domain.naming import is_loopback, read_address
from gridmill.errors import InputError
from gridmill.ports.host import FarmDesk, Listening, SourceLine


class Action(StrEnum):
    """What is done."""

    INVITE = "invite"
    SOURCES = "sources"
    ROTATE = "rotate"
    REVOKE = "revoke"


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
    with host_of(context).farm_desk(settings_of(context)) as desk:
        _check_name(action, name)
        _act(desk, action, name, json)


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


def _act(desk: FarmDesk, action: Action, name: str, json: bool) -> None:
    if action == Action.SOURCES:
        return _list(desk.sources(), json)
    if action == Action.REVOKE:
        desk.revoke(name)
        say(f"source {name} is revoked; its pods end, and what it had here goes, while the farm is up")
        return emit({"revoked": name}) if json else None
    for note in notes(desk.listening.address, ""):
        say(note)
    line = join_line(desk.listening, desk.invite(name))
    return emit({"join": line}) if json else print(line)


def _list(lines: Sequence[SourceLine], json: bool) -> None:
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
