"""Checks the paths of a folder that comes from other users or in which other users write, so that no name
and no link leads out of the folder."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.errors import InputError, NotFoundError, UnsafePathError

LARGEST_CHUNK_BYTES = 64 << 20
"""Chunks larger than this number of bytes are refused from any sender."""
User = tuple[int, int]
"""The user id and the group id of a Unix user."""
_LONGEST_PATH, _LONGEST_NAME = 4000, 255  # Linux refuses longer paths and names, which are measured in bytes
_HASH = re.compile("[0-9a-f]{64}")
# these would lead elsewhere: an empty name, `.`, `..`, a backslash, and a null character
_LEADS_ELSEWHERE = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|[\\\0]")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO must not block


def check_path(path: str) -> None:
    """Checks a relative path from a manifest or a request. The path is written with `/`.

    Raises UnsafePathError if the path is absolute or too long for a file system. The error is also raised if
    a component of the path is empty, `.` or `..`, and if the path contains a backslash, NUL or text that is
    not UTF-8.
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError as error:
        raise UnsafePathError(f"the path {path!r} is not UTF-8") from error
    if _LEADS_ELSEWHERE.search(path):
        raise UnsafePathError(f"the path {path!r} leads out of the folder")
    if len(encoded) > _LONGEST_NAME and (
        len(encoded) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in encoded.split(b"/"))
    ):
        raise UnsafePathError(f"the path {path[:80]!r}… is too long")


def check_hash(chunk: str) -> None:
    """Raises InputError if the name is not a number of 256 bits in lower-case hex."""
    if not _HASH.fullmatch(chunk):
        raise InputError(f"{chunk[:80]!r} is not the hash of a chunk")


def check_manifest(manifest: Manifest) -> None:
    """Checks that the files of a manifest can be written as a folder. The manifest of a single file has one
    entry with an empty path.

    Raises UnsafePathError for paths that lead out of the folder or conflict (the same path twice, or a file
    that is also a folder), and InputError for sizes that do not match the chunks.
    """
    if not 0 < manifest.chunk_bytes <= LARGEST_CHUNK_BYTES:
        raise InputError(
            f"a chunk size of {manifest.chunk_bytes} bytes is not between 1 and {LARGEST_CHUNK_BYTES}"
        )
    single = len(manifest.files) == 1 and manifest.files[0].path == ""
    seen: set[str] = set()
    for entry in manifest.files:
        if not single:
            check_path(entry.path)
        if entry.path in seen:
            raise UnsafePathError(f"the path {entry.path!r} occurs twice")
        seen.add(entry.path)
        _check_entry(entry, manifest.chunk_bytes)
    if not single:
        _check_folders(seen)


def _check_entry(entry: FileEntry, chunk_bytes: int) -> None:
    if entry.size_bytes < 0 or len(entry.chunks) != -(-entry.size_bytes // chunk_bytes):
        raise InputError(
            f"{entry.size_bytes} bytes do not fit {len(entry.chunks)} chunks of {chunk_bytes} bytes",
            place=entry.path,
        )
    for chunk in entry.chunks:
        check_hash(chunk)


def _check_folders(files: set[str]) -> None:
    folders = {path.rpartition("/")[0] for path in files} - {""}
    while folders:
        if met := files & folders:
            raise UnsafePathError(f"the path {min(met)!r} is both a file and a folder")
        folders = {path.rpartition("/")[0] for path in folders} - {""}


def chunk_sizes(manifest: Manifest) -> dict[str, int]:
    """Returns the chunks of a manifest in order, each of them once, with their sizes in bytes."""
    sizes: dict[str, int] = {}
    for entry in manifest.files:
        for index, chunk in enumerate(entry.chunks):
            sizes[chunk] = min(manifest.chunk_bytes, entry.size_bytes - index * manifest.chunk_bytes)
    return sizes


@contextmanager
def folder_below(root: Path, path: str, *, make: bool = False, user: User | None = None) -> Iterator[int]:
    """Opens the folder at `path` below `root` (an empty path means the root itself), and yields its file
    descriptor. Links in the path are not followed.

    With `make`, missing folders are created for the given user. Raises UnsafePathError if the path contains
    a link or a file, NotFoundError, and OSError.
    """
    here = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for name in path.split("/") if path else ():
            deeper = _enter(here, name, (root, path), made=make and _made(here, name), user=user)
            os.close(here)
            here = deeper
        yield here
    finally:
        os.close(here)


def _made(folder: int, name: str) -> bool:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def _enter(folder: int, name: str, place: tuple[Path, str], *, made: bool, user: User | None) -> int:
    try:
        entered = os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError as error:
        raise NotFoundError("there is no such folder", place=str(Path(*place))) from error
    except NotADirectoryError as error:  # opening a link with O_NOFOLLOW raises this error too
        raise UnsafePathError(f"{name!r} on the path is a link or a file", place=str(Path(*place))) from error
    if made and user is not None:
        os.fchown(entered, *user)
    return entered


class FilesBelow:
    """Opens ordinary files below a root folder, one after the other. The folder of the last file stays open,
    because the next file is usually in the same folder.

    Use this class in a `with` statement and in one thread.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._above, self._folder = root, "", -1
        self._opened = ExitStack()

    def __enter__(self) -> "FilesBelow":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @contextmanager
    def file(self, path: str) -> Iterator[int]:
        """As `file_below`."""
        descriptor = self.open(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, path: str) -> int:
        """Opens a file as `file_below` does. The caller must close the returned file descriptor."""
        root, path = (self._root, path) if path else (self._root.parent, self._root.name)
        above, _, name = path.rpartition("/")
        if self._folder < 0 or above != self._above:
            self._opened.close()
            self._folder = -1
            self._folder, self._above = self._opened.enter_context(folder_below(root, above)), above
        return _open(self._folder, name, (root, path))


@contextmanager
def file_below(root: Path, path: str) -> Iterator[int]:
    """Opens the ordinary file at `path` below `root` (an empty path means that the root itself is a file),
    and yields its file descriptor. Links in the path are not followed.

    Raises UnsafePathError for links, NotFoundError, and OSError.
    """
    with FilesBelow(root) as files, files.file(path) as descriptor:
        yield descriptor


def _open(folder: int, name: str, place: tuple[Path, str]) -> int:
    try:
        return os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError as error:
        raise NotFoundError("there is no such file", place=str(Path(*place))) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafePathError("it is a link", place=str(Path(*place))) from error
        raise
