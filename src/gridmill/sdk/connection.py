"""HTTP/1.1 to a control node over TCP, with the standard library.

Importing a full HTTP client would take longer than a command takes. This client implements only what a
control node uses: requests with a body of known length, kept connections, no redirects, no proxies.
"""

import select
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, UnavailableError, UnreachedError

TIMEOUT_SECONDS = 60.0
_REPEATABLE = ("GET", "PUT")
_UP = "Start one with `gridmill up`."


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What came back."""

    status: int
    body: bytes


@dataclass(slots=True, kw_only=True)
class Connections:
    """Connections to one control node, kept between requests; safe for several threads.

    `where` names the control node in errors.
    """

    make: Callable[[], HTTPConnection]
    where: str
    headers: Mapping[str, str] = field(default_factory=dict)
    _idle: list[HTTPConnection] = field(default_factory=list)

    def request(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send and wait for the whole answer. Raises UnavailableError where there is none."""
        all_headers = {**self.headers, **(headers or {})}
        ask = partial(_ask, method=method, target=target, body=body, headers=all_headers)
        try:
            connection, whole = self._request(ask, repeatable=method in _REPEATABLE)
        except (OSError, HTTPException) as error:
            raise UnavailableError(self._silence(error), hint=_UP) from error
        self._idle.append(connection)
        return whole

    def _request(
        self, ask: Callable[[HTTPConnection], HttpAnswer], *, repeatable: bool
    ) -> tuple[HTTPConnection, HttpAnswer]:
        """The answer, and the connection it came by. One that was kept may be closed by the other end just
        when it is used again: what may be asked twice is asked once more."""
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
        except (OSError, HTTPException) as error:
            raise UnreachedError(self._silence(error), hint=_UP) from error
        return made

    def _silence(self, error: Exception) -> str:
        return f"the control node at {self.where} does not answer ({type(error).__name__})"

    def _kept(self) -> HTTPConnection | None:
        """A kept connection that the other end has not closed."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last
                break
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()


def _ask(
    connection: HTTPConnection, *, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
) -> HttpAnswer:
    """Send and wait for the whole answer; what is left of one must not be taken for the next."""
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return HttpAnswer(status=answer.status, body=answer.read())
    except BaseException:
        connection.close()
        raise


def tcp_connections(url: str, token: str | None) -> Connections:
    """To the control node at `http://HOST:PORT`. Raises InputError for what is no address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{url} is no address of a control node: {error}") from error
    if not host:
        raise InputError(f"{url} is no address of a control node", hint="Write http://127.0.0.1:8700.")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Connections(make=lambda: kind(host, port, timeout=TIMEOUT_SECONDS), where=url, headers=headers)
