"""Source files as streams of plain bytes: decompressed while read, with errors that name the file."""

import bz2
import codecs
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa

from gridmill.errors import DataError
from gridmill.jobs.sink.files import SourceFile
from gridmill.model.source import Compression

_BROKEN = (
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,  # a compression method that zipfile does not know
)

_PIECE_BYTES = 2**16
_ENCRYPTED = 1  # the flag bit of a ZIP entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """`stream` gives plain bytes; `raw` is the file itself, whose position tells how far it is read."""

    stream: BinaryIO
    raw: BinaryIO


@contextmanager
def open_file(file: SourceFile) -> Iterator[Opened]:
    """The file's bytes. Raises DataError when it cannot be read or decompressed."""
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(file.local().open("rb"))
            stream = stack.enter_context(_decompress(file, raw))
            yield Opened(stream=_as_utf8(stream, file) if file.is_utf8 else stream, raw=raw)
        except _BROKEN as error:
            raise _broken(file, error) from error
        except OSError as error:
            if file.compression != Compression.NONE and error.errno is None:
                raise _broken(file, error) from error
            raise DataError(f"cannot be read: {error.strerror or error}", place=file.name) from error


UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _as_utf8(stream: BinaryIO, file: SourceFile) -> BinaryIO:
    """The stream; of a file that begins with the byte order mark of UTF-16, its text as UTF-8."""
    mark = stream.read(2)
    if mark in UTF16:
        return cast(BinaryIO, _Recoded(stream, mark, file.name))
    if stream.seekable():
        stream.seek(0)
        return stream
    return cast(BinaryIO, _Begun(mark, stream))


class _Begun:
    """A stream of which the first bytes are read."""

    closed = False

    def __init__(self, begin: bytes, stream: BinaryIO) -> None:
        self._begin, self._stream = begin, stream

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        begin, self._begin = self._begin, b""
        if 0 <= size <= len(begin):
            self._begin = begin[size:]
            return begin[:size]
        return begin + self._stream.read(size - len(begin) if size >= 0 else -1)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def writable(self) -> bool:
        """It cannot be written to."""
        return False

    def seekable(self) -> bool:
        """It goes on from where it is."""
        return False

    def flush(self) -> None:
        """There is nothing to write."""

    def close(self) -> None:
        """The file is closed by whoever opened it."""


class _Recoded(_Begun):
    """UTF-16 as UTF-8. Raises DataError where it is not UTF-16."""

    def __init__(self, stream: BinaryIO, mark: bytes, name: str) -> None:
        super().__init__(b"", stream)
        encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._name = name

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        while size < 0 or len(self._begin) < size:
            found = self._stream.read(_PIECE_BYTES)
            try:
                self._begin += self._decoder.decode(found, final=not found).encode()
            except UnicodeError as error:
                raise DataError(
                    f"begins as UTF-16 text, and is not: {error}",
                    hint="Is the file cut short? Else give the source its `encoding`.",
                    place=self._name,
                ) from error
            if not found:
                break
        end = len(self._begin) if size < 0 else size
        text, self._begin = self._begin[:end], self._begin[end:]
        return text


def _broken(file: SourceFile, error: Exception) -> DataError:
    if file.compression == Compression.NONE:
        return DataError(f"cannot be read: {error}", place=file.name)
    return DataError(
        f"cannot be decompressed as {file.compression}: {error}",
        hint="The file is damaged or cut short, or its `compression` is another one.",
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
        f"a ZIP source holds exactly one file, this one holds {len(names)}"
        + (f" ({listed})" if names else ""),
        hint="Unpack it and name the files with a glob.",
        place=file.name,
    )
