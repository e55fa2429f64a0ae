"""Runs the control node of `gridmill up` on the home's Unix socket and on a loopback port until it stops."""

import asyncio
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from gridmill.bootstrap.clients import RETURN_SECONDS, attend
from gridmill.bootstrap.home_lock import lock_home
from gridmill.bootstrap.node import EmbeddedNode, embed, warn
from gridmill.domain.frozen import dataclass
from gridmill.domain.views import ControlView
from gridmill.errors import HomeInUseError, UnavailableError
from gridmill.http.connections import raise_open_files
from gridmill.http.server import listen_at, serve
from gridmill.ports.grid import Grid
from gridmill.ports.host import ServedNode
from gridmill.process_memory import share_memory_areas
from gridmill.rpc.client import SOCKET, ask_to_end, differences
from gridmill.rpc.server import CallServer
from gridmill.sdk.discovery import answers
from gridmill.sdk.start_lock import asking
from gridmill.settings import Settings, is_farm
from gridmill.storage.home import make_home

_POLL_SECONDS = 0.2
_GIVE_WAY_SECONDS = 30.0
"""The number of seconds that `gridmill up` waits for an embedded control node to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningNode:
    """See `ports.host.ServedNode`."""

    node: EmbeddedNode
    control: ControlView
    url: str

    @property
    def grid(self) -> Grid:
        return self.node.grid

    @property
    def ending(self) -> bool:
        return self.node.node.ending

    def check_own(self) -> None:
        if self.node.node.taken_over is not None:
            raise self.node.node.taken_over


@contextmanager
def serve_node(
    settings: Settings, address: tuple[str, int] | None, *, take_over: bool, say: Callable[[str], None]
) -> Iterator[ServedNode]:
    """Runs a control node until the end of the `with` block. Raises HomeInUseError, StoreInUseError,
    StorageError, UnavailableError and InputError."""
    raise_open_files()
    share_memory_areas()
    with ExitStack() as ending:
        # listens first: if the address is in use, no other control node must have ended to make way
        listener = _listen(settings.home, *address) if address else None
        ending.callback(listener.close) if listener else None
        make_home(settings.home)
        # held until the announcement is written, so that the next process that asks sees it
        with asking(settings.home):
            node = _own(settings, take_over, say)
            ending.callback(node.close, tear_down=False)
            ending.enter_context(_with_clients(node, settings))
            token, url = secrets.token_urlsafe(32), ""
            apps = _Apps(node.grid, token)
            ending.callback(serve(apps.for_owner, socket_path=settings.home / "control.sock").stop)
            if address is not None:
                server = serve(apps.for_everybody, host=address[0], listener=listener)
                ending.callback(server.stop)
                url = server.address
            control = node.grid.control()
            announcement = {"pid": os.getpid(), "version": control.version, "url": url, "token": token}
            _announce(settings.home, announcement)
        yield _RunningNode(node=node, control=control, url=url)


class _Apps:
    """The HTTP application, which is made at the first request.

    The application is made late because commands on this machine do not use HTTP, and FastAPI with the
    routes takes half of the memory of an idle node.
    """

    def __init__(self, grid: Grid, token: str) -> None:
        self._grid, self._token = grid, token
        self._lock = threading.Lock()
        self._made: tuple[ASGIApp, ASGIApp] | None = None

    async def for_owner(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request on the Unix socket."""
        app, _ = await self._apps()
        await app(scope, receive, send)

    async def for_everybody(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request on the port, which must contain the token."""
        _, guarded = await self._apps()
        await guarded(scope, receive, send)

    async def _apps(self) -> tuple[ASGIApp, ASGIApp]:
        made = self._made
        return await asyncio.to_thread(self._make) if made is None else made

    def _make(self) -> tuple[ASGIApp, ASGIApp]:
        from gridmill.api.app import TokenMiddleware, make_app

        with self._lock:
            if self._made is None:
                app = make_app(self._grid)
                self._made = app, TokenMiddleware(app, token=self._token)
            return self._made


@contextmanager
def _with_clients(node: EmbeddedNode, settings: Settings) -> Iterator[None]:
    """Answers the calls of clients on this machine, and stops the runs of clients that disconnect."""
    attendance = attend(node, stays=True, warn=warn)
    server = CallServer(
        settings.home / SOCKET,
        node.grid,
        attendance,
        give_way=_raise_home_in_use,
        notices=lambda hello: differences(settings, hello, stays=True),
    )
    over = threading.Event()
    keeper = threading.Thread(target=attendance.keep, args=(over.is_set,), name="clients", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        attendance.wake()
        keeper.join()
        server.close()


def _raise_home_in_use() -> None:
    raise HomeInUseError(f"a control node (process {os.getpid()}) already owns the home")


def _listen(home: Path, host: str, port: int) -> socket.socket:
    """Listens at the address. Raises UnavailableError, or HomeInUseError if another control node of this
    home already listens at the address."""
    try:
        return listen_at(host, port)
    except UnavailableError:
        if (home / "control.lock").exists():
            # a control node that is starting holds this lock until it has written its announcement
            with asking(home):
                _want_unowned(home)
        raise


def _want_unowned(home: Path) -> None:
    try:
        lock_home(home).close()
    except HomeInUseError:
        if not _ends_for_server(home):
            raise


def _own(settings: Settings, take_over: bool, say: Callable[[str], None]) -> EmbeddedNode:
    """Starts the control node in this process. If an embedded control node owns the home, it is asked to
    end, and the new control node continues its runs. Raises HomeInUseError if the owner of the home does not
    end, or if this takes too long."""
    until, warned = time.monotonic() + _GIVE_WAY_SECONDS, False
    while True:
        try:
            return embed(settings, embedded=False, take_over=take_over, await_seconds=RETURN_SECONDS)
        except HomeInUseError as error:
            if not _ends_for_server(settings.home):
                raise
            if time.monotonic() > until:
                hint = "Stop that process, or the program that started it."
                raise HomeInUseError(f"{error.message} and does not end", hint=hint) from error
        if not warned:
            say("taking over from the control node that commands of this home share")
        warned = True
        _ask_owner_to_end(settings)
        time.sleep(_POLL_SECONDS)


def _ask_owner_to_end(settings: Settings) -> None:
    """Asks the control node that owns the home to end, and waits until it has ended."""
    link = answers(settings)
    if link is not None:
        with suppress(UnavailableError):  # the connection breaks because the control node ends
            ask_to_end(link)
        link.close()


def _ends_for_server(home: Path) -> bool:
    return not (is_farm(home) or is_permanent(home))


def is_permanent(home: Path) -> bool:
    """Returns whether the control node that owns the home was started by `gridmill up`. Only a control node
    of `gridmill up` writes the file control.json, so the file shows that this control node is the owner."""
    try:
        announced = json.loads((home / "control.json").read_text())["pid"]
        return bool(str(announced) == (home / "control.lock").read_text().strip())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _announce(home: Path, body: dict[str, object]) -> None:
    """Writes control.json atomically. Only this user can read control.json, because the file contains the
    token."""
    draft = home / "control.json.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(body, file)
    draft.replace(home / "control.json")
