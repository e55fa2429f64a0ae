"""Bytes from elsewhere into a file: whole or not at all, and gone on with where a connection broke."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gridmill.errors import UnavailableError
from gridmill.jobs.parquet import storage_errors

ATTEMPTS = 4
"""So many tries in a row that bring nothing, and it is given up."""
FIRST_PAUSE_SECONDS = 0.1


class BrokenOffError(Exception):
    """The connection failed, perhaps for a moment only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """`chunks` begin at byte `start`; `size_bytes` is that of the whole, None when nobody says."""

    chunks: Iterator[bytes]
    start: int = 0
    size_bytes: int | None = None


Open = Callable[[int], Body]
"""Asks for the bytes from a position on; the body may begin earlier. Raises BrokenOffError."""


def download(open_at: Open, path: Path, name: str, most_bytes: int | None = None) -> None:
    """Write `path`, by rename; with `most_bytes` no more than about so many of its first bytes, in one try.

    Raises UnavailableError when it keeps breaking off, StorageError, and what `open_at` finds to be final.
    """
    draft = path.with_name(f"{path.name}.partial")
    with storage_errors(path), draft.open("wb") as file:
        tries = 0
        while not (trouble := _go_on(open_at, file, most_bytes)).whole:
            tries = 1 if trouble.progressed else tries + 1
            if tries >= ATTEMPTS or most_bytes is not None:
                raise UnavailableError(f"cannot be fetched: {trouble.said}", place=name)
            time.sleep(FIRST_PAUSE_SECONDS * 2**tries)
    draft.rename(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    whole: bool = False
    progressed: bool = False
    said: str = ""


def _go_on(open_at: Open, file: BinaryIO, most_bytes: int | None) -> _Try:
    before = file.tell()
    try:
        body = open_at(before)
        file.seek(body.start)
        file.truncate()
        for chunk in body.chunks:
            file.write(chunk)
            if most_bytes is not None and file.tell() >= most_bytes:
                return _Try(whole=True)
    except BrokenOffError as error:
        return _Try(progressed=file.tell() > before, said=str(error))
    if body.size_bytes is not None and file.tell() != body.size_bytes:
        said = f"it broke off after {file.tell():,} of {body.size_bytes:,} bytes"
        return _Try(progressed=file.tell() > before, said=said)
    return _Try(whole=True)
