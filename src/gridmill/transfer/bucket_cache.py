"""Keeps chunks in a bucket for other jobs and farms, so that these chunks are not transferred again.

Many small chunks are packed into one object, because a request costs as much for a kilobyte as for a
megabyte. A pack contains the contents of its chunks, one after the other. The index of a pack has 36 bytes
for each chunk: the hash, and the size (big-endian).
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from struct import Struct
from typing import Protocol

from gridmill.domain.farm_protocol import BucketObject, ChunkSlice
from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, NotFoundError, UnavailableError
from gridmill.transfer.bucket_exchange import Bucket, ExportBucketEndpoint, UniqueNames, passed
from gridmill.transfer.paths import LARGEST_CHUNK_BYTES, check_hash
from gridmill.transfer.signed_urls import SignedUrlFarm
from gridmill.transfer.stream import UNMETERED, ByteMeter, Chunk

SMALL_BYTES = 1 << 20
"""Chunks up to this size in bytes are packed into one object if there are several of them."""
_LINE = Struct(">32sI")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSlice:
    """The position of a chunk in a pack: from byte `begin` to byte `end`."""

    pack: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPack:
    """A pack that is ready to be put into the bucket. The content of a pack is put before its index, because
    the index makes the pack visible. The name of a pack is the hash of its index."""

    name: str
    content: bytes
    index: bytes


def pack(chunks: Sequence[Chunk]) -> ChunkPack:
    """Makes one pack of these chunks."""
    index = b"".join(_LINE.pack(bytes.fromhex(chunk.hash), len(chunk.data)) for chunk in chunks)
    content = b"".join(chunk.data for chunk in chunks)
    return ChunkPack(name=hashlib.sha256(index).hexdigest(), content=content, index=index)


def parts(name: str, index: bytes) -> Mapping[str, PackSlice]:
    """Returns the positions of the pack's chunks, by their hashes. Returns an empty mapping if the index
    does not match the name of its pack."""
    if hashlib.sha256(index).hexdigest() != name:
        return {}
    result, begin = {}, 0
    for digest, size in _LINE.iter_unpack(index):
        result[digest.hex()] = PackSlice(pack=name, begin=begin, end=begin + size)
        begin += size
    return result


_FEW = 64
"""Up to this many chunks are requested one by one. For more chunks, the bucket is listed."""
_AT_ONCE = 16
_WORTH_A_PACK = 4  # fewer chunks are stored singly, because a pack needs two requests
_FOLDERS = ("index", "packs", "chunks")
_INDEX_BYTES = 64 << 20
_PACK_BYTES = 2 << 30


class ListableBucket(Bucket, Protocol):
    """A bucket whose objects can be listed; see `bucket.BucketClient`."""

    def has(self, name: str) -> bool:
        """Whether the object exists."""

    def names(self, folder: str) -> Iterator[Sequence[str]]:
        """Yields the names and sizes of all objects in a folder of the bucket, page by page."""


class BucketCache:
    """Stores chunks in a bucket for repeated use. The cache implements ChunkEndpoint (see `engine`).

    Chunks are stored below a prefix as `chunks/ab/HASH`. Small chunks are stored together as `packs/NAME`
    with the index `index/NAME`, which is put last. Several threads and processes may use the same cache.
    """

    def __init__(self, bucket: ListableBucket) -> None:
        self._bucket = bucket
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bucket")
        self._lock = threading.Lock()
        self._packed: dict[str, Mapping[str, PackSlice]] = {}
        self._single: set[str] = set()

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """Returns the given chunks that the bucket does not have, each chunk once. Raises InputError,
        UnavailableError."""
        unique = list(dict.fromkeys(chunks))
        for chunk in unique:
            check_hash(chunk)
        packed = self._packed_chunks()
        if all(chunk in packed or chunk in self._single for chunk in unique):
            return ()
        packed = self._learn()
        single = [chunk for chunk in unique if chunk not in packed]
        lacking = self._not_listed(single) if len(single) > _FEW else None
        if lacking is None:
            existence = self._threads.map(lambda chunk: self._bucket.has(_key(chunk)), single)
            lacking = [chunk for chunk, exists in zip(single, existence, strict=True) if not exists]
        with self._lock:
            self._single |= set(single) - set(lacking)
        return tuple(lacking)

    def send(self, chunks: Sequence[Chunk], meter: ByteMeter = UNMETERED) -> None:
        """Puts these chunks into the bucket. Objects with the same name have the same content, so
        overwriting an object is safe.

        Raises DataError if a content does not match its hash, InputError if access is refused, and
        UnavailableError.
        """
        for chunk in chunks:
            check_hash(chunk.hash)
            chunk.check()
        small = [chunk for chunk in chunks if len(chunk.data) <= SMALL_BYTES]
        if len(small) < _WORTH_A_PACK:
            small = []
        together = {chunk.hash for chunk in small}
        self._put_alone([chunk for chunk in chunks if chunk.hash not in together], meter)
        if small:
            self._put_pack(small, meter)

    def renew(self, chunks: Sequence[Chunk], meter: ByteMeter = UNMETERED) -> None:
        """Puts each of these chunks again as a separate object, because the object that contained the chunk
        is damaged. Raises as `send`."""
        for chunk in chunks:
            chunk.check()
        packed = self._packed_chunks()
        for name in {packed[chunk.hash].pack for chunk in chunks if chunk.hash in packed}:
            self._bucket.remove(f"index/{name}")
        self.forget_listing()
        self._put_alone(chunks, meter)

    def _put_alone(self, single: Sequence[Chunk], meter: ByteMeter) -> None:
        def put(chunk: Chunk) -> None:
            self._bucket.put(_key(chunk.hash), bytes(chunk.data), meter)

        for _ in self._threads.map(put, single):
            pass
        with self._lock:
            self._single.update(chunk.hash for chunk in single)

    def _put_pack(self, chunks: Sequence[Chunk], meter: ByteMeter) -> None:
        made = pack(chunks)
        self._bucket.put(f"packs/{made.name}", made.content, meter)
        self._bucket.put(f"index/{made.name}", made.index)
        with self._lock:
            self._packed[made.name] = parts(made.name, made.index)

    def parcels(self, sizes: Mapping[str, int]) -> tuple[BucketObject, ...]:
        """Returns signed URLs with which a farm without credentials can read these chunks. `sizes` contains
        the size in bytes of each chunk, by its hash. The chunks must exist."""
        packed, slices_by_pack = self._packed_chunks(), dict[str, list[ChunkSlice]]()
        for chunk, size_bytes in sizes.items():
            part = packed.get(chunk)
            name, begin = (f"packs/{part.pack}", part.begin) if part else (_key(chunk), 0)
            slices_by_pack.setdefault(name, []).append(
                ChunkSlice(chunk=chunk, begin=begin, size_bytes=size_bytes)
            )
        return tuple(
            BucketObject(url=self._bucket.sign("GET", name), slices=tuple(slices))
            for name, slices in slices_by_pack.items()
        )

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """Yields the contents of the chunks; see ChunkReader. Raises NotFoundError if the bucket does not
        have a chunk, and UnavailableError."""
        names = list(dict.fromkeys(chunks))
        packed = self._packed_chunks()
        if not all(name in packed or name in self._single for name in names):
            packed = self._learn()
        wanted: dict[str, list[str]] = {}
        for name in names:
            wanted.setdefault(packed[name].pack if name in packed else "", []).append(name)
        for name in wanted.pop("", []):
            yield Chunk(hash=name, data=self._bucket.get(_key(name), LARGEST_CHUNK_BYTES))
        for pack_name, members in wanted.items():
            content = memoryview(self._bucket.get(f"packs/{pack_name}", _PACK_BYTES))
            for name in members:
                yield Chunk(hash=name, data=content[packed[name].begin : packed[name].end])

    def forget_listing(self) -> None:
        """Deletes the cached listing, so that the bucket is listed again."""
        with self._lock:
            self._packed, self._single = {}, set()

    def clear(self, before: datetime) -> None:
        """Deletes objects that were put before this time. Indexes are deleted first. If a deleted chunk is
        needed again, it is put again.

        Raises InputError, UnavailableError.
        """
        self.forget_listing()
        try:
            for folder in _FOLDERS:
                for _ in self._threads.map(self._bucket.remove, tuple(self._bucket.older(before, folder))):
                    pass
        finally:
            self.forget_listing()  # another thread may have seen chunks that were then deleted

    def is_empty(self) -> bool:
        """Returns whether there are no objects below the prefix. Raises InputError, UnavailableError."""
        return not any(page for folder in _FOLDERS for page in self._bucket.names(folder))

    def _packed_chunks(self) -> dict[str, PackSlice]:
        with self._lock:
            packed: dict[str, PackSlice] = {}
            for found in self._packed.values():
                packed.update(found)
            return packed

    def _learn(self) -> dict[str, PackSlice]:
        """Returns the positions of chunks in packs. The function reads new indexes and removes deleted
        indexes from its cache."""
        names = [path.rpartition("/")[2] for page in self._bucket.names("index") for path in page]
        with self._lock:
            new = [name for name in names if name not in self._packed]
        read = dict(zip(new, self._threads.map(self._index, new), strict=True))
        with self._lock:
            listed_packs = self._packed | read
            self._packed = {name: listed_packs[name] for name in names if name in listed_packs}
        return self._packed_chunks()

    def _index(self, name: str) -> Mapping[str, PackSlice]:
        try:
            return parts(name, self._bucket.get(f"index/{name}", _INDEX_BYTES))
        except NotFoundError:
            return {}

    def _not_listed(self, names: list[str]) -> list[str] | None:
        """Returns the chunks that a listing of the bucket does not show, or None if single requests are
        faster than a listing."""
        lacking = dict.fromkeys(names)
        for page, paths in enumerate(self._bucket.names("chunks")):
            for path in paths:
                lacking.pop(path.rpartition("/")[2], None)
            if page > len(names):
                return None
        return list(lacking)


class SharedBucketEndpoint:
    """Sends chunks to a farm through objects in a bucket that are kept for repeated use. It implements
    ChunkEndpoint.

    A chunk is put into the bucket if it does not exist there, and the farm reads it from the bucket. Chunks
    that come from the farm are transferred by `bucket_exchange`. Several threads may use this endpoint.
    """

    def __init__(
        self,
        far: SignedUrlFarm,
        kept: BucketCache,
        bucket: Bucket,
        sizes: Mapping[str, int],
        uses: UniqueNames | None = None,
        meter: ByteMeter = UNMETERED,
    ) -> None:
        """`uses` records the objects that are in use; see `bucket_exchange`."""
        self._farm, self._cache, self._bucket = far, kept, bucket
        self._sizes, self._uses, self._meter = sizes, uses, meter
        self._back = ExportBucketEndpoint(far, bucket, sizes, uses, meter)

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "SharedBucketEndpoint":
        """See MeteredEndpoint."""
        meter = ByteMeter(moved=moved, piece_bytes=piece_bytes)
        return SharedBucketEndpoint(self._farm, self._cache, self._bucket, self._sizes, self._uses, meter)

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See ChunkWriter."""
        return self._farm.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See ChunkWriter. Raises InputError if the bucket refuses access to this home or to the farm."""
        lacking = set(self._cache.missing(chunk.hash for chunk in chunks))
        self._cache.send([chunk for chunk in chunks if chunk.hash in lacking], self._meter)
        sizes = {chunk.hash: len(chunk.data) for chunk in chunks}
        try:
            lost = self._received(sizes)
        except DataError:  # an object that is stored for long may be damaged, and would stay damaged
            self._cache.renew(chunks, self._meter)
            lost = self._received(sizes)
        if lost:
            self._cache.forget_listing()
            raise UnavailableError("chunks were deleted from the bucket before the farm downloaded them")

    def _received(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        return passed(self._bucket, lambda: self._farm.take(self._cache.parcels(sizes)))

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See ChunkReader. Raises InputError if the bucket refuses access to this home or to the farm."""
        return self._back.fetch(chunks)


def _key(chunk: str) -> str:
    return f"chunks/{chunk[:2]}/{chunk}"
