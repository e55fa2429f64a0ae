"""Source files as streams of plain bytes: decompressed while read, with errors that name the file."""

import bz2
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
            yield Opened(stream=stack.enter_context(_decompress(file, raw)), raw=raw)
        except _BROKEN as error:
            raise _broken(file, error) from error
        except OSError as error:
            if file.compression != Compression.NONE and error.errno is None:
                raise _broken(file, error) from error
            raise DataError(f"cannot be read: {error.strerror or error}", place=file.name) from error


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
