"""Removes what a tenant's user left outside its folders: files in public folders, and System V objects.

Where jobs have namespaces of their own (`domain/confinement.py`) nothing can be there; a machine may have
become able to do it only after the tenant's first job.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gridmill.private_files import remove_tree

_SHARED_FOLDERS = (
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/dev/mqueue",
    "/run/lock",
    "/run/shm",
    "/var/crash",
    "/var/spool/cron/crontabs",
    "/var/spool/cron",
    "/var/spool/at",
    "/var/spool/cron/atjobs",
    "/var/mail",
)
_OBJECTS = (("shm", "shmctl", "shmid"), ("msg", "msgctl", "msqid"), ("sem", "semctl", "semid"))
_IPC_RMID = 0


def remove_left_by(user: int | None, folders: tuple[str, ...] = _SHARED_FOLDERS) -> tuple[str, ...]:
    """Remove all that belongs to that user there, and say what it was; nothing where that is ourselves."""
    if user is None:
        return ()
    removed = [*_remove_files(user, folders), *_remove_objects(user)]
    return tuple(removed)


def _remove_files(user: int, folders: tuple[str, ...]) -> Iterator[str]:
    for folder in dict.fromkeys(map(os.path.realpath, folders)):
        for path, is_folder in _owned_by(user, folder):
            with suppress(OSError):
                remove_tree(Path(path)) if is_folder else os.unlink(path)
                yield path


def _owned_by(user: int, folder: str) -> list[tuple[str, bool]]:
    owned = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == user:
                    owned.append((entry.path, entry.is_dir(follow_symlinks=False)))
    return owned


def _remove_objects(user: int) -> Iterator[str]:
    """Shared memory, message queues and semaphores of System V."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, control, column in _OBJECTS:
        for number in _numbers(name, column, user):
            words = (number, 0, _IPC_RMID, 0) if name == "sem" else (number, _IPC_RMID, None)
            if getattr(libc, control)(*words) == 0:
                yield f"{name} {number}"


def _numbers(name: str, column: str, user: int) -> list[int]:
    try:
        heads, *lines = Path(f"/proc/sysvipc/{name}").read_text().splitlines()
    except (OSError, ValueError):
        return []
    columns = heads.split()
    at, owner = columns.index(column), columns.index("uid")
    return [int(words[at]) for words in map(str.split, lines) if int(words[owner]) == user]
