"""Writes several small files atomically. The module waits for the disk only once, and not once for each
file."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from gridmill.errors import StorageError
from gridmill.transfer.contents import sync_folder
from gridmill.transfer.durable import begin_sync

_OPEN = 64
"""The largest number of files that are open at the same time."""


class WriteBatch:
    """A set of small files that are written together. This class is not safe to use from several threads."""

    def __init__(self) -> None:
        self._drafts: dict[Path, Path] = {}

    def add(self, path: Path, data: bytes) -> None:
        """Writes the file as a draft. `place` later gives the draft its name. If several files were added
        for one path, only the last file is written. Raises StorageError."""
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            try:
                _write_new(draft, data)
            # the file is the first in its folder, or mkdir reports that a file is in the way
            except (FileNotFoundError, NotADirectoryError):
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_new(draft, data)
        except OSError as error:
            _remove([draft])
            raise _not_written(error, path) from error
        if (before := self._drafts.pop(path, None)) is not None:
            _remove([before])
        self._drafts[path] = draft

    def place(self) -> None:
        """Syncs all files to the disk and gives them their names. Raises StorageError. Files that did not
        get their names are deleted."""
        drafts, self._drafts = self._drafts, {}
        try:
            _sync(tuple(drafts.values()))
            for path, draft in drafts.items():
                draft.replace(path)
            for folder in dict.fromkeys(path.parent for path in drafts):
                sync_folder(folder)
        except OSError as error:
            _remove(drafts.values())
            raise _not_written(error, next(iter(drafts))) from error


def _write_new(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)


def _sync(paths: Sequence[Path]) -> None:
    """Syncs the files. The first file takes nearly all the time, because the disk has already started to
    write the other files when the first is complete. Raises OSError."""
    for begin in range(0, len(paths), _OPEN):
        opened: list[int] = []
        try:
            for path in paths[begin : begin + _OPEN]:
                opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                begin_sync(opened[-1], 0, 0)
            for descriptor in opened:
                os.fsync(descriptor)
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _remove(drafts: Iterable[Path]) -> None:
    for draft in drafts:
        with suppress(OSError):
            draft.unlink()


def _not_written(error: OSError, path: Path) -> StorageError:
    return StorageError(f"cannot be written: {error.strerror}", place=str(error.filename or path))
