"""Finding a control node: the one that is up for a home, the one at an address, or one embedded here."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from gridmill.errors import HomeInUseError, InputError, UnavailableError
from gridmill.model.noun import dataclass
from gridmill.ports.grid import Grid
from gridmill.registry import find
from gridmill.settings import Settings, is_farm, read_settings

_LEAVING_SECONDS = 15.0
"""How long is waited for a control node that owns the home and does not answer: one that a run brought along
listens once the run has taken some time, or ends with it."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """A grid and how to let go of it. `embedded`: its control node lives in this process."""

    grid: Grid
    close: Callable[[], None]
    embedded: bool = False
    release: Callable[[], None] = lambda: None
    """No more work comes from here: what an embedded control node brought up may go."""
    give_way: Callable[[], None] | None = None
    """Ends an embedded control node, and leaves what it brought up to the next one."""


def home_settings(home: str | Path | None) -> Settings:
    """The environment's settings, for another home when one is given. Raises InputError."""
    settings = read_settings()
    if home is None:
        return settings
    folder = Path(home).expanduser().absolute()
    root = folder / "storage" if settings.root == settings.home / "storage" else settings.root
    return replace(settings, home=folder, root=root)


def dial_home(settings: Settings, *, embed: bool, reading: bool = False) -> Dialled:
    """The control node that is up for the home; else one embedded here, or (`reading`) only its records.

    One that owns the home and does not answer may be about to end, or to listen: it is waited for. Raises
    UnavailableError when none is up and `embed` is false, HomeInUseError when one neither ends nor listens.
    """
    path, until = settings.home / "control.sock", time.monotonic() + _LEAVING_SECONDS
    found = _answering(path)
    if found is not None:
        return found
    if not embed:
        raise UnavailableError(
            f"no control node is up for {settings.home}", hint="Start one with `gridmill up`."
        )
    if reading:
        node = import_module("gridmill.bootstrap").read(settings)
        return Dialled(grid=node.grid, close=node.close, embedded=True, release=node.node.begin_release)
    while True:
        try:
            return _embedded(settings, lambda: time.monotonic() < until and not path.exists())
        except HomeInUseError:
            found = None if is_farm(settings.home) else _answering(path)
            if found is not None:
                return found
            if is_farm(settings.home) or time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS)


def _answering(path: Path) -> Dialled | None:
    """The control node behind that socket. None where nobody answers: it may have just stopped listening."""
    if not path.exists():
        return None
    grid = import_module("gridmill.sdk.http").over_socket(path)
    try:
        grid.control()
    except UnavailableError:
        grid.close()
        return None
    return Dialled(grid=grid, close=grid.close)


def _embedded(settings: Settings, waits: Callable[[], bool]) -> Dialled:
    site = find("sites", "local")(settings)
    site.prepare()  # its process starts while this one imports the control node
    node = import_module("gridmill.bootstrap").embed(settings, site=site, waits=waits)
    give_way = partial(node.close, tear_down=False)
    return Dialled(
        grid=node.grid, close=node.close, embedded=True, release=node.node.begin_release, give_way=give_way
    )


def dial_url(url: str, token: str | None, settings: Settings) -> Dialled:
    """The control node at `http://HOST:PORT`; the token is read from the home when not given."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no address of a control node", hint="Write http://127.0.0.1:8700.")
    grid = import_module("gridmill.sdk.http").over_tcp(url, token or read_token(settings.home))
    return Dialled(grid=grid, close=grid.close)


def read_token(home: Path) -> str | None:
    """The token that `gridmill up` wrote into the home, if there is one."""
    try:
        token = json.loads((home / "control.json").read_text()).get("token")
    except (OSError, ValueError, AttributeError):
        return None
    return token if isinstance(token, str) else None
