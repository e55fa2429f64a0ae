"""Code bundles: unpacked once per content, copied for each attempt that may write into its copy."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridmill.errors import StorageError
from gridmill.staging.handed import clone
from gridmill.storage.unpack import unpack_bundle


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; waits for whoever holds it. It is released when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpacked(home: Path, bundle: str, archive: str = "") -> Path:
    """The folder with the bundle's content, unpacked now if it was not yet, from `archive` or the home's own.

    Raises StorageError when the bundle is not there, InputError when it is no safe archive.
    """
    folder = home / "cache" / "bundles" / bundle
    if not folder.is_dir():
        with locked(folder.with_name(f"{bundle}.lock")):
            if not folder.is_dir():
                _unpack(Path(archive) if archive else home / "bundles" / f"{bundle}.tar.gz", folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    if not archive.exists():
        raise StorageError(f"the code bundle {folder.name[:12]} is not on this machine")
    unpack_bundle(archive, folder, expected=folder.name)


def private_copy(source: Path, target: Path) -> None:
    """Copy the content of `source` to the new folder `target`, links as links; blocks are shared where the
    file system can (Btrfs, XFS, bcachefs), and then writing to the copy leaves the source as it is."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy)


def _copy(source: str, target: str) -> None:
    if clone(source, target):
        shutil.copystat(source, target)
    else:  # not here, or not between these two places
        shutil.copy2(source, target)
