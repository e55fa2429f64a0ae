"""Measures the free space of file systems and the space that folders use. Each measuring step has a limited
cost."""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from gridmill.domain.amounts import GIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import DiskSpace

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers (errno) of a full disk and of an exceeded disk quota."""
_MOST_RESERVE_BYTES, _RESERVE_SHARE = GIB, 20
_MOST_RESERVE_FILES, _RESERVE_FILES_SHARE = 10_000, 100
_BLOCK_BYTES = 512  # stat(2) counts st_blocks in this unit, whatever the block size of the file system is


def space_of(place: str, path: Path | str, reserve_bytes: int | None = None) -> DiskSpace:
    """Returns the space of the file system on which `path` is or will be. If `reserve_bytes` is None, 5 % of
    the size of the file system are reserved, but at most 1 GiB. If `reserve_bytes` is 0, no space is
    reserved. Of the inodes, 1 % are reserved, but at most 10,000. Raises OSError."""
    existing = Path(path)
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    status = os.statvfs(existing)
    size_bytes = status.f_blocks * status.f_frsize
    wanted = min(_MOST_RESERVE_BYTES, size_bytes // _RESERVE_SHARE)
    files = min(_MOST_RESERVE_FILES, status.f_files // _RESERVE_FILES_SHARE)
    return DiskSpace(
        place=place,
        path=str(path),
        size_bytes=size_bytes,
        free_bytes=status.f_bavail * status.f_frsize,
        reserve_bytes=wanted if reserve_bytes is None else reserve_bytes,
        files=status.f_files,
        free_files=status.f_favail,
        reserve_files=0 if reserve_bytes == 0 else files,
    )


def file_system(path: Path | str) -> int:
    """Returns the device number of the file system on which `path` is or will be. Two paths with the same
    device number share their free space. Raises OSError."""
    existing = Path(path)
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing.stat().st_dev


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderUse:
    """The space that the files in folders use on the disk (in allocated blocks), and the number of their
    inodes."""

    size_bytes: int = 0
    files: int = 0


class FolderMeter:
    """Measures folders repeatedly. Each step reads only a few directory entries, so that no step takes long.

    A pass starts `pause_seconds` after the previous pass, but waits at least `_SHARE` times as long as that
    pass took. Therefore measuring uses at most 5 % of a CPU. Links are not followed. A file with several
    names is counted once, and a file that is deleted during the pass is not counted. A folder that does not
    exist is treated as empty. In `shared` folders, only files that changed after `since` (Unix time) are
    counted. A file that is moved into a shared folder during a pass is counted once.
    """

    def __init__(
        self,
        folders: Sequence[Path | str],
        *,
        shared: Sequence[Path | str] = (),
        since: float = 0.0,
        pause_seconds: float = 1.0,
    ) -> None:
        self._folders, self._pause = tuple(map(str, folders)), pause_seconds
        self._shared, self._since = tuple(map(str, shared)), since
        self._walk: Iterator[os.stat_result | None] | None = None
        self._size_bytes = self._files = 0
        self._spent = 0.0
        self._linked = set[tuple[int, int]]()
        self._next_pass = 0.0
        self.use: FolderUse | None = None
        """The result of the last complete pass, or None before the end of the first pass."""

    def step(self, now: float, entries: int = 1000) -> bool:
        """Measures up to `entries` further directory entries if it is time for a pass (`now` is the
        monotonic time). Returns True if a pass has ended."""
        if self._walk is None:
            if now < self._next_pass:
                return False
            new = (one if one.st_ctime >= self._since else None for one in _entries(self._shared))
            self._walk, self._spent = chain(_entries(self._folders), new), 0.0
            self._size_bytes = self._files = 0
            self._linked = set()
        began = time.thread_time()
        ended = not self._take(self._walk, entries)
        self._spent += time.thread_time() - began
        if ended:
            self._walk = None
            self.use = FolderUse(size_bytes=self._size_bytes, files=self._files)
            self._next_pass = now + max(self._pause, _SHARE * self._spent)
        return ended

    def least(self) -> FolderUse:
        """Returns the largest use that is known to be real: the result of the last complete pass, or of the
        current pass if it is larger."""
        known = self.use or FolderUse()
        return FolderUse(
            size_bytes=max(known.size_bytes, self._size_bytes), files=max(known.files, self._files)
        )

    def _take(self, walk: Iterator[os.stat_result | None], entries: int) -> bool:
        """Measures one directory entry, and returns False at the end of a pass."""
        for _ in range(entries):
            try:
                status = next(walk)
            except StopIteration:
                return False
            if status is None:
                continue
            if (status.st_nlink > 1 or self._shared) and not _is_folder(status):
                inode = status.st_dev, status.st_ino
                if inode in self._linked:
                    continue
                self._linked.add(inode)
            self._size_bytes += status.st_blocks * _BLOCK_BYTES
            self._files += 1
        return True


_SHARE = 20


def measure(folders: Sequence[Path | str], entries: int = 1_000_000) -> FolderUse:
    """Returns the space that the folders use, measured in one pass that ends after this number of
    entries."""
    meter = FolderMeter(folders)
    meter.step(0.0, entries)
    return meter.least()


def _is_folder(status: os.stat_result) -> bool:
    return status.st_mode & 0o170000 == 0o040000


def _entries(folders: Sequence[str]) -> Iterator[os.stat_result]:
    """Yields the status of all files and folders below the given folders. If a given path is a file, its
    status is yielded too."""
    for path in folders:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if _is_folder(status):
            yield from _below(path, status.st_dev)
        else:
            yield status


def _below(folder: str, device: int) -> Iterator[os.stat_result]:
    """Yields the status of the entries below a folder that are on the given file system. Other mounted file
    systems are left out."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = _status(entry)
                    if status is not None and status.st_dev == device:
                        yield status
                        if _is_folder(status):
                            waiting.append(entry.path)
        except OSError:
            continue


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None
