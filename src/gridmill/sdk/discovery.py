"""Finds a control node: the running control node of a home, the control node at an address, or a new control
node."""

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
"""The time in seconds for which this process waits while another process starts a control node."""
_STARTS = 3
"""The number of attempts to start a control node, if it does not answer or is killed immediately."""
_POLL_SECONDS = 0.02
_COMMAND_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGrid:
    """An open connection to a control node, and the function that closes it. If `reading` is true, no
    control node is running, and this process itself reads the records."""

    grid: Grid
    close: Callable[[], None]
    reading: bool = False
    release: Callable[[], None] = lambda: None
    """A function that declares that this client starts no more runs, so that a control node that ends with
    its clients may end idle pods."""
    starting: Callable[[bool, str, bool], Grid] | None = None
    """A function that returns a connection to the same control node for starting a single run. The function
    takes three arguments: whether the run ends with this client, the key that the client chose for the run,
    and whether an earlier request got no answer. If the field `starting` is None, the start of a run cannot
    be repeated."""
    attend: Callable[[str], None] = lambda run: None
    """A function that ties a run to this client, so that the run ends with the client."""
    has_ended: Callable[[], bool] = lambda: False
    """A function that is called after a failed call. The function returns True if the control node has
    ended, so that the client searches for the next control node."""
    wait_for_end: Callable[[float], bool] = lambda seconds: False
    """A function that waits for the end of the control node, at most the given number of seconds, and
    returns whether it has ended."""
    notices: tuple[str, ...] = ()
    """Texts about settings of the control node that differ from the settings of the client."""


def home_settings(home: str | Path | None) -> Settings:
    """Return the settings from the environment, with another home if `home` is given. Raises InputError."""
    settings = read_settings()
    if home is None:
        return settings
    folder = Path(home).expanduser().absolute()
    root = folder / "storage" if settings.root == settings.home / "storage" else settings.root
    return replace(settings, home=folder, root=root)


def open_home(
    settings: Settings, *, embed: bool, reading: bool = False, attends: Collection[str] = ()
) -> OpenGrid:
    """Open the running control node of the home.

    If no control node is running, start a control node that ends with its last client. With `reading`, open
    only the records instead. `attends` are the runs for which this client waits. If a control node owns the
    home and does not answer, it may be starting or ending, so this function waits for it. Raises
    UnavailableError if no control node is running and `embed` is false, HomeInUseError if a control node
    neither ends nor answers.
    """
    link = _answering(settings, attends)
    if link is not None:
        return _opened(link)
    if not embed:
        raise UnavailableError(
            f"no control node is running for {settings.home}", hint="Start one: gridmill up"
        )
    if reading:
        node = find("grids", "records")(settings)
        return OpenGrid(grid=node.grid, close=node.close, reading=True)
    return _opened(_started(settings, attends))


def answers(settings: Settings) -> ClientLink | None:
    """Return a connection to the running control node of the home, or None if no control node answers."""
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
    """Print a warning of the control node for the user of this client."""
    print(f"gridmill: {message}", file=sys.stderr)


def _started(settings: Settings, attends: Collection[str]) -> ClientLink:
    """Return a connection to a control node that this process starts. If another process is already starting
    a control node, wait for that control node."""
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
            raise UnavailableError(
                f"the control node for {settings.home} does not start",
                hint=f"The reason is in its log: tail {log}",
            )
        if not ours and time.monotonic() > until:
            message = (
                f"another process has been starting a control node for {settings.home} for "
                f"{_TURN_SECONDS:g} s"
            )
            raise HomeInUseError(
                message, hint="Stop that process (`gridmill up` or another command), and retry."
            )
        time.sleep(_POLL_SECONDS)


def _start(settings: Settings, attends: Collection[str]) -> ClientLink | None:
    """Start a control node and connect to it. Return None if the control node was killed or ended before it
    answered."""
    starter = start_node(settings)
    if starter is None:
        return None
    with starter:
        return _answering(settings, attends)


def open_url(url: str, token: str | None, settings: Settings) -> OpenGrid:
    """Connect to the control node at `http://HOST:PORT`. The default token is the token of the home."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is not an address of a control node", hint="Write http://127.0.0.1:8700.")
    # imported here, because it loads OpenSSL, which connections to a home do not need
    from gridmill.sdk.grid_http import over_tcp

    announced = _announced(settings.home)
    pid = announced.get("pid") if announced.get("url") == url.rstrip("/") else 0
    grid = over_tcp(url, token or read_token(settings.home), pid if isinstance(pid, int) else 0)
    return OpenGrid(grid=cast(Grid, grid), close=grid.close, has_ended=lambda: True)


def read_token(home: Path) -> str | None:
    """Return the token that `gridmill up` wrote into the home, or None if there is no token."""
    token = _announced(home).get("token")
    return token if isinstance(token, str) else None


def _announced(home: Path) -> dict[str, object]:
    """Return the content of the file that `gridmill up` wrote into the home. The result is empty if there is
    no file."""
    try:
        body = json.loads((home / "control.json").read_text())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
