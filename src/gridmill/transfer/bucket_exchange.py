"""Transfers chunks to and from a farm through objects in a shared bucket. Each object is used once and then
deleted."""

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Protocol, TypeVar
from uuid import uuid4

from gridmill.domain.farm_protocol import BucketObject, ChunkSlice
from gridmill.errors import DataError, GridmillError, InputError, UnavailableError
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.signed_urls import SignedUrlFarm, cut, sliced
from gridmill.transfer.stream import UNMETERED, ByteMeter, Chunk

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class UniqueNames:
    """Creates names for the objects that this process is using now. Each object name is used once, and all
    names are in a separate folder. This class is safe to use from several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.folder = uuid4().hex
        self._names: set[str] = set()
        self._lock, self._monotonic = Lock(), monotonic
        self._last = float("-inf")

    def begin(self) -> str:
        """Returns a name that was never used before."""
        name = f"{self.folder}/{uuid4().hex}"
        with self._lock:
            self._names.add(name)
        return name

    def end(self, name: str) -> None:
        """Ends the use of this name. If an object with this name appears in the bucket later, no transfer
        uses the object."""
        with self._lock:
            self._names.discard(name)
            self._last = self._monotonic()

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._names

    def since(self, seconds: float) -> bool:
        """Returns whether an object was in use during the last `seconds` seconds."""
        with self._lock:
            return bool(self._names) or self._monotonic() - self._last < seconds


class Bucket(Protocol):
    """A bucket with its credentials; see `bucket.BucketClient`."""

    pass_seconds: float

    def put(self, name: str, content: bytes, meter: ByteMeter = UNMETERED) -> None:
        """Puts an object into the bucket, either completely or not at all."""

    def get(self, name: str, most_bytes: int, meter: ByteMeter = UNMETERED) -> bytes:
        """Returns the content of an object."""

    def remove(self, name: str) -> None:
        """Deletes the object. May be repeated."""

    def older(self, before: datetime, folder: str | None = None) -> Iterator[str]:
        """Yields the names of objects that were put before this time, in a folder or below the whole
        prefix."""

    def sign(self, method: str, name: str) -> str:
        """Returns a signed URL that gives access to one object."""


class ExportBucketEndpoint:
    """Sends chunks to and from a farm through objects that are used once. It implements ChunkEndpoint.

    Chunks that are sent together are one object with a new name. The farm may read or write this object for
    a short time. Several threads may use this endpoint.
    """

    def __init__(
        self,
        far: SignedUrlFarm,
        bucket: Bucket,
        sizes: Mapping[str, int],
        uses: UniqueNames | None = None,
        meter: ByteMeter = UNMETERED,
    ) -> None:
        """`sizes` are the sizes in bytes of all chunks that will be requested. `uses` records which objects
        are in use, for the collector that deletes unused objects. The `meter` counts the bytes that are sent
        between the home and the bucket."""
        self._farm, self._bucket, self._sizes = far, bucket, sizes
        self._names, self._meter = uses or UniqueNames(), meter

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "ExportBucketEndpoint":
        """See MeteredEndpoint."""
        return ExportBucketEndpoint(
            self._farm,
            self._bucket,
            self._sizes,
            self._names,
            ByteMeter(moved=moved, piece_bytes=piece_bytes),
        )

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See ChunkWriter."""
        return self._farm.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See ChunkWriter. Raises TransferRefusedError if the bucket refuses access to this home or to the
        farm."""
        slices = sliced((chunk.hash, len(chunk.data)) for chunk in chunks)
        with self._once() as name:
            self._bucket.put(name, b"".join(chunk.data for chunk in chunks), self._meter)
            lost = passed(self._bucket, lambda: self._farm.take([self._parcel("GET", name, slices)]))
        if lost:
            raise UnavailableError(f"{name} was deleted from the bucket before the farm downloaded it")

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See ChunkReader. Raises TransferRefusedError if the bucket refuses access to this home or to the
        farm."""
        slices = sliced((chunk, self._sizes[chunk]) for chunk in chunks)
        with self._once() as name:
            passed(self._bucket, lambda: self._farm.give(self._parcel("PUT", name, slices)))
            content = self._bucket.get(name, sum(one.size_bytes for one in slices), self._meter)
        yield from cut(content, slices)

    def _parcel(self, method: str, name: str, slices: tuple[ChunkSlice, ...]) -> BucketObject:
        return BucketObject(url=self._bucket.sign(method, name), slices=slices)

    @contextmanager
    def _once(self) -> Iterator[str]:
        """Yields the name of a new object, which is deleted at the end of the `with` block. If the object
        cannot be deleted at the end of the block, `sweep` deletes it later."""
        name = self._names.begin()
        try:
            yield name
        finally:
            self._names.end(name)
            try:
                self._bucket.remove(name)
            except GridmillError as error:
                _LOG.info("object_not_deleted name=%s reason=%s", name, error)


def sweep(bucket: Bucket, before: datetime, but: Container[str] = ()) -> None:
    """Deletes objects that were put before this time and that still exist for any reason. Objects in `but`
    are still in use and are not deleted."""
    for name in bucket.older(before):
        if name not in but:
            bucket.remove(name)


def passed(bucket: Bucket, ask: Callable[[], T]) -> T:
    """Returns the farm's answer, or converts its error.

    If the signed URL may have expired, a refusal becomes an error that is retried with a new URL. A URL may
    expire early, because clocks differ.
    """
    began = time.monotonic()
    try:
        return ask()
    except DataError:
        raise
    except InputError as error:
        if time.monotonic() - began < bucket.pass_seconds / 2:
            raise TransferRefusedError(error.message, hint=error.hint, place=error.place) from error
        raise UnavailableError(f"a signed URL expired: {error.message}", place=error.place) from error
