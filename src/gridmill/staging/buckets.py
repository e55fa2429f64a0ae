"""Chunks in a bucket, or in a folder that several machines see: for two sides that cannot meet."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import obstore
from obstore.exceptions import NotFoundError

from gridmill import errors
from gridmill.staging.frames import Chunk
from gridmill.staging.objects import explained, open_store
from gridmill.staging.packs import SMALL_BYTES, Pack, Part, pack, parts
from gridmill.staging.paths import LARGEST_CHUNK_BYTES, check_hash

_FEW = 64  # so many are asked for one by one, of more the bucket is listed
_AT_ONCE = 32
_WORTH_A_PACK = 4  # a pack is two requests


class BucketCarrier:
    """A Carrier (see `carry`) below a prefix of a bucket: chunks as `chunks/ab/HASH`, small ones together as
    `packs/NAME` with `index/NAME`. Several threads may use it."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        """See `open_store`. Raises InputError."""
        self._url = url
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bucket")
        self._store: Any = open_store(url, options or {})
        self._lock = threading.Lock()
        self._packed: dict[str, Mapping[str, Part]] = {}

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        """Those, once each, that are not there. Raises InputError, UnavailableError."""
        asked = list(dict.fromkeys(chunks))
        for chunk in asked:
            check_hash(chunk)
        packed = self._learn()
        single = [chunk for chunk in asked if chunk not in packed]
        lacking = self._not_listed(single) if len(single) > _FEW else None
        if lacking is None:
            there = self._threads.map(self._has, single)
            lacking = [chunk for chunk, found in zip(single, there, strict=True) if not found]
        return tuple(lacking)

    def send(self, chunks: Sequence[Chunk]) -> None:
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
        single = [chunk for chunk in chunks if chunk.hash not in together]
        for _ in self._threads.map(lambda one: self._put(_key(one.hash), one.data), single):
            pass
        if small:
            self._put_pack(pack(small))

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        """Their contents, in any order. Raises NotFoundError, DataError, InputError, UnavailableError."""
        asked = list(chunks)
        for chunk in asked:
            check_hash(chunk)
        packed = self._known()
        if any(chunk not in packed for chunk in asked):
            packed = self._learn()
        by_pack: dict[str, list[str]] = {}
        for chunk in asked:
            if chunk in packed:
                by_pack.setdefault(packed[chunk].pack, []).append(chunk)
        for name, wanted in by_pack.items():
            yield from self._get_packed(name, [(chunk, packed[chunk]) for chunk in wanted])
        yield from self._threads.map(self._get, [chunk for chunk in asked if chunk not in packed])

    def clear(self, before: datetime) -> None:
        """Remove what was put before that moment, indexes first. Nobody may count on it any more.

        Raises InputError, UnavailableError.
        """
        with explained(self._url):
            for folder in ("index", "packs", "chunks"):
                for page in obstore.list(self._store, prefix=folder):
                    old = [found["path"] for found in page if found["last_modified"] < before]
                    for _ in self._threads.map(self._remove, old):
                        pass

    def _known(self) -> dict[str, Part]:
        with self._lock:
            packed: dict[str, Part] = {}
            for found in self._packed.values():
                packed.update(found)
            return packed

    def _learn(self) -> dict[str, Part]:
        """Where packed chunks lie now: new indexes are read, those that went are forgotten."""
        with explained(self._url):
            pages = obstore.list(self._store, prefix="index", chunk_size=1000)
            names = [found["path"].rpartition("/")[2] for page in pages for found in page]
        with self._lock:
            new = [name for name in names if name not in self._packed]
        read = dict(zip(new, self._threads.map(self._index, new), strict=True))
        with self._lock:
            there = self._packed | read
            self._packed = {name: there[name] for name in names if name in there}
        return self._known()

    def _index(self, name: str) -> Mapping[str, Part]:
        with explained(self._url):
            try:
                return parts(name, bytes(obstore.get(self._store, f"index/{name}").bytes()))
            except (FileNotFoundError, NotFoundError):
                return {}

    def _put_pack(self, made: Pack) -> None:
        self._put(f"packs/{made.name}", made.content)
        self._put(f"index/{made.name}", made.index)

    def _get_packed(self, name: str, wanted: list[tuple[str, Part]]) -> Iterator[Chunk]:
        begins, ends = [part.begin for _, part in wanted], [part.end for _, part in wanted]
        with explained(self._url), self._there(f"packs/{name}"):
            found = obstore.get_ranges(self._store, f"packs/{name}", starts=begins, ends=ends)
        for (chunk, _), data in zip(wanted, found, strict=True):
            yield Chunk(hash=chunk, data=bytes(data))

    def _not_listed(self, asked: list[str]) -> list[str] | None:
        """Those that a listing does not show; None where asking one by one is quicker than listing all."""
        lacking = dict.fromkeys(asked)
        with explained(self._url):
            for page, objects in enumerate(obstore.list(self._store, prefix="chunks", chunk_size=1000)):
                for found in objects:
                    lacking.pop(found["path"].rpartition("/")[2], None)
                if page > len(asked):
                    return None
        return list(lacking)

    def _has(self, chunk: str) -> bool:
        with explained(self._url):
            try:
                obstore.head(self._store, _key(chunk))
            except (FileNotFoundError, NotFoundError):
                return False
        return True

    def _put(self, key: str, data: bytes) -> None:
        with explained(self._url):
            obstore.put(self._store, key, data, use_multipart=False)

    def _get(self, chunk: str) -> Chunk:
        with explained(self._url), self._there(_key(chunk)):
            got = obstore.get(self._store, _key(chunk))
            if got.meta["size"] > LARGEST_CHUNK_BYTES:
                raise errors.DataError("is too large", place=f"{self._url}/{_key(chunk)}")
            return Chunk(hash=chunk, data=bytes(got.bytes()))

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError, NotFoundError):
            obstore.delete(self._store, path)

    @contextmanager
    def _there(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotFoundError) as error:
            raise errors.NotFoundError("is not there", place=f"{self._url}/{key}") from error


def _key(chunk: str) -> str:
    return f"chunks/{chunk[:2]}/{chunk}"
