"""The ASGI application of a replica: paths, limits, API keys, headers, and one form of error."""

import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import ServiceOrder
from gridmill.serving import inference_protocol as protocol
from gridmill.serving.api_keys import ApiKeys
from gridmill.serving.errors import MethodError, NotReadyError, RequestError, UnknownPathError
from gridmill.serving.hosting import HostedModel, Versions
from gridmill.serving.metrics import COMPUTED, Metrics
from gridmill.serving.openapi import document
from gridmill.serving.predict import JSON_TYPES, predict
from gridmill.serving.request import (
    Answer,
    Request,
    compressed,
    decompressed,
    headers_of,
    json_answer,
    media_type,
    too_large,
)
from gridmill.serving.request_log import RequestLogWriter
from gridmill.serving.shadow_copies import CopyWriter
from gridmill.serving.trace_context import traceparent_of
from gridmill.version import __version__

_LOG = logging.getLogger(__name__)
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_BUFFERED_BODIES = 16
"""Bodies that are still being received may take the memory of this number of bodies of the largest size."""
_ID_CHARACTERS = 128

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Answer]]


class _DisconnectedError(Exception):
    """The client closed the connection before its request was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """A path that the application answers. `kind` is the name of the path in the metrics. A health check
    needs no API key."""

    kind: str
    method: str
    handler: Handler
    is_health: bool = False


class Application:
    """Answers the requests of one replica."""

    def __init__(
        self,
        order: ServiceOrder,
        versions: Versions,
        metrics: Metrics,
        *,
        keys: ApiKeys | None = None,
        log: RequestLogWriter | None = None,
        copies: CopyWriter | None = None,
    ) -> None:
        self.is_draining = False
        self._order, self._versions, self._metrics = order, versions, metrics
        self._keys, self._log, self._copies = keys, log, copies
        self._buffered = 0
        self.clock = time.perf_counter
        self._ids = itertools.count()
        self._id_prefix = f"{os.getpid():x}-{time.time_ns():x}"
        self._routes = self._static_routes()
        self._are_all_sent = all(one.keyed is None for one in versions.hosted)
        """Whether requests to all versions send all features."""
        self._origins = {one.encode() for one in order.cors_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI defines it."""
        headers = headers_of(scope["headers"])
        request = Request(
            method=scope["method"],
            path=scope["path"],
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))) if scope["query_string"] else {},
            headers=headers,
            body=b"",
            request_id=self._request_id(headers),
        )
        begin, kind = self.clock(), "other"
        try:
            route = self._route(request, scope)
            kind = route.kind
            if self._keys is not None and not route.is_health:
                self._keys.check(headers)
            request.body = await self._body(receive, headers)
            begin = self.clock()
            answer = await route.handler(request)
        except RequestError as error:
            answer = failure(error, request.request_id)
        except _DisconnectedError:
            return
        except Exception:  # noqa: BLE001  the outermost function of a request: other requests continue
            answer = defect(request.request_id)
        sent = self.finish(request, kind, answer, begin)
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": answer.body})

    def is_direct(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        """Return whether `POST /predict` with this body in JSON needs nothing but a batch."""
        return (
            self._are_all_sent
            and b"content-encoding" not in headers
            and len(body) <= self._order.max_body_bytes
            and media_type(headers) in JSON_TYPES
        )

    def predict_request(self, headers: Mapping[bytes, bytes], body: bytes) -> Request:
        """Return the request `POST /predict` with this body."""
        return Request(
            method="POST",
            path="/predict",
            query={},
            headers=headers,
            body=body,
            request_id=self._request_id(headers),
        )

    def admitted(self, request: Request) -> HostedModel:
        """Return the version that answers a request to predict. Raises UnauthorizedError,
        UnknownPathError."""
        if self._keys is not None:
            self._keys.check(request.headers)
        return self._chosen(request, "")

    def finish(self, request: Request, kind: str, answer: Answer, begin: float) -> list[tuple[bytes, bytes]]:
        """Compress the body of an answer if the client wants this, count and log the request, and return the
        headers of the answer. `begin` is the time of `clock` at which the request was complete."""
        body = answer.body
        if b"traceparent" in request.headers:
            request.traceparent = traceparent_of(request.headers[b"traceparent"])
        if b"accept-encoding" in request.headers:
            answer = compressed(answer, request.headers[b"accept-encoding"])
        seconds = self.clock() - begin
        self._metrics.count(request.version, kind, answer.status, seconds)
        if self._log is not None:
            self._log.add(request, answer, body, seconds)
        if self._copies is not None and kind in COMPUTED and answer.status == 200:
            self._copies.send(request, answer, body, seconds)
        return self._headers(request, answer)

    def _headers(self, request: Request, answer: Answer) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"content-type", answer.media_type),
            (b"content-length", b"%d" % len(answer.body)),
            (b"x-request-id", request.request_id.encode("latin-1")),
            *answer.headers,
        ]
        if answer.status == 204:  # an answer without content has no length (RFC 9110, 8.6)
            del headers[:2]
        if request.version:
            headers.append((b"x-model-version", request.version.encode("latin-1", "replace")))
        if request.traceparent:
            headers.append((b"traceparent", request.traceparent))
        if self._origins and b"origin" in request.headers:
            headers += self._cors(request.headers[b"origin"])
        if self.is_draining:
            headers.append((b"connection", b"close"))
        return headers

    def _request_id(self, headers: Mapping[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id", b"")
        if given and len(given) <= _ID_CHARACTERS and given.isascii():
            text = given.decode("ascii")
            if text.isprintable():
                return text
        return f"{self._id_prefix}-{next(self._ids):x}"

    async def _body(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        most = self._order.max_body_bytes
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise too_large(most)
        message = await receive()
        if message["type"] != "http.request":
            raise _DisconnectedError
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = await self._rest(receive, body, most)
        if len(body) > most:
            raise too_large(most)
        if b"content-encoding" in headers:
            return decompressed(body, headers[b"content-encoding"], most)
        return body

    async def _rest(self, receive: Receive, first: bytes, most: int) -> bytes:
        """Return a body that arrives in several pieces."""
        pieces, size, more = [first], len(first), True
        self._buffered += size
        try:
            while more:
                if self._buffered > _BUFFERED_BODIES * most:
                    raise NotReadyError("too many large requests arrive at the same time", retry_seconds=1)
                message = await receive()
                if message["type"] != "http.request":
                    raise _DisconnectedError
                piece, more = message.get("body", b""), message.get("more_body", False)
                size += len(piece)
                self._buffered += len(piece)
                if size > most:
                    raise too_large(most)
                pieces.append(piece)
        finally:
            self._buffered -= size
        return b"".join(pieces)

    def _cors(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if b"*" not in self._origins and origin not in self._origins:
            return [(b"vary", b"origin")]
        allowed = b"*" if b"*" in self._origins else origin
        exposed = (
            b"x-request-id, x-model-version, x-failed-rows, retry-after, inference-header-content-length"
        )
        return [
            (b"access-control-allow-origin", allowed),
            (b"access-control-expose-headers", exposed),
            (b"vary", b"origin"),
        ]

    def _route(self, request: Request, scope: Scope) -> _Route:
        route = self._routes.get(request.path)
        if request.method == "OPTIONS" and self._origins and b"origin" in request.headers:
            return _Route(kind="other", method="OPTIONS", handler=_preflight, is_health=True)
        if route is None:
            parts = scope.get("raw_path", request.path.encode()).decode("latin-1").strip("/").split("/")
            route = self._model_route([unquote(one) for one in parts])
        if request.method != route.method and not (request.method == "HEAD" and route.method == "GET"):
            allowed = "GET, HEAD" if route.method == "GET" else route.method
            raise MethodError(f"{request.path} answers {route.method}, not {request.method}", allowed=allowed)
        return route

    def _static_routes(self) -> dict[str, _Route]:
        hosted = self._versions.hosted
        api = document(self._order, self._versions)

        def metadata(make: Callable[[], Answer]) -> Handler:
            async def handler(request: Request) -> Answer:
                return make()

            return handler

        async def health(request: Request) -> Answer:
            return self._health()

        def get(handler: Handler, kind: str = "metadata", *, is_health: bool = False) -> _Route:
            return _Route(kind=kind, method="GET", handler=handler, is_health=is_health)

        index = metadata(lambda: protocol.repository_index(hosted))
        return {
            "/predict": _Route(kind="predict", method="POST", handler=self._predict),
            f"/v2/models/{self._order.name}/infer": self._infer_route(),
            "/v2": get(metadata(lambda: protocol.server_metadata(__version__))),
            "/v2/health/live": get(metadata(lambda: json_answer({"live": True})), "health", is_health=True),
            "/v2/health/ready": get(health, "health", is_health=True),
            "/v2/models/stats": get(metadata(lambda: protocol.statistics(hosted))),
            "/v2/repository/index": _Route(kind="metadata", method="POST", handler=index),
            "/metrics": get(metadata(self._metrics_text), "metrics"),
            "/openapi.json": get(metadata(lambda: json_answer(api))),
        }

    def _health(self) -> Answer:
        ready = not self.is_draining
        return json_answer({"ready": ready}, status=200 if ready else 503)

    def _metrics_text(self) -> Answer:
        return Answer(body=self._metrics.text().encode(), media_type=_TEXT)

    async def _predict(self, request: Request) -> Answer:
        host = self._chosen(request, request.query.get("version", ""))
        return await predict(host, request, self._order.max_body_bytes)

    def _chosen(self, request: Request, version: str) -> HostedModel:
        host = self._versions.choose(version)
        request.version = host.model.label
        return host

    def _infer_route(self, version: str = "") -> _Route:
        async def handler(request: Request) -> Answer:
            return await protocol.infer(self._chosen(request, version), request)

        return _Route(kind="infer", method="POST", handler=handler)

    def _model_route(self, parts: list[str]) -> _Route:
        """Return the route of `v2/models/NAME[/versions/VERSION][/ACTION]`. Raises UnknownPathError."""
        if parts[:1] == ["v2"] and len(parts) == 1:
            return self._routes["/v2"]
        if parts[:2] != ["v2", "models"] or len(parts) < 3:
            raise UnknownPathError("there is no such path", hint="`GET /openapi.json` lists the paths.")
        if parts[2] != self._order.name:
            raise UnknownPathError(
                f"there is no model {parts[2]!r}", hint=f"The model of this service is {self._order.name!r}."
            )
        rest, version = parts[3:], ""
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        host = self._versions.choose(version) if version else self._versions.default
        return self._action_route(rest, version, host)

    def _action_route(self, rest: list[str], version: str, host: HostedModel) -> _Route:
        names = [one.model.version for one in self._versions.hosted]
        answers: dict[tuple[str, ...], Callable[[], Answer]] = {
            (): lambda: protocol.model_metadata(host, names),
            ("ready",): self._health,
            ("config",): lambda: protocol.model_config(host, self._order.max_batch),
            ("stats",): lambda: protocol.statistics([host] if version else self._versions.hosted),
        }
        if rest == ["infer"]:
            return self._infer_route(version)
        if tuple(rest) not in answers:
            raise UnknownPathError("there is no such path", hint="`GET /openapi.json` lists the paths.")
        make = answers[tuple(rest)]

        async def handler(request: Request) -> Answer:
            return make()

        return _Route(
            kind="health" if rest == ["ready"] else "metadata",
            method="GET",
            handler=handler,
            is_health=rest == ["ready"],
        )


async def _preflight(request: Request) -> Answer:
    """Answer the question of a browser whether it may send a request."""
    asked = request.headers.get(b"access-control-request-headers", b"content-type")
    headers = (
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", asked),
        (b"access-control-max-age", b"600"),
    )
    return Answer(body=b"", status=204, headers=headers)


def failure(error: RequestError, request_id: str) -> Answer:
    """Return the answer for an error."""
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_seconds))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodError):
        headers.append((b"allow", error.allowed.encode()))
    return json_answer(error.body(request_id), error.status, tuple(headers))


class _DefectError(RequestError):
    """The server itself has a defect."""

    code = "internal"
    status = 500


def defect(request_id: str) -> Answer:
    """Log the exception that is being handled, and return the answer for a defect of the server."""
    _LOG.exception("request %s failed", request_id)
    error = _DefectError("the server failed", hint="The log of the replica has the details.")
    return failure(error, request_id)
