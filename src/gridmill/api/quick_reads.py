"""Answers frequent read requests of many clients without the web framework.

FastAPI takes about 2 ms of processor time for a request, which is ten times as much as the answer itself
takes. This middleware recognises plain GET requests of a few use cases. In such a request, all query
parameters are known, occur at most once, and have values within their limits. The middleware gives the same
answers as the routes. Every other request is passed on to the routes, which also report the errors of a
request.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from gridmill.codec import encode
from gridmill.domain.frozen import dataclass
from gridmill.errors import TABLE, GridmillError
from gridmill.http.errors import failure
from gridmill.ports.grid import Grid, ReadyAnswers
from gridmill.ports.usecase import ArgumentLimits, Hint, ResponseForm, UseCase
from gridmill.ports.usecases import USE_CASES

QUICK = ("control", "run", "job", "events", "logs")
"""The use cases that this middleware answers."""
THREADS = 16
"""The largest number of threads that answer requests for streams. All answers that are not streams are made
by another group of threads of the same size. Further requests wait. Because of the separate threads, a slow
read of a log does not delay other use cases."""
FOLLOWERS = 512
"""The largest number of requests that can wait for events in this middleware at the same time. If there are
more requests, they are passed on to the routes."""
_SLICE_SECONDS = 1.0
"""The interval in seconds at which a waiting request checks whether the server will stop."""
_NUMBER = re.compile("[0-9]{1,9}")
_NO_LIMITS = ArgumentLimits()
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_NOTHING = b"[]"
_MISSING: Any = object()
_UNKNOWN: tuple[str, frozenset[Hint], ArgumentLimits] = ("", frozenset(), _NO_LIMITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a use case with its arguments, and the longest time to wait for a first item."""

    name: str
    arguments: Mapping[str, Any]
    wait_seconds: float = 0.0


class QuickReads:
    """ASGI middleware that runs after the middleware which checks the token."""

    def __init__(self, app: ASGIApp, *, grid: Grid) -> None:
        self._app, self._grid = app, grid
        self._ready = grid if isinstance(grid, ReadyAnswers) else None
        self._requests = [_Request(USE_CASES[name]) for name in QUICK]
        self._pools = {form: ThreadPoolExecutor(THREADS, thread_name_prefix="read") for form in ResponseForm}
        self._commits: dict[asyncio.AbstractEventLoop, _Commits] = {}
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or passes it on to the routes."""
        call = self._call(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if call is None or (call.wait_seconds and not self._may_wait(call)):
            return await self._app(scope, receive, send)
        try:
            body = await (self._awaited(call, scope, receive) if call.wait_seconds else self._body(call))
        except GridmillError as error:
            return await failure(error, TABLE[error.code].http_status)(scope, receive, send)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        return await send({"type": "http.response.body", "body": body})

    def _call(self, scope: Scope) -> _Call | None:
        """Returns the call for a plain request, or None if the routes must answer the request."""
        path: str = scope["path"]
        for request in self._requests:
            if found := request.pattern.fullmatch(path):
                if scope.get("root_path") or any(name in _BODY_HEADERS for name, _ in scope["headers"]):
                    return None
                return request.call(found.groups(), scope["query_string"].decode("latin-1"))
        return None

    async def _body(self, call: _Call) -> bytes:
        if self._ready is None:
            return await self._in_thread(self._encoded, call)
        body = self._ready.ready(call.name, call.arguments)
        return await self._in_thread(self._ready.encoded, call) if body is None else body

    def _encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        return encode(getattr(self._grid, name)(**arguments))

    async def _in_thread(self, make: Callable[[str, Mapping[str, Any]], bytes], call: _Call) -> bytes:
        pool = self._pools[USE_CASES[call.name].form]
        return await asyncio.get_running_loop().run_in_executor(pool, make, call.name, call.arguments)

    def _may_wait(self, call: _Call) -> bool:
        """Returns whether the call can wait in this middleware. Only a call for the events of a whole run
        can wait here, because these events are in memory. A request for any other stream waits in a thread
        of its own."""
        return (
            self._ready is not None
            and call.name == "events"
            and call.arguments.get("job") is None
            and self._waiting < FOLLOWERS
        )

    async def _awaited(self, call: _Call, scope: Scope, receive: Receive) -> bytes:
        """Waits until the answer has an item, and returns the answer. If the waiting time ends, the client
        disconnects or the server stops, the answer may be empty."""
        loop = asyncio.get_running_loop()
        until, stopping = loop.time() + call.wait_seconds, scope.get("gridmill.stopping")
        commits = self._commits_of(loop)
        gone = loop.create_task(_disconnected(receive))
        self._waiting += 1
        try:
            while True:
                next_commit = commits.next()
                body = await self._body(call)
                left = until - loop.time()
                if body != _NOTHING or left <= 0 or gone.done() or (stopping is not None and stopping()):
                    return body
                await asyncio.wait(
                    (next_commit, gone),
                    timeout=min(left, _SLICE_SECONDS),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            self._waiting -= 1
            gone.cancel()

    def _commits_of(self, loop: asyncio.AbstractEventLoop) -> "_Commits":
        commits = self._commits.get(loop)
        if commits is None:
            commits = self._commits[loop] = _Commits(loop)
            if self._ready is not None:
                self._ready.watch(commits.note)
        return commits


class _Commits:
    """Wakes the coroutines of one event loop that wait for the next commit of the control node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next: asyncio.Future[None] | None = None

    def next(self) -> "asyncio.Future[None]":
        """Returns a future that is done after the next commit."""
        if self._next is None:
            self._next = self._loop.create_future()
        return self._next

    def note(self) -> None:
        """Report a commit. This method may be called from any thread."""
        if self._next is not None:
            with suppress(RuntimeError):  # raised if the server has stopped and closed its loop
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        done, self._next = self._next, None
        if done is not None and not done.done():
            done.set_result(None)


