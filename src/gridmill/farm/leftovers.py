"""Deletes what the user of a tenant left outside the tenant's folders: files in public folders, and System V
objects.

Jobs that have their own namespaces (`domain/confinement.py`) cannot leave files or System V objects outside
their folders. However, the machine may have gained support for namespaces only after the first job of the
tenant.
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
    """Deletes the files in these folders and the System V objects that belong to this user, and returns a
    list of them. The function does nothing for the user of this process."""
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
    """Deletes the shared memory, the message queues and the semaphores (System V) of the user."""
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
