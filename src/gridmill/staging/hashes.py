"""What files hashed to when they were last read, so that an unchanged tree is only looked at."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from gridmill import codec
from gridmill.errors import InputError, StorageError
from gridmill.model.noun import dataclass

SETTLED_NS = 2_000_000_000
"""A file that changed more recently than this may change again within the same tick of the file system's
clock: what it hashed to is not kept."""

HASH = "blake3"
"""Of what kind hashes are; those that were kept when they were of another are not believed."""


class Looks(Protocol):
    """What `os.stat` gives of a file, as far as it tells whether the file changed."""

    @property
    def st_size(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def st_mtime_ns(self) -> int:
        """When its content changed."""
        ...

    @property
    def st_ctime_ns(self) -> int:
        """When its content or its record changed."""
        ...

    @property
    def st_ino(self) -> int:
        """Its inode."""
        ...


Seen = tuple[int, int, int, int]
"""Of a file: size in bytes, times of change of its content and of its record (ns), inode."""


def seen(stat: Looks) -> Seen:
    """What tells that a file is as it was."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The file that a HashCache is kept in."""

    hash: str = ""
    chunk_bytes: int = 0
    files: Mapping[str, tuple[Seen, tuple[str, ...]]] = field(default_factory=dict)


class HashCache:
    """Hashes of one tree's files, kept in a file of its own; without one they are not kept. One scan uses it
    at a time; what is lost or damaged is only hashed again."""

    def __init__(self, path: Path | None, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._now_ns = now_ns
        self._new: dict[str, tuple[Seen, tuple[str, ...]]] = {}
        self._old: Mapping[str, tuple[Seen, tuple[str, ...]]] = {}
        self._chunk_bytes = 0

    def open(self, chunk_bytes: int) -> None:
        """Read what was kept for chunks of that size."""
        self._chunk_bytes, self._new, self._old = chunk_bytes, {}, {}
        if self._path is None:
            return
        with suppress(OSError, InputError):
            kept = codec.decode(self._path.read_bytes(), Kept)
            self._old = kept.files if (kept.hash, kept.chunk_bytes) == (HASH, chunk_bytes) else {}

    def again(self) -> None:
        """Begin another scan by what the one before saw, without reading the file again."""
        self._old, self._new = self._new, {}

    def keep_all(self) -> None:
        """Take what was kept as what a scan saw, for `again`."""
        self._new = dict(self._old)

    def look(self, path: str, stat: Looks) -> tuple[str, ...] | None:
        """The file's chunks; None when it must be read."""
        known = self._old.get(path)
        if known is None or known[0] != seen(stat):
            return None
        self._new[path] = known
        return known[1]

    def keep(self, path: str, stat: Looks, chunks: tuple[str, ...]) -> None:
        """What it hashed to, as it looked before it was read."""
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < self._now_ns() - SETTLED_NS:
            self._new[path] = (seen(stat), chunks)

    def save(self) -> None:
        """Keep what the scan saw, and only that. Raises StorageError."""
        if self._path is None or self._new == self._old:
            return
        draft = self._path.with_name(f".{self._path.name}.{uuid4().hex}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(codec.encode(Kept(hash=HASH, chunk_bytes=self._chunk_bytes, files=self._new)))
            draft.rename(self._path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self._path)) from error
