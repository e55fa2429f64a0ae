"""Finds the current source files of a sink, with a permanent key and a content hash for each file, and opens
and decompresses them.

Source files are opened as streams of plain bytes. Source files are decompressed while they are read. Error
messages name the file.
"""

import bz2
import codecs
import gzip
import hashlib
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Compression, Format, Source
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.plugins import find
from gridmill.ports.storage import FileStat

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
    """A file of the source of a sink.

    `key` (the identity of the file) and `content` (the hash of its content) have 16 hex digits each. `name`
    is the name for errors and reports. The name of a file is relative to the folder of the pipeline if the
    file is below that folder. `fetch` downloads a remote file to a given path, completely or not at all.
    `written` is the path or glob pattern in the declaration that matches the file. `changed_ns` is the time
    of the last change of any kind (nanoseconds since 1970), or 0 if it is unknown. `is_utf8` means that the
    file is text and that no other encoding was declared.
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
        """Return the time of the last modification, in milliseconds since 1970. Return 0 for a file that is
        not on this machine."""
        return self.mtime_ns // 1_000_000

    def local(self) -> Path:
        """Return the path of the file on this machine. A remote file is downloaded first. Raises DataError
        or UnavailableError if the file cannot be downloaded."""
        if self.fetch is not None and not self.path.exists():
            self.fetch(self.path)
        return self.path


Content: TypeAlias = Callable[[FileStat, str], str]
"""A function that returns the content hash of a file with the given name, or raises DataError."""


def hashed(stat: FileStat, name: str) -> str:
    """Read the file to compute its hash (see `Content`)."""
    return content_of(Path(stat.path), name)


def find_files(source: Source, folder: str, content: Content = hashed) -> tuple[SourceFile, ...]:
    """Return the current files of the source, sorted by name.

    The function reads the files to compute the hashes of their contents, unless each file becomes a row.
    Raises InputError if a path or glob pattern matches no file, or if the format of a file cannot be
    detected.
    """
    describe: Callable[[Source, str], Sequence[FileStat]] = find("sources", "files")
    source_files: dict[str, SourceFile] = {}
    for written in source.local_paths:
        for stat in describe(replace(source, path=written), folder):
            if stat.path not in source_files:
                source_files[stat.path] = _source_file(source, stat, written, folder, content)
    return tuple(sorted(source_files.values(), key=lambda file: file.name))


def _name(written: str, path: str, folder: str) -> str:
    """Return the path of the file relative to the folder of the project, from which the key of the file is
    made.

    If the project is moved, this relative path is unchanged, so that no file is loaded again.
    """
    if "://" in written:
        return written
    if os.path.isabs(written):
        return path
    base = os.path.abspath(folder)
    return path[len(base) + 1 :] if path.startswith(f"{base}/") else os.path.relpath(path, base)


def _source_file(source: Source, stat: FileStat, written: str, folder: str, content: Content) -> SourceFile:
    path, name = Path(stat.path), _name(written, stat.path, folder)
    held = "" if source.format == Format.FILES else content(stat, name)
    file = described(source, path=path, name=name, content=held, size_bytes=stat.size_bytes)
    return replace(file, mtime_ns=stat.mtime_ns, changed_ns=stat.ctime_ns, written=written)


def key_of(name: str) -> str:
    """Return the key of a source file with this name."""
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
    """Return a source file with the format and compression that its name shows. Raises InputError."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-1] if suffixes else ""
    compression = source.compression or _COMPRESSIONS.get(last, Compression.NONE)
    if last in _COMPRESSIONS:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    form = source.format or _FORMATS.get(suffix) or (Format.CSV if compression == Compression.ZIP else None)
    if form is None:
        raise InputError(
            f"cannot detect the format of {name!r} from its name",
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
    """Return the hash of the bytes of a file (16 hex digits). Raises DataError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", place=name) from error


def check_unchanged(file: SourceFile) -> None:
    """Raise UnavailableError if the file was changed since it was hashed. If the file was changed, the rows
    that were read may be inconsistent."""
    if file.fetch is not None:  # not checked, because a downloaded copy does not change
        return
    try:
        now = file.path.stat()
    except OSError as error:
        raise UnavailableError("the file was deleted while it was loaded", place=file.name) from error
    same = (now.st_size, now.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
    # hashed again, because perhaps only the permissions of the file were changed
    if same and file.changed_ns not in (0, now.st_ctime_ns):
        same = content_of(file.path, file.name) == file.content
    if not same:
        raise UnavailableError(
            "the file changed while it was loaded",
            hint="Run the pipeline again when the file is complete.",
            place=file.name,
        )


_BROKEN = (
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,  # raised for a compression method that zipfile does not know
)

_PIECE_BYTES = 2**16
_ENCRYPTED = 1  # this bit in the flags of a ZIP entry means that the entry is encrypted


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A source file that is open for reading. `stream` returns the decompressed bytes. `raw` is the file
    itself. The position of `raw` shows how much has been read."""

    stream: BinaryIO
    raw: BinaryIO


@contextmanager
def open_file(file: SourceFile) -> Iterator[OpenedFile]:
    """Open the file as a stream of plain bytes. Raises DataError if the file cannot be read or
    decompressed."""
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(file.local().open("rb"))
            stream = stack.enter_context(_decompress(file, raw))
            yield OpenedFile(stream=_as_utf8(stream, file) if file.is_utf8 else stream, raw=raw)
        except _BROKEN as error:
            raise _broken(file, error) from error
        except OSError as error:
            if file.compression != Compression.NONE and error.errno is None:
                raise _broken(file, error) from error
            raise DataError(f"cannot be read: {error.strerror or error}", place=file.name) from error


UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _as_utf8(stream: BinaryIO, file: SourceFile) -> BinaryIO:
    """Return a stream of UTF-8 text. If the file begins with the byte order mark of UTF-16, the result is a
    stream that converts its text to UTF-8. If the file does not begin with the byte order mark of UTF-16,
    the stream is returned unchanged."""
    mark = stream.read(2)
    if mark in UTF16:
        return cast(BinaryIO, _Utf16Stream(stream, mark, file.name))
    if stream.seekable():
        stream.seek(0)
        return stream
    return cast(BinaryIO, _PeekedStream(mark, stream))


class _PeekedStream:
    """A stream whose first bytes have already been read. The stream returns the first bytes a second
    time."""

    closed = False

    def __init__(self, begin: bytes, stream: BinaryIO) -> None:
        self._begin, self._stream = begin, stream

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the stream."""
        begin, self._begin = self._begin, b""
        if 0 <= size <= len(begin):
            self._begin = begin[size:]
            return begin[:size]
        return begin + self._stream.read(size - len(begin) if size >= 0 else -1)

    def readable(self) -> bool:
        """Return true, because the stream can be read."""
        return True

    def writable(self) -> bool:
        """Return false, because the stream cannot be written."""
        return False

    def seekable(self) -> bool:
        """Return false, because the stream cannot change its position."""
        return False

    def flush(self) -> None:
        """Do nothing, because there is nothing to write."""

    def close(self) -> None:
        """Do nothing on close. The code that opened the file closes it."""


class _Utf16Stream(_PeekedStream):
    """A stream that converts UTF-16 to UTF-8. Raises DataError if the bytes are not valid UTF-16."""

    def __init__(self, stream: BinaryIO, mark: bytes, name: str) -> None:
        super().__init__(b"", stream)
        encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._name = name

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the stream."""
        while size < 0 or len(self._begin) < size:
            data = self._stream.read(_PIECE_BYTES)
            try:
                self._begin += self._decoder.decode(data, final=not data).encode()
            except UnicodeError as error:
                raise DataError(
                    f"the file begins like UTF-16 text, but is not UTF-16: {error}",
                    hint="Check that the file is not cut short. If it is complete, set the `encoding` of "
                    "the source.",
                    place=self._name,
                ) from error
            if not data:
                break
        end = len(self._begin) if size < 0 else size
        text, self._begin = self._begin[:end], self._begin[end:]
        return text


def _broken(file: SourceFile, error: Exception) -> DataError:
    if file.compression == Compression.NONE:
        return DataError(f"cannot be read: {error}", place=file.name)
    return DataError(
        f"cannot be decompressed as {file.compression}: {error}",
        hint="The file is damaged or cut short, or it is not compressed in this way: check `compression`.",
        place=file.name,
    )


@contextmanager
def _decompress(file: SourceFile, raw: BinaryIO) -> Iterator[BinaryIO]:
    match file.compression:
        case Compression.NONE:
            yield raw
        case Compression.GZIP:
            with gzip.open(raw) as stream:
                yield cast(BinaryIO, stream)
        case Compression.BZIP2:
            with bz2.open(raw) as stream:
                yield cast(BinaryIO, stream)
        case Compression.XZ:
            with lzma.open(raw) as stream:
                yield cast(BinaryIO, stream)
        case Compression.ZSTD:
            with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as stream:
                yield stream
        case Compression.ZIP:
            with zipfile.ZipFile(raw) as archive, archive.open(_member(file, archive)) as stream:
                yield cast(BinaryIO, stream)


def _member(file: SourceFile, archive: zipfile.ZipFile) -> str:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    names = [entry.filename for entry in entries]
    if len(names) == 1 and entries[0].flag_bits & _ENCRYPTED:
        raise DataError("the ZIP file has a password", hint="Unpack it first.", place=file.name)
    if len(names) == 1:
        return names[0]
    listed = ", ".join(sorted(names)[:5])
    raise DataError(
        f"a ZIP source must contain exactly one file, but this one contains {len(names)}"
        + (f" ({listed})" if names else ""),
        hint="Unpack the ZIP file and name the files with a glob pattern.",
        place=file.name,
    )
