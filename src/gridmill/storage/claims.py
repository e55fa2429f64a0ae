"""Whose a pipeline's folders below a storage root are: the first store that runs it there, for good."""

import socket
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from shutil import rmtree
from uuid import uuid4

from gridmill.errors import ConflictError, UnavailableError

CLAIMS = "owners"


def claim(root: Path, pipeline: str, owner: str, home: str) -> None:
    """Take them for `owner`, the mark of a store; `home` tells people where that is. May be repeated.

    A folder that holds its owner's name is renamed into place, which one of several that try can do, on any
    file system. Raises ConflictError when another store has them, UnavailableError.
    """
    place = root / CLAIMS / pipeline
    try:
        there = _owner(place) or _made(place, f"{owner}\n{home} on {socket.gethostname()}\n") or _owner(place)
    except OSError as error:
        raise UnavailableError(
            f"the storage root cannot be written: {error.strerror}", place=str(place)
        ) from error
    mark, _, where = there.partition("\n")
    if mark != owner:
        raise ConflictError(
            f"pipeline {pipeline!r} of another home ({where.strip()}) keeps its results in this storage root",
            hint="Give one of the two another name, or GRIDMILL_ROOT another folder; if that home is gone "
            f"for good, remove {place}.",
        )


def _owner(place: Path) -> str:
    try:
        return (place / "owner").read_text()
    except FileNotFoundError:
        return ""


def _made(place: Path, owner: str) -> str:
    """The owner that was written; empty where somebody was quicker."""
    draft = place.with_name(f".{place.name}.{uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        (draft / "owner").write_text(owner)
        draft.rename(place)
    except OSError as error:
        if error.errno not in (EEXIST, ENOTEMPTY):
            raise
        return ""
    finally:
        rmtree(draft, ignore_errors=True)
    return owner
