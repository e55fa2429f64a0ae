"""Opens a home: the lock of its owner, its secret and its store."""

import fcntl
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gridmill.errors import HomeInUseError, InputError
from gridmill.plugins import find
from gridmill.ports.store import Store
from gridmill.private_files import write_private
from gridmill.settings import Settings, is_farm
from gridmill.storage.filesystem import check_home
from gridmill.storage.home import make_home

_OF_A_FARM = "`gridmill farm tenants` says who uses it; a Gridmill of your own has another GRIDMILL_HOME."
_LOOK_SECONDS = 0.05


def lock_home(home: Path) -> IO[str]:
    """Own the home until the file is closed. Raises HomeInUseError when another process does."""
    make_home(home)
    file = (home / "control.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        if is_farm(home):
            raise HomeInUseError(f"a farm (process {owner}) already owns {home}", hint=_OF_A_FARM) from error
        raise HomeInUseError(f"a control node (process {owner}) already owns {home}") from error
    (home / "control.json").unlink(missing_ok=True)  # of one that was killed, maybe with our process number
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def lock_in_turn(home: Path, waits: Callable[[], bool]) -> IO[str]:
    """Own the home once nobody else does, as long as `waits()`. Raises HomeInUseError."""
    while True:
        try:
            return lock_home(home)
        except HomeInUseError:
            if not waits():
                raise
        time.sleep(_LOOK_SECONDS)


def home_secret(home: Path) -> bytes:
    """The key that pod secrets are derived from; made once, by who owns the home, for this user only."""
    path = home / "secret"
    if not path.exists():
        write_private(path, secrets.token_hex(32).encode())
    return bytes.fromhex(path.read_text())


def open_store(settings: Settings) -> Store:
    """The home's own (SQLite), or the database that the settings name. Raises InputError, StorageError."""
    if not settings.store:
        check_home(settings.home)
        own: Store = find("stores", "sqlite")(settings.home / "store.db")
        return own
    scheme = settings.store.partition(":")[0].partition("+")[0]
    if scheme == "sqlite" or "://" not in settings.store:
        raise InputError(
            "GRIDMILL_STORE is no address of a database server",
            hint="Write postgresql://USER@HOST/DATABASE; without it a SQLite file in GRIDMILL_HOME is used.",
        )
    store: Store = find("stores", scheme)(settings.store)
    return store
