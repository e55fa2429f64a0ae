"""Which source files to load and which rows they replace, from what is loaded and what is there."""

from collections.abc import Sequence
from dataclasses import dataclass

from gridmill.errors import ConflictError
from gridmill.jobs.sink.files import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A data file of the table and the source file (`key`, `content`) whose rows it holds."""

    path: str
    size_bytes: int
    rows: int
    key: str = ""
    content: str = ""

    @property
    def foreign(self) -> bool:
        """True when no sink wrote it."""
        return not self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """`load` these files; take `remove` out of the table in the same commit. With `anew` the table gets a
    new schema from these files, and nothing of it stays."""

    load: tuple[SourceFile, ...] = ()
    remove: tuple[Loaded, ...] = ()
    anew: bool = False
    vanished: int = 0


def decide(files: Sequence[SourceFile], loaded: Sequence[Loaded], *, same_rules: bool) -> LoadPlan:
    """What to load.

    A new file is added. A changed one replaces its rows, as does a renamed one. Rows of a file that is there
    no more stay. When the declaration changed, or nothing that is loaded would stay, all is loaded anew.
    Raises ConflictError when it must be loaded anew and that would lose rows.
    """
    if not same_rules:
        return load_anew(files, loaded)
    there = {file.key: file.content for file in files}
    same = {(entry.key, entry.content) for entry in loaded}
    fresh = tuple(file for file in files if (file.key, file.content) not in same)
    moved = {file.content for file in fresh}
    outdated = tuple(entry for entry in loaded if _is_outdated(entry, there, moved))
    if len(outdated) == len(loaded):
        return load_anew(files, loaded)
    return LoadPlan(load=fresh, remove=outdated, vanished=len(_vanished(files, loaded)))


def load_anew(files: Sequence[SourceFile], loaded: Sequence[Loaded]) -> LoadPlan:
    """Everything again, in place of everything. Raises ConflictError when that would lose rows."""
    lost = _vanished(files, loaded)
    if lost:
        rows = sum(entry.rows for entry in lost)
        raise ConflictError(
            f"the table must be loaded anew, and {rows:,} of its rows are from source files that are gone",
            hint="Put the files back; or give the job another name to begin a new table.",
        )
    return LoadPlan(load=tuple(files), remove=tuple(loaded), anew=True)


def _is_outdated(entry: Loaded, there: dict[str, str], moved: set[str]) -> bool:
    if entry.foreign:
        return False
    if entry.key in there:
        return there[entry.key] != entry.content
    return entry.content in moved


def _vanished(files: Sequence[SourceFile], loaded: Sequence[Loaded]) -> tuple[Loaded, ...]:
    """Data files with rows that no file of the source gives any more."""
    keys = {file.key for file in files}
    contents = {file.content for file in files}
    return tuple(entry for entry in loaded if entry.key not in keys and entry.content not in contents)
