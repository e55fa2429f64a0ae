"""Data files that were written by the parts of a sink job from source files. The attempt that commits the
load uses these data files.

The attempt that commits the load chooses the files to load in the same way as in a job without parts. The
attempt uses the data files of a part of the job only if the part read the same content, by the same rules,
into the same columns. If the content, the rules or the columns differ, the attempt reads the source file
itself. The result is correct even if the source changes after a part of the job has read it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import SinkSpec
from gridmill.jobs.context import JobContext
from gridmill.jobs.parquet import ParquetPart, link_file, storage_errors
from gridmill.jobs.sink.files import SourceFile, hashed, key_of
from gridmill.jobs.sink.table import stem_of
from gridmill.jobs.sink.value_forms import Form, Forms
from gridmill.jobs.sink.write import WrittenFile
from gridmill.ports.storage import FileStat

TOLD_FILE = ".told.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A source file that a part of the job has read, with its key, content hash, size, modification time and
    the time of its last change.

    The record contains the data files of the valid rows and of the rejected rows, as paths below the folder
    of the part of the job. `rows` is the number of rows that were read. `reasons` counts the reasons of
    `rejected` rows. `lost` counts the values that lost information.
    """

    key: str
    content: str
    size_bytes: int
    mtime_ns: int
    files: tuple[str, ...]
    rejects: tuple[str, ...]
    rows: int
    rejected: int
    reasons: Mapping[str, int]
    lost: Mapping[str, int] = field(default_factory=dict)
    changed_ns: int = 0
    read_as: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """The output of a part of a sink job.

    The output records the rules and the columns with which the part read its files, and the versions of the
    sinks that are referenced by foreign keys. `inferred` is true if the part of the job itself inferred the
    columns from its files. A table that contains only these files would have these columns.
    """

    rules: int
    references: tuple[str, ...]
    columns: str
    inferred: bool
    files: tuple[PartFile, ...]


def write_part_result(folder: Path, part_result: PartResult) -> None:
    """Write the result of a part of the job into the folder with the files of this part. Raises
    StorageError."""
    with storage_errors(folder):
        (folder / TOLD_FILE).write_bytes(encode(part_result))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table, and the forms of the texts in some of these columns."""

    schema: pa.Schema
    forms: Mapping[str, Forms]

    def text(self) -> str:
        """Return the columns and the forms as text."""
        forms = {name: sorted(forms) for name, forms in sorted(self.forms.items())}
        return json.dumps([self.schema.serialize().to_pybytes().hex(), forms])

    @classmethod
    def of(cls, text: str) -> "TableColumns":
        """Parse the text that the property `text` returns."""
        schema, forms = json.loads(text)
        return cls(
            schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema))),
            forms={name: frozenset(map(Form, some)) for name, some in forms.items()},
        )


def referred(context: JobContext, spec: SinkSpec) -> tuple[str, ...]:
    """Return the ids of sink versions: those of the sinks to which foreign keys of this sink refer."""
    return tuple(context.input(name).id for name in spec.references())


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPartFile:
    """A source file that was read by a part of the job. The result of this part is in `folder`."""

    folder: Path
    result: PartResult
    file: PartFile

    def take(self, file: SourceFile, folder: Path) -> WrittenFile:
        """Link the data files of the source file into `folder` too, under names of this attempt. Raises
        StorageError."""
        with storage_errors(folder):
            parts = list(self._linked(self.file.files, file, folder))
            rejects = list(self._linked(self.file.rejects, file, folder / "rejects"))
        rejected = [
            row - 1
            for part in rejects
            for row in pq.read_table(part.path, columns=["row"])["row"].to_pylist()
        ]
        return WrittenFile(file=file, parts=parts, rejects=rejects, rejected=rejected)

    def _linked(self, names: Sequence[str], file: SourceFile, folder: Path) -> Iterator[ParquetPart]:
        stem = stem_of(file)
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            path = link_file(self.folder / name, folder, f"{stem}-{number:05d}.parquet")
            rows = pq.read_metadata(path).num_rows
            yield ParquetPart(path=path, rows=rows, size_bytes=path.stat().st_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFileIndex:
    """An index of the results of all parts of the job, by the key and the content hash of the source
    files."""

    of: Mapping[tuple[str, str], FoundPartFile] = field(default_factory=dict)
    _contents: Mapping[tuple[str, int, int, int], str] = field(default_factory=dict)

    def content(self, stat: FileStat, name: str) -> str:
        """Return the content hash that a part of the job computed for a file, if the size and the times of
        the file have not changed since then."""
        content = self._contents.get((key_of(name), stat.size_bytes, stat.mtime_ns, stat.ctime_ns))
        return content or hashed(stat, name)

    def columns(self, files: Sequence[SourceFile]) -> TableColumns | None:
        """Return the columns that a new table of these files has. Return None if this attempt must detect
        the columns itself.

        The attempt must detect the columns if a part of the job has not read all of its files, or if several
        parts have read the same column in different ways. The type of a column is the first type with which
        all values of the column can be read. If the parts of a job agree on the type of a column, all files
        together give the same type.
        """
        offered = [self.of.get((file.key, file.content)) for file in files]
        column_texts = {
            one.result.columns if one is not None and one.result.inferred else "" for one in offered
        }
        if len(column_texts) != 1 or "" in column_texts:
            return None
        return TableColumns.of(column_texts.pop())

    def take(
        self, file: SourceFile, columns: TableColumns, folder: Path
    ) -> tuple[PartFile, WrittenFile] | None:
        """If a part of the job wrote the rows of the file with these columns, link the data files of these
        rows into `folder` and return their record. Otherwise return None.

        Raises StorageError.
        """
        part_file = self.of.get((file.key, file.content))
        if part_file is None or part_file.result.columns != columns.text():
            return None
        return part_file.file, part_file.take(file, folder)


def open_part_files(context: JobContext, spec: SinkSpec, rules: int) -> PartFileIndex:
    """Open the results of those parts of the job that used the same rules and referenced the same tables.
    The index is empty if no part used the same rules and tables."""
    folders = [context.below_root(uri) for uri in context.order.parts]
    finished_folders = [folder for folder in folders if (folder / TOLD_FILE).exists()]
    results = [(folder, decode((folder / TOLD_FILE).read_bytes(), PartResult)) for folder in finished_folders]
    wanted = (rules, referred(context, spec)) if results else None
    alike = [
        FoundPartFile(folder=folder, result=result, file=done)
        for folder, result in results
        if (result.rules, result.references) == wanted
        for done in result.files
    ]
    return PartFileIndex(
        of={(one.file.key, one.file.content): one for one in alike},
        _contents={
            (one.file.key, one.file.size_bytes, one.file.mtime_ns, one.file.changed_ns): one.file.content
            for one in alike
            if one.file.mtime_ns
        },
    )
