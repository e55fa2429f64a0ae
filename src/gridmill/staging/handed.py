"""A version's files in a folder that is somebody's own: what happens there happens to nobody else."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

COPIED_BYTES = 64 << 20
COPIED_FILES = 1_000
"""Up to this files are copied, which takes some tenths of a second at most; else they get a second name."""


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
    """Make each second path what the first one is. Where all are small they are copied, and the reader's own.

    Large ones are the version's under a second name, and read-only. Where that is not allowed (another's
    files at a farm, another disk) they are links: nobody waits for copies of much. Raises OSError.
    """
    wanted = [(source, target, os.stat(source)) for source, target in files]
    small = _are_small([looked.st_size for _, _, looked in wanted])
    for source, target, looked in wanted:
        if small:
            shutil.copyfile(source, target)
            os.chmod(target, stat.S_IMODE(looked.st_mode))
        else:
            _name(source, target)


def _name(source: str, target: str) -> None:
    with suppress(OSError):
        return os.link(source, target)
    return os.symlink(source, target)


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
