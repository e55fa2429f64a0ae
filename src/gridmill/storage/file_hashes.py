"""Hashes of source files, cached while the files look the same, and lists of the files of code bundles.

A file whose time alone has changed counts as unchanged. The list of a bundle has the hashes of its files and
is stored beside the bundle, so that two bundles can be compared.
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from gridmill import codec
from gridmill.domain.frozen import dataclass
from gridmill.domain.provenance import EXECUTABLE_MARK, FOLDER_MARK, LINK_MARK, CodeFile
from gridmill.errors import InputError, StorageError
from gridmill.ports.storage import FileStat
from gridmill.storage.unpack import FOLDER, LINK, bundle_members
from gridmill.transfer.chunk_manifest import HashCache

WHOLE = 0
"""Used instead of a chunk size: a file has one hash of its whole content."""


SOURCES_KEPT = 64
"""Number of sources whose file hashes stay in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileState:
    """The state of a source file, as `os.stat` gave it when the source was listed."""

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int


class SourceHashes:
    """The hashes of source files, cached in files below `folder`: one file for each source.

    A file is read again if its size, one of its times or its inode has changed. A program that changes a file
    cannot keep all of these, because the kernel sets the change time of the inode. Thread-safe.
    """

    def __init__(self, folder: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = folder
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._caches: dict[str, tuple[threading.Lock, HashCache]] = {}

    def hash_all(self, files: Iterable[FileStat], key: str) -> tuple[FileStat, ...]:
        """The files of the source `key` with their `content`. Raises InputError for a file that cannot be
        read."""
        files = tuple(files)
        if not files:
            return ()
        lock, cache = self._cache(key)
        with lock:
            cache.again()
            result = tuple(replace(file, content=_content(cache, file)) for file in files)
            with suppress(StorageError):  # without the cache, the files are read again the next time
                cache.save()
        return result

    def _cache(self, key: str) -> tuple[threading.Lock, HashCache]:
        with self._lock:
            cach = self._caches.pop(key, None)
            if cach is None:
                name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
                cache = HashCache(self._folder / name, now_ns=self._now_ns)
                cache.open(WHOLE)
                cache.keep_all()
                cach = (threading.Lock(), cache)
            self._caches[key] = cach
            while len(self._caches) > SOURCES_KEPT:
                del self._caches[next(iter(self._caches))]
            return cach


def _content(cache: HashCache, file: FileStat) -> str:
    """The hash of the content, computed as a sink job does it (`jobs.sink.files`)."""
    look = _FileState(
        st_size=file.size_bytes, st_mtime_ns=file.mtime_ns, st_ctime_ns=file.ctime_ns, st_ino=file.inode
    )
    cached = cache.look(file.path, look)
    if cached is not None:
        return cached[0]
    try:
        with open(file.path, "rb") as opened:
            result = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=file.path) from error
    cache.keep(file.path, look, (result,))
    return result


_YAML = (".yaml", ".yml")
_LARGEST_PIPELINE = 1 << 20
_PIPELINE = re.compile(rb"^pipeline\s*:", re.MULTILINE)
_JOBS = re.compile(rb"^jobs\s*:", re.MULTILINE)


def listing_path(bundle: Path) -> Path:
    """The path of the file list of a bundle `<hash>.tar.gz`."""
    return bundle.with_name(f"{bundle.name.partition('.')[0]}.json")


def is_pipeline_file(name: str, content: bytes) -> bool:
    """Whether the file declares a pipeline: it is YAML with the fields `pipeline` and `jobs`."""
    if not name.endswith(_YAML) or len(content) > _LARGEST_PIPELINE:
        return False
    return bool(_PIPELINE.search(content) and _JOBS.search(content))


def code_file(name: str, kind: str, content: str, *, pipeline: bool) -> CodeFile:
    """An entry of the file list. `content` is the hash (hex) of the content, `kind` the letter of the file in
    the bundle. Of the permissions only the executable bit counts, because Git stores no others."""
    kept = {LINK: LINK_MARK, FOLDER: FOLDER_MARK, "x": EXECUTABLE_MARK, "q": EXECUTABLE_MARK}.get(kind, "")
    return CodeFile(name=name, digest=f"{content}{kept}", pipeline=pipeline)


def write_listing(bundle: Path, files: Iterable[CodeFile]) -> None:
    """Write the file list; it becomes visible when it is complete. Raises StorageError."""
    path = listing_path(bundle)
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(codec.encode(tuple(files)))
        draft.rename(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write the file list of a code bundle: {error.strerror}", place=str(path)
        ) from error


def read_listing(bundle: Path) -> tuple[CodeFile, ...]:
    """The files of a bundle, by name. Read from the bundle if it has no file list. Raises StorageError if the
    bundle does not exist, InputError if it is damaged."""
    with suppress(OSError, InputError):
        return codec.decode(listing_path(bundle).read_bytes(), tuple[CodeFile, ...])
    if not bundle.exists():
        raise StorageError(f"the code bundle {bundle.name[:12]} is not on this machine")
    result = tuple(sorted(_read(bundle), key=lambda file: file.name))
    with suppress(StorageError):  # the list is made again the next time
        write_listing(bundle, result)
    return result


def _read(bundle: Path) -> Iterable[CodeFile]:
    for name, kind, content in bundle_members(bundle):
        digest = hashlib.sha256(content).hexdigest()
        yield code_file(name, kind, digest, pipeline=is_pipeline_file(name, content))
