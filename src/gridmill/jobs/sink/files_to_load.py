"""Decides which source files to load and which rows they replace, from what is loaded and what exists."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError
from gridmill.jobs.sink.files import SourceFile

Positions: TypeAlias = Mapping[str, Any]
"""The position from which each source is read next, by its key: JSON values that only its own reader
understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A data file of the table and the source file (`key`, `content`) whose rows it holds."""

    path: str
    size_bytes: int
    rows: int
    key: str = ""
    content: str = ""
    start: int = 0
    """The first of its rows in the data file, which may hold rows of several source files."""
    modified_ms: int = 0
    """When the source file was last modified, in milliseconds since 1970; 0 where nobody knows."""
    rejects: bool = False
    """Whether its rows are rejected ones."""

    @property
    def foreign(self) -> bool:
        """True when no sink wrote it."""
        return not self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """`load` these files; take `remove` out of the table in the same commit, and keep `positions` in it. With
    `anew` the table gets a new schema from these files, and nothing of it stays; fewer rows than `least`
    would lose some."""

    load: tuple[SourceFile, ...] = ()
    remove: tuple[LoadedFile, ...] = ()
    anew: bool = False
    vanished: int = 0
    seen: int = 0
    least: int = 0
    positions: Positions = field(default_factory=dict)
    copies: tuple[str, ...] = ()
    """Of the files to load, those that hold just what a file held that is gone, whose rows stay."""
    partial: bool = False
    """Whether the source gives the rows of a stretch of time alone, of which there may be none."""
    unseen: int = 0
    """Rows of the source that no load takes."""
    waiting: int = 0
    """Files of the source that are not settled yet."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The path or glob of the source, as written, that names each file (by key) that is there."""


def decide(
    files: Sequence[SourceFile], loaded: Sequence[LoadedFile], positions: Positions | None = None
) -> LoadPlan:
    """What to load.

    A new file is added. A changed one replaces its rows, as does a renamed one (`find_renamed`). Rows of a
    file that is there no more stay. When nothing that is loaded would stay, all is loaded anew.
    Raises ConflictError when it must be loaded anew and that would lose rows.
    """
    content_by_key = {file.key: file.content for file in files}
    same = {(entry.key, entry.content) for entry in loaded}
    fresh = tuple(file for file in files if (file.key, file.content) not in same)
    renamed = find_renamed(files, loaded)
    outdated = tuple(entry for entry in loaded if _is_outdated(entry, content_by_key, renamed))
    if len(outdated) == len(loaded):
        return load_anew(files, loaded, positions)
    vanished = _vanished(files, loaded)
    held = {entry.content for entry in vanished}
    return LoadPlan(
        load=fresh,
        remove=outdated,
        vanished=len(vanished),
        copies=tuple(file.name for file in fresh if file.content in held),
        seen=len(files),
        positions=positions or {},
    )


def decide_next(
    new: Sequence[SourceFile], loaded: Sequence[LoadedFile], positions: Positions, *, anew: bool
) -> LoadPlan:
    """What to load from a source that gives only what is new: all, beside what is loaded or in its place."""
    remove = tuple(loaded) if anew else ()
    return LoadPlan(
        load=tuple(new),
        remove=remove,
        anew=anew,
        seen=len(new),
        least=sum(entry.rows for entry in remove),
        positions=positions,
    )


def load_anew(
    files: Sequence[SourceFile], loaded: Sequence[LoadedFile], positions: Positions | None = None
) -> LoadPlan:
    """Everything again, in place of everything. Raises ConflictError when that would lose rows."""
    lost = _vanished(files, loaded)
    if lost:
        raise ConflictError(
            f"the table must be loaded anew, and {_counted(lost)} are from source files that are gone",
            hint="Put the files back; or give the job another name to begin a new table.",
        )
    return LoadPlan(
        load=tuple(files), remove=tuple(loaded), anew=True, seen=len(files), positions=positions or {}
    )


def _counted(lost: Sequence[LoadedFile]) -> str:
    rows, rejects = (sum(entry.rows for entry in lost if entry.rejects is kind) for kind in (False, True))
    texts = (f"{rows:,} of its rows" if rows else "", f"{rejects:,} rejected rows" if rejects else "")
    return " and ".join(filter(None, texts))


def find_renamed(files: Sequence[SourceFile], loaded: Sequence[LoadedFile]) -> frozenset[str]:
    """The keys of loaded files that are no more, since each is there under another name.

    That is a file that is new or changed, with the content and the time of modification of one that was
    loaded; each stands for one file. Where a file took the other's name, that one was moved for sure, so it
    is looked for first. A file of the same content written at another time is a file of its own, as are
    objects and what HTTP servers have, which keep no time when they are copied.
    """
    held = {(entry.key, entry.content): entry.modified_ms for entry in loaded if entry.key}
    fresh = Counter(
        (file.content, file.modified_ms)
        for file in files
        if file.modified_ms and (file.key, file.content) not in held
    )
    content_by_key = {file.key: file.content for file in files}
    for (key, content), modified_ms in held.items():
        if content_by_key.get(key, content) != content:
            fresh[content, modified_ms] -= 1
    renamed: set[str] = set()
    for (key, content), modified_ms in held.items():
        if key not in content_by_key and fresh[content, modified_ms] > 0:
            fresh[content, modified_ms] -= 1
            renamed.add(key)
    return frozenset(renamed)


def _is_outdated(entry: LoadedFile, content_by_key: Mapping[str, str], renamed: Container[str]) -> bool:
    if entry.foreign:
        return False
    if entry.key in content_by_key:
        return content_by_key[entry.key] != entry.content
    return entry.key in renamed


def _vanished(files: Sequence[SourceFile], loaded: Sequence[LoadedFile]) -> tuple[LoadedFile, ...]:
    """Data files with rows that no file of the source gives any more."""
    keys = {file.key for file in files} | find_renamed(files, loaded)
    lost = (entry for entry in loaded if entry.key not in keys)
    return tuple(entry for entry in lost if entry.rows)
