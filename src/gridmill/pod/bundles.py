"""Code bundles: unpacked once per content, copied for each attempt that may write into its copy."""

import fcntl
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from gridmill.errors import InputError, StorageError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; waits for whoever holds it. It is released when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpacked(home: Path, bundle: str) -> Path:
    """The folder with the bundle's content, unpacked now if it was not yet.

    Raises StorageError when the bundle is not there, InputError when it is no safe archive.
    """
    folder = home / "cache" / "bundles" / bundle
    if not folder.is_dir():
        with locked(folder.with_name(f"{bundle}.lock")):
            if not folder.is_dir():
                _unpack(home / "bundles" / f"{bundle}.tar.gz", folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            extract(tar, partial)
    except FileNotFoundError as error:
        raise StorageError(f"the code bundle {folder.name[:12]} is not on this machine") from error
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"the code bundle {folder.name[:12]} cannot be unpacked: {error}") from error
    partial.rename(folder)


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack files, folders and links that stay below `folder`. Raises InputError for anything else."""
    tar.extraction_filter = lambda member, path: member  # checked here, alike on every Python
    members = tar.getmembers()
    for member in members:
        _check(member)
    for member in members:
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        _check_on_disk(folder, member)
        tar.extract(member, folder, set_attrs=not member.issym())


def _check(member: tarfile.TarInfo) -> None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise InputError(f"the code bundle holds {member.name!r}, which is no file, folder or link")
    if not _stays_below(PurePosixPath(member.name)):
        raise InputError(f"the code bundle holds {member.name!r}, which leads out of it")
    if member.issym() and not _stays_below(PurePosixPath(member.name).parent / member.linkname):
        raise InputError(f"the link {member.name!r} in the code bundle leads out of it")
    if member.islnk() and not _stays_below(PurePosixPath(member.linkname)):
        raise InputError(f"the link {member.name!r} in the code bundle leads out of it")


def _stays_below(path: PurePosixPath) -> bool:
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if part == "/" or depth < 0:
            return False
    return True


def _check_on_disk(folder: Path, member: tarfile.TarInfo) -> None:
    """A link unpacked earlier must not carry this member out of the folder."""
    parent = (folder / member.name).parent.resolve()
    if not parent.is_relative_to(folder.resolve()):
        raise InputError(f"the code bundle holds {member.name!r}, which leads out of it through a link")


def private_copy(source: Path, target: Path) -> None:
    """Copy the content of `source` to the new folder `target`, links as links."""
    shutil.copytree(source, target, symlinks=True)
