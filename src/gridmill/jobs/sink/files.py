"""The source files of a sink as they are now: each with a lasting key and the hash of its content."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.model.source import Compression, Format, Source
from gridmill.ports.storage import FileStat
from gridmill.registry import find

_COMPRESSIONS = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
    ".bz2": Compression.BZIP2,
    ".xz": Compression.XZ,
    ".zip": Compression.ZIP,
}
_FORMATS = {
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".txt": Format.CSV,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".xlsx": Format.XLSX,
    ".xlsm": Format.XLSX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """`key` and `content` are 16 hex digits each: which file it is, and what it holds.

    `name` is how errors and reports call it: relative to the pipeline's folder where it is below it. `fetch`
    brings what is not on this machine to the path it is given, whole or not at all. `written` is the path or
    glob of the source that names it. `changed_ns` is when it last changed in any way (nanoseconds since
    1970), 0 where nobody knows. `is_utf8`: it is text, and no other encoding was given.
    """

    path: Path
    name: str
    key: str
    content: str
    size_bytes: int
    mtime_ns: int
    format: Format
    compression: Compression
    delimiter: str
    fetch: Callable[[Path], None] | None = None
    written: str = ""
    changed_ns: int = 0
    is_utf8: bool = False

    @property
    def modified_ms(self) -> int:
        """When it was last modified, in milliseconds since 1970; 0 for what is not a file of this machine."""
        return self.mtime_ns // 1_000_000

    def local(self) -> Path:
        """Its path, once it is there. Raises DataError or UnavailableError when it cannot be fetched."""
        if self.fetch is not None and not self.path.exists():
            self.fetch(self.path)
        return self.path


Content: TypeAlias = Callable[[FileStat, str], str]
"""The hash of what a file of that name holds. Raises DataError."""


def hashed(stat: FileStat, name: str) -> str:
    """The `Content` that reads it."""
    return content_of(Path(stat.path), name)


def find_files(source: Source, folder: str, content: Content = hashed) -> tuple[SourceFile, ...]:
    """The files the source names now, by name; their content is read to be hashed, but where each is a row.

    Raises InputError when a path or glob names nothing, or a file's format cannot be told.
    """
    describe: Callable[[Source, str], Sequence[FileStat]] = find("sources", "files")
    found: dict[str, SourceFile] = {}
    for written in source.local_paths:
        for stat in describe(replace(source, path=written), folder):
            if stat.path not in found:
                found[stat.path] = _source_file(source, stat, written, folder, content)
    return tuple(sorted(found.values(), key=lambda file: file.name))


def _name(written: str, path: str, folder: str) -> str:
    """The same wherever the project's folder lies, so that a moved project loads nothing again."""
    if "://" in written:
        return written
    if os.path.isabs(written):
        return path
    base = os.path.abspath(folder)
    return path[len(base) + 1 :] if path.startswith(f"{base}/") else os.path.relpath(path, base)


def _source_file(source: Source, stat: FileStat, written: str, folder: str, content: Content) -> SourceFile:
    path, name = Path(stat.path), _name(written, stat.path, folder)
    held = "" if source.format == Format.FILES else content(stat, name)
    found = described(source, path=path, name=name, content=held, size_bytes=stat.size_bytes)
    return replace(found, mtime_ns=stat.mtime_ns, changed_ns=stat.ctime_ns, written=written)


def key_of(name: str) -> str:
    """What a source file of that name is known by."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def described(
    source: Source,
    *,
    path: Path,
    name: str,
    content: str,
    size_bytes: int,
    fetch: Callable[[Path], None] | None = None,
) -> SourceFile:
    """A source file, with format and compression by the name of its path. Raises InputError."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-1] if suffixes else ""
    compression = source.compression or _COMPRESSIONS.get(last, Compression.NONE)
    if last in _COMPRESSIONS:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    form = source.format or _FORMATS.get(suffix) or (Format.CSV if compression == Compression.ZIP else None)
    if form is None:
        raise InputError(
            f"cannot tell the format of {name!r} from its name",
            hint="Save it as .xlsx."
            if suffix in (".xls", ".xlsb", ".ods")
            else f"Give the source a `format`: {', '.join(Format)}.",
        )
    return SourceFile(
        path=path,
        name=name,
        key=key_of(name),
        content=content,
        size_bytes=size_bytes,
        mtime_ns=0,
        format=form,
        compression=compression,
        delimiter=source.delimiter or ("\t" if suffix == ".tsv" else ","),
        fetch=fetch,
        is_utf8=form == Format.JSONL or (form == Format.CSV and source.encoding.lower() in ("utf-8", "utf8")),
    )


def content_of(path: Path, name: str) -> str:
    """16 hex digits of the bytes. Raises DataError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", place=name) from error


def check_unchanged(file: SourceFile) -> None:
    """Raise UnavailableError when the file was changed since it was hashed: what was read may be torn."""
    if file.fetch is not None:  # a copy of our own
        return
    try:
        now = file.path.stat()
    except OSError as error:
        raise UnavailableError("vanished while it was loaded", place=file.name) from error
    same = (now.st_size, now.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
    if same and file.changed_ns not in (0, now.st_ctime_ns):  # perhaps of its rights alone
        same = content_of(file.path, file.name) == file.content
    if not same:
        raise UnavailableError(
            "changed while it was loaded", hint="Run the pipeline again once it is written.", place=file.name
        )
