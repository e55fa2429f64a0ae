"""Authenticates requests to the farm by certificate and token, limits the size of request bodies, and turns
all errors into responses.

The module also contains the common code of all routes: how they get the tenant of a request, and how they
build a response.
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
SERVICES = "/v1/attempts/"
"""The beginning of the paths by which the routers of services connect to their replicas."""
_OPEN = frozenset({"/v1/join", "/healthz"})
STRANGER_BYTES = 64 * 1024
"""The largest size in bytes of a request body from a client that is not a tenant yet."""
BODY_BYTES = 64 * 2**20
"""The largest size in bytes of a request body from a tenant."""
CHUNKS_BYTES = 512 * 2**20
"""The largest size in bytes of a request body with chunks, which is read as a stream."""
LANE = 16
"""The largest number of transfers of one tenant that are served at the same time, and the largest number of
its other requests. Further requests wait."""
_log = logging.getLogger("gridmill.farm")


class TenantMiddleware:
    """ASGI middleware. Each request that passes the middleware comes from a tenant (`gridmill.tenant` in the
    scope). Only a request to join the farm has no tenant."""

    def __init__(self, app: ASGIApp, *, farm: Farm) -> None:
        self._app, self._farm = app, farm
        self._lanes: dict[tuple[str, bool], Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on to the application, or refuses it."""
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
        """Limits how many requests of a tenant are served at the same time. Long requests have a separate
        limit, so that they do not delay other requests of the tenant. The requests under each limit run in
        their own threads. Sessions are not limited."""
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
        # a router of services sends requests without a control node, which is what leases wait for
        if refusal is None and TENANT in scope and not scope["path"].startswith(SERVICES):
            self._farm.record_contact(scope[TENANT])
        return refusal


def _limit(path: str) -> int:
    if path in _OPEN:
        return STRANGER_BYTES
    return CHUNKS_BYTES if path == "/v1/staging/chunks" else BODY_BYTES


def _version_refusal(version: str, ours: str) -> Response | None:
    """Returns a refusal if the versions of tenant and farm do not work together. The request contains the
    version of the tenant, because the version of either side may have changed since the tenant joined."""
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
    """Returns a response whose body is this object, encoded by the codec."""
    return Response(encode(noun), media_type="application/json")


def done() -> Response:
    """An answer without content."""
    return Response(status_code=204)
