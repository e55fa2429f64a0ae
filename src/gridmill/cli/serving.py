"""Makes a control node of this process reachable: on the home's Unix socket, and on a loopback port."""

from collections.abc import Callable
from pathlib import Path

from gridmill.api.app import make_app
from gridmill.cli.session import say
from gridmill.errors import GridmillError
from gridmill.http.server import Server, serve
from gridmill.ports.grid import Grid
from gridmill.sdk.client import Client
from gridmill.sdk.connected import let_others_in


def listen(grid: Grid, home: Path) -> Server:
    """Serve on HOME/control.sock. Raises UnavailableError, InputError."""
    return serve(make_app(grid), socket_path=home / "control.sock")


def make_reachable(client: Client) -> None:
    """Listen until the client is closed; where that cannot be, the run goes on unreachable."""

    def begin(grid: Grid) -> Callable[[], None]:
        return listen(grid, client.settings.home).stop

    try:
        let_others_in(client, begin)
    except GridmillError as error:
        say(f"other commands cannot reach this run: {error}")
