"""A version's files in a folder that is somebody's own: what happens there happens to nobody else."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

COPIED_BYTES = 64 << 20
COPIED_FILES = 5_000
"""Up to this files are copied, which takes some hundredths of a second; else they get a second name."""


def hand_tree(source: Path, target: Path) -> None:
    """Make `target` with all that is in `source`. A small tree is copied: its files are the reader's own.

    The files of a large one are the version's, under a second name where the file systems allow it: folders
    and names are the reader's own, and files are read-only. Raises OSError.
    """
    entries = list(_walk(source, ""))
    small = _is_small(entry for _, entry in entries)
    target.mkdir(parents=True, exist_ok=True)
    for path, entry in entries:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target / path)
        elif entry.is_dir():
            (target / path).mkdir()
        elif small:
            shutil.copy2(entry.path, target / path)
        else:
            link_or_copy(entry.path, target / path)


def is_small(source: Path) -> bool:
    """Whether it would be copied. Raises OSError."""
    return _is_small(entry for _, entry in _walk(source, ""))


def _is_small(entries: Iterable["os.DirEntry[str]"]) -> bool:
    sizes = [one.stat(follow_symlinks=False).st_size for one in entries if one.is_file(follow_symlinks=False)]
    return len(sizes) <= COPIED_FILES and sum(sizes) <= COPIED_BYTES


def _walk(folder: Path, below: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Folders before what is in them. What Python leaves beside code that is run is no part of a version."""
    with os.scandir(folder / below) as found:
        for entry in found:
            path = os.path.join(below, entry.name)
            if entry.name != "__pycache__":
                yield path, entry
            if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _walk(folder, path)


def link_or_copy(source: str, target: Path) -> None:
    """A second name for a file, where the file systems allow it. Raises OSError."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
