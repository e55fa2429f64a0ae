"""The HTTP API that the farm offers to its tenants."""

import os
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import FastAPI, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from gridmill.domain.farm_protocol import DeployRequest, FarmStatus, JoinRequest, JoinResponse, PodNames
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.farm.auth import Asking, TenantMiddleware, TheFarm, done, reply
from gridmill.farm.deployment_requests import deploy, end, look, observe
from gridmill.farm.join import JoinRateLimiter, WrongSecretError, join
from gridmill.farm.state import Farm
from gridmill.farm.transfer_routes import router as staging
from gridmill.http.errors import answer_errors, failure
from gridmill.ports.site import PodReports
from gridmill.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionName:
    """The name of a relay session."""

    session: str


Name = Annotated[str, Path(min_length=1, max_length=200)]
PROBE_BYTES = 4 * 2**20
"""The largest number of bytes that the farm returns when a tenant measures the transfer rate."""


def make_app(farm: Farm) -> FastAPI:
    """Makes the application, with the middleware that authenticates tenants."""
    app = FastAPI(title="Gridmill farm", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.farm, app.state.tries = farm, JoinRateLimiter()
    app.add_api_route("/healthz", _health, methods=["GET"])
    app.post("/v1/join", response_model=JoinResponse)(_join)
    app.get("/v1/farm", response_model=FarmStatus)(_look)
    app.post("/v1/probe", response_class=Response)(_probe)
    app.put("/v1/deployments/{deployment_id}", status_code=204, response_class=Response)(_deploy)
    app.post("/v1/pods/observe", response_model=PodReports)(_observe)
    app.post("/v1/pods/end", status_code=204, response_class=Response)(_end)
    app.post("/v1/relay", response_model=SessionName)(_open)
    app.get("/v1/relay/{session}", response_class=StreamingResponse)(_read)
    app.post("/v1/relay/{session}", status_code=204, response_class=Response)(_forward_lines)
    app.include_router(staging)
    answer_errors(app)
    app.add_middleware(TenantMiddleware, farm=farm)
    return app


def _health() -> dict[str, str]:
    return {"status": "ok"}


def _join(request: Request, farm: TheFarm, wanted: JoinRequest) -> Response:
    """Make the caller a tenant of the farm. The request contains a one-time secret."""
    tries: JoinRateLimiter = request.app.state.tries
    caller = request.client.host if request.client else ""
    if not tries.allows(caller, farm.now()):
        hint = "Try again in a minute."
        return failure(InputError("too many wrong secrets from this address", hint=hint), 429)
    try:
        return reply(join(farm, wanted))
    except WrongSecretError:
        tries.failed(caller, farm.now())
        raise


def _look(farm: TheFarm, tenant: Asking) -> Response:
    """Return the capacity of the farm and its deployments, as far as the tenant is allowed to see them."""
    return reply(look(farm, tenant))


async def _probe(
    request: Request, tenant: Asking, back: Annotated[int, Query(ge=0, le=PROBE_BYTES)] = 0
) -> Response:
    """Read the body of the request and answer with the requested number of bytes, to measure the speed of
    the connection."""
    del tenant
    async for _ in request.stream():
        continue
    return Response(os.urandom(back), media_type="application/octet-stream")


def _deploy(farm: TheFarm, tenant: Asking, deployment_id: Name, wanted: DeployRequest) -> Response:
    """Start pods when there is free capacity. The request may be repeated."""
    deploy(farm, tenant, deployment_id, wanted)
    return done()


def _observe(farm: TheFarm, tenant: Asking, wanted: PodNames) -> Response:
    """The states of pods."""
    return reply(observe(farm, tenant, wanted.pods))


def _end(farm: TheFarm, tenant: Asking, wanted: PodNames) -> Response:
    """End pods of the tenant. When the request returns, the pods have ended."""
    end(farm, tenant, wanted.pods)
    return done()


def _open(farm: TheFarm, tenant: Asking) -> Response:
    """Open a new message session, which ends the previous session of the tenant."""
    return reply(SessionName(session=farm.sandbox_of(tenant).relay.open()))


async def _read(request: Request, farm: TheFarm, tenant: Asking, session: Name) -> Response:
    """Return the messages of the pods, as lines, until the session ends."""
    relay = (await run_in_threadpool(farm.sandbox_of, tenant)).relay
    begun = relay.begin(session)
    stopping: Callable[[], bool] = request.scope.get("gridmill.stopping", lambda: False)
    lines: AsyncIterator[bytes] = relay.lines(begun, stopping)
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _forward_lines(
    request: Request,
    farm: TheFarm,
    tenant: Asking,
    session: Name,
    sequence: Annotated[int | None, Header(ge=0)] = None,
) -> Response:
    """Forward lines to pods. If the number in the header `Sequence` is not higher than in an earlier
    request, the lines were already forwarded and are skipped."""
    body = await request.body()
    relay = (await run_in_threadpool(farm.sandbox_of, tenant)).relay
    await run_in_threadpool(relay.forward, session, sequence, body)
    return done()
