"""An HTTP/1.1 client for a control node over TCP, written with the standard library.

The import of a full HTTP client would take longer than a complete command. This client implements only the
functions that a control node needs: requests with a body of known length, persistent connections, no
redirects and no proxies.
"""

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, UnavailableError, UnreachedError
from gridmill.rpc import liveness
from gridmill.rpc.liveness import hung, observe_process, wait_for_answer

TIMEOUT_SECONDS = 60.0
_CONNECT_SECONDS, PROBE_SECONDS = 4.5, 3.0
_REPEATABLE = ("GET", "PUT")
_UP = "Start it: gridmill up"
_LATE = (
    "The control node is busy, or the connection is cut. Check with `gridmill status` whether the call took "
    "effect, and retry."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """The answer to an HTTP request."""

    status: int
    body: bytes


@dataclass(slots=True, kw_only=True)
class Connections:
    """Persistent connections to a control node, which several threads can use.

    `where` is the name of the control node in error messages.
    """

    make: Callable[[], HTTPConnection]
    where: str
    headers: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    """The process id of the control node, if it is known and the control node runs on this machine."""
    _idle: list[HTTPConnection] = field(default_factory=list)

    def request(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request and wait for the complete answer. Raises UnavailableError if there is no answer."""
        all_headers = {**self.headers, **(headers or {})}
        ask = partial(self._ask, method=method, target=target, body=body, headers=all_headers)
        try:
            connection, whole = self._request(ask, repeatable=method in _REPEATABLE)
        except (OSError, HTTPException) as error:
            raise UnavailableError(self._silence(error), hint=_LATE if _is_late(error) else _UP) from error
        self._idle.append(connection)
        return whole

    def _request(
        self, ask: Callable[[HTTPConnection], HttpAnswer], *, repeatable: bool
    ) -> tuple[HTTPConnection, HttpAnswer]:
        """Return the answer to a request, and the connection over which it was received.

        The control node may close a persistent connection at the moment when this client uses it again. If
        the connection is closed at this moment, a request that can be repeated is sent a second time.
        """
        kept = self._kept()
        if kept is not None:
            try:
                return kept, ask(kept)
            except ConnectionError:
                if not repeatable:
                    raise
        return (made := self._connected()), ask(made)

    def _connected(self) -> HTTPConnection:
        made = self.make()
        try:
            made.connect()
        except TimeoutError as error:  # a timeout means that a process listens, but accepts no connection
            raise hung(self.pid, self.where, observe_process(self.pid)) from error
        except (OSError, HTTPException) as error:
            raise UnreachedError(self._silence(error), hint=_UP) from error
        made.sock.settimeout(TIMEOUT_SECONDS)
        return made

    def _ask(
        self,
        connection: HTTPConnection,
        *,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> HttpAnswer:
        """Send a request and wait for the complete answer. If the request fails, close the connection, so
        that the remaining bytes of the answer are not read as the next answer."""
        try:
            connection.request(method, target, body, headers)
            wait_for_answer(connection.sock, self.pid, self.where, answers=self._answers)
            answer = connection.getresponse()
            return HttpAnswer(status=answer.status, body=answer.read())
        except BaseException:
            connection.close()
            raise

    def _answers(self, patient: bool) -> bool:
        """Return True if the control node answers another request within a few seconds."""
        seconds = liveness.PATIENCE_SECONDS if patient else PROBE_SECONDS
        until = time.monotonic() + seconds
        probe = self.make()
        probe.timeout = seconds
        try:
            probe.connect()
            probe.sock.settimeout(max(0.01, until - time.monotonic()))
            probe.request("GET", "/healthz")
            return probe.getresponse().status > 0
        except (OSError, HTTPException):
            return False
        finally:
            probe.close()

    def _silence(self, error: Exception) -> str:
        return f"the control node at {self.where} does not answer ({type(error).__name__})"

    def _kept(self) -> HTTPConnection | None:
        """Return a persistent connection that the control node has not closed, or None if there is none."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread may have taken the last connection
                break
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close the persistent connections."""
        while self._idle:
            self._idle.pop().close()


def _is_late(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


def tcp_connections(url: str, token: str | None, pid: int = 0) -> Connections:
    """Connect to the control node at `http://HOST:PORT`, whose process id is `pid`. Raises InputError for an
    invalid address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{url} is not an address of a control node: {error}") from error
    if not host:
        raise InputError(f"{url} is not an address of a control node", hint="Write http://127.0.0.1:8700.")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    make = partial(kind, host, port, timeout=_CONNECT_SECONDS)
    return Connections(make=make, where=url, headers=headers, pid=pid)
