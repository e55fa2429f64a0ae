"""Chunks that stay in a bucket for other jobs and farms, so that they are not transferred again.

Many small chunks are packed into one object, since a request costs as much for a kilobyte as for a megabyte.
A pack is the contents of its chunks, one after the other; its index has 36 bytes for each: the hash, and the
size (big-endian).
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from struct import Struct
from typing import Protocol

from gridmill.domain.farm_protocol import Parcel, Slice
from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, NotFoundError, UnavailableError
from gridmill.transfer.bucket_exchange import Export, Owned, Uses, passed
from gridmill.transfer.paths import check_hash
from gridmill.transfer.signed_urls import Far
from gridmill.transfer.stream import UNMETERED, Chunk, Meter

SMALL_BYTES = 1 << 20
"""Chunks up to this size are packed, when there are several."""
_LINE = Struct(">32sI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where a chunk lies: from `begin` to `end` (bytes) of a pack."""

    pack: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Ready to be put: the content first, as the index makes it known. The name is the index's hash."""

    name: str
    content: bytes
    index: bytes


def pack(chunks: Sequence[Chunk]) -> Pack:
    """One pack of these."""
    index = b"".join(_LINE.pack(bytes.fromhex(chunk.hash), len(chunk.data)) for chunk in chunks)
    content = b"".join(chunk.data for chunk in chunks)
    return Pack(name=hashlib.sha256(index).hexdigest(), content=content, index=index)


def parts(name: str, index: bytes) -> Mapping[str, Part]:
    """Where its chunks lie, by hash. An index that is not its pack's (its name tells) shows nothing."""
    if hashlib.sha256(index).hexdigest() != name:
        return {}
    found, begin = {}, 0
    for said, size in _LINE.iter_unpack(index):
        found[said.hex()] = Part(pack=name, begin=begin, end=begin + size)
        begin += size
    return found


_FEW = 64  # so many are asked for one by one, of more the bucket is listed
_AT_ONCE = 16
_WORTH_A_PACK = 4  # a pack is two requests
_FOLDERS = ("index", "packs", "chunks")
_INDEX_BYTES = 64 << 20


class Listed(Owned, Protocol):
    """A bucket that is also looked into: see `objects.Objects`."""

    def has(self, name: str) -> bool:
        """Whether it is there."""

    def names(self, folder: str) -> Iterator[Sequence[str]]:
        """Of all that is in a folder, page by page."""


