"""Code bundles: a project folder as one content-addressed, deterministic tar.gz, and back."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import rmtree
from typing import BinaryIO
from uuid import uuid4

from gridmill.errors import ConflictError, InputError, StorageError, UnsafePathError
from gridmill.model.amounts import MIB, show_bytes
from gridmill.storage.ignore import project_files, unreadable

MAX_BYTES = 100 * MIB
MAX_FILES = 20_000
_BLOCK = 1 << 18
_STILL = "Try again once they are still, or leave out what changes with lines in .gridmillignore."
_LEAVE_OUT = "Leave out what jobs do not need, with lines in .gridmillignore."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """`hash` is of the content alone; `size_bytes` is unpacked; `path` is the tar.gz, named by the hash."""

    hash: str
    files: int
    size_bytes: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A file or (`link` is its target) a symbolic link, under its name in the bundle."""

    name: str
    path: Path
    size: int = 0
    executable: bool = False
    link: str | None = None


def make_bundle(
    folder: Path,
    cache: Path,
    *,
    leave_out: Sequence[Path] = (),
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> Bundle:
    """Bundle the project in `folder` as `cache/<hash>.tar.gz`, unless that is there already.

    Ignored files (storage.ignore) and `leave_out` are not part of it. The hash covers each file's relative
    path, executable bit and content, nothing else. Raises InputError (unreadable, too large, too many
    files), UnsafePathError (a link that leads outside), StorageError (the cache cannot be written).
    """
    folder = folder.resolve()
    entries = _entries(folder, project_files(folder, (*leave_out, cache)), max_files)
    _check_size(entries, max_bytes)
    digest = _digest((entry, _content_digest(entry)) for entry in entries)
    path = cache / f"{digest}.tar.gz"
    if not path.exists():
        _write_tar(entries, path, digest)
    return Bundle(hash=digest, files=len(entries), size_bytes=sum(e.size for e in entries), path=path)


def bundle_hash(tar: Path | bytes) -> str:
    """The hash of a bundle's content, whatever the archive is called. Raises InputError."""
    source: BinaryIO = io.BytesIO(tar) if isinstance(tar, bytes) else tar.open("rb")
    lines = []
    with source, _reading(source) as archive:
        for member in _members(archive):
            content = member.linkname.encode() if member.issym() else _read(archive, member)
            lines.append(_line(member.name, _mode(member), hashlib.sha256(content).hexdigest()))
    return _hash_lines(lines)


def unpack_bundle(tar: Path, target: Path, *, expected: str | None = None) -> None:
    """Unpack into `target`, which appears complete by a rename or not at all; one that is there stays.

    Only files, and links that stay inside, are made; everything else is refused. With `expected` the
    content must have that hash. Raises InputError for a damaged or unsafe archive, StorageError.
    """
    if target.exists():
        return
    if expected is not None and bundle_hash(tar) != expected:
        raise InputError(f"the code bundle {tar.name} is not {expected}", hint="Run the pipeline again.")
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


# making


def _entries(folder: Path, paths: Iterable[Path], max_files: int) -> list[_Entry]:
    entries: list[_Entry] = []
    for path in paths:
        if len(entries) == max_files:
            raise InputError(
                f"the project has more than {max_files} files", place=str(folder), hint=_LEAVE_OUT
            )
        entries.append(_entry(folder, path))
    return sorted(entries, key=lambda entry: entry.name)


def _entry(folder: Path, path: Path) -> _Entry:
    name = path.relative_to(folder).as_posix()
    _check_name(name, path)
    if path.is_symlink():
        return _Entry(name=name, path=path, link=_link_inside(folder, path))
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return _Entry(name=name, path=path, size=status.st_size, executable=bool(status.st_mode & stat.S_IXUSR))


def _check_name(name: str, path: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the file name {name!r} is not UTF-8", place=str(path.parent), hint=_LEAVE_OUT
        ) from error


def _link_inside(folder: Path, path: Path) -> str:
    """The link's target, relative to the link. Raises UnsafePathError when it leads out of the folder."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise InputError("this link leads to itself", place=str(path), hint=_LEAVE_OUT) from error
    if not target.is_relative_to(folder):
        raise UnsafePathError(
            f"this link leads out of the project folder, to {target}",
            place=str(path),
            hint="Copy what it points to, or leave the link out with a line in .gridmillignore.",
        )
    return os.path.relpath(target, path.parent)


def _check_size(entries: Sequence[_Entry], max_bytes: int) -> None:
    size = sum(entry.size for entry in entries)
    if size <= max_bytes:
        return
    largest = sorted(entries, key=lambda entry: -entry.size)[:5]
    names = ", ".join(f"{entry.name} ({show_bytes(entry.size)})" for entry in largest)
    raise InputError(
        f"the project is {show_bytes(size)}, a code bundle at most {show_bytes(max_bytes)}; largest: {names}",
        hint=_LEAVE_OUT,
    )


def _content_digest(entry: _Entry) -> str:
    if entry.link is not None:
        return hashlib.sha256(entry.link.encode()).hexdigest()
    try:
        with entry.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(entry.path, error) from error


def _digest(contents: Iterable[tuple[_Entry, str]]) -> str:
    return _hash_lines(
        _line(entry.name, "l" if entry.link is not None else "x" if entry.executable else "f", digest)
        for entry, digest in contents
    )


def _line(name: str, mode: str, digest: str) -> str:
    return f"{digest} {mode} {name}\0"


def _hash_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _write_tar(entries: Sequence[_Entry], path: Path, expected: str) -> None:
    """Write the archive by rename. Raises ConflictError when what went into it has another hash by now."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            digest = _fill_tar(entries, file)
            file.flush()
            os.fsync(file.fileno())
        if digest != expected:
            raise ConflictError("files of the project changed while the code bundle was made", hint=_STILL)
        draft.rename(path)
    except OSError as error:
        raise StorageError(f"cannot write the code bundle: {error.strerror}", place=str(path)) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _fill_tar(entries: Sequence[_Entry], file: BinaryIO) -> str:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=5, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        return _digest((entry, _add(archive, entry)) for entry in entries)


def _add(archive: tarfile.TarFile, entry: _Entry) -> str:
    info = tarfile.TarInfo(entry.name)
    if entry.link is not None:
        info.type, info.linkname, content = tarfile.SYMTYPE, entry.link, entry.link.encode()
        archive.addfile(info)
    else:
        content = _content(entry.path)
        info.size, info.mode = len(content), 0o755 if entry.executable else 0o644
        archive.addfile(info, io.BytesIO(content))
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


# reading


_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError)


