"""Serves an ASGI application from a background thread, on a Unix socket or a port, there also over TLS.

TCP connections end by themselves if the network is cut or the machine at the other end is gone.
"""

import errno
import socket
import ssl
import threading
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, UnavailableError
from gridmill.http.connections import Acceptor, Limits, within_descriptors

_ALIVE = (  # shows within 20 s, also where nothing is to be said
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
)
_UNREAD = (("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 20_000),)


def keep_alive(connection: socket.socket, *, reads: bool = False) -> None:
    """A connection, or one that listens: what it accepts is as it is. Where the other end `reads` without a
    pause, what it has not taken for 20 s ends it too. What this machine does not know it goes without."""
    for name, level, value in _ALIVE + (_UNREAD if reads else ()):
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)


UNSENT_BYTES = 1 << 17


def little_unsent(connection: socket.socket) -> None:
    """What is sent is soon on its way: of what waits before a thin line the kernel takes no more than this.
    Without it counts as sent what takes seconds until it is."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


_START_SECONDS = 15.0
_STOP_SECONDS = 5.0
_SOCKET_PATH_BYTES = 100
_LIMITS = Limits()


class _Server(uvicorn.Server):
    """Tells when it has started. In a thread that is not the main one it touches no signals."""

    def __init__(self, config: uvicorn.Config, acceptor: Acceptor) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._acceptor = acceptor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which is given no socket; then accept."""
        await super().startup(sockets)
        self._acceptor.start(self)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; nothing is accepted any more."""
        self._acceptor.stop()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server; `address` is `unix:PATH` or `http://HOST:PORT`."""

    address: str
    _server: _Server
    _thread: threading.Thread
    _socket: socket.socket
    _path: Path | None = None

    def stop(self) -> None:
        """End it; open requests get a moment. May be repeated."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def serve(
    app: ASGIApp,
    *,
    socket_path: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    listener: socket.socket | None = None,
    limits: Limits = _LIMITS,
) -> Server:
    """Start serving; returns when it answers. With `socket_path` on that, else on HOST:PORT (0: any free), or
    with `listener` on what `listen_at` gave for that.

    With `tls` each request's scope has `gridmill.certificate`, see `http.connections.Connection`.
    The socket file is the owner's alone (0600); a stale one is replaced, so hold the home's lock.
    Raises UnavailableError when the address is taken, InputError when the path is too long.
    """
    listener = listener or (_unix(socket_path) if socket_path else listen_at(host, port))
    place = f"{_shown(host)}:{listener.getsockname()[1]}"
    address = f"unix:{socket_path}" if socket_path else f"{'https' if tls else 'http'}://{place}"
    server = _Server(_config(app), Acceptor(listener, tls, within_descriptors(limits)))
    server.config.app = _with_stopping(app, server)
    thread = threading.Thread(target=server.run, args=([],), name="gridmill-api", daemon=True)
    thread.start()
    if not server.ready.wait(_START_SECONDS):
        raise UnavailableError(f"the API did not start on {address}")
    return Server(address=address, _server=server, _thread=thread, _socket=listener, _path=socket_path)


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=3,
    )


def _with_stopping(app: ASGIApp, server: uvicorn.Server) -> ASGIApp:
    """Lets long polls see that the server is to stop."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        scope["gridmill.stopping"] = lambda: server.should_exit
        await app(scope, receive, send)

    return told


def _unix(path: Path) -> socket.socket:
    if len(str(path).encode()) > _SOCKET_PATH_BYTES:
        raise InputError(
            f"the path of the control socket is too long for Unix ({path})",
            hint="Set GRIDMILL_HOME to a shorter path.",
        )
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)  # before listen: until then nobody can connect
    listener.listen(128)
    return listener


_ANOTHER = "Choose another port with `--listen HOST:PORT` (0: any free one)."
_ELSEWHERE = "`--listen` takes an address of this machine: `hostname -I` lists them."


def listen_at(host: str, port: int) -> socket.socket:
    """That port (0: any free), taken: who connects waits until it is served. Raises UnavailableError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keep_alive(listener)  # else who is cut off in the middle of a request is waited for for ever
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint=_ELSEWHERE if error.errno == errno.EADDRNOTAVAIL else _ANOTHER,
        ) from error
    listener.listen(128)
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
