"""A version's files in a folder that is somebody's own: what happens there happens to nobody else."""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

COPIED_BYTES = 64 << 20
COPIED_FILES = 1_000
"""So much is copied of a version, the smallest files first: it takes some tenths of a second at most."""
_CLONE = 0x40049409
"""FICLONE of linux/fs.h."""


def hand_tree(source: Path, target: Path) -> None:
    """Make `target` with all that is in `source`, as `hand_files` does it. Raises OSError."""
    entries = list(_walk(source, ""))
    target.mkdir(parents=True, exist_ok=True)
    for path, entry in entries:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target / path)
        elif entry.is_dir():
            (target / path).mkdir()
    plain = ((path, entry) for path, entry in entries if entry.is_file(follow_symlinks=False))
    hand_files((entry.path, os.path.join(target, path)) for path, entry in plain)


def hand_files(files: Iterable[tuple[str, str]]) -> None:
    """Make each second path what the first one is. The smaller ones are copied, and the reader's own.

    So are the larger ones where the file system can copy without writing (XFS, Btrfs). Elsewhere these are
    the version's under a second name, and read-only; or links where that is not allowed (another's files at
    a farm, another disk): nobody waits for copies of much. Raises OSError.
    """
    wanted = [(os.stat(source), source, target) for source, target in files]
    wanted.sort(key=lambda one: one[0].st_size)
    left, clones = COPIED_BYTES, True
    for number, (looked, source, target) in enumerate(wanted):
        left -= looked.st_size
        if left >= 0 and number < COPIED_FILES:
            shutil.copyfile(source, target)
        elif not clones or not (clones := clone(source, target)):
            _name(source, target)
            continue
        os.chmod(target, stat.S_IMODE(looked.st_mode))


def clone(source: str, target: str) -> bool:
    """Make a copy that shares its blocks with the source until one of them is written to; False where the
    file system cannot."""
    with open(source, "rb") as one, open(target, "xb") as other, suppress(OSError):
        fcntl.ioctl(other.fileno(), _CLONE, one.fileno())
        return True
    os.unlink(target)
    return False


def _name(source: str, target: str) -> None:
    with suppress(OSError):
        return os.link(source, target)
    return os.symlink(source, target)


def may_share(sizes_bytes: int, files: int) -> bool:
    """Whether a version of that size may be handed over as what others read too."""
    return sizes_bytes > COPIED_BYTES or files > COPIED_FILES


def is_small(source: Path) -> bool:
    """Whether it would be copied. Raises OSError."""
    found = (entry for _, entry in _walk(source, ""))
    return _are_small([one.stat().st_size for one in found if one.is_file(follow_symlinks=False)])


def _are_small(sizes: list[int]) -> bool:
    return len(sizes) <= COPIED_FILES and sum(sizes) <= COPIED_BYTES


def _walk(folder: Path, below: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Folders before what is in them. What Python leaves beside code that is run is no part of a version."""
    with os.scandir(folder / below) as found:
        for entry in found:
            if entry.name == "__pycache__":
                continue
            path = os.path.join(below, entry.name)
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder, path)
