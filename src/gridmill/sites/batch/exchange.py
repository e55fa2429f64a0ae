"""Transfers folders and records between a machine and a bucket. The home and the containers use the same
code."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, TypeVar

from gridmill.codec import decode, encode
from gridmill.domain.farm_protocol import Manifest
from gridmill.errors import InputError, NotFoundError, UnavailableError
from gridmill.sites.batch.manifest import MOST_RECORD_BYTES, folder_of, manifest_object
from gridmill.transfer.bucket_cache import BucketCache
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import TransferLimits, pull, push
from gridmill.transfer.errors import TransferRefusedError
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.stream import UNMETERED, ByteMeter
from gridmill.transfer.tree_writer import TreeCheckout

if TYPE_CHECKING:
    from gridmill.transfer.bucket import BucketClient

T = TypeVar("T")
_OWNER = "batch"
_LIMITS = TransferLimits(patience_seconds=60.0)
_TIMES = 3
PATIENCE_SECONDS = 3600.0
"""The time for which a container repeats a request that the bucket does not answer."""
_LONGEST_PAUSE_SECONDS = 30.0


class BucketFolder:
    """A folder of a bucket. It implements ListableBucket for the chunks in this folder."""

    def __init__(self, bucket: "BucketClient", folder: str) -> None:
        self._bucket, self._prefix = bucket, f"{folder}/"
        self.pass_seconds = bucket.pass_seconds

    def put(self, name: str, content: bytes, meter: ByteMeter = UNMETERED) -> None:
        """See Bucket."""
        self._bucket.put(self._prefix + name, content, meter)

    def get(self, name: str, most_bytes: int, meter: ByteMeter = UNMETERED) -> bytes:
        """See Bucket."""
        return self._bucket.get(self._prefix + name, most_bytes, meter)

    def remove(self, name: str) -> None:
        """See Bucket."""
        self._bucket.remove(self._prefix + name)

    def has(self, name: str) -> bool:
        """See ListableBucket."""
        return self._bucket.has(self._prefix + name)

    def names(self, folder: str) -> Iterator[Sequence[str]]:
        """See ListableBucket."""
        for page in self._bucket.names(self._prefix + folder):
            yield [name.removeprefix(self._prefix) for name in page]

    def older(self, before: datetime, folder: str | None = None) -> Iterator[str]:
        """See Bucket."""
        for name in self._bucket.older(before, self._prefix + (folder or "")):
            yield name.removeprefix(self._prefix)

    def sign(self, method: str, name: str) -> str:
        """See Bucket."""
        return self._bucket.sign(method, self._prefix + name)


class Exchange:
    """The bucket of a site. This class is safe to use from several threads. All methods raise
    UnavailableError, and TransferRefusedError if the bucket refuses access."""

    def __init__(self, bucket: "BucketClient", chunks: BucketCache | None = None) -> None:
        """The chunks are in the bucket itself, or in the cache `chunks`."""
        self.bucket, self.chunks = bucket, chunks or BucketCache(bucket)
        self._lock = Lock()
        self._others: dict[str, Exchange] = {}

    def at(self, folder: str) -> "Exchange":
        """Returns an exchange with the same records, whose chunks are in this folder of the bucket. The empty
        text is the bucket itself."""
        if not folder:
            return self
        with self._lock:
            if folder not in self._others:
                cache = BucketCache(BucketFolder(self.bucket, folder))
                self._others[folder] = Exchange(self.bucket, cache)
            return self._others[folder]

    def delete_chunks(self, folder: str) -> None:
        """Deletes all chunks in a folder of the bucket."""
        self.at(folder).chunks.clear(datetime.max.replace(tzinfo=UTC))
        with self._lock:
            self._others.pop(folder, None)

    def write(self, name: str, record: object) -> None:
        """Uploads a record to the bucket."""
        self.bucket.put(name, encode(record))

    def read(self, name: str, kind: type[T]) -> T | None:
        """Returns the record, or None if the object does not exist. Raises InputError if it is damaged."""
        try:
            return decode(self.bucket.get(name, MOST_RECORD_BYTES), kind)
        except NotFoundError:
            return None

    def claim(self, name: str, owner: str) -> bool:
        """Returns whether the object belongs to `owner`, a text that no other caller uses. The object is
        created if it does not exist. If the answer to an earlier call was lost, the object belongs to the
        caller nevertheless. Raises NotFoundError if the object is deleted meanwhile."""
        content = owner.encode()
        return self.bucket.create(name, content) or self.bucket.get(name, 2 * len(content)) == content

    def delete_attempt(self, attempt_id: str) -> None:
        """Deletes all objects of an attempt. Chunks stay, because other attempts may use them. The manifest
        is deleted first, so that a container that still runs sees that nobody reads its objects."""
        self.bucket.remove(manifest_object(attempt_id))
        for page in self.bucket.names(f"{folder_of(attempt_id)}/"):
            for name in page:
                self.bucket.remove(name)

    def is_deleted(self, attempt_id: str) -> bool:
        """Returns whether the home has deleted the objects of the attempt."""
        return not self.bucket.has(manifest_object(attempt_id))

    def upload(
        self,
        manifest: Manifest,
        folder: Path,
        progress: TransferProgress | None = None,
        stop: Event | None = None,
    ) -> None:
        """Uploads the chunks of a folder that the bucket does not have. Raises the errors of `push`."""
        push(manifest, folder, self.chunks, progress=progress, terms=_LIMITS, stop=stop)

    def download(
        self,
        uri: str,
        manifest: Manifest,
        root: Path,
        drafts: Path,
        *,
        progress: TransferProgress | None = None,
        stop: Event | None = None,
        is_writable: bool = True,
    ) -> None:
        """Writes a folder below `root`, completely or not at all. Incomplete data stays in `drafts`, on the
        same file system, and a repeated call continues with it. Raises NotFoundError if the bucket lacks a
        chunk, and the errors of `TreeCheckout.place`."""
        chunks = ChunkStore(drafts, manifest.size_bytes + 1)
        chunks.unpin(_OWNER)
        checkout = TreeCheckout(root, chunks, handing_over=True)
        for _ in range(_TIMES):
            if not checkout.place(uri, manifest, _OWNER, writable=is_writable):
                return shutil.rmtree(drafts, ignore_errors=True)
            pull(manifest, chunks, self.chunks, progress=progress, terms=_LIMITS, stop=stop)
        if checkout.place(uri, manifest, _OWNER, writable=is_writable):
            raise UnavailableError(f"chunks of {uri} were deleted during the download", place=str(drafts))
        return shutil.rmtree(drafts, ignore_errors=True)


def open_exchange(
    url: str, options: Mapping[str, str], credentials: Callable[[], Mapping[str, Any]] | None = None
) -> Exchange:
    """Opens the bucket of a site; see `bucket.open_store`. Raises InputError if a package is missing."""
    if find_spec("obstore") is None:
        raise InputError(
            "buckets need the package `obstore`, which is not installed",
            hint="pip install 'gridmill[objects]'",
            place=url,
        )
    from gridmill.transfer.bucket import BucketClient

    return Exchange(BucketClient(url, options, credentials=credentials))


def waiting_for_access(act: Callable[[], T]) -> Callable[[], T]:
    """Returns the call, which raises UnavailableError if the bucket refuses access. `repeated` then repeats
    the call, because hours of work would be lost, and somebody may restore the access."""

    def tried() -> T:
        try:
            return act()
        except TransferRefusedError as error:
            raise UnavailableError(error.message, hint=error.hint, place=error.place) from error

    return tried


def repeated(
    act: Callable[[], T],
    wait: Callable[[float], object],
    monotonic: Callable[[], float] = time.monotonic,
    patience_seconds: float = PATIENCE_SECONDS,
) -> T:
    """Returns the result of the call, which is repeated with growing pauses while the bucket does not
    answer. Raises UnavailableError if the bucket does not answer for `patience_seconds`."""
    until, pause = monotonic() + patience_seconds, 0.5
    while True:
        try:
            return act()
        except UnavailableError:
            if monotonic() >= until:
                raise
        wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
