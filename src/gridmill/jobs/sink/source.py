"""Lists what a sink's source holds now: the files to decide on, and the position for the next time.

This is the interface between reading and writing. Every source delivers `SourceFile`s: what is not a file of
this machine is brought into one, at once or when it is first opened. A file's `Reader` gives its rows in
batches and the line of each (`lines`); `SourceFiles.positions` are stored in the commit that holds them.
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
    """What is asked of a source: `positions` are those of the table, none when all is to be read again;
    `names` the source's columns that the declaration names, `texts` those that it makes texts; `content`
    tells what files of a folder hold. With `most_bytes`, no more of each file elsewhere is fetched.

    Relative paths start at `folder`; what is fetched goes into `work`, which is the attempt's alone.
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
    """`files` are what the source holds now or, with `append`, only what is new in it; `positions`
    replace those of the table in the commit of their rows. `partial`: they are the rows of a stretch of time,
    which their key tells. `unseen` rows have no place in the source's order, and no load takes them.
    `waiting` files are not settled yet: what is loaded of them stays as it is."""

    files: tuple[SourceFile, ...]
    positions: Positions = field(default_factory=dict)
    append: bool = False
    partial: bool = False
    unseen: int = 0
    waiting: tuple[SourceFile, ...] = ()


def look(request: SourceRequest) -> SourceFiles:
    """What is there. Raises InputError, DataError, UnavailableError."""
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
    """Load the libraries that read files elsewhere. Raises ModuleNotFoundError."""
    for kind in _kinds(source):
        find("readers", kind)


def _kinds(source: Source) -> Iterator[str]:
    for kind, beginnings in _ELSEWHERE.items():
        if any(path.startswith(beginnings) for path in source.paths):
            yield kind


def _read(kind: str, request: SourceRequest) -> SourceFiles:
    read: Callable[[SourceRequest], SourceFiles] = find("readers", kind)
    return read(request)
