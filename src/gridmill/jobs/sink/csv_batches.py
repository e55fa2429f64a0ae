"""Parses small CSV files with the same header together as one file, because starting a parser takes longer
than reading a small file."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv as pc

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import Compression, Format, Source
from gridmill.errors import DataError
from gridmill.jobs.sink.csv import CsvReader, is_read_as_ascii
from gridmill.jobs.sink.files import UTF16, SourceFile, check_unchanged, open_file
from gridmill.jobs.sink.formats import ExpectedTypes, Seen, UnexpectedTypeError

SMALL_BYTES = 2**18
MOST_BYTES = 4 * 2**20
_PACKED = 8
"""The estimated ratio of the size of the text to the size of the compressed file."""


@dataclass(slots=True, kw_only=True)
class FileGroupReader:
    """Reads the rows of several files together. `file` is the first file, and `counts` are the numbers of
    rows of all files.

    The reader of several files raises UnexpectedTypeError for any error. After this error the caller reads
    the files one by one, because only then can the place of the error be found.
    """

    file: SourceFile
    files: tuple[SourceFile, ...]
    first: CsvReader
    counts: tuple[int, ...]
    body: bytes

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, which are the same in all files. Raises DataError."""
        return self.first.names()

    def batches(
        self, columns: tuple[str, ...] | None, seen: Seen, haste: ExpectedTypes | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows in a single table."""
        names, ragged = self.names(), list[Any]()
        zeros = self.first.zeros(names, haste)
        if zeros is not None and zeros.see(self.body, quotes=0):
            raise UnexpectedTypeError
        if not self.body:
            return
        options = self.first.options(names, columns, ragged, haste.types if haste is not None else {})
        options["read_options"].skip_rows_after_names = 0
        try:
            rows = pc.read_csv(pa.BufferReader(self.body), **options)
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise UnexpectedTypeError from error
        if rows.num_rows != sum(self.counts):
            raise UnexpectedTypeError
        seen(len(self.body))
        yield rows

    def lines(self, rows: Iterator[int]) -> Iterator[int | None]:
        """Yield None for each row, because this reader does not know the line numbers."""
        return (None for _ in rows)


Piece: TypeAlias = FileGroupReader | SourceFile


def bundled(files: Sequence[SourceFile], source: Source) -> Iterator[Piece]:
    """Yield the files in their order. Files that can be parsed together are combined in a group. Raises
    DataError."""
    if not is_read_as_ascii(source.encoding):
        yield from files
        return
    group: list[SourceFile] = []
    bodies: list[bytes] = []
    header, size_bytes = b"", 0
    for file in files:
        plain_file = _plain(file)
        if group and (plain_file is None or plain_file[0] != header or size_bytes > MOST_BYTES):
            yield _bundle(group, bodies, source)
            group, bodies, size_bytes = [], [], 0
        if plain_file is None:
            yield file
            continue
        header, body = plain_file
        group.append(file)
        bodies.append(body)
        size_bytes += len(body)
    if group:
        yield _bundle(group, bodies, source)


def is_small(file: SourceFile) -> bool:
    """Return whether all rows of the file together need little memory."""
    return file.format in (Format.CSV, Format.JSONL) and text_bytes(file) <= SMALL_BYTES


def text_bytes(file: SourceFile) -> int:
    """Return the length of the text of the file in bytes. For a compressed file, the result is an
    estimate."""
    return file.size_bytes * (1 if file.compression == Compression.NONE else _PACKED)


def _bundle(files: Sequence[SourceFile], bodies: Sequence[bytes], source: Source) -> Piece:
    if len(files) == 1:
        return files[0]
    return FileGroupReader(
        file=files[0],
        files=tuple(files),
        first=CsvReader(files[0], source),
        counts=tuple(body.count(b"\n") for body in bodies),
        body=b"".join(bodies),
    )


def _text(file: SourceFile) -> bytes | None:
    """Return the bytes of the file. Return None if the file is large, or if it was changed since it was
    hashed."""
    if file.compression == Compression.NONE and file.fetch is None:
        try:
            data = file.path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", place=file.name) from error
        return data if hashlib.sha256(data).hexdigest()[: len(file.content)] == file.content else None
    with open_file(file) as opened:
        data = opened.stream.read(SMALL_BYTES)
        whole = not opened.stream.read(1)
    check_unchanged(file)
    return data if whole else None


def _plain(file: SourceFile) -> tuple[bytes, bytes] | None:
    """Return the header and the rows of a file in which each line is a row. Return None for any other file,
    and for a changed file."""
    if file.format != Format.CSV or not is_small(file):
        return None
    data = _text(file)
    if data is None or b'"' in data or data[:2] in UTF16:
        return None
    if b"\r" in data:
        if data.count(b"\r") != data.count(b"\r\n"):
            return None
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    if data.startswith(b"\n") or b"\n\n" in data:
        return None
    end = data.index(b"\n") + 1
    return data[:end], data[end:]
