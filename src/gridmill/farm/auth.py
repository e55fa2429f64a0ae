"""Authenticates requests to the farm by certificate and token, limits the size of bodies, and answers all
errors.

It also has the common code of all routes: the tenant of a request, and the form of an answer.
"""

import logging
from asyncio import Semaphore
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated

from anyio.to_thread import current_default_thread_limiter
from fastapi import Depends, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gridmill.codec import encode
from gridmill.domain.farm_protocol import check_versions
from gridmill.errors import GridmillError, InputError, UnavailableError
from gridmill.farm.state import Farm
from gridmill.farm.tenant import Tenant, unknown_tenant
from gridmill.http.connections import CERTIFICATE
from gridmill.http.errors import bounded, declared_bytes, failure, pass_on, too_large

TENANT = "gridmill.tenant"
_OPEN = frozenset({"/v1/join", "/healthz"})
STRANGER_BYTES = 64 * 1024
"""Largest request body of a client that is not a tenant yet."""
BODY_BYTES = 64 * 2**20
"""Largest request body of a tenant."""
CHUNKS_BYTES = 512 * 2**20
"""Largest body of chunks, which is streamed."""
LANE = 16
"""How many transfers, and how many other requests, of one tenant are served at a time; others wait."""
_log = logging.getLogger("gridmill.farm")


class TenantMiddleware:
    """ASGI middleware. Each request that passes is from a tenant (`gridmill.tenant` in the scope), except
    requests to join."""

    def __init__(self, app: ASGIApp, *, farm: Farm) -> None:
        self._app, self._farm = app, farm
        self._lanes: dict[tuple[str, bool], Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return None
        try:
            refusal = self._refusal(scope)
        except GridmillError as error:
            refusal = failure(UnavailableError(f"the farm cannot check the token: {error}"), 503)
        if refusal is not None:
            return await refusal(scope, receive, send)
        body = bounded(receive, _limit(scope["path"]))
        async with self._lane(scope):
            return await pass_on(self._app, scope, body, send, who="the farm", log=_log)

    def _lane(self, scope: Scope) -> AbstractAsyncContextManager[None]:
        """Limits how many requests of a tenant are served at a time. Long requests have a limit of their own,
        so that they do not delay others of the tenant. Each limit has its own threads. Sessions are not
        limited."""
        path, tenant = scope["path"], scope.get(TENANT)
        if tenant is None or path.startswith("/v1/relay/"):
            return nullcontext()
        key = (tenant.name, path.startswith("/v1/staging/"))
        if key not in self._lanes:
            self._lanes[key] = Semaphore(LANE)
            current_default_thread_limiter().total_tokens += LANE
        return self._lanes[key]

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        limit = _limit(scope["path"])
        if scope["path"] not in _OPEN:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            tenant = self._farm.authorise(scope.get(CERTIFICATE, ""), token.strip())
            if tenant is None or scheme.lower() != "bearer":
                return failure(unknown_tenant(), 401)
            scope[TENANT] = tenant
        if declared_bytes(headers.get("content-length", "0")) > limit:
            return failure(too_large(limit), 413)
        refusal = _version_refusal(headers.get("gridmill-version", ""), self._farm.version)
        if refusal is None and TENANT in scope:
            self._farm.record_contact(scope[TENANT])
        return refusal


def _limit(path: str) -> int:
    if path in _OPEN:
        return STRANGER_BYTES
    return CHUNKS_BYTES if path == "/v1/staging/chunks" else BODY_BYTES


def _version_refusal(version: str, ours: str) -> Response | None:
    """Refuses versions that do not work together. The request names the version of the tenant: both versions
    can have changed since the tenant joined."""
    if not version:
        return None
    try:
        check_versions(tenant=version, farm=ours)
    except InputError as error:
        return failure(error, 409)
    return None


def _farm(request: Request) -> Farm:
    farm: Farm = request.app.state.farm
    return farm


def _tenant(request: Request) -> Tenant:
    tenant: Tenant = request.scope[TENANT]
    return tenant


TheFarm = Annotated[Farm, Depends(_farm)]
Asking = Annotated[Tenant, Depends(_tenant)]


def reply(noun: object) -> Response:
    """An answer with this noun, encoded by the codec."""
    return Response(encode(noun), media_type="application/json")


def done() -> Response:
    """An answer without content."""
    return Response(status_code=204)