async def _disconnected(receive: Receive) -> None:
    """Waits until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


class _Request:
    """Reads the requests of one use case."""

    def __init__(self, row: UseCase) -> None:
        self.pattern = re.compile("/v1" + row.filled(tuple("([^/]{1,200})" for _ in row.places)))
        self._name = row.name
        self._places = tuple(place.argument for place in row.places)
        self._sent = {
            wire: (name, frozenset(_kinds(row.takes[name])), row.limits.get(name, _NO_LIMITS))
            for name, wire in row.queries.items()
        }

    def call(self, places: tuple[str | Any, ...], query: str) -> _Call | None:
        """Returns the call of a request, or None if any part of the request is not plain."""
        arguments: dict[str, Any] = dict(zip(self._places, places, strict=True))
        for wire, text in parse_qsl(query, keep_blank_values=True):
            name, kinds, limits = self._sent.get(wire, _UNKNOWN)
            value = _MISSING if not name or name in arguments else _value(kinds, text, limits)
            if value is _MISSING:
                return None
            arguments[name] = value
        if arguments.get("search"):
            return None  # not a quick read, because a search can read a whole log
        wait = arguments.pop("wait_seconds", 0.0)
        return _Call(name=self._name, arguments=arguments, wait_seconds=wait)


def _value(kinds: frozenset[Hint], text: str, limits: ArgumentLimits) -> Any:  # noqa: ANN401  the row determines the type
    """Returns the value of a query parameter as the routes read it, or `_MISSING` if the routes must read
    it."""
    if kinds == {str} and limits.pattern is None:
        most = limits.max_length if limits.max_length is not None else len(text)
        return text if (limits.min_length or 0) <= len(text) <= most else _MISSING
    if kinds <= {int, float, type(None)} and _NUMBER.fullmatch(text):
        number = int(text)
        low = max(limits.ge or 0, 0 if limits.gt is None else limits.gt + 1)
        most = limits.le if limits.le is not None else number
        if low <= number <= most and limits.lt is None:
            return float(number) if float in kinds else number
    if kinds == {str, type(None)} and text and limits == _NO_LIMITS:
        return text
    return _MISSING


def _kinds(hint: Hint) -> Iterator[Hint]:
    """Yields the members of a union type. If the type is not a union, the function yields only this type."""
    parts = getattr(hint, "__args__", ())
    yield from parts if parts and not hasattr(hint, "__origin__") else (hint,)
