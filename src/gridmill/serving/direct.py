"""Answers `POST /predict` in the callbacks of the connection and of the batch, without a task per request.

A task, its events and its messages take longer than the decoding, the model and the answer together. Requests
that this module does not answer (other paths, compressed bodies, large bodies in several pieces, contextual
features, pipelined requests) pass through the ASGI application of the replica. Both ways give the same
answers.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from gridmill.http.connections import Acceptor, Connection
from gridmill.jobs.features import Floats
from gridmill.serving.app import Application, defect, failure
from gridmill.serving.errors import RequestError
from gridmill.serving.predict import answer_of
from gridmill.serving.request import Answer, headers_of

_LOG = logging.getLogger(__name__)


class DirectRequest:
    """A request from its headers to its answer. A batch sees it as the outcome of its rows, and the
    connection as a cycle of uvicorn, of which it has the attributes that uvicorn reads."""

    __slots__ = (
        "_begin",
        "_connection",
        "_host",
        "_inputs",
        "_request",
        "_task",
        "disconnected",
        "keep_alive",
        "response_complete",
    )
    message_event: ClassVar[asyncio.Event] = asyncio.Event()
    """Nobody waits for it."""

    def __init__(self, connection: "DirectConnection") -> None:
        self.disconnected, self.keep_alive, self.response_complete = False, True, False
        self._connection = connection

    def start(self, headers: Mapping[bytes, bytes], body: bytes) -> None:
        """Validate the request, whose body is complete, and put its rows into a batch."""
        application = self._connection.application
        self._begin = application.clock()
        self._request = request = application.predict_request(headers, body)
        try:
            self._host = host = application.admitted(request)
            self._inputs = inputs = host.model.reader.read(request.body)
            request.rows = rows = len(inputs)
            if not rows:
                self._finish(answer_of(host, host.model.no_rows))
            elif rows <= host.batcher.max_rows:
                host.batcher.submit(inputs, self)
            else:
                self._task = asyncio.get_running_loop().create_task(self._in_several_batches())
        except RequestError as error:
            self._finish(failure(error, request.request_id))
        except Exception:  # noqa: BLE001  the outermost function of a request: other requests continue
            self._finish(defect(request.request_id))

    def done(self) -> bool:
        """Return whether the request was answered."""
        return self.response_complete

    def set_result(self, predicted: Floats, /) -> None:
        """Answer with predictions."""
        try:
            self._host.observe(self._inputs, predicted)
            answer = answer_of(self._host, predicted)
        except Exception:  # noqa: BLE001  the outermost function of a request: other requests continue
            answer = defect(self._request.request_id)
        self._finish(answer)

    def set_exception(self, error: RequestError, /) -> None:
        """Answer with an error."""
        self._finish(failure(error, self._request.request_id))

    async def _in_several_batches(self) -> None:
        try:
            predicted = await self._host.batcher.predict(self._inputs)
        except RequestError as error:
            self.set_exception(error)
        except Exception:  # noqa: BLE001  the outermost function of a request: other requests continue
            self._finish(defect(self._request.request_id))
        else:
            self.set_result(predicted)

    def _finish(self, answer: Answer) -> None:
        self.response_complete = True
        connection, request = self._connection, self._request
        try:
            headers = connection.application.finish(request, "predict", answer, self._begin)
            connection.respond(self, answer, headers)
        except Exception:  # noqa: BLE001  the outermost function of a request: other requests continue
            _LOG.exception("the answer of request %s failed", request.request_id)
            connection.transport.abort()


class DirectConnection(Connection):
    """A connection to a replica. It keeps what it has received of a request until it is clear whether the
    request can be answered directly."""

    def __init__(
        self, application: Application, acceptor: Acceptor, address: str, config: Config, state: ServerState
    ) -> None:
        super().__init__(acceptor, address, config, state)
        self.application = application
        self._is_kept = False
        self._direct: DirectRequest | None = None
        self._pieces: list[bytes] = []
        self._idle_until: float | None = None

    def data_received(self, data: bytes) -> None:
        """Pass a request with a large body that is not complete yet to the application."""
        self._idle_until = None
        super().data_received(data)
        waits_for_body = self._is_kept and self._direct is not None and not self.transport.is_closing()
        if waits_for_body and (self._body_bytes >= self._limits.step_bytes or self._is_large()):
            self._pass_on()

    def on_message_begin(self) -> None:
        """Keep the request, if no earlier request of this connection waits for its answer."""
        self._is_kept = not self.flow.write_paused and (self.cycle is None or self.cycle.response_complete)
        if not self._is_kept:
            super().on_message_begin()
            return
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._direct, self._pieces = None, []
        self._in_headers = True
        self._wait(self._limits.header_seconds)

    def on_headers_complete(self) -> None:
        """Pass a request to the application, if it cannot be answered directly."""
        if not self._is_kept:
            super().on_headers_complete()
        elif self._is_predict():
            self._in_headers, self._header_bytes, self._body_bytes = False, 0, 0
            self._direct = DirectRequest(self)
            self.cycle = self._direct  # type: ignore[assignment]  # it has the attributes that uvicorn reads
            self._wait(self._limits.body_seconds)
        else:
            self._pass_on()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        if self._is_kept:
            self._pieces.append(body)
            self._body_bytes += len(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Answer the request."""
        if self._is_kept and self._direct is not None:
            headers = headers_of(self.headers)
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            if self.application.is_direct(headers, body):
                self._is_kept, self._deadline, self._header_bytes = False, None, 0
                self._direct.start(headers, body)
                return
            self._pass_on()
        super().on_message_complete()

    def end_if_late(self, now: float) -> None:
        """Close a connection that has had no request for a long time. One time for all answers takes less
        than a timer for each."""
        if self._idle_until is not None and now >= self._idle_until:
            self.transport.close()
        super().end_if_late(now)

    def respond(self, request: DirectRequest, answer: Answer, headers: list[tuple[bytes, bytes]]) -> None:
        """Write an answer."""
        if request.disconnected or self.transport.is_closing():
            return
        closes = self.application.is_draining or not request.keep_alive
        content = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *headers):
            content += (name, b": ", value, b"\r\n")
        if closes and not self.application.is_draining:
            content.append(b"connection: close\r\n")
        self.transport.write(b"".join((*content, b"\r\n", answer.body)))
        if closes:
            self.transport.close()
        if closes or self.pipeline:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1
            self._idle_until = self.loop.time() + self.timeout_keep_alive

    def _is_predict(self) -> bool:
        parser = self.parser
        return (
            self.url == b"/predict"
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
        )

    def _is_large(self) -> bool:
        """Return whether the body has so many bytes that the application refuses or reads it in pieces."""
        length = dict(self.headers).get(b"content-length", b"0")
        return not length.isdigit() or int(length) >= self._limits.step_bytes

    def _pass_on(self) -> None:
        """Let the application answer the request, of which this connection has kept the first part."""
        url, headers, expects, pieces = self.url, self.headers, self.expect_100_continue, self._pieces
        direct, self._direct = self._direct, None
        self._is_kept, self._pieces = False, []
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the scope has this list
        if direct is not None:
            direct.response_complete = True  # otherwise uvicorn waits for it
        super().on_headers_complete()
        if direct is not None:
            self.cycle.keep_alive &= direct.keep_alive
        for piece in pieces:
            super().on_body(piece)