class Kept:
    """A Taker (see `carry`). Chunks lie below a prefix as `chunks/ab/HASH`, small ones together as
    `packs/NAME` with `index/NAME`, which is put last. Several threads and processes may use it."""

    def __init__(self, bucket: Listed) -> None:
        self._bucket = bucket
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bucket")
        self._lock = threading.Lock()
        self._packed: dict[str, Mapping[str, Part]] = {}
        self._single: set[str] = set()

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """Those, once each, that are not there. Raises InputError, UnavailableError."""
        asked = list(dict.fromkeys(chunks))
        for chunk in asked:
            check_hash(chunk)
        known = self._known()
        if all(chunk in known or chunk in self._single for chunk in asked):
            return ()
        known = self._learn()
        single = [chunk for chunk in asked if chunk not in known]
        lacking = self._not_listed(single) if len(single) > _FEW else None
        if lacking is None:
            there = self._threads.map(lambda chunk: self._bucket.has(_key(chunk)), single)
            lacking = [chunk for chunk, found in zip(single, there, strict=True) if not found]
        with self._lock:
            self._single |= set(single) - set(lacking)
        return tuple(lacking)

    def send(self, chunks: Sequence[Chunk], meter: Meter = UNMETERED) -> None:
        """Put these. What has the same name has the same content, so it may well be written over.

        Raises DataError for content without its hash, InputError where access is refused, UnavailableError.
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

    def renew(self, chunks: Sequence[Chunk], meter: Meter = UNMETERED) -> None:
        """Put these anew, each alone: one of the objects that had them is damaged. Raises as `send`."""
        for chunk in chunks:
            chunk.check()
        known = self._known()
        for name in {known[chunk.hash].pack for chunk in chunks if chunk.hash in known}:
            self._bucket.remove(f"index/{name}")
        self.forget()
        self._put_alone(chunks, meter)

    def _put_alone(self, single: Sequence[Chunk], meter: Meter) -> None:
        def put(one: Chunk) -> None:
            self._bucket.put(_key(one.hash), bytes(one.data), meter)

        for _ in self._threads.map(put, single):
            pass
        with self._lock:
            self._single.update(chunk.hash for chunk in single)

    def _put_pack(self, chunks: Sequence[Chunk], meter: Meter) -> None:
        made = pack(chunks)
        self._bucket.put(f"packs/{made.name}", made.content, meter)
        self._bucket.put(f"index/{made.name}", made.index)
        with self._lock:
            self._packed[made.name] = parts(made.name, made.index)

    def parcels(self, sizes: Mapping[str, int]) -> tuple[Parcel, ...]:
        """How whoever has no credentials reads these chunks (sizes in bytes by hash), that were there."""
        known, found = self._known(), dict[str, list[Slice]]()
        for chunk, size_bytes in sizes.items():
            part = known.get(chunk)
            name, begin = (f"packs/{part.pack}", part.begin) if part else (_key(chunk), 0)
            found.setdefault(name, []).append(Slice(chunk=chunk, begin=begin, size_bytes=size_bytes))
        return tuple(
            Parcel(url=self._bucket.sign("GET", name), slices=tuple(slices)) for name, slices in found.items()
        )

    def forget(self) -> None:
        """Believe nothing to be there: it is looked for anew."""
        with self._lock:
            self._packed, self._single = {}, set()

    def clear(self, before: datetime) -> None:
        """Remove what was put before that moment, indexes first; what is needed again is put again.

        Raises InputError, UnavailableError.
        """
        self.forget()
        for folder in _FOLDERS:
            for _ in self._threads.map(self._bucket.remove, tuple(self._bucket.older(before, folder))):
                pass

    def is_empty(self) -> bool:
        """Whether nothing is kept there. Raises InputError, UnavailableError."""
        return not any(page for folder in _FOLDERS for page in self._bucket.names(folder))

    def _known(self) -> dict[str, Part]:
        with self._lock:
            packed: dict[str, Part] = {}
            for found in self._packed.values():
                packed.update(found)
            return packed

    def _learn(self) -> dict[str, Part]:
        """Where packed chunks lie now: new indexes are read, those that went are forgotten."""
        names = [path.rpartition("/")[2] for page in self._bucket.names("index") for path in page]
        with self._lock:
            new = [name for name in names if name not in self._packed]
        read = dict(zip(new, self._threads.map(self._index, new), strict=True))
        with self._lock:
            there = self._packed | read
            self._packed = {name: there[name] for name in names if name in there}
        return self._known()

    def _index(self, name: str) -> Mapping[str, Part]:
        try:
            return parts(name, self._bucket.get(f"index/{name}", _INDEX_BYTES))
        except NotFoundError:
            return {}

    def _not_listed(self, asked: list[str]) -> list[str] | None:
        """Those that a listing does not show; None where asking one by one is quicker than listing all."""
        lacking = dict.fromkeys(asked)
        for page, paths in enumerate(self._bucket.names("chunks")):
            for path in paths:
                lacking.pop(path.rpartition("/")[2], None)
            if page > len(asked):
                return None
        return list(lacking)


class Shared:
    """A Carrier to a farm. What goes there is put where it is kept, if it is not there yet, and read from
    there; what comes from there goes as with Export. Several threads may use it."""

    def __init__(
        self,
        far: Far,
        kept: Kept,
        bucket: Owned,
        sizes: Mapping[str, int],
        uses: Uses | None = None,
        meter: Meter = UNMETERED,
    ) -> None:
        """As of Export."""
        self._far, self._kept, self._bucket = far, kept, bucket
        self._sizes, self._uses, self._meter = sizes, uses, meter
        self._back = Export(far, bucket, sizes, uses, meter)

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "Shared":
        """See Metered."""
        meter = Meter(moved=moved, piece_bytes=piece_bytes)
        return Shared(self._far, self._kept, self._bucket, self._sizes, self._uses, meter)

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """See Taker."""
        return self._far.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        """See Taker. Raises InputError where the bucket refuses one of the sides."""
        lacking = set(self._kept.missing(chunk.hash for chunk in chunks))
        self._kept.send([chunk for chunk in chunks if chunk.hash in lacking], self._meter)
        sizes = {chunk.hash: len(chunk.data) for chunk in chunks}
        try:
            lost = self._taken(sizes)
        except DataError:  # what lies there for long may rot, and stays for longer
            self._kept.renew(chunks, self._meter)
            lost = self._taken(sizes)
        if lost:
            self._kept.forget()
            raise UnavailableError("chunks were removed from the bucket before the farm had taken them")

    def _taken(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        return passed(self._bucket, lambda: self._far.take(self._kept.parcels(sizes)))

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """See Giver. Raises InputError where the bucket refuses one of the sides."""
        return self._back.fetch(chunks)


def _key(chunk: str) -> str:
    return f"chunks/{chunk[:2]}/{chunk}"
