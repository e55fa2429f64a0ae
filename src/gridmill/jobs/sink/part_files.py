"""Data files that the parts of a sink job wrote from source files, offered to the attempt that commits.

That attempt decides what is to be loaded as if there were no parts. It takes a file from a part only if the
part read the same content, by the same rules, into the same columns; else it reads the file itself. So
changes between the two do not matter.
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
from gridmill.jobs.parquet import Part, link_file, storage_errors
from gridmill.jobs.sink.files import SourceFile, hashed, key_of
from gridmill.jobs.sink.table import stem_of
from gridmill.jobs.sink.value_forms import Form, Forms
from gridmill.jobs.sink.write import Written
from gridmill.ports.storage import FileStat

TOLD_FILE = ".told.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A source file (`key`, `content`; so large and so old, last changed then) as a part wrote it: the data
    files of its good `rows` and of those rejected, below the part's folder. `rows` were read; `reasons` count
    why some were `rejected`, `lost` the values that were not kept whole."""

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
class Told:
    """All that a part did: by which `rules`, into which columns, held against which versions of the sinks
    that foreign keys refer to. `inferred`: the columns are those that its files alone would give a table."""

    rules: int
    references: tuple[str, ...]
    columns: str
    inferred: bool
    done: tuple[Done, ...]


def write_told(folder: Path, told: Told) -> None:
    """Note it beside the files. Raises StorageError."""
    with storage_errors(folder):
        (folder / TOLD_FILE).write_bytes(encode(told))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A table's columns, and the forms in which the texts of some of them are read."""

    schema: pa.Schema
    forms: Mapping[str, Forms]

    def text(self) -> str:
        """The same as text."""
        forms = {name: sorted(forms) for name, forms in sorted(self.forms.items())}
        return json.dumps([self.schema.serialize().to_pybytes().hex(), forms])

    @classmethod
    def of(cls, text: str) -> "Columns":
        """What `text` gives."""
        schema, forms = json.loads(text)
        return cls(
            schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema))),
            forms={name: frozenset(map(Form, some)) for name, some in forms.items()},
        )


def referred(context: JobContext, spec: SinkSpec) -> tuple[str, ...]:
    """The versions of the sinks that foreign keys refer to."""
    return tuple(context.input(name).id for name in spec.references())


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A source file as the part in `folder` wrote it."""

    folder: Path
    told: Told
    done: Done

    def take(self, file: SourceFile, folder: Path) -> Written:
        """Its data files in `folder` too, under names of this attempt's own. Raises StorageError."""
        with storage_errors(folder):
            parts = list(self._linked(self.done.files, file, folder))
            rejects = list(self._linked(self.done.rejects, file, folder / "rejects"))
        rejected = [
            row - 1
            for part in rejects
            for row in pq.read_table(part.path, columns=["row"])["row"].to_pylist()
        ]
        return Written(file=file, parts=parts, rejects=rejects, rejected=rejected)

    def _linked(self, names: Sequence[str], file: SourceFile, folder: Path) -> Iterator[Part]:
        stem = stem_of(file)
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            path = link_file(self.folder / name, folder, f"{stem}-{number:05d}.parquet")
            rows = pq.read_metadata(path).num_rows
            yield Part(path=path, rows=rows, size_bytes=path.stat().st_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What all parts wrote, by key and content of the source files."""

    of: Mapping[tuple[str, str], Offered] = field(default_factory=dict)
    _contents: Mapping[tuple[str, int, int, int], str] = field(default_factory=dict)

    def content(self, stat: FileStat, name: str) -> str:
        """The hash of a file's content: as a part found it, where the file is as old and large as it was."""
        known = self._contents.get((key_of(name), stat.size_bytes, stat.mtime_ns, stat.ctime_ns))
        return known or hashed(stat, name)

    def columns(self, files: Sequence[SourceFile]) -> Columns | None:
        """What these files give a new table; None where that is for this attempt to find out: a part has not
        read all of its own, or not as the others did.

        A column gets the first type that all its values can be read as. Where parts agree on it, it is what
        all files would give.
        """
        offered = [self.of.get((file.key, file.content)) for file in files]
        told = {one.told.columns if one is not None and one.told.inferred else "" for one in offered}
        if len(told) != 1 or "" in told:
            return None
        return Columns.of(told.pop())

    def take(self, file: SourceFile, columns: Columns, folder: Path) -> tuple[Done, Written] | None:
        """The file's rows in these columns, their data files in `folder`; None where no part wrote them.

        Raises StorageError.
        """
        found = self.of.get((file.key, file.content))
        if found is None or found.told.columns != columns.text():
            return None
        return found.done, found.take(file, folder)


def open_offer(context: JobContext, spec: SinkSpec, rules: int) -> Offer:
    """What the parts offer that loaded by the same rules, against the same tables; nothing where there are
    none."""
    folders = [context.below_root(uri) for uri in context.order.parts]
    there = [folder for folder in folders if (folder / TOLD_FILE).exists()]
    known = [(folder, decode((folder / TOLD_FILE).read_bytes(), Told)) for folder in there]
    wanted = (rules, referred(context, spec)) if known else None
    alike = [
        Offered(folder=folder, told=told, done=done)
        for folder, told in known
        if (told.rules, told.references) == wanted
        for done in told.done
    ]
    return Offer(
        of={(one.done.key, one.done.content): one for one in alike},
        _contents={
            (one.done.key, one.done.size_bytes, one.done.mtime_ns, one.done.changed_ns): one.done.content
            for one in alike
            if one.done.mtime_ns
        },
    )
