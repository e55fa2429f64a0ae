"""Lists the current contents of the source of a sink: the files from which the load chooses, and the
position for the next load.

This module is the interface between the code that reads sources and the code that writes tables. Every
source returns `SourceFile`s. Data that is not in a local file is written into a local file, either
immediately or when the file is first opened. The `Reader` of a file returns the rows of the file in batches,
and the line number of each row (`lines`). `SourceFiles.positions` are stored in the commit that contains the
rows.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.source import HTTP, OBJECTS, Format, Source
from gridmill.jobs.sink import files_as_rows
from gridmill.jobs.sink.files import Content, SourceFile, find_files, hashed
from gridmill.jobs.sink.files_to_load import Positions
from gridmill.plugins import find
from gridmill.ports.storage import FileStat

_ELSEWHERE = {"http": HTTP, "objects": OBJECTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRequest:
    """A request to list the contents of a source.

    `positions` contains the positions that are stored in the table, and is empty if everything must be read
    again. `names` are the source columns that the declaration names, and `texts` are the source columns that
    it declares as texts. `content` is a function that returns the content hashes of files. With
    `most_bytes`, at most this number of bytes of each remote file is downloaded. Relative paths start at
    `folder`. Downloads are stored in `work`, which belongs to the attempt.
    """

    source: Source
    folder: str
    work: Path
    positions: Positions = field(default_factory=dict)
    names: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()
    content: Content = hashed
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The contents of a source.

    `files` are all existing files of the source or, if `append` is true, only the new files. When the rows
    are committed, `positions` replaces the positions that are stored in the table. `partial` means that the
    files contain only the rows of a time range, which is part of the keys of the files. `unseen` is the
    number of rows that cannot be ordered by the cursor, so that no load includes them. The files in
    `waiting` may still be incomplete. The rows of waiting files that are already loaded stay unchanged.
    """

    files: tuple[SourceFile, ...]
    positions: Positions = field(default_factory=dict)
    append: bool = False
    partial: bool = False
    unseen: int = 0
    waiting: tuple[SourceFile, ...] = ()


def list_source_files(request: SourceRequest) -> SourceFiles:
    """Return the current contents of the source. Raises InputError, DataError, UnavailableError."""
    source = request.source
    if source.sql is not None:
        return _read("sql", request)
    if source.stream is not None:
        return _read("stream", request)
    now = time.time()

    def content(stat: FileStat, name: str) -> str:
        return "" if source.waits(stat.ctime_ns, now) else request.content(stat, name)

    found = find_files(source, request.folder, content)
    files = [file for file in found if not source.waits(file.changed_ns, now)]
    waiting = [file for file in found if source.waits(file.changed_ns, now)]
    positions: dict[str, Any] = {}
    for kind in _kinds(source):
        arrived = _read(kind, request)
        files += arrived.files
        waiting += arrived.waiting
        positions |= arrived.positions
    if source.format == Format.FILES:
        new, position = files_as_rows.stage(source, files, request.positions, request.work)
        positions |= position
        return SourceFiles(files=new, positions=positions, append=True, waiting=tuple(waiting))
    return SourceFiles(files=tuple(files), positions=positions, waiting=tuple(waiting))


def load_readers(source: Source) -> None:
    """Import the libraries that read remote files. Raises ModuleNotFoundError."""
    for kind in _kinds(source):
        find("readers", kind)


def _kinds(source: Source) -> Iterator[str]:
    for kind, beginnings in _ELSEWHERE.items():
        if any(path.startswith(beginnings) for path in source.paths):
            yield kind


def _read(kind: str, request: SourceRequest) -> SourceFiles:
    read: Callable[[SourceRequest], SourceFiles] = find("readers", kind)
    return read(request)
