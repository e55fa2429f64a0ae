"""The routes of the farm for transfers: chunks in both directions, and the folders that are built from
chunks."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from gridmill.domain.farm_protocol import (
    BucketObject,
    BucketObjects,
    ChunkHashes,
    Manifest,
    MissingChunks,
    PlaceTree,
)
from gridmill.domain.frozen import dataclass
from gridmill.farm.auth import Asking, TheFarm, done, reply
from gridmill.farm.files import TenantFiles
from gridmill.transfer.chunk_store import HELD_BYTES
from gridmill.transfer.stream import Chunk, Decoder, encode

router = APIRouter(prefix="/v1/staging")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uri:
    """A path below the storage root of the tenant."""

    uri: str


def _files_of(farm: TheFarm, tenant: Asking) -> TenantFiles:
    return farm.sandbox_of(tenant).files


@router.post("/missing", response_model=MissingChunks)
def missing(farm: TheFarm, tenant: Asking, wanted: ChunkHashes) -> Response:
    """Return which of these chunks are not on the farm."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).store.missing(wanted.chunks)))


@router.post("/chunks", status_code=204, response_class=Response)
async def take(request: Request, farm: TheFarm, tenant: Asking) -> Response:
    """Store chunks that are sent as frames. Each chunk is checked before it is stored."""
    carried = await run_in_threadpool(_files_of, farm, tenant)
    async for chunks in _batches(request):
        await run_in_threadpool(carried.send, chunks)
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


@router.post("/fetch", response_class=StreamingResponse)
def fetch(farm: TheFarm, tenant: Asking, wanted: ChunkHashes) -> Response:
    """Chunks, framed."""
    chunks = _files_of(farm, tenant).fetch(wanted.chunks)
    return StreamingResponse(encode(chunks), media_type="application/octet-stream")


@router.post("/place", response_model=MissingChunks)
def place(farm: TheFarm, tenant: Asking, wanted: PlaceTree) -> Response:
    """Build a folder from chunks for an attempt. If chunks are missing, nothing is built and the hashes of
    these chunks are returned."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).place(wanted)))


@router.post("/scan", response_model=Manifest)
def look(farm: TheFarm, tenant: Asking, wanted: Uri) -> Response:
    """Return the manifest of a folder. After this request, the chunks of the folder can be downloaded."""
    return reply(_files_of(farm, tenant).scan(wanted.uri))


@router.post("/take", response_model=MissingChunks)
def take_from_bucket(farm: TheFarm, tenant: Asking, wanted: BucketObjects) -> Response:
    """Download chunks from a bucket to the farm. Return the objects that are not in the bucket either."""
    return reply(MissingChunks(chunks=_files_of(farm, tenant).take(wanted.parcels)))


@router.post("/give", status_code=204, response_class=Response)
def give_to_bucket(farm: TheFarm, tenant: Asking, wanted: BucketObject) -> Response:
    """Upload chunks from the farm to a bucket, as one object."""
    _files_of(farm, tenant).give(wanted)
    return done()


@router.delete("/attempts/{attempt_id}", status_code=204, response_class=Response)
def delete_attempt(
    farm: TheFarm,
    tenant: Asking,
    attempt_id: Annotated[str, Path(min_length=1, max_length=200)],
    keep: Annotated[bool, Query()] = False,
) -> Response:
    """Delete the files that were transferred for the attempt, and the results of the attempt. With `keep`,
    the chunks of the results stay on the farm."""
    _files_of(farm, tenant).delete_attempt(attempt_id, keep=keep)
    return done()
