"""The ASGI application of the REST API: authentication, a check of the Host header, limits for bodies, and
error responses.

The application serves routes under /v1, and documentation pages that work without an internet connection.
`TokenMiddleware` runs before every route. All errors have the same typed response body, including unexpected
errors.
"""

import hmac
import logging
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gridmill.api.quick_reads import QuickReads
from gridmill.api.replies import page
from gridmill.api.routes import make_routes
from gridmill.domain.naming import LOOPBACK
from gridmill.errors import InputError
from gridmill.http.errors import answer_errors, bounded, declared_bytes, failure, pass_on, too_large
from gridmill.ports.grid import Grid
from gridmill.version import __version__

BODY_BYTES = 16 * 2**20
"""The largest size of a request body in bytes. Even a pipeline with 100,000 jobs is smaller than this."""
BUNDLE_BYTES = 512 * 2**20
"""The largest size of a code bundle in bytes."""
_DESCRIPTION = """Times are numbers: seconds since 1970-01-01 UTC. Times that a user declares, such as the
range of a backfill, are texts in the declared form. Every list has pages: `items`, and `next_cursor` to send
as `cursor` with the same other arguments. It is null on the last page. Events are a stream: to get the next
events, pass the `id` of your last event as `after`."""
_log = logging.getLogger("gridmill.api")


class TokenMiddleware:
    """ASGI middleware that checks the token and the Host header of each request. Without a `token`, the
    middleware accepts every request."""

    def __init__(self, app: ASGIApp, *, token: str | None = None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request to the application, or refuses it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return None
        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, send)
        body = bounded(receive, _limit(scope["path"]))
        return await pass_on(self._app, scope, body, send, who="the control node", log=_log)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if declared_bytes(headers.get("content-length", "0")) > _limit(scope["path"]):
            return failure(too_large(_limit(scope["path"])), 413)
        if self._token is None:
            return None
        if _host(headers.get("host", "")) not in LOOPBACK:
            return failure(
                InputError("this address accepts only requests from its own machine", place="Host"), 403
            )
        if scope["path"].startswith("/v1") and not _same(headers.get("authorization", ""), self._token):
            hint = "Send `Authorization: Bearer TOKEN`; the token is in HOME/control.json."
            return failure(InputError("the token is missing or wrong", place="Authorization", hint=hint), 401)
        return None


def _limit(path: str) -> int:
    return BUNDLE_BYTES if path.startswith("/v1/bundles/") else BODY_BYTES


def _host(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _same(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), token.encode())


def make_app(grid: Grid, *, token: str | None = None) -> FastAPI:
    """Makes the application.

    With `token`, every request to /v1 needs the token as a bearer token, and a Host header with a loopback
    name. Without `token`, every client that can connect is allowed. A Unix socket that only its owner can
    open needs no token.
    """
    app = FastAPI(
        title="Gridmill", version=__version__, description=_DESCRIPTION, docs_url=None, redoc_url=None
    )
    app.state.grid = grid
    app.include_router(make_routes())
    app.add_api_route(
        "/healthz", _health, methods=["GET"], tags=["control"], summary="Check that the server answers"
    )
    app.add_api_route("/docs", _docs, methods=["GET"], include_in_schema=False)
    answer_errors(app)
    app.add_middleware(QuickReads, grid=grid)
    app.add_middleware(TokenMiddleware, token=token)
    app.openapi = partial(_openapi, app.openapi)  # type: ignore[method-assign]  # as FastAPI documents it
    return app


def _openapi(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the OpenAPI document of FastAPI, with the additional rule that bodies with unknown fields are
    refused."""
    document = make()
    schemas: dict[str, Any] = document["components"]["schemas"]
    operations = [one for path in document["paths"].values() for one in path.values()]
    waiting = [_named(one.get("requestBody", {})) for one in operations]
    seen = set[str]()
    while waiting:
        for name in waiting.pop() - seen:
            seen.add(name)
            if "properties" in schemas[name]:
                schemas[name].setdefault("additionalProperties", False)
            waiting.append(_named(schemas[name]))
    bundle = document["paths"]["/v1/bundles/{bundle}"]["put"]["requestBody"]["content"]
    bundle["application/octet-stream"]["schema"]["minLength"] = 1
    return document


def _named(part: object) -> set[str]:
    """Returns the names of the schemas to which a part of the document refers."""
    if isinstance(part, dict):
        own = {str(part["$ref"]).rpartition("/")[2]} if "$ref" in part else set[str]()
        return own.union(*map(_named, part.values()))
    return set[str]().union(*map(_named, part)) if isinstance(part, list) else set[str]()


async def _health() -> dict[str, str]:  # answered without a thread, because all threads may be busy
    return {"status": "ok"}


def _docs(request: Request) -> HTMLResponse:
    """Return the API documentation as one page that needs no scripts and no external resources."""
    source = files("gridmill.api").joinpath("docs.html.j2").read_text()
    template = Environment(autoescape=True).from_string(source)
    return page(template.render(api=request.app.openapi()))
