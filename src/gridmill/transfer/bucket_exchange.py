"""Transfers chunks to and from a farm by objects of a shared bucket: each is used once and deleted."""

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
    """Names of objects that this process uses now, once each, in a folder of its own. Safe to use from
    several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.folder = uuid4().hex
        self._names: set[str] = set()
        self._lock, self._monotonic = Lock(), monotonic
        self._last = float("-inf")

    def begin(self) -> str:
        """A name that was never there."""
        name = f"{self.folder}/{uuid4().hex}"
        with self._lock:
            self._names.add(name)
        return name

    def end(self, name: str) -> None:
        """Whatever comes to be under that name from now on is of no use."""
        with self._lock:
            self._names.discard(name)
            self._last = self._monotonic()

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._names

    def since(self, seconds: float) -> bool:
        """Whether something was in use in that time."""
        with self._lock:
            return bool(self._names) or self._monotonic() - self._last < seconds


class Bucket(Protocol):
    """A bucket, by whoever has its credentials: see `objects.Objects`."""

    pass_seconds: float

    def put(self, name: str, content: bytes, meter: ByteMeter = UNMETERED) -> None:
        """Whole or not at all."""

    def get(self, name: str, most_bytes: int, meter: ByteMeter = UNMETERED) -> bytes:
        """Its content."""

    def remove(self, name: str) -> None:
        """May be repeated."""

    def older(self, before: datetime, folder: str | None = None) -> Iterator[str]:
        """What was put before that moment, in a folder or at all."""

    def sign(self, method: str, name: str) -> str:
        """A URL that opens one object."""


class ExportBucketEndpoint:
    """A ChunkEndpoint to a farm. Chunks that are sent together are one object of a name that was never
    there, which the farm may read, or write, for a short while. Several threads may use it."""

    def __init__(
        self,
        far: SignedUrlFarm,
        bucket: Bucket,
        sizes: Mapping[str, int],
        uses: UniqueNames | None = None,
        meter: ByteMeter = UNMETERED,
    ) -> None:
        """`sizes` in bytes of all chunks that will be asked for; `uses` are those of whoever sweeps the
        bucket; the `meter` counts what goes between home and the bucket."""
        self._farm, self._bucket, self._sizes = far, bucket, sizes
        self._names, self._meter = uses or UniqueNames(), meter

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "ExportBucketEndpoint":
        """See Metered."""
        return ExportBucketEndpoint(
            self._farm,
            self._bucket,
            self._sizes,
            self._names,
            ByteMeter(moved=moved, piece_bytes=piece_bytes),
        )

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See Taker."""
        return self._farm.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See Taker. Raises TransferRefusedError where the bucket refuses one of the sides."""
        slices = sliced((chunk.hash, len(chunk.data)) for chunk in chunks)
        with self._once() as name:
            self._bucket.put(name, b"".join(chunk.data for chunk in chunks), self._meter)
            lost = passed(self._bucket, lambda: self._farm.take([self._parcel("GET", name, slices)]))
        if lost:
            raise UnavailableError(f"{name} was deleted from the bucket before the farm downloaded it")

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See Giver. Raises TransferRefusedError where the bucket refuses one of the sides."""
        slices = sliced((chunk, self._sizes[chunk]) for chunk in chunks)
        with self._once() as name:
            passed(self._bucket, lambda: self._farm.give(self._parcel("PUT", name, slices)))
            content = self._bucket.get(name, sum(one.size_bytes for one in slices), self._meter)
        yield from cut(content, slices)

    def _parcel(self, method: str, name: str, slices: tuple[ChunkSlice, ...]) -> BucketObject:
        return BucketObject(url=self._bucket.sign(method, name), slices=slices)

    @contextmanager
    def _once(self) -> Iterator[str]:
        """A new object's name; it is removed. What cannot be removed now is swept later."""
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
    """Remove what was put before that moment, and was not removed for whatever reason; `but`: what is in
    use."""
    for name in bucket.older(before):
        if name not in but:
            bucket.remove(name)


def passed(bucket: Bucket, ask: Callable[[], T]) -> T:
    """What the farm answers. A refusal once the signed URL may have expired is none: a new one may do. It may
    earlier than was said, as clocks differ."""
    began = time.monotonic()
    try:
        return ask()
    except DataError:
        raise
    except InputError as error:
        if time.monotonic() - began < bucket.pass_seconds / 2:
            raise TransferRefusedError(error.message, hint=error.hint, place=error.place) from error
        raise UnavailableError(f"a signed URL expired: {error.message}", place=error.place) from error
