"""Serves an ASGI application from a background thread, on a Unix socket or on a port, and optionally over
TLS.

TCP connections end by themselves if the network is interrupted or the machine at the other end fails.
"""

import errno
import os
import socket
import ssl
import threading
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, UnavailableError
from gridmill.http.connections import Acceptor, Limits, within_descriptors

_ALIVE = (  # so that a lost peer is detected within 20 s, also on an idle connection
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
)
_UNREAD = (("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 20_000),)


def keep_alive(connection: socket.socket, *, reads: bool = False) -> None:
    """Sets the keepalive options of a connection, or of a listener whose connections inherit them. With
    `reads` (the other end reads without pauses), the connection also ends if sent data is not acknowledged
    for 20 s. Options that this system does not support are skipped."""
    for name, level, value in _ALIVE + (_UNREAD if reads else ()):
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)


UNSENT_BYTES = 1 << 17


def little_unsent(connection: socket.socket) -> None:
    """Limits the number of unsent bytes that the kernel buffers for a slow connection. Without this limit,
    data is regarded as sent several seconds before it leaves the machine."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


_START_SECONDS = 15.0
_STOP_SECONDS = 5.0
_SOCKET_PATH_BYTES = 100
_LIMITS = Limits()


class _Server(uvicorn.Server):
    """A uvicorn server that sets an event when it has started. If the server does not run in the main
    thread, it changes no signal handlers."""

    def __init__(self, config: uvicorn.Config, acceptor: Acceptor) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._acceptor = acceptor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts as uvicorn does, but without a socket, and then accepts connections."""
        await super().startup(sockets)
        self._acceptor.start(self)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting connections, and then shuts down as uvicorn does."""
        self._acceptor.stop()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server. The `address` of the server is `unix:PATH` or `http://HOST:PORT`."""

    address: str
    _server: _Server
    _thread: threading.Thread
    _socket: socket.socket
    _path: Path | None = None

    def stop(self) -> None:
        """Stops the server. Requests that are still running get a short time to end. The call can be
        repeated."""
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
    """Starts a server and returns when the server answers. The server listens at the Unix socket
    `socket_path` if it is set, otherwise at the socket `listener` (from `listen_at`) if it is set, and
    otherwise at HOST:PORT (port 0 means any free port).

    With `tls`, the scope of each request contains `gridmill.certificate`; see `http.connections.Connection`.
    Only the owner can open the socket file (mode 0600). An old socket file is replaced, so the caller must
    hold the lock of the home. Raises UnavailableError if the address is in use, and InputError if the path
    is too long.
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
    """Returns middleware by which a long poll can check whether the server is stopping."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        scope["gridmill.stopping"] = lambda: server.should_exit
        await app(scope, receive, send)

    return told


def _unix(path: Path) -> socket.socket:
    if len(str(path).encode()) > _SOCKET_PATH_BYTES:
        raise InputError(
            f"the path of the control socket is too long for a Unix socket: {path}",
            hint="Use a home with a shorter path: export GRIDMILL_HOME=FOLDER",
        )
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)  # before listen(), because no client can connect until then
    listener.listen(128)
    return listener


_ANOTHER = "Choose another port (0: any free port), for example: --listen 127.0.0.1:0"
_ELSEWHERE = "Pass an address of this machine to --listen. To list them: hostname -I"


def listen_at(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at a port (0 means any free port). Clients that connect wait until a
    server accepts them. Raises UnavailableError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # without keepalive, a client that is cut off within a request would hold its connection for ever
    keep_alive(listener)
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


def listen_at_path(path: Path) -> socket.socket:
    """Returns a Unix socket that listens at a path, which may be longer than the kernel permits for a socket
    address. Only the owner can connect (mode 0600). A socket or link at the path is replaced. Raises
    UnavailableError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.chmod(path.name, 0o600, dir_fd=folder)  # before listen(), because no client can connect yet
        finally:
            os.close(folder)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UnavailableError(f"cannot listen at {path}: {error.strerror}") from error
    return listener


def connect_to_path(path: Path) -> socket.socket:
    """Returns a connection to the Unix socket at a path, which may be longer than the kernel permits for a
    socket address. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