@contextmanager
def _reading(source: BinaryIO) -> Iterator[tarfile.TarFile]:
    """An archive being read; whatever is wrong with it leaves as InputError."""
    try:
        with tarfile.open(fileobj=source, mode="r:gz") as archive:
            yield archive
    except _DAMAGED as error:
        raise InputError(f"the code bundle is damaged: {error}") from error


def _members(archive: tarfile.TarFile) -> Iterable[tarfile.TarInfo]:
    """The members, each checked by its header alone; the limits hold whatever the archive says."""
    size = 0
    for number, member in enumerate(archive):
        size += member.size
        if number >= MAX_FILES or size > MAX_BYTES:
            raise InputError(f"the code bundle holds more than {MAX_FILES} files or {show_bytes(MAX_BYTES)}")
        name = PurePosixPath(member.name)
        inside = name.parts and not name.is_absolute() and ".." not in name.parts
        if not inside or not (member.isreg() or member.issym()):
            raise UnsafePathError(f"the code bundle holds {member.name!r}, which is not a file inside it")
        yield member


def _mode(member: tarfile.TarInfo) -> str:
    if member.issym():
        return "l"
    return "x" if member.mode & stat.S_IXUSR else "f"


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""


def _extract(archive: tarfile.TarFile, draft: Path) -> None:
    """Files first, links last, so that nothing is ever written through a link."""
    links = []
    for member in _members(archive):
        if member.issym():
            links.append(member)
        else:
            _write(draft / member.name, _read(archive, member), 0o755 if _mode(member) == "x" else 0o644)
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
            raise UnsafePathError(f"the code bundle holds the link {link.name!r}, which leads out of it")


def _adopt(draft: Path, target: Path) -> None:
    """Put the draft in its place; when another was quicker, theirs has the same content and stays."""
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise
