"""Writes several small files atomically, with one wait for the disk for all of them."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from gridmill.errors import StorageError
from gridmill.transfer.contents import sync_folder
from gridmill.transfer.durable import begin_sync

_OPEN = 64
"""Files that are open at once."""


class WriteBatch:
    """Small files that are written together. Not safe to use from several threads."""

    def __init__(self) -> None:
        self._drafts: dict[Path, Path] = {}

    def add(self, path: Path, data: bytes) -> None:
        """Writes the file as a draft; `place` gives it its name. The last file for a path counts. Raises
        StorageError."""
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(draft, "xb") as file:
                file.write(data)
        except OSError as error:
            _remove([draft])
            raise _not_written(error, path) from error
        if (before := self._drafts.pop(path, None)) is not None:
            _remove([before])
        self._drafts[path] = draft

    def place(self) -> None:
        """Syncs all files and gives them their names. Raises StorageError; files that did not get their name
        are dropped."""
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


def _sync(paths: Sequence[Path]) -> None:
    """Syncs the files. The first wait takes nearly all the time, because the disk has started to write the
    others by then. Raises OSError."""
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
