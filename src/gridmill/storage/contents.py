"""Hashes of source files, kept while the files look the same: a file that is only touched is not changed."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gridmill.errors import InputError, StorageError
from gridmill.ports.storage import FileStat
from gridmill.staging.hashes import HashCache

WHOLE = 0
"""In place of a size of chunks: a file has one hash, of all that it holds."""


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

    def hash_all(self, files: Iterable[FileStat], key: str) -> tuple[FileStat, ...]:
        """The files of the source `key` with their `content`. Raises InputError for an unreadable one."""
        files = tuple(files)
        if not files:
            return ()
        with self._lock:
            cache = HashCache(
                self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json", now_ns=self._now_ns
            )
            cache.open(WHOLE)
            found = tuple(replace(file, content=_content(cache, file)) for file in files)
            with suppress(StorageError):  # they are read again the next time
                cache.save()
            return found


def _content(cache: HashCache, file: FileStat) -> str:
    """The same hash as a sink job computes (jobs.sink.files)."""
    try:
        status = os.stat(file.path)
        known = cache.look(file.path, status)
        if known is not None:
            return known[0]
        with open(file.path, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=file.path) from error
    cache.keep(file.path, status, (found,))
    return found
