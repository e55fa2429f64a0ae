"""Keeps emptied folders of ended attempts for later attempts, because ext4 needs some milliseconds to remove
a folder.

A folder is kept only if it is in the state in which the pod made it: empty, with the same owner, permissions
and attributes. A folder is reused only for the same purpose (its role), because a folder inherits attributes
from the folder that contains it.
"""

import os
import shutil
import stat
from itertools import islice
from pathlib import Path

from gridmill.domain.frozen import dataclass

ATTEMPT, INNER, OUTPUT = "attempt", "inner", "output"
"""The roles of folders: the folder of an attempt, a folder inside the folder of an attempt, and the output
folder of a command."""
_MOST = 64
"""The largest number of kept folders. The attempts of a busy pod need fewer folders at the same time, and
further folders are removed."""
_LABELS = frozenset({"security.selinux"})
"""The extended attributes that the system sets on every file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The properties of a folder apart from its name and its entries."""

    mode: int
    owner: int
    group: int
    device: int
    attributes: frozenset[str]


class EmptyFolders:
    """Stores the emptied folders of one pod for reuse. `place` is a folder on the same file system as the
    attempts' folders. Only this pod uses the folder `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made = 0
        self._free: dict[str, list[str]] = {}
        self._usual: dict[str, _Look] = {}

    def make(self, path: str | Path, role: str, *, mode: int = 0o777) -> None:
        """Makes an empty folder at `path`, or moves a kept folder there. Raises FileExistsError if the path
        exists, and OSError."""
        free = self._free.get(role)
        if not free:
            os.mkdir(path, mode)
            self._usual.setdefault(role, _look(path))
            return
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists already")
        kept = free.pop()
        try:
            os.rename(kept, path)
        # renaming fails if the folder is on another file system, or if another process has made it
        except OSError:
            _remove(kept)
            os.mkdir(path, mode)

    def clear(self, folder: Path, role: str, most: int) -> bool:
        """Removes the folder and its content if it has at most `most` entries. If the folder is missing, the
        function succeeds.

        Returns False if something of the folder is left. The folders inside this folder have the role
        `INNER`.
        """
        try:
            return self._clear(str(folder), role, most) >= 0
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _clear(self, folder: str, role: str, most: int) -> int:
        """Returns how many more entries may be removed, or a negative number if there were too many
        entries."""
        if os.path.islink(folder):
            raise NotADirectoryError(folder)
        with os.scandir(folder) as found:
            entries = list(islice(found, most + 1))
        most -= len(entries)
        for entry in entries:
            if most < 0:
                return most
            if entry.is_dir(follow_symlinks=False):
                most = self._clear(entry.path, INNER, most)
            else:
                os.unlink(entry.path)
        if most >= 0:
            self.keep(folder, role)
        return most

    def keep(self, folder: str | Path, role: str) -> None:
        """Removes the folder if it is empty, and keeps it so that `make` can reuse it."""
        usual, free = self._usual.get(role), self._free.setdefault(role, [])
        try:
            if len(free) < _MOST and usual == _look(folder) and not os.listdir(folder):
                free.append(self._put(folder))
                return
        except OSError:
            pass
        _remove(folder)

    def _put(self, folder: str | Path) -> str:
        self._made += 1
        if self._made == 1:
            self._place.mkdir(exist_ok=True)
        kept = f"{self._place}/{self._made}"
        os.rename(folder, kept)
        return kept

    def close(self) -> None:
        """Removes the kept folders."""
        self._free.clear()
        shutil.rmtree(self._place, ignore_errors=True)


def _look(folder: str | Path) -> _Look:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(folder)
    names = os.listxattr(folder, follow_symlinks=False) if hasattr(os, "listxattr") else []
    return _Look(
        mode=stat.S_IMODE(status.st_mode),
        owner=status.st_uid,
        group=status.st_gid,
        device=status.st_dev,
        attributes=frozenset(names) - _LABELS,
    )


def _remove(folder: str | Path) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        return
