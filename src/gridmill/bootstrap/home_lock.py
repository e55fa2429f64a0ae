"""Opens a home: it takes the lock of the home's owner, reads its secret, and opens its record store."""

import fcntl
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gridmill.domain.site import LOCAL, Site
from gridmill.errors import HomeInUseError, InputError, StorageError
from gridmill.plugins import find
from gridmill.ports.store import Store
from gridmill.private_files import write_private
from gridmill.settings import Settings, is_farm
from gridmill.storage.filesystem import check_home
from gridmill.storage.home import make_home
from gridmill.storage.recovery import claims, marks_of

_OF_A_FARM = (
    "`gridmill farm tenants` lists the tenants of this farm. For runs of your own, set another GRIDMILL_HOME."
)
_POLL_SECONDS = 0.05
_KEY_BYTES = 32


def lock_home(home: Path) -> IO[str]:
    """Locks the home until the returned file is closed. Raises HomeInUseError if another process holds the
    lock."""
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
    # deleted, because a killed process left this record, and another process may have its number now
    (home / "control.json").unlink(missing_ok=True)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def release_home(lock: IO[str]) -> None:
    """Releases the lock of a home, although a child that starts at this moment still has the file open."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()


def lock_in_turn(home: Path, waits: Callable[[], bool]) -> IO[str]:
    """Locks the home. While another process owns the home, the function waits as long as the function
    `waits` returns True. Raises HomeInUseError."""
    while True:
        try:
            return lock_home(home)
        except HomeInUseError:
            if not waits():
                raise
        time.sleep(_POLL_SECONDS)


def home_secret(home: Path) -> bytes:
    """Returns the key from which the secrets of pods are derived. The owner of the home creates the key
    once, in a file that only this user can read.

    Raises StorageError if the file contains no valid key.
    """
    path = home / "secret"
    if not path.exists():
        write_private(path, secrets.token_hex(_KEY_BYTES).encode())
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except ValueError as error:
        raise _no_key(path, "its content is not a hexadecimal number") from error
    if len(key) < _KEY_BYTES:
        raise _no_key(path, f"it has {len(key)} bytes of a key instead of {_KEY_BYTES}")
    return key


def _no_key(path: Path, why: str) -> StorageError:
    return StorageError(
        f"the key file is damaged: {why}",
        hint="Restore the file, or delete it while no pods run (`gridmill down --all`). Then a new key is "
        "created, and pods that still run with the old key end.",
        place=str(path),
    )


def open_store(settings: Settings) -> Store:
    """Opens the record store of the home: its SQLite file, or the database that the settings name. Raises
    InputError and StorageError. StorageError is also raised if the record store is empty or belongs to
    another home, although the storage root contains results of this home. Without this check, these results
    would be lost, and their names would be used again."""
    path = settings.home / "store.db"
    if not settings.store and not (path.exists() and path.stat().st_size):
        if marks_of(settings.root, settings.home):
            raise _lost(settings, "empty" if path.exists() else "missing")
        return open_store_as_it_is(settings)
    store = open_store_as_it_is(settings)
    try:
        why = _why_not_ours(settings, store)
        if why:
            raise _lost(settings, why)
    except BaseException:
        store.close()
        raise
    return store


def _why_not_ours(settings: Settings, store: Store) -> str:
    """Returns the reason why the record store does not contain the results of this home in the storage root.
    The text is empty if the record store contains these results, or if there are no results."""
    site = store.get(Site, LOCAL)
    mark = site.noun.settings.get("store", "") if site and isinstance(site.noun, Site) else ""
    others = False
    for claim in claims(settings.root):
        if claim.is_of(settings.home, settings.root):
            if claim.mark == mark:
                return ""
            others = True
    # if records are damaged, one of them may have the mark of this home, so nothing is reported
    if not others or (not mark and store.damage()):
        return ""
    return "of another home" if mark else "empty"


def _lost(settings: Settings, what: str) -> StorageError:
    return StorageError(
        f"the store is {what}, but the storage root {settings.root} has results of this home",
        hint="`gridmill recover` restores the records of versions, aliases and declarations from there "
        "(--dry-run shows them). To begin anew instead, set GRIDMILL_ROOT and GRIDMILL_HOME to new folders.",
        place=settings.store.rpartition("@")[2] or str(settings.home / "store.db"),
    )


def open_store_as_it_is(settings: Settings) -> Store:
    """Opens the record store of the home, whatever the store contains. Raises InputError, StorageError."""
    if not settings.store:
        check_home(settings.home)
        own: Store = find("stores", "sqlite")(settings.home / "store.db")
        return own
    scheme = settings.store.partition(":")[0].partition("+")[0]
    if scheme == "sqlite" or "://" not in settings.store:
        raise InputError(
            "GRIDMILL_STORE is not the address of a database server",
            hint="Write postgresql://USER@HOST/DATABASE, or unset it to use a SQLite file in GRIDMILL_HOME.",
        )
    store: Store = find("stores", scheme)(settings.store)
    return store
