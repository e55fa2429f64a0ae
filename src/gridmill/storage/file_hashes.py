"""Caches the hashes of source files while their size and times are unchanged, and stores lists of the files
in code bundles.

If only the time of a file has changed and its content is equal, the file counts as unchanged. The list of a
bundle contains the hashes of its files. The file list is stored beside the bundle, so that two bundles can
be compared.
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
"""This value replaces the chunk size if the hash of a file is one hash of its complete content."""


SOURCES_KEPT = 64
"""The number of sources whose file hashes stay in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileState:
    """The state of a source file, as `os.stat` reported it when the source was listed."""

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int


class SourceHashes:
    """Caches the hashes of source files in files below `folder`, with one cache file for each source.

    A source file is read again if its size, one of its times or its inode number has changed. A program that
    changes a file cannot preserve all these values, because the kernel sets the change time of the inode.
    The class is thread-safe.
    """

    def __init__(self, folder: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._folder = folder
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._caches: dict[str, tuple[threading.Lock, HashCache]] = {}

    def hash_all(self, files: Iterable[FileStat], key: str) -> tuple[FileStat, ...]:
        """Returns the files of the source `key` with the hashes of their content in the field `content`.
        Raises InputError if a file cannot be read."""
        files = tuple(files)
        if not files:
            return ()
        lock, cache = self._cache(key)
        with lock:
            cache.again()
            result = tuple(replace(file, content=_content(cache, file)) for file in files)
            # no error, because without the cache the files are only read again the next time
            with suppress(StorageError):
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
    """Returns the hash of the content, computed in the same way as in a sink job (`jobs.sink.files`)."""
    state = _FileState(
        st_size=file.size_bytes, st_mtime_ns=file.mtime_ns, st_ctime_ns=file.ctime_ns, st_ino=file.inode
    )
    cached = cache.look(file.path, state)
    if cached is not None:
        return cached[0]
    try:
        with open(file.path, "rb") as opened:
            result = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=file.path) from error
    cache.keep(file.path, state, (result,))
    return result


_YAML = (".yaml", ".yml")
_LARGEST_PIPELINE = 1 << 20
_PIPELINE = re.compile(rb"^pipeline\s*:", re.MULTILINE)
_JOBS = re.compile(rb"^jobs\s*:", re.MULTILINE)


def listing_path(bundle: Path) -> Path:
    """Returns the path of the file list that belongs to a bundle `<hash>.tar.gz`."""
    return bundle.with_name(f"{bundle.name.partition('.')[0]}.json")


def is_pipeline_file(name: str, content: bytes) -> bool:
    """Returns whether the file declares a pipeline, that is, whether it is YAML with the fields `pipeline`
    and `jobs`."""
    if not name.endswith(_YAML) or len(content) > _LARGEST_PIPELINE:
        return False
    return bool(_PIPELINE.search(content) and _JOBS.search(content))


def code_file(name: str, kind: str, content: str, *, pipeline: bool) -> CodeFile:
    """Returns an entry of the file list of a bundle. `content` is the hash (hex) of the file's content, and
    `kind` is the letter for the type of the file in the bundle. Of the file permissions, only the executable
    bit is included, because Git stores no other permissions."""
    kept = {LINK: LINK_MARK, FOLDER: FOLDER_MARK, "x": EXECUTABLE_MARK, "q": EXECUTABLE_MARK}.get(kind, "")
    return CodeFile(name=name, digest=f"{content}{kept}", pipeline=pipeline)


def write_listing(bundle: Path, files: Iterable[CodeFile]) -> None:
    """Writes the file list of a bundle. The list becomes visible when it is complete. Raises
    StorageError."""
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
    """Returns the files of a bundle, sorted by name. If the bundle has no file list, the files are read from
    the bundle itself. Raises StorageError if the bundle does not exist, and InputError if it is damaged."""
    with suppress(OSError, InputError):
        return codec.decode(listing_path(bundle).read_bytes(), tuple[CodeFile, ...])
    if not bundle.exists():
        raise StorageError(f"the code bundle {bundle.name[:12]} is not on this machine")
    result = tuple(sorted(_read(bundle), key=lambda file: file.name))
    with suppress(StorageError):  # no error, because the list is only made again the next time
        write_listing(bundle, result)
    return result


def _read(bundle: Path) -> Iterable[CodeFile]:
    for name, kind, content in bundle_members(bundle):
        digest = hashlib.sha256(content).hexdigest()
        yield code_file(name, kind, digest, pipeline=is_pipeline_file(name, content))
