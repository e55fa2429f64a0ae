"""A client that sends the same request on several connections, each as soon as its last answer has arrived.

It runs in one thread, because it must need less time for a request than the replica that it measures.
"""

import selectors
import socket
import time
from dataclasses import field
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError
from gridmill.http.server import connect_to_path

_MOST_BYTES = 1 << 16
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The latencies of the answers in seconds, and the seconds in which they arrived."""

    latencies: tuple[float, ...]
    seconds: float


@dataclass(slots=True)
class Connection:
    """A connection with the time at which its request was sent, and the part of the answer that has
    arrived."""

    stream: socket.socket
    sent_at: float = 0.0
    text: bytearray = field(default_factory=bytearray)


def connect(address: int | Path) -> socket.socket:
    """Return a connection to a port of this machine, or to the Unix socket at a path. Raises OSError."""
    if isinstance(address, Path):
        return connect_to_path(address)
    connection = socket.create_connection(("127.0.0.1", address))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send_requests(
    address: int | Path, body: bytes, connections: int, *, seconds: float, requests: int, most_seconds: float
) -> Answers:
    """Send `body` to `POST /predict` at a port or a Unix socket (`connect`) for at least `seconds` and until
    `requests` answers have arrived, but at most for `most_seconds`. Raises UnavailableError for an answer
    that is not 200."""
    request = (
        b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    with selectors.DefaultSelector() as selector:
        opened = [Connection(connect(address)) for _ in range(connections)]
        try:
            for one in opened:
                selector.register(one.stream, selectors.EVENT_READ, one)
            begin = time.perf_counter()
            latencies = _exchange(
                selector, opened, request, begin, seconds=seconds, requests=requests, most=most_seconds
            )
            return Answers(latencies=tuple(latencies), seconds=time.perf_counter() - begin)
        finally:
            for one in opened:
                one.stream.close()


def _exchange(
    selector: selectors.BaseSelector,
    opened: list[Connection],
    request: bytes,
    begin: float,
    *,
    seconds: float,
    requests: int,
    most: float,
) -> list[float]:
    latencies: list[float] = []
    clock = time.perf_counter
    for one in opened:
        one.sent_at = clock()
        one.stream.sendall(request)
    while True:
        ready = selector.select(_PATIENCE_SECONDS)
        if not ready:
            raise UnavailableError(f"the replica did not answer within {_PATIENCE_SECONDS:g} s")
        for key, _ in ready:
            one = key.data
            if is_answered(one):
                now = clock()
                latencies.append(now - one.sent_at)
                one.sent_at = now
                one.stream.sendall(request)
        passed = clock() - begin
        if passed >= most or (passed >= seconds and len(latencies) >= requests):
            return latencies


def is_answered(one: Connection) -> bool:
    """Read what has arrived. Returns whether the answer is complete. Raises UnavailableError for an answer
    that is not 200, or if the connection was closed."""
    data = one.stream.recv(_MOST_BYTES)
    if not data:
        raise UnavailableError("the replica closed a connection")
    one.text += data
    head, found, rest = bytes(one.text).partition(b"\r\n\r\n")
    if not found:
        return False
    lines = head.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    if len(rest) < length:
        return False
    if not lines[0].startswith(b"http/1.1 200"):
        raise UnavailableError(
            f"the replica answered {head.split(b' ')[1].decode()} to an example row: "
            f"{rest[:500].decode('utf-8', 'replace')}"
        )
    one.text.clear()
    return True
