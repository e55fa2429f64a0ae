"""Finds the source files that a sink must load and the rows that they replace. The module compares the files
that exist with the files that were loaded."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError
from gridmill.jobs.sink.files import SourceFile

Positions: TypeAlias = Mapping[str, Any]
"""The position at which the next load of each source starts, by the key of the source. The values of a
position are JSON, which only the reader of the source understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A data file of the table, and a source file (`key`, `content`) whose rows are in the data file."""

    path: str
    size_bytes: int
    rows: int
    key: str = ""
    content: str = ""
    start: int = 0
    """The number of the first row of the source file within the data file, because a data file may contain
    rows of several source files."""
    modified_ms: int = 0
    """The time of the last modification of the source file, in milliseconds since 1970, or 0 if it is
    unknown."""
    rejects: bool = False
    """Whether the rows of this data file are rejected rows."""

    @property
    def foreign(self) -> bool:
        """Return whether another program wrote the data file."""
        return not self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The plan of a load. `load` contains the source files to load, `remove` the files to remove from the
    table, and `positions` the positions to store. The files and positions of the plan are changed in a
    single commit.

    If `anew` is true, the loaded files replace all rows of the table, and these files define the schema of
    the table. `least` is the smallest number of rows that the load must have, because otherwise rows of the
    table would be lost.
    """

    load: tuple[SourceFile, ...] = ()
    remove: tuple[LoadedFile, ...] = ()
    anew: bool = False
    vanished: int = 0
    seen: int = 0
    least: int = 0
    positions: Positions = field(default_factory=dict)
    copies: tuple[str, ...] = ()
    """The names of files to load whose content equals the content of a loaded file that does not exist any
    more. The rows of the loaded file stay in the table."""
    partial: bool = False
    """Whether the source returns only the rows of a time range. The time range may contain no rows."""
    unseen: int = 0
    """The number of rows of the source that no load includes."""
    waiting: int = 0
    """The number of files of the source that may still be incomplete (see the option `settled`)."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """For each existing file (by key), the path or glob pattern in the declaration that matches the file."""


def decide(
    files: Sequence[SourceFile], loaded: Sequence[LoadedFile], positions: Positions | None = None
) -> LoadPlan:
    """Return the plan of a load for the files that exist now.

    The rows of a new file are added to the table. The rows of a changed file replace its earlier rows, and
    so do the rows of a renamed file (see `find_renamed`). The rows of a deleted file stay in the table. If
    no loaded rows would stay in the table, everything is loaded again from the beginning. Raises
    ConflictError if everything must be loaded again, but this would lose rows.
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
    """Return the plan of a load for a source that returns only new rows. The plan loads all new rows, and
    keeps or replaces the loaded rows."""
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
    """Return a plan that loads everything again and replaces all rows. Raises ConflictError if rows would be
    lost."""
    lost = _vanished(files, loaded)
    if lost:
        raise ConflictError(
            f"the table must be loaded again from the beginning, but {_counted(lost)} came from source "
            "files that do not exist any more",
            hint="Restore the files; or give the job another name to begin a new table.",
        )
    return LoadPlan(
        load=tuple(files), remove=tuple(loaded), anew=True, seen=len(files), positions=positions or {}
    )


def _counted(lost: Sequence[LoadedFile]) -> str:
    rows, rejects = (sum(entry.rows for entry in lost if entry.rejects is kind) for kind in (False, True))
    texts = (f"{rows:,} of its rows" if rows else "", f"{rejects:,} rejected rows" if rejects else "")
    return " and ".join(filter(None, texts))


def find_renamed(files: Sequence[SourceFile], loaded: Sequence[LoadedFile]) -> frozenset[str]:
    """Return the keys of the loaded files that were renamed.

    A loaded file was renamed if it does not exist any more, and if a new or changed file has the same
    content and the same modification time. Each new or changed file can match only one loaded file. If
    another file now has the name of the loaded file, the loaded file was certainly renamed. Loaded files
    whose name now belongs to another file are matched first. A file with the same content but another
    modification time is a different file. Objects in object storage and files on HTTP servers are never
    treated as renamed, because a copy does not keep the modification time.
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
    """Return the data files with rows of source files that do not exist any more."""
    keys = {file.key for file in files} | find_renamed(files, loaded)
    lost = (entry for entry in loaded if entry.key not in keys)
    return tuple(entry for entry in lost if entry.rows)
