"""Decides which source files to load and which rows they replace, from the loaded files and the existing
files."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from gridmill.domain.frozen import dataclass
from gridmill.errors import ConflictError
from gridmill.jobs.sink.files import SourceFile

Positions: TypeAlias = Mapping[str, Any]
"""The position at which the next load of each source starts, by the source's key. The values are JSON that
only the source's own reader understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A data file of the table and a source file (`key`, `content`) whose rows it contains."""

    path: str
    size_bytes: int
    rows: int
    key: str = ""
    content: str = ""
    start: int = 0
    """The number of the source file's first row in the data file, because a data file may contain rows of
    several source files."""
    modified_ms: int = 0
    """When the source file was last modified, in milliseconds since 1970; 0 if unknown."""
    rejects: bool = False
    """Whether the rows of this file are rejected rows."""

    @property
    def foreign(self) -> bool:
        """Whether another program wrote the data file."""
        return not self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A plan for a load: `load` these files; in the same commit, `remove` these files from the table and
    store `positions`.

    With `anew` all rows of the table are replaced by these files, and the files decide its schema. If fewer
    than `least` rows are loaded, rows would be lost.
    """

    load: tuple[SourceFile, ...] = ()
    remove: tuple[LoadedFile, ...] = ()
    anew: bool = False
    vanished: int = 0
    seen: int = 0
    least: int = 0
    positions: Positions = field(default_factory=dict)
    copies: tuple[str, ...] = ()
    """The files to load whose content is that of a loaded file that does not exist any more. The rows of the
    loaded file are kept."""
    partial: bool = False
    """Whether the source returns only the rows of a time range. The range may have no rows."""
    unseen: int = 0
    """The number of rows of the source that no load includes."""
    waiting: int = 0
    """The number of files of the source that may still be incomplete (see the option `settled`)."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """For each existing file (by key) the path or glob pattern of the source, as declared, that matches
    it."""


def decide(
    files: Sequence[SourceFile], loaded: Sequence[LoadedFile], positions: Positions | None = None
) -> LoadPlan:
    """Return the plan for the existing files.

    A new file is added. A changed file replaces its rows, and so does a renamed file (see `find_renamed`).
    Rows of a deleted file are kept. If no loaded rows would be kept, everything is loaded again from the
    beginning. Raises ConflictError if that is necessary but would lose rows.
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
    """Return the plan for a source that returns only new rows: load all of them, and keep or replace the
    loaded rows."""
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
    """Return the plan to load everything again, which replaces all rows. Raises ConflictError if rows would
    be lost."""
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
    """Return the keys of loaded files that were renamed.

    A loaded file was renamed if it does not exist any more, and a new or changed file has its content and its
    modification time. Each such file matches one loaded file. If another file now has the name of the loaded
    file, the loaded file was certainly moved, so these files are matched first. A file with the same content
    but another modification time is a different file. Objects in object storage and files on HTTP servers are
    always different files, because a copy does not keep the modification time.
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
    """Return the data files with rows of files that the source does not have any more."""
    keys = {file.key for file in files} | find_renamed(files, loaded)
    lost = (entry for entry in loaded if entry.key not in keys)
    return tuple(entry for entry in lost if entry.rows)
