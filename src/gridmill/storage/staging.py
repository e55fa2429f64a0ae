"""Where archives are unpacked before anybody sees them: folders that are locked while they are used."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

STAGING = ".import-"
"""What their names begin with, right below the storage root."""


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A folder of one's own below the root, removed afterwards. Raises OSError."""
    folder = root / f"{STAGING}{uuid4().hex}"
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some shared file systems cannot: there it counts as used while it is young
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def is_left(folder: Path) -> bool:
    """Whether nobody uses it: whoever made it was killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
