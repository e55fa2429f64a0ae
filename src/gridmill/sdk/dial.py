"""Finding a control node: the one that is up for a home, the one at an address, or one embedded here."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gridmill.errors import InputError, UnavailableError
from gridmill.model.noun import dataclass
from gridmill.ports.grid import Grid
from gridmill.registry import find
from gridmill.settings import Settings, read_settings


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

    Raises UnavailableError when none is up and `embed` is false, HomeInUseError when one owns the home but
    does not listen (yet).
    """
    path = settings.home / "control.sock"
    if _listens(path):
        grid = import_module("gridmill.sdk.http").over_socket(path)
        return Dialled(grid=grid, close=grid.close)
    if not embed:
        raise UnavailableError(
            f"no control node is up for {settings.home}", hint="Start one with `gridmill up`."
        )
    node = import_module("gridmill.bootstrap").read(settings) if reading else _embedded(settings)
    give_way = None if reading else partial(node.close, tear_down=False)
    return Dialled(
        grid=node.grid, close=node.close, embedded=True, release=node.node.begin_release, give_way=give_way
    )


def _embedded(settings: Settings) -> Any:  # noqa: ANN401  what is embedded is imported here
    site = find("sites", "local")(settings)
    site.prepare()  # its process starts while this one imports the control node
    return import_module("gridmill.bootstrap").embed(settings, site=site)


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


def _listens(path: Path) -> bool:
    if not path.exists():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
