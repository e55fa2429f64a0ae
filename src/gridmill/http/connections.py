"""Accepts HTTP connections within limits, so that no client can use up file descriptors, memory or time.

There are limits for the connections of all clients and of one address, and for the seconds and bytes of a
request's headers. There are also minimum rates at which a body must arrive and an answer must be read.
"""

import asyncio
import hashlib
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import Server, ServerState

from gridmill.domain.amounts import KIB
from gridmill.domain.frozen import dataclass
from gridmill.process_memory import LARGE_BYTES, return_free_memory

CERTIFICATE = "gridmill.certificate"
TAKE_OVER = "gridmill.take_over"
"""The key in the scope of a request of the method that hands its connection over (Connection.take_over)."""
_LOG = logging.getLogger(__name__)
_SWEEP_SECONDS = 0.5
_MANY, _REST_SECONDS = 200, 5.0
"""After this number of connections have ended, the memory that they used is returned to the system."""
_LARGE_REQUEST_SECONDS = 2.0
"""The number of seconds after a large request until its memory is returned to the system. Most large
requests are answered within this time."""
_REPORT_SECONDS = 60.0
"""The shortest interval in seconds between two log lines about refused connections."""
_DESCRIPTORS = 16_384
_RESERVED = 256
"""The number of file descriptors that are not used for connections, because the Unix socket, pods and files
need them."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits for the connections of one listener. Each further `step_bytes` bytes of a request's body
    must arrive within `body_seconds` seconds. This limit applies to each step of a body and not to the whole
    body, so that transfers over slow connections can succeed. A client that stops reading must read the
    waiting 64 KiB within `answer_seconds`. Both times are measured only while the server waits for the
    client. At most `accepted_at_once` connections are accepted in one step, before other tasks of the loop
    run. If several processes accept connections of one listener, a small number divides the connections more
    equally among them."""

    connections: int = 1_024
    of_one_address: int = 512
    header_seconds: float = 10.0
    header_bytes: int = 64 * KIB
    body_seconds: float = 30.0
    answer_seconds: float = 120.0
    step_bytes: int = 8 * KIB
    accepted_at_once: int = 64


def raise_open_files() -> None:
    """Raises the limit of open files of this process to the hard limit, but at most to 16,384. The usual
    soft limit is 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def within_descriptors(limits: Limits) -> Limits:
    """Returns the limits for connections. If the process may open only few files, the limits are lower, so
    that enough file descriptors remain for other uses."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    most = min(limits.connections, max(16, (soft - _RESERVED) // 2))
    return replace(limits, connections=most, of_one_address=min(most, limits.of_one_address))


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """A connection that was handed over. It counts as open until its protocol calls `lost`."""

    transport: asyncio.Transport
    lost: Callable[[Exception | None], None]


