"""Reads the first rows of a sink's local files as the job would: columns, types and problems."""

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import REMOTE, Format
from gridmill.errors import GridmillError
from gridmill.jobs.sink.ambiguous import UnclearError
from gridmill.jobs.sink.convert import TYPES
from gridmill.jobs.sink.files import SourceFile, find_files
from gridmill.jobs.sink.load import Loading, NoProgress
from gridmill.ports.storage import FileStat

SAMPLE_ROWS = 1000
"""Rows of each file, if no other number is given."""
MOST_FILES = 20
"""Files that are read: the first ones by name, and the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error that a run would raise: `message` says what, `place` where (FILE:LINE), `hint` what to do."""

    message: str
    place: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the first rows of a sink's files say.

    `columns` are the table's columns in order, each with its type (`integer`, `timestamp`, ...; Arrow's name
    for a nested one). A type that is not declared is the type of the sample: later rows can widen it. `whole`
    is true where all rows of all files were read. `unread` names the sources that were not looked at: what is
    not on this machine, databases, streams, and files for which the time did not suffice.
    """

    columns: Mapping[str, str]
    problems: tuple[Problem, ...] = ()
    files: tuple[str, ...] = ()
    rows: int = 0
    whole: bool = False
    unread: tuple[str, ...] = ()


def read_sample(
    spec: SinkSpec, folder: str, rows: int = SAMPLE_ROWS, deadline: float | None = None
) -> Sample:
    """The sample of a sink whose relative paths start at `folder`: at most so many `rows` of each file.

    Nothing is read after `deadline` (of `time.monotonic`) but what was begun. Never raises for what is wrong
    in the declaration or in a file: that is in `problems`.
    """
    spec = spec.with_times()
    source = spec.source
    if source.sql is not None or source.stream is not None or source.format == Format.FILES:
        return Sample(columns={}, unread=(source.name,))
    remote = tuple(path for path in source.paths if path.startswith(REMOTE))
    try:
        files = find_files(source, folder, _unknown_content) if source.local_paths else ()
    except GridmillError as error:
        return Sample(columns={}, problems=(_problem(error),), unread=remote)
    return _Sampling(spec=spec, rows=rows, deadline=deadline).sample(files, remote)


@dataclass(slots=True)
class _Sampling:
    spec: SinkSpec
    rows: int
    deadline: float | None

    def sample(self, files: Sequence[SourceFile], remote: tuple[str, ...]) -> Sample:
        """Types first, then the rows in them: a file that cannot be read is a problem, and left out."""
        loading = Loading(spec=self.spec, progress=NoProgress(), most_rows=self.rows)
        read = () if self._is_late else (*files[: MOST_FILES - 1], *files[MOST_FILES - 1 :][-1:])
        unread = (*remote, *(file.name for file in files if file not in read))
        if not read:
            return Sample(columns={}, unread=unread)
        problems: list[Problem] = []
        try:
            schema = loading.schema(read)
            count = sum(self._rows(file, loading, schema, problems) for file in read)
            if problems and not loading.decided:  # the forms of declared columns may be shown by later rows
                loading.find_forms(read)
                problems = []
                count = sum(self._rows(file, loading, schema, problems) for file in read)
        except UnclearError as error:
            undecided = loading.is_cut or bool(unread)  # rows that were not read may decide
            found = () if undecided else (_problem(error),)
            names = tuple(file.name for file in read) if undecided else ()
            return Sample(columns={}, problems=found, unread=(*unread, *names))
        except GridmillError as error:
            return Sample(columns={}, problems=(_problem(error),), unread=unread)
        return Sample(
            columns={item.name: str(TYPES.get(item.type, item.type)) for item in schema},
            problems=tuple(problems),
            files=tuple(file.name for file in read),
            rows=count,
            whole=not (unread or problems or loading.is_cut),
            unread=unread,
        )

    @property
    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _rows(self, file: SourceFile, loading: Loading, schema: pa.Schema, problems: list[Problem]) -> int:
        """How many rows of a file fit; what does not is added to the problems."""
        if self._is_late:
            loading.is_cut = True
            return 0
        try:
            return sum(batch.rows.num_rows for batch in loading.batches(file, schema))
        except GridmillError as error:
            problems.append(_problem(error))
            return 0


def _unknown_content(stat: FileStat, name: str) -> str:
    """A `Content` that reads nothing."""
    del stat, name
    return ""


def _problem(error: GridmillError) -> Problem:
    return Problem(message=error.message, place=error.place, hint=error.hint)
