"""Finds a control node: the one that runs for a home, the one at an address, or a new one."""

import json
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

from gridmill.domain.frozen import dataclass
from gridmill.errors import HomeInUseError, InputError, UnavailableError, UnreachedError
from gridmill.plugins import find
from gridmill.ports.grid import Grid
from gridmill.rpc.client import SOCKET, ClientLink, connect_to
from gridmill.rpc.protocol import Hello
from gridmill.sdk.embedded_node import LOG, start_node
from gridmill.sdk.start_lock import asking_if_free
from gridmill.settings import Settings, as_variables, chosen_variables, read_settings, whole_environment
from gridmill.storage.filesystem import check_home
from gridmill.storage.home import make_home
from gridmill.version import __version__

_TURN_SECONDS = 120.0
"""How long this process waits for another one that starts a control node."""
_STARTS = 3
"""How often a control node is started if the one before does not answer, or is killed at once."""
_LOOK_SECONDS = 0.02
_COMMAND_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGrid:
    """An open grid and the function that closes it. `reading`: there is no control node, and its records are
    read here."""

    grid: Grid
    close: Callable[[], None]
    reading: bool = False
    release: Callable[[], None] = lambda: None
    """No more work comes from here: what a control node that ends with its clients brought up may go."""
    starting: Callable[[bool, str, bool], Grid] | None = None
    """The same grid for the start of one run: whether it ends with this client, what we know it by, and
    whether it was asked for before and no answer came. None: it cannot be asked for again."""
    attend: Callable[[str], None] = lambda run: None
    """That run ends with this client from now on."""
    has_ended: Callable[[], bool] = lambda: False
    """After a call failed: whether another control node is to be looked for."""
    wait_for_end: Callable[[float], bool] = lambda seconds: False
    """Whether the control node ends within that time."""
    notices: tuple[str, ...] = ()
    """How its settings differ from ours."""


def home_settings(home: str | Path | None) -> Settings:
    """The environment's settings, for another home when one is given. Raises InputError."""
    settings = read_settings()
    if home is None:
        return settings
    folder = Path(home).expanduser().absolute()
    root = folder / "storage" if settings.root == settings.home / "storage" else settings.root
    return replace(settings, home=folder, root=root)


def open_home(
    settings: Settings, *, embed: bool, reading: bool = False, attends: Collection[str] = ()
) -> OpenGrid:
    """The control node that is up for the home; else one that is started for as long as it has clients, or
    (`reading`) only the records. `attends` are runs that this client waits for.

    One that owns the home and does not answer may be about to end, or to listen: it is waited for. Raises
    UnavailableError when none is up and `embed` is false, HomeInUseError when one neither ends nor listens.
    """
    link = _answering(settings, attends)
    if link is not None:
        return _opened(link)
    if not embed:
        raise UnavailableError(
            f"no control node is up for {settings.home}", hint="Start one with `gridmill up`."
        )
    if reading:
        node = find("grids", "records")(settings)
        return OpenGrid(grid=node.grid, close=node.close, reading=True)
    return _opened(_started(settings, attends))


def answers(settings: Settings) -> ClientLink | None:
    """The control node that is up for the home; None where nobody answers."""
    return _answering(settings, ())


def _opened(link: ClientLink) -> OpenGrid:
    return OpenGrid(
        grid=link.grid(),
        close=link.close,
        release=link.release,
        starting=lambda attend, key, again: link.grid(attend=attend, key=key, again=again),
        attend=link.attend,
        has_ended=link.has_ended,
        wait_for_end=link.wait_for_end,
        notices=link.welcome.notices,
    )


def _answering(settings: Settings, attends: Collection[str]) -> ClientLink | None:
    try:
        return connect_to(settings.home / SOCKET, _hello(settings, attends), _warn)
    except UnreachedError:
        return None


def _hello(settings: Settings, attends: Collection[str]) -> Hello:
    command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
    return Hello(
        command=command[:_COMMAND_CHARACTERS],
        version=__version__,
        python=sys.prefix,
        settings=as_variables(settings),
        chosen=chosen_variables(),
        environment=whole_environment(),
        attends=tuple(attends),
    )


def _warn(message: str) -> None:
    """What the control node has to say while we are its client."""
    print(f"gridmill: {message}", file=sys.stderr)


def _started(settings: Settings, attends: Collection[str]) -> ClientLink:
    """A control node's, started here unless somebody else does: then it is waited for."""
    if not settings.store:
        check_home(settings.home)
    make_home(settings.home)
    until, starts = time.monotonic() + _TURN_SECONDS, 0
    while True:
        with asking_if_free(settings.home) as ours:
            link = _answering(settings, attends) or (_start(settings, attends) if ours else None)
        if link is not None:
            return link
        starts += ours
        if starts >= _STARTS:
            log = settings.home / LOG
            raise UnavailableError(f"no control node for {settings.home} starts", hint=f"{log} says why.")
        if not ours and time.monotonic() > until:
            message = f"somebody has been starting a control node for {settings.home} for {_TURN_SECONDS:g} s"
            raise HomeInUseError(message, hint="End that `gridmill up`, or that command, and try again.")
        time.sleep(_LOOK_SECONDS)


def _start(settings: Settings, attends: Collection[str]) -> ClientLink | None:
    """None where it was killed, or has ended, before we came."""
    starter = start_node(settings)
    if starter is None:
        return None
    with starter:
        return _answering(settings, attends)


def open_url(url: str, token: str | None, settings: Settings) -> OpenGrid:
    """The control node at `http://HOST:PORT`; the token is read from the home when not given."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no address of a control node", hint="Write http://127.0.0.1:8700.")
    from gridmill.sdk.grid_http import over_tcp  # and with it OpenSSL: homes are reached without

    announced = _announced(settings.home)
    pid = announced.get("pid") if announced.get("url") == url.rstrip("/") else 0
    grid = over_tcp(url, token or read_token(settings.home), pid if isinstance(pid, int) else 0)
    return OpenGrid(grid=cast(Grid, grid), close=grid.close, has_ended=lambda: True)


def read_token(home: Path) -> str | None:
    """The token that `gridmill up` wrote into the home, if there is one."""
    token = _announced(home).get("token")
    return token if isinstance(token, str) else None


def _announced(home: Path) -> dict[str, object]:
    """What `gridmill up` wrote into the home; nothing where it did not."""
    try:
        body = json.loads((home / "control.json").read_text())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
