"""Hashes of source files, kept while the files look the same: a file that is only touched is not changed."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gridmill.errors import InputError, StorageError
from gridmill.ports.storage import FileStat
from gridmill.staging.hashes import HashCache

WHOLE = 0
"""In place of a size of chunks: a file has one hash, of all that it holds."""


SOURCES_KEPT = 64
"""The hashes of so many sources stay in memory."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A source file as `os.stat` gave it when its source was listed."""

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int


class Contents:
    """The hashes of source files, in files below `folder`: one for each source.

    A file is read again when its size, one of its times or its inode changed. A program that changes a file
    cannot keep all of these: the time of the last change of the record is the kernel's. Safe to call from
    several threads.
    """

    def __init__(self, folder: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = folder
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._caches: dict[str, tuple[threading.Lock, HashCache]] = {}

    def hash_all(self, files: Iterable[FileStat], key: str) -> tuple[FileStat, ...]:
        """The files of the source `key` with their `content`. Raises InputError for an unreadable one."""
        files = tuple(files)
        if not files:
            return ()
        lock, cache = self._cache(key)
        with lock:
            cache.again()
            found = tuple(replace(file, content=_content(cache, file)) for file in files)
            with suppress(StorageError):  # they are read again the next time
                cache.save()
        return found

    def _cache(self, key: str) -> tuple[threading.Lock, HashCache]:
        with self._lock:
            known = self._caches.pop(key, None)
            if known is None:
                name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
                cache = HashCache(self._folder / name, now_ns=self._now_ns)
                cache.open(WHOLE)
                cache.keep_all()
                known = (threading.Lock(), cache)
            self._caches[key] = known
            while len(self._caches) > SOURCES_KEPT:
                del self._caches[next(iter(self._caches))]
            return known


def _content(cache: HashCache, file: FileStat) -> str:
    """The same hash as a sink job computes (jobs.sink.files)."""
    look = _Look(file.size_bytes, file.mtime_ns, file.ctime_ns, file.inode)
    known = cache.look(file.path, look)
    if known is not None:
        return known[0]
    try:
        with open(file.path, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=file.path) from error
    cache.keep(file.path, look, (found,))
    return found
