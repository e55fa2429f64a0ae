"""Lists the folders of a home and of its storage root with their sizes, so that unneeded folders can be
deleted."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gridmill.disk_space import file_system, space_of
from gridmill.domain.usage import DiskSpace
from gridmill.domain.version_manifest import HANDED, MANIFESTS
from gridmill.errors import StorageError
from gridmill.ports.disk import GOING, IN_ROOT, DiskArea, DiskItem
from gridmill.storage.archive import STAGING, is_left
from gridmill.storage.root import SHARED_BUNDLES

_FOLDERS: Mapping[DiskArea, str] = {
    DiskArea.POD: "pods",
    DiskArea.ATTEMPT: "attempts",
    DiskArea.REPORT: "reports",
    DiskArea.BUNDLE: "bundles",
    DiskArea.SHARED_BUNDLE: SHARED_BUNDLES,
    DiskArea.HANDED: HANDED,
    DiskArea.CODE: "cache/bundles",
    DiskArea.ENVIRONMENT: "cache/environments",
}
_PLACES = {"checkpoints": DiskArea.CHECKPOINTS, MANIFESTS: DiskArea.MANIFEST}
_OUTPUT_DEPTH = 4  # outputs are stored at KIND/PIPELINE/JOB/FOLDER below the storage root
_LOCK = ".lock"
_STAGED = (STAGING, f"{GOING}{STAGING}")


class LocalHomeFolders:
    """Implements gridmill.ports.disk.HomeFolders. Links are not followed."""

    def __init__(self, home: Path, root: Path, reserve_bytes: int | None = None) -> None:
        self._home = home
        self._root = root
        self._reserve_bytes = reserve_bytes

    def items(self) -> tuple[DiskItem, ...]:
        """Returns the folders with their sizes; see HomeFolders."""
        return tuple(self._things())

    def _things(self) -> Iterator[DiskItem]:
        for path in _at_depth(self._root, _OUTPUT_DEPTH):
            name = str(path.relative_to(self._root))
            # a folder with such a name is still being written, or is being deleted
            if not name.startswith("."):
                yield from _thing(_PLACES.get(name.partition("/")[0], DiskArea.OUTPUT), name, path)
        for path in _entries(self._root):
            if path.name.startswith(_STAGED):
                yield from _thing(DiskArea.IMPORT, path.name, path)
        for place, folder in _FOLDERS.items():
            for path in _entries(self._base(place) / folder):
                if path.suffix != _LOCK:
                    yield from _thing(place, path.name, path)
        for path in _entries(self._home):
            if path.name.startswith("store.db"):
                yield from _thing(DiskArea.STORE, path.name, path)

    def spaces(self) -> tuple[DiskSpace, ...]:
        """See HomeFolders."""
        spaces: dict[int, DiskSpace] = {}
        for place, path in (("home", self._home), ("storage root", self._root)):
            with suppress(OSError):
                spaces.setdefault(file_system(path), space_of(place, path, self._reserve_bytes))
        return tuple(spaces.values())

    def move_to_trash(self, thing: DiskItem) -> None:
        """Moves a folder to the trash; see HomeFolders."""
        path = self._path(thing)
        with suppress(OSError):
            if path.lstat().st_mtime == thing.changed:
                path.rename(_trash_path(path))

    def delete(self, thing: DiskItem) -> None:
        """Deletes a folder; see HomeFolders."""
        path = _trash_path(self._path(thing))
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return  # no error, because another process may delete the same folder
        except OSError as error:
            raise StorageError(f"cannot remove it: {error.strerror}", place=str(path)) from error

    def _path(self, thing: DiskItem) -> Path:
        return self._base(thing.area) / _FOLDERS.get(thing.area, "") / thing.name

    def _base(self, place: DiskArea) -> Path:
        return self._root if place in IN_ROOT else self._home


def _trash_path(path: Path) -> Path:
    return path if path.name.startswith(GOING) else path.with_name(f"{GOING}{path.name}")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _at_depth(folder: Path, depth: int) -> Iterator[Path]:
    for path in _entries(folder):
        if depth == 1:
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _at_depth(path, depth - 1)


def _thing(place: DiskArea, name: str, path: Path) -> Iterator[DiskItem]:
    with suppress(OSError):
        changed = path.lstat().st_mtime
        ended = (
            (path / "ended").exists() if place == DiskArea.POD else place == DiskArea.IMPORT and is_left(path)
        )
        yield DiskItem(area=place, name=name, size_bytes=_size(path), changed=changed, ended=ended)


def _size(path: Path) -> int:
    """Returns the sum of the lengths in bytes of all files below a folder. If a file is deleted during the
    call, its length counts as 0."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total