class Connection(HttpToolsProtocol):
    """The connection protocol of uvicorn, with time limits for the client.

    Over TLS, the scope of each request contains `gridmill.certificate`. The value is the SHA-256 hash (hex)
    of the client's certificate, or an empty text if the client presented no certificate that the context
    trusts.
    """

    def __init__(self, acceptor: "Acceptor", address: str, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._acceptor, self._limits, self._address = acceptor, acceptor.limits, address
        self._certificate = ""
        self._in_headers, self._header_bytes, self._body_bytes = True, 0, 0
        self._request_bytes = 0
        self._deadline: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        """Starts the time limit for the first request. Over TLS, this method is called after the
        handshake."""
        super().connection_made(transport)
        secure: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = secure.getpeercert(binary_form=True) if secure else None
        self._certificate = hashlib.sha256(certificate).hexdigest() if certificate else ""
        self._wait(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection from the count of open connections, so that another connection can be
        accepted."""
        super().connection_lost(exc)
        self._acceptor.release(self, self._address)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of incomplete headers."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > self._limits.header_bytes:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Starts the time limit for the headers when the first bytes of a request arrive."""
        super().on_message_begin()
        scope: Any = self.scope
        if self.scheme == "https":
            scope[CERTIFICATE] = self._certificate
        scope[TAKE_OVER] = self.take_over
        self._in_headers = True
        self._wait(self._limits.header_seconds)

    def on_headers_complete(self) -> None:
        """Starts the time limit for the body after the headers."""
        super().on_headers_complete()
        self._in_headers, self._header_bytes, self._body_bytes = False, 0, 0
        self._request_bytes = 0
        self._wait(self._limits.body_seconds)

    def on_body(self, body: bytes) -> None:
        """Extends the time limit after each step of the body."""
        super().on_body(body)
        self._body_bytes += len(body)
        self._request_bytes += len(body)
        if self._body_bytes >= self._limits.step_bytes:
            self._body_bytes = 0
            self._wait(self._limits.body_seconds)

    def on_message_complete(self) -> None:
        """Stops the time limit for the body, because the client now waits for the server."""
        super().on_message_complete()
        if self._request_bytes >= LARGE_BYTES:
            self._acceptor.note_large_request()
        self._header_bytes = 0
        self._deadline = None

    def take_over(self, successor: asyncio.Protocol) -> "TakenOver":
        """Hands the connection over to another protocol instead of an answer."""
        self._deadline = None
        self.cycle.disconnected = self.cycle.response_complete = True
        self.transport.set_protocol(successor)
        return TakenOver(transport=self.transport, lost=self.connection_lost)

    def pause_writing(self) -> None:
        """Starts the time limit for the answer, because the client does not read the answer."""
        super().pause_writing()
        self._wait(self._limits.answer_seconds)

    def resume_writing(self) -> None:
        """Stops the time limit for the answer, because the client has read the answer."""
        super().resume_writing()
        self._deadline = None

    def end_if_late(self, now: float) -> None:
        """Closes the connection if the client has exceeded a time limit."""
        if self._deadline is None or now < self._deadline:
            return
        # no time limit applies while this side has paused reading, because the client cannot send
        if self.flow is not None and self.flow.read_paused:
            self._wait(self._limits.body_seconds)
            return
        if self.transport is not None:
            self.transport.abort()

    def _wait(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds


MakeConnection = Callable[["Acceptor", str, Config, ServerState], Connection]


class Acceptor:
    """Accepts connections to a listener within the limits. The acceptor runs in the event loop of the
    server."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None, limits: Limits) -> None:
        self.limits = limits
        self._listener, self._tls = listener, tls
        self._by_address: Counter[str] = Counter()
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused, self._report_refused_at = 0, 0.0
        self._most = 0
        """The largest number of open connections since memory was last returned to the system."""
        self._give_back_at = float("inf")
        self._trim_at = float("inf")

    def start(self, server: Server, make: MakeConnection = Connection) -> None:
        """Starts to accept connections. The method must be called in the event loop of the server."""
        self._loop = asyncio.get_running_loop()
        self._make: Callable[[str], Connection] = lambda address: make(
            self, address, server.config, server.server_state
        )
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._sweep()

    def stop(self) -> None:
        """Stops accepting connections. Open connections are kept."""
        self._loop.remove_reader(self._listener.fileno())
        self._timer.cancel()

    def release(self, connection: Connection, address: str) -> None:
        """Remove an ended connection."""
        if connection in self._open:
            self._open.discard(connection)
            self._forget(address)

    def note_large_request(self) -> None:
        """After a request with a large body, schedules that free memory is returned to the system some
        seconds later."""
        self._trim_at = min(self._trim_at, self._loop.time() + _LARGE_REQUEST_SECONDS)

    def _accept(self) -> None:
        for _ in range(self.limits.accepted_at_once):
            try:
                client, peer = self._listener.accept()
            # no client waits, the client has left, or no descriptor is free, of which the sweep closes some
            except OSError:
                return
            address = _address_of(client.family, peer)
            local = _is_local(address)
            of_one = self.limits.connections if local else self.limits.of_one_address
            if self._by_address.total() >= self.limits.connections or self._by_address[address] >= of_one:
                self._refused += 1
                client.close()
                continue
            self._by_address[address] += 1
            task = self._loop.create_task(self._connect(client, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: socket.socket, address: str) -> None:
        connection = self._make(address)
        client.setblocking(False)
        self._open.add(connection)
        seconds = self.limits.header_seconds if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError):  # raised if the handshake failed or did not end in time
            self.release(connection, address)
            with suppress(OSError):
                client.close()

    def _give_back(self, now: float) -> None:
        """Returns free memory to the system some seconds after many connections and their requests have
        ended."""
        self._most = max(self._most, len(self._open))
        if self._most - len(self._open) >= _MANY:
            self._give_back_at = min(self._give_back_at, now + _REST_SECONDS)
        if now >= self._give_back_at:
            self._most, self._give_back_at = len(self._open), float("inf")
            return_free_memory(collect=True)
        elif now >= self._trim_at:
            self._trim_at = float("inf")
            return_free_memory()

    def _forget(self, address: str) -> None:
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in tuple(self._open):
            connection.end_if_late(now)
        if self._refused and now >= self._report_refused_at:
            _LOG.warning("refused %d connections: %d are open", self._refused, self._by_address.total())
            self._refused, self._report_refused_at = 0, now + _REPORT_SECONDS
        self._give_back(now)
        self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)


def _address_of(family: int, peer: Sequence[object]) -> str:
    """Returns the address that counts as one client: an IPv4 address, the first 64 bits of an IPv6 address,
    or one address for all Unix sockets."""
    if family == socket.AF_INET6:
        packed = socket.inet_pton(family, str(peer[0]).partition("%")[0])
        mapped = packed[:12] == bytes(10) + b"\xff\xff"
        return socket.inet_ntoa(packed[12:]) if mapped else packed[:8].hex()
    return str(peer[0]) if family == socket.AF_INET else ""


def _is_local(address: str) -> bool:
    """Returns True for an address of this machine. All programs on this machine share these addresses, so
    only the limit for all clients applies to them."""
    return not address or address.startswith("127.") or address == bytes(8).hex()
