"""Reads files to which processes append lines, and whose last line may be incomplete because its writer was
killed."""

import os
from pathlib import Path

_PIECE_BYTES = 1 << 16


def cut_last_line(path: Path) -> None:
    """Removes the bytes after the last line break of a file. Raises OSError."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - _PIECE_BYTES)
            file.seek(start)
            found = file.read(size - start).rfind(b"\n")
            if found >= 0:
                file.truncate(start + found + 1)
                return
            size = start
        file.truncate(0)


def count_lines(path: Path) -> int:
    """Returns the number of line breaks in a file. Raises OSError."""
    count = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            count += piece.count(b"\n")
    return count
