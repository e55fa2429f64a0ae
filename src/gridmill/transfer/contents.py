"""Lists the files of a version with the hashes of their content. The list is made once, when the version is
complete."""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes
from uuid import uuid4

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import (
    StoredFile,
    StoredLink,
    VersionContents,
    VersionManifest,
    manifest_uri,
)
from gridmill.errors import InputError, NotFoundError, StorageError, UnsafePathError

NOTHING = VersionContents()
_THREADS = 4
_ALONE_BYTES = 4 << 20
"""Files with fewer bytes than this are hashed without threads, because starting threads takes about as
long."""
_PLAIN = re.compile("[^%\ud800-\udfff]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedFile:
    path: str
    place: str
    stat: os.stat_result


def list_contents(
    folder: Path, contents: VersionContents = NOTHING, names: Iterable[str] | None = None
) -> VersionContents:
    """Returns the files and links below `folder` by their paths. With `names`, the result has only these
    files.

    If `contents` has a file with the same size and time of change, the file is not read again. Raises
    StorageError.
    """
    before = {one.path: one for one in contents.files}
    with reading_errors(folder):
        files = sorted(_list_files(folder, names), key=lambda one: one.path)
        new = (one for one in files if not _is_same(before.get(one.path), one.stat))
        hashes = hash_all({one.place: one.stat.st_size for one in new})
        links = tuple(sorted(_links(folder), key=lambda one: one.path)) if names is None else None
    return VersionContents(files=tuple(_stored(one, hashes, before) for one in files), links=links)


def _links(folder: Path) -> Iterator[StoredLink]:
    begin = len(str(folder)) + 1
    for place in _walk(str(folder)):
        if os.path.islink(place):
            yield StoredLink(path=written(place[begin:]), target=written(os.readlink(place)))


@contextmanager
def reading_errors(place: str | Path) -> Iterator[None]:
    """Converts errors of the operating system about the files of a version into StorageError. If the error
    contains no file name, the message shows `place`."""
    try:
        yield
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise StorageError(message, place=str(error.filename or place)) from error


def _stored(listed_file: _ListedFile, hashes: Mapping[str, str], before: dict[str, StoredFile]) -> StoredFile:
    if listed_file.place not in hashes:
        return before[listed_file.path]
    return StoredFile(
        path=listed_file.path,
        size_bytes=listed_file.stat.st_size,
        mtime_ns=listed_file.stat.st_mtime_ns,
        sha256=hashes[listed_file.place],
    )


def _is_same(stored_file: StoredFile | None, status: os.stat_result) -> bool:
    return stored_file is not None and (stored_file.size_bytes, stored_file.mtime_ns) == (
        status.st_size,
        status.st_mtime_ns,
    )


def _list_files(folder: Path, names: Iterable[str] | None) -> Iterator[_ListedFile]:
    places = _walk(str(folder)) if names is None else (os.path.join(folder, name) for name in names)
    begin = len(str(folder)) + 1
    for place in places:
        status = os.lstat(place)
        if stat.S_ISREG(status.st_mode):
            yield _ListedFile(path=written(place[begin:]), place=place, stat=status)


def list_paths(folder: Path, *, links: bool = False) -> Iterator[str]:
    """Yields the paths of the files below the folder, in the form that a list of contents uses. With
    `links`, links are included. Raises OSError."""
    begin = len(str(folder)) + 1
    for place in _walk(str(folder)):
        if links or not os.path.islink(place):
            yield written(place[begin:])


def target_of(place: str) -> str | None:
    """Returns the target of a link, in the form that a list of contents uses, or None if the file is not a
    link. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return written(os.readlink(place)) if os.path.islink(place) else None
    return None


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            else:
                yield entry.path


def written(path: str) -> str:
    """Returns a path in the form that a list of contents uses, which is valid in JSON and unique."""
    return (
        path if _PLAIN.fullmatch(path) else quote(os.fsencode(path), safe="/ !\"#$&'()*+,:;<=>?@[\\]^`{|}~")
    )


def place_of(folder: Path, path: str) -> str:
    """Returns the path of a stored file in the folder of its version. Raises UnsafePathError."""
    name = os.fsdecode(unquote_to_bytes(path)) if "%" in path else path
    if name[:1] in ("", "/") or (".." in name and ".." in name.split("/")):
        raise UnsafePathError(f"{path!r} is not a valid path of a version's file", place=str(folder))
    return os.path.join(folder, name)


def hash_all(sizes: Mapping[str, int]) -> dict[str, str]:
    """Returns the hashes of files, by their paths. `sizes` are the sizes in bytes. Raises OSError.

    Large files are hashed first, so that no thread still works on a large file at the end.
    """
    if len(sizes) < 2 or sum(sizes.values()) < _ALONE_BYTES:
        return {place: hash_of(place) for place in sizes}
    order = sorted(sizes, key=lambda place: -sizes[place])
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        return dict(zip(order, threads.map(hash_of, order), strict=True))


def hash_of(path: str | Path) -> str:
    """Returns the SHA-256 hash of a file's content in hex, as `sha256sum` prints it. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_contents(path: Path, contents: VersionContents) -> None:
    """Writes a list of contents, either completely or not at all. Raises StorageError."""
    write_whole(path, encode(contents), sync=False)


def write_whole(path: Path, *pieces: bytes, sync: bool = True) -> None:
    """Writes a file that appears at its path only when all its content is written. With `sync`, the content
    is on the disk before the file appears. Raises StorageError."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "xb") as file:
            file.writelines(pieces)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        draft.replace(path)
        if sync:
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise StorageError(f"cannot be written: {error.strerror}", place=str(path)) from error


def sync_folder(folder: Path) -> None:
    """Syncs the names of the files in the folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_contents(path: Path) -> VersionContents | None:
    """Returns the list of contents that an attempt wrote, or None if it wrote none. Raises StorageError if
    the list cannot be read."""
    try:
        return decode(path.read_bytes(), VersionContents)
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        raise StorageError(
            f"the list of the version's files cannot be read: {error}", place=str(path)
        ) from error


def read_manifest(root: str | Path, version: Artifact) -> VersionManifest:
    """Returns the manifest of a version. Raises NotFoundError if the version has no manifest, and
    StorageError if the manifest is damaged."""
    path = below(root, manifest_uri(version.name, version.number))
    try:
        return decode(path.read_bytes(), VersionManifest)
    except FileNotFoundError as error:
        raise NotFoundError(f"{version.id} has no manifest", place=str(path)) from error
    except (OSError, InputError) as error:
        raise StorageError(
            f"the manifest of {version.id} cannot be read: {error}", place=str(path)
        ) from error
