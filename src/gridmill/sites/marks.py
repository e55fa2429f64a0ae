"""Creates marks: random names that distinguish the pods of one home at a site from the pods of another home,
and one storage root from another."""

import fcntl
import secrets
from pathlib import Path

from gridmill.errors import StorageError


def mark_root(root: Path, mark: str) -> Path:
    """Returns the path of the file that identifies the storage root. The file is created if it is missing.
    Raises StorageError."""
    path = root / ".sites" / mark
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise StorageError(f"cannot be written to: {error.strerror}", place=str(path)) from error
    return path


def mark_of(folder: Path, name: str) -> str:
    """Returns the random name that distinguishes the jobs of this home from the jobs of all other homes. The
    random name is created only once."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f"{name}.mark").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        mark = file.read().strip()
        if not mark:
            mark = secrets.token_hex(4)
            file.write(mark)
    return mark
