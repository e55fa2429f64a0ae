"""What a sink's source holds now, wherever it is: files to decide on, and where to go on the next time.

This is the seam between reading and writing. Whatever a source is, it arrives as `SourceFile`s: what is no
file of this machine is brought into one, at once or when it is first opened. A file's `Reader` gives its
rows in batches and tells where each row is from (`place`); `Arrivals.positions` go into the commit that
holds them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gridmill.jobs.sink.files import SourceFile, find_files
from gridmill.jobs.sink.plan import Positions
from gridmill.model.source import Source
from gridmill.registry import find


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a source: `positions` are those of the table, none when all is to be read again.

    Relative paths start at `folder`; what is fetched goes into `work`, which is the attempt's alone.
    """

    source: Source
    folder: str
    work: Path
    positions: Positions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`files` are what the source holds now or, with `append`, only what is new in it; `positions`
    replace those of the table in the commit of their rows."""

    files: tuple[SourceFile, ...]
    positions: Positions = field(default_factory=dict)
    append: bool = False


def look(asked: Asked) -> Arrivals:
    """What is there. Raises InputError, DataError, UnavailableError."""
    if asked.source.sql is not None:
        read: Callable[[Asked], Arrivals] = find("readers", "sql")
        return read(asked)
    return Arrivals(files=find_files(asked.source, asked.folder))
