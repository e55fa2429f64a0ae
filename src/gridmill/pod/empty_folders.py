"""Keeps emptied folders of ended attempts for the next attempts: to remove one takes ext4 some milliseconds.

A folder is kept only where it is as the pod made it: empty, with the same owner, permissions and attributes.
It is given out again in the same role, so that what it inherited from the folder above is the same too.
"""

import os
import shutil
import stat
from itertools import islice
from pathlib import Path

from gridmill.domain.frozen import dataclass

ATTEMPT, INNER, OUTPUT = "attempt", "inner", "output"
"""The roles of folders: an attempt's own, those in it, and where a command leaves its files."""
_MOST = 64
"""More than the attempts of a busy pod have at a time; further folders are removed."""
_LABELS = frozenset({"security.selinux"})
"""Attributes that the system sets on every file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a folder has besides its name and its entries."""

    mode: int
    owner: int
    group: int
    device: int
    attributes: frozenset[str]


class EmptyFolders:
    """Owned by the pod; `place` is on the file system of the attempts' folders, and the pod's alone."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made = 0
        self._free: dict[str, list[str]] = {}
        self._usual: dict[str, _Look] = {}

    def make(self, path: str | Path, role: str, *, mode: int = 0o777) -> None:
        """A new folder at `path`. Raises FileExistsError where something is there, OSError."""
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
        except OSError:  # another file system, or somebody has made it meanwhile
            _remove(kept)
            os.mkdir(path, mode)

    def clear(self, folder: Path, role: str, most: int) -> bool:
        """Remove the folder with all that is below it, where that is at most so many entries; gone is fine.
        False where some of it is left. Folders below have the role `INNER`."""
        try:
            return self._clear(str(folder), role, most) >= 0
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _clear(self, folder: str, role: str, most: int) -> int:
        """How many more may be removed; negative when it was too much."""
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
        """Remove the folder if it is empty, and keep it for `make`."""
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
        """Remove what is kept."""
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
