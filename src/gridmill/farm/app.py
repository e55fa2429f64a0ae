"""The HTTP API that the farm offers to its tenants."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, FastAPI, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from gridmill.domain.farm_protocol import (
    BucketObject,
    BucketObjects,
    ChunkHashes,
    DeployRequest,
    EarlyTree,
    FarmStatus,
    JoinRequest,
    JoinResponse,
    LogFileNames,
    Manifest,
    MissingChunks,
    PlaceTree,
    PodNames,
    ResultExport,
)
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.farm.auth import Asking, TenantMiddleware, TheFarm, done, reply
from gridmill.farm.deployment_requests import deploy, end, look, observe
from gridmill.farm.files import TenantFiles
from gridmill.farm.join import JoinRateLimiter, WrongSecretError, join
from gridmill.farm.result_export import ExportGrant, checked
from gridmill.farm.service_connections import ServiceConnection
from gridmill.farm.state import Farm
from gridmill.http.errors import answer_errors, failure
from gridmill.ports.site import PodReports
from gridmill.transfer.chunk_store import HELD_BYTES
from gridmill.transfer.stream import Chunk, Decoder, encode
from gridmill.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionName:
    """The name of a relay session."""

    session: str


Name = Annotated[str, Path(min_length=1, max_length=200)]
PROBE_BYTES = 4 * 2**20
"""The largest number of bytes that the farm returns when a tenant measures the transfer rate."""


staging = APIRouter(prefix="/v1/staging")
"""The routes for transfers: chunks in both directions, and the folders that are built from chunks."""


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
    app.post("/v1/attempts/{attempt_id}/connection", response_class=Response)(_connect_service)
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


async def _connect_service(farm: TheFarm, tenant: Asking, attempt_id: Name) -> Response:
    """Make this connection a connection to the service that the attempt runs."""
    carried = await run_in_threadpool(_files_of, farm, tenant)
    return ServiceConnection(await run_in_threadpool(carried.connect_service, attempt_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uri:
    """A path below the storage root of the tenant."""

    uri: str


def _files_of(farm: TheFarm, tenant: Asking) -> TenantFiles:
    return farm.sandbox_of(tenant).files


@staging.post("/missing", response_model=MissingChunks)
def missing(farm: TheFarm, tenant: Asking, wanted: ChunkHashes) -> Response:
    """Return which of these chunks are not on the farm."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).store.missing(wanted.chunks)))


@staging.post("/chunks", status_code=204, response_class=Response)
async def take(
    request: Request,
    farm: TheFarm,
    tenant: Asking,
    early: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Store chunks that are sent as frames. Each chunk is checked before it is stored. With `early`, the
    chunks are for this attempt, which has not started yet."""
    carried = await run_in_threadpool(_files_of, farm, tenant)
    store = partial(carried.send_early, early) if early else carried.send
    async for chunks in _batches(request):
        await run_in_threadpool(store, chunks)
    return done()


async def _batches(request: Request) -> AsyncIterator[Sequence[Chunk]]:
    """Yields chunks in batches, as they arrive. At most a few batches are in memory at the same time."""
    decoder, held, held_bytes = Decoder(), list[Chunk](), 0
    async for piece in request.stream():
        whole = decoder.feed(piece)
        held += whole
        held_bytes += sum(len(chunk.data) for chunk in whole)
        if held_bytes >= HELD_BYTES:
            yield held
            held, held_bytes = [], 0
    decoder.end()
    if held:
        yield held


@staging.post("/fetch", response_class=StreamingResponse)
def fetch(farm: TheFarm, tenant: Asking, wanted: ChunkHashes) -> Response:
    """Chunks, framed."""
    chunks = _files_of(farm, tenant).fetch(wanted.chunks)
    return StreamingResponse(encode(chunks), media_type="application/octet-stream")


@staging.post("/place", response_model=MissingChunks)
def place(farm: TheFarm, tenant: Asking, wanted: PlaceTree) -> Response:
    """Build a folder from chunks for an attempt. If chunks are missing, nothing is built and the hashes of
    these chunks are returned."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).place(wanted)))


@staging.post("/early", response_model=MissingChunks)
def place_early(farm: TheFarm, tenant: Asking, wanted: EarlyTree) -> Response:
    """Keep the chunks of a folder for an attempt that has not started yet, and return the hashes of missing
    chunks. No folder is built."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).place_early(wanted)))


@staging.delete("/early/{attempt_id}", status_code=204, response_class=Response)
def end_early(farm: TheFarm, tenant: Asking, attempt_id: Name) -> Response:
    """Release the chunks that were kept for an attempt that does not start here."""
    _files_of(farm, tenant).end_early(attempt_id)
    return done()


@staging.post("/scan", response_model=Manifest)
def scan(farm: TheFarm, tenant: Asking, wanted: Uri) -> Response:
    """Return the manifest of a folder. After this request, the chunks of the folder can be downloaded."""
    return reply(_files_of(farm, tenant).scan(wanted.uri))


@staging.post("/take", response_model=MissingChunks)
def take_from_bucket(farm: TheFarm, tenant: Asking, wanted: BucketObjects) -> Response:
    """Download chunks from a bucket to the farm. Return the objects that are not in the bucket either."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).take(wanted.parcels)))


@staging.post("/give", status_code=204, response_class=Response)
def give_to_bucket(farm: TheFarm, tenant: Asking, wanted: BucketObject) -> Response:
    """Upload chunks from the farm to a bucket, as one object."""
    _files_of(farm, tenant).give(wanted)
    return done()


@staging.put("/exports/{attempt_id}", status_code=204, response_class=Response)
def permit_export(farm: TheFarm, tenant: Asking, attempt_id: Name, wanted: ResultExport) -> Response:
    """Permit the farm to upload the result of the attempt to a bucket while the tenant is away. The request
    may be repeated, which replaces the URLs."""
    farm.exports.put(checked(ExportGrant(tenant=tenant.name, attempt_id=attempt_id, export=wanted)))
    return done()


@staging.post("/attempts/{attempt_id}/taken-logs", status_code=204, response_class=Response)
def delete_log_files(farm: TheFarm, tenant: Asking, attempt_id: Name, wanted: LogFileNames) -> Response:
    """Delete files of the request log of a service, because the tenant has them. The request may be
    repeated."""
    _files_of(farm, tenant).delete_log_files(attempt_id, wanted.names)
    return done()


@staging.delete("/attempts/{attempt_id}", status_code=204, response_class=Response)
def delete_attempt(
    farm: TheFarm,
    tenant: Asking,
    attempt_id: Name,
    keep: Annotated[bool, Query()] = False,
) -> Response:
    """Delete the files that were transferred for the attempt, and the results of the attempt. With `keep`,
    the chunks of the results stay on the farm."""
    farm.exports.drop(tenant.name, attempt_id)
    _files_of(farm, tenant).delete_attempt(attempt_id, keep=keep)
    return done()
