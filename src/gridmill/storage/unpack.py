"""Verifies and unpacks code bundles. The contents of a bundle are not trusted."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from shutil import rmtree
from types import MappingProxyType
from typing import BinaryIO
from uuid import uuid4

from gridmill.domain.amounts import MIB, show_bytes
from gridmill.errors import InputError, StorageError, UnsafePathError

MAX_BYTES = 100 * MIB
MAX_FILES = 20_000
_HEADER_BYTES = MIB
"""The largest size of the header of a file in an archive. The longest path that Linux permits has 4 KiB."""
LINK, FOLDER = "l", "d"
FILE_MODES: Mapping[str, int] = MappingProxyType({"f": 0o644, "x": 0o755, "p": 0o600, "q": 0o700})
"""The permissions of a file by its letter. The letters p and q mean that only the owner has access, which
SSH requires for keys."""
FOLDER_MODE = 0o755


def file_kind(mode: int) -> str:
    """Returns the letter for a file with these permissions."""
    executable, shared = mode & stat.S_IXUSR, mode & (stat.S_IRWXG | stat.S_IRWXO)
    return ("x" if executable else "f") if shared else ("q" if executable else "p")


def bundle_hash(tar: Path | bytes) -> str:
    """Returns the hash of a bundle's content, which does not depend on the name of the archive. Raises
    InputError."""
    source: BinaryIO = io.BytesIO(tar) if isinstance(tar, bytes) else tar.open("rb")
    lines = []
    with source, _reading(source) as archive:
        for member in _members(archive):
            content = member.linkname.encode() if member.issym() else _read(archive, member)
            lines.append(line(member.name, _mode(member), hashlib.sha256(content).hexdigest()))
    return hash_lines(lines)


def bundle_members(tar: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yields the name, the letter and the content of each file in a bundle. Raises InputError."""
    with tar.open("rb") as source, _reading(source) as archive:
        for member in _members(archive):
            content = member.linkname.encode() if member.issym() else _read(archive, member)
            yield member.name, _mode(member), content


def unpack_bundle(tar: Path, target: Path, *, expected: str | None = None) -> None:
    """Unpacks a bundle into `target`. A rename at the end makes the folder appear completely or not at all.
    If the folder `target` exists already, it is not changed.

    Only files, folders, and links that point inside the folder are unpacked. Other types are refused. With
    `expected`, the content must have this hash. Raises InputError if the archive is damaged or unsafe, and
    StorageError.
    """
    if target.exists():
        return
    if expected is not None and bundle_hash(tar) != expected:
        raise InputError(
            f"the code bundle {tar.name} does not have the hash {expected}", hint="Run the pipeline again."
        )
    draft = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        with tar.open("rb") as source, _reading(source) as archive:
            _extract(archive, draft)
        _adopt(draft, target)
    except OSError as error:
        raise StorageError(f"cannot unpack the code bundle: {error.strerror}", place=str(target)) from error
    finally:
        rmtree(draft, ignore_errors=True)


def line(name: str, mode: str, digest: str) -> str:
    """Returns the line that represents one file when the hash of a bundle is computed. The line has the hash
    of the file's content, its letter (a key of FILE_MODES, LINK, or FOLDER for an empty folder), and its
    name."""
    return f"{digest} {mode} {name}\0"


def hash_lines(lines: Iterable[str]) -> str:
    """Returns the hash of a bundle, from the lines of its files."""
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class _Member(tarfile.TarInfo):
    """A member of a tar archive with a limit for its extended headers, which tarfile reads into memory
    without a limit."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """A method that tarfile calls in subclasses. The method is called with each header before the data
        after the header is read."""
        headers = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.type in (*headers, *tarfile.GNU_TYPES) and not 0 <= self.size <= _HEADER_BYTES:
            raise InputError(f"the code bundle has a header of more than {show_bytes(_HEADER_BYTES)}")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # not in its stubs
        return member


_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError)


@contextmanager
def _reading(source: BinaryIO) -> Iterator[tarfile.TarFile]:
    """Opens an archive for the `with` block. Each error inside the block becomes an InputError."""
    try:
        with tarfile.open(fileobj=source, mode="r:gz", tarinfo=_Member) as archive:
            yield archive
    except _DAMAGED as error:
        raise InputError(f"the code bundle is damaged: {error}") from error


def _members(archive: tarfile.TarFile) -> Iterable[tarfile.TarInfo]:
    """Yields the members of the archive, each of which is checked by its header alone. The limits are
    enforced whatever sizes the archive declares."""
    size = 0
    for number, member in enumerate(archive):
        size += member.size
        if number >= MAX_FILES or size > MAX_BYTES:
            raise InputError(f"the code bundle has more than {MAX_FILES} files or {show_bytes(MAX_BYTES)}")
        name = PurePosixPath(member.name)
        inside = name.parts and not name.is_absolute() and ".." not in name.parts
        if not inside or not (member.isreg() or member.issym() or member.isdir()):
            raise UnsafePathError(f"the code bundle contains the unsafe path or file type {member.name!r}")
        yield member


def _mode(member: tarfile.TarInfo) -> str:
    if member.issym():
        return LINK
    return FOLDER if member.isdir() else file_kind(member.mode)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""


def _extract(archive: tarfile.TarFile, draft: Path) -> None:
    """Unpacks files first and links last, so that no file is ever written through a link."""
    links = []
    for member in _members(archive):
        if member.issym():
            links.append(member)
        elif member.isdir():
            (draft / member.name).mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        else:
            _write(draft / member.name, _read(archive, member), FILE_MODES[_mode(member)])
    for member in links:
        place = draft / member.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(member.linkname)
    _check_links(draft, [draft / member.name for member in links])


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _check_links(draft: Path, links: Sequence[Path]) -> None:
    root = Path(os.path.realpath(draft))
    for link in links:
        if not Path(os.path.realpath(link)).is_relative_to(root):
            raise UnsafePathError(f"the code bundle contains the link {link.name!r}, which points outside")


def _adopt(draft: Path, target: Path) -> None:
    """Renames the draft to the target. If another process has made the target first, its folder has the same
    content and stays."""
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise
