"""Marks that distinguish one home's pods at a site from another's, and one storage root from another."""

import fcntl
import secrets
from pathlib import Path

from gridmill.errors import StorageError


def mark_root(root: Path, mark: str) -> Path:
    """The path of the file, which is made if it is missing. Raises StorageError."""
    path = root / ".sites" / mark
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise StorageError(f"cannot be written to: {error.strerror}", place=str(path)) from error
    return path


def mark_of(folder: Path, name: str) -> str:
    """The mark that distinguishes this home's jobs from all others, made once."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f"{name}.mark").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        mark = file.read().strip()
        if not mark:
            mark = secrets.token_hex(4)
            file.write(mark)
    return mark
