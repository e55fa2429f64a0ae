"""The home: the folder with the records of a grid, which only its user can read."""

import os
from pathlib import Path

from gridmill.errors import StorageError


def make_home(home: Path) -> None:
    """Makes the folder of the home, which only this user can read. Raises StorageError."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home.stat().st_uid == os.geteuid():
            # also set for a folder that existed before, because other users may have had access
            home.chmod(0o700)
    except OSError as error:
        raise StorageError(
            f"{home} cannot be made: {error.strerror}",
            hint="Set GRIDMILL_HOME to a folder in which you can write.",
        ) from error
