"""Calls the use cases of a control node over HTTP. The table of use cases defines the request of each use
case."""

from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType
from typing import Any
from urllib.parse import quote, urlencode

from gridmill.codec import decode, encode
from gridmill.errors import GridmillError, InputError, UnavailableError, from_body
from gridmill.ports.usecase import Hint, ResponseForm, UseCase
from gridmill.ports.usecases import USE_CASES
from gridmill.sdk.connection import Connections, HttpAnswer, tcp_connections

WAIT_SECONDS = 30.0
"""The longest time in seconds that a request may wait. This time is less than the timeout of the
connection."""


def over_tcp(url: str, token: str | None, pid: int = 0) -> "HttpGrid":
    """Connect to the control node at `http://HOST:PORT`, whose process id is `pid` (0 if it is unknown).
    Raises InputError for an invalid address."""
    return HttpGrid(tcp_connections(url, token, pid))


class HttpGrid:
    """The Grid interface (gridmill.ports.grid) of a control node over HTTP: each use case of the table is a
    method."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in USE_CASES:
            raise AttributeError(name)
        return partial(self._call, USE_CASES[name])

    def _call(self, row: UseCase, /, *given: Any, **named: Any) -> Any:  # noqa: ANN401  as the row has them
        arguments = row.arguments(given, named)
        query = {sent: arguments[name] for name, sent in row.queries.items() if name in arguments}
        if row.form is ResponseForm.STREAM and "wait_seconds" in query:
            query["wait_seconds"] = min(query["wait_seconds"], WAIT_SECONDS)
        path = row.filled(tuple(quoted(place.value(arguments)) for place in row.places))
        body, headers = _body(row, arguments)
        return _read(row, self._send(row.method, path + _query(query), body, headers))

    def _send(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        answer = self._connections.request(method, f"/v1{target}", body, headers)
        if answer.status >= 400:
            raise self._error(answer)
        return answer.body

    def _error(self, answer: HttpAnswer) -> GridmillError:
        try:
            return from_body(decode(answer.body, dict[str, object]))
        except InputError:
            message = (
                f"{self._connections.where} gave an HTTP {answer.status} answer that is not from "
                "a control node"
            )
            return UnavailableError(message, hint="Check the address and the port of --url.")


def quoted(name: str) -> str:
    """Quote a name so that it can be a part of the path of a URL. The names "." and ".." are refused,
    because HTTP clients would remove them from the path."""
    if name.strip("./") == "":
        raise InputError(f"{name!r} is not a valid name")
    return quote(name, safe="/@") if "/" in name else quote(name, safe="@")


def _query(arguments: Mapping[str, Any]) -> str:
    """Return the query string of a request. Arguments that are None are left out, and truth values are
    written as `true` and `false`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    worded = {name: str(one).lower() if isinstance(one, bool) else one for name, one in given.items()}
    return f"?{urlencode(worded, doseq=True)}" if worded else ""


def _body(row: UseCase, arguments: Mapping[str, Any]) -> tuple[bytes | None, Mapping[str, str]]:
    """Return the body of a request, and the header with the type of the body."""
    if not row.body:
        return None, {}
    parts = {name: arguments[name] for name in row.body if name in arguments}
    whole = parts if len(row.body) > 1 else parts[row.body[0]]
    if isinstance(whole, bytes):
        return whole, {"Content-Type": "application/octet-stream"}
    return encode(whole), {"Content-Type": "application/json"}


def _read(row: UseCase, answer: bytes) -> Any:  # noqa: ANN401  as the row says
    """Decode the answer into the result of the use case. The control node sends text unchanged, and a truth
    value as the only field of an object."""
    gives: Hint = row.gives
    if gives is NoneType:
        return None
    if gives is str:
        return answer.decode()
    if gives is bool:
        (value,) = decode(answer, dict[str, bool]).values()
        return value
    return decode(answer, gives)
