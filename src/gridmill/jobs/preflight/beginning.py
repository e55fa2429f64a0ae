"""Extracts the whole rows at the beginning of a remote file of which only the first bytes were fetched."""

import codecs
from dataclasses import replace

from gridmill.domain.amounts import show_bytes
from gridmill.domain.source import Compression, Format
from gridmill.errors import DataError
from gridmill.jobs.preflight.results import UnknownError
from gridmill.jobs.sink.files import UTF16, SourceFile, open_file

_PIECE_BYTES = 2**16
_QUOTE, _LINE_END = b'"', b"\n"


def begin(file: SourceFile, most_bytes: int) -> tuple[SourceFile, bool]:
    """The file as far as it is fetched, and whether that is all of it. Raises UnknownError where its first
    bytes alone cannot be read, DataError and UnavailableError where it cannot be fetched."""
    path = file.local()
    if path.stat().st_size < most_bytes:
        return file, True
    if file.format not in (Format.CSV, Format.JSONL) or file.compression == Compression.ZIP:
        raise UnknownError(
            f"its first file has more than {show_bytes(most_bytes)} and cannot be read in part"
        )
    rows = _whole_rows(_text(file, most_bytes), quoted=file.format == Format.CSV)
    if not rows:
        raise UnknownError(f"the first {show_bytes(most_bytes)} of its first file hold no whole row")
    cut = path.with_name(f"{path.name}.beginning")
    cut.write_bytes(rows)
    return replace(file, path=cut, compression=Compression.NONE, size_bytes=len(rows)), False


def _text(file: SourceFile, most_bytes: int) -> bytes:
    """What the first bytes decompress to, as far as they do."""
    text = bytearray()
    try:
        with open_file(replace(file, is_utf8=False)) as opened:
            while len(text) < most_bytes and (piece := opened.stream.read(_PIECE_BYTES)):
                text += piece
    except DataError:
        pass  # the end is missing: what came before it stays
    return bytes(text)


def _whole_rows(text: bytes, *, quoted: bool) -> bytes:
    """Up to the last end of a line that is not within quotes; nothing of a text in UTF-16."""
    if text.startswith(UTF16) or text.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return b""
    end = text.rfind(_LINE_END)
    while quoted and end >= 0 and text.count(_QUOTE, 0, end) % 2:
        end = text.rfind(_LINE_END, 0, end)
    return text[: end + 1]
