"""The Delta table of a sink. The name of a data file is made from the source file whose rows the data file
contains. Each load of a sink makes a single commit.

The names of data files (`KEY-CONTENT-UNIQUE-00000.parquet`) record which source files were loaded. The
contents of the table and the record of loads always agree and change atomically.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from gridmill.domain.frozen import dataclass
from gridmill.errors import StorageError
from gridmill.jobs.parquet import ParquetPart, storage_errors
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.files_to_load import LoadedFile, LoadPlan, Positions
from gridmill.transfer.contents import sync_folder

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{32}-\d{5}\.parquet")
_COMPACT = re.compile(r"compact-[0-9a-f]{32}-\d{5}\.parquet")
SOURCES = b"gridmill.sources"
"""The key in the metadata of a compacted data file. Under this metadata key, a compacted data file records
for each source file its key, content, number of rows and modification time (milliseconds; absent in files of
earlier versions)."""
_LOADS = "gridmill.load"
_RULES = "gridmill.rules"
_REJECTS = "gridmill.rejects"
_POSITIONS = "gridmill.positions"
"""The key of the version of the table whose commit contains the position of each source."""
_CONFIGURATION = {"delta.logRetentionDuration": "interval 36500 days"}
"""Settings of the Delta table that keep every version readable, because artifacts refer to versions."""


class ConcurrentCommitError(Exception):
    """The error that is raised if another attempt has committed to the table after this attempt opened the
    table. Open the table again."""


@dataclass(frozen=True, kw_only=True)
class SinkTable:
    """The state of the table of a sink when it was opened. `delta` is None before the first load."""

    path: Path
    delta: DeltaTable | None

    @cached_property
    def loaded(self) -> tuple[LoadedFile, ...]:
        """Return the data files of the table. Listing the data files of 10,000 source files takes some
        hundredths of a second."""
        if self.delta is None:
            return ()
        columns = ["path", "size_bytes", "num_records", "modification_time"]
        actions = pa.table(self.delta.get_add_actions()).select(columns)
        rows = sorted(actions.to_pylist(), key=lambda row: str(row["path"]))
        return tuple(entry for row in rows for entry in _loaded(self.path, row))

    @property
    def rules(self) -> int | None:
        """Return the number of the declaration by which the table was loaded (`rules_number`)."""
        return self.delta.transaction_version(_RULES) if self.delta else None

    @property
    def rejects(self) -> int | None:
        """Return the version of the table of rejected rows that the newest commit contains, or None if there
        are no rejected rows."""
        return self.delta.transaction_version(_REJECTS) if self.delta else None

    @property
    def note(self) -> Mapping[str, Any]:
        """Return the record of the load in the newest commit. The record is empty if another program wrote
        to the table."""
        if self.delta is None:
            return {}
        entry = self.delta.history(1)[0]
        note: Mapping[str, Any] = json.loads(entry.get("gridmill", "{}"))
        return note

    @property
    def positions(self) -> Positions:
        """Return the position of each source, from the commit that loaded the newest rows of the source."""
        version = self.delta.transaction_version(_POSITIONS) if self.delta else None
        if self.delta is None or version is None:
            return {}
        *_, entry = self.delta.history(self.delta.version() - version + 1)
        if entry.get("version") != version:
            message = f"the table's log does not contain version {version} any more"
            raise StorageError(message, place=str(self.path))
        positions: Positions = json.loads(entry["gridmill"])["positions"]
        return positions

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the table. The table must exist."""
        assert self.delta is not None
        return pa.schema(self.delta.schema().to_arrow())


def open_sink_table(path: Path, version: int | None = None) -> SinkTable:
    """Open this version of the table, or the newest version. Raises StorageError if the table cannot be
    read."""
    try:
        return SinkTable(path=path, delta=DeltaTable(path, version=version))
    except TableNotFoundError:
        return SinkTable(path=path, delta=None)
    except OSError as error:
        raise StorageError(f"the table cannot be read: {error}", place=str(path)) from error


def _loaded(folder: Path, row: dict[str, Any]) -> Iterator[LoadedFile]:
    match = _NAME.fullmatch(row["path"])
    if match is None and _COMPACT.fullmatch(row["path"]):
        yield from _several(folder, row)
        return
    key, content = match.groups() if match else ("", "")
    yield LoadedFile(
        path=row["path"],
        size_bytes=row["size_bytes"],
        rows=row["num_records"] or 0,
        key=key,
        content=content,
        modified_ms=row["modification_time"],
    )


def _several(folder: Path, row: dict[str, Any]) -> Iterator[LoadedFile]:
    """Yield the pieces of a compacted data file. Only the first piece has the size of the data file."""
    start, size_bytes = 0, row["size_bytes"]
    sources = json.loads((pq.read_schema(folder / row["path"]).metadata or {})[SOURCES])
    for key, content, rows, *modified in sources:
        yield LoadedFile(
            path=row["path"],
            size_bytes=size_bytes,
            rows=rows,
            key=key,
            content=content,
            start=start,
            modified_ms=modified[0] if modified else 0,
        )
        start, size_bytes = start + rows, 0


def compact_stem() -> str:
    """Return a new unique name for a data file with rows of several source files."""
    return f"compact-{uuid4().hex}"


def marked_with(schema: pa.Schema, pieces: Iterable[LoadedFile]) -> pa.Schema:
    """Return the schema of a data file that contains the rows of these pieces, in their order.

    The metadata of the schema records the pieces.
    """
    sources = [[piece.key, piece.content, piece.rows, piece.modified_ms] for piece in pieces]
    return schema.with_metadata({SOURCES: json.dumps(sources)})


def rules_number(fingerprint: str) -> int:
    """Return the fingerprint of a declaration as a number that a Delta transaction can store."""
    return int(fingerprint[:15], 16)


def stem_of(file: SourceFile) -> str:
    """Return a new unique name for a data file with rows of `file`."""
    return f"{file.key}-{file.content}-{uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The information that a commit contains in addition to rows.

    In addition to rows, a commit contains the number of the declaration, the version of the table of
    rejected rows, and a record for readers of the history of the table (JSON).
    """

    rules: int
    rejects: int | None = None
    note: object = None


def commit(
    table: SinkTable,
    plan: LoadPlan,
    schema: pa.Schema,
    parts: Sequence[ParquetPart],
    mark: CommitMetadata,
    *,
    overwrite: bool = False,
) -> int:
    """Commit the load and return the new version. The commit adds the new data files, removes the files that
    the plan removes, and stores the positions of the plan.

    If `overwrite` is true and the plan loads everything again, the new data files replace all rows. Raises
    ConcurrentCommitError, without any change, if another attempt committed first. Raises StorageError.
    """
    delta = table.delta
    with storage_errors(table.path):
        try:
            if delta is None:
                table.path.mkdir(parents=True, exist_ok=True)
                delta = create(table.path, schema)
            added = move(parts, table.path, times_of(plan.load, table.loaded))
            return _commit(delta, plan, schema, added, mark, overwrite)
        except CommitFailedError as error:
            _remove(parts, table.path)
            raise ConcurrentCommitError(str(error)) from error
        except ConcurrentCommitError:
            _remove(parts, table.path)
            raise
        except BaseException:
            if not _is_committed(table.path, parts):
                _remove(parts, table.path)
            raise


def create(path: Path, schema: pa.Schema) -> DeltaTable:
    """Create a table without rows. Raises ConcurrentCommitError if another attempt has created the table."""
    delta = DeltaTable.create(path, schema, mode="ignore", configuration=_CONFIGURATION)
    if delta.version() != 0:
        raise ConcurrentCommitError("another attempt created the table")
    return delta


def _commit(
    delta: DeltaTable,
    plan: LoadPlan,
    schema: pa.Schema,
    added: list[AddAction],
    mark: CommitMetadata,
    overwrite: bool,
) -> int:
    overwrite = overwrite or plan.anew
    before = delta.version()
    loads = (delta.transaction_version(_LOADS) or 0) + 1
    now = int(time.time() * 1000)
    transactions = [Transaction(_LOADS, loads), Transaction(_RULES, mark.rules)]
    if plan.positions:
        transactions.append(Transaction(_POSITIONS, before + 1))
    if mark.rejects is not None:
        transactions.append(Transaction(_REJECTS, mark.rejects))
    gone = dict.fromkeys(entry.path for entry in plan.remove)
    removed = [] if overwrite else [RemoveAction(path, True, now) for path in gone]
    delta.create_write_transaction(
        [*added, *removed],
        mode="overwrite" if overwrite else "append",
        schema=schema,
        commit_properties=CommitProperties(
            custom_metadata={"gridmill": json.dumps(mark.note)},
            max_commit_retries=0,  # another commit came first, so the plan must be made again
            app_transactions=transactions,
        ),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=True, cleanup_expired_logs=False
        ),
    )
    return before + 1


def replace_files(table: SinkTable, paths: Sequence[str], parts: Sequence[ParquetPart]) -> int:
    """Commit the same rows in other files, or fewer rows, with the record of the previous commit. Return the
    new version.

    Raises ConcurrentCommitError if another attempt committed first, StorageError.
    """
    assert table.delta is not None
    before, now = table.delta.version(), int(time.time() * 1000)
    loads = (table.delta.transaction_version(_LOADS) or 0) + 1
    removed = [RemoveAction(path, True, now) for path in paths]
    with storage_errors(table.path):
        try:
            table.delta.create_write_transaction(
                [*move(parts, table.path, times_of((), table.loaded)), *removed],
                mode="append",
                schema=table.schema,
                commit_properties=CommitProperties(
                    custom_metadata={"gridmill": json.dumps(table.note)},
                    max_commit_retries=0,
                    app_transactions=[Transaction(_LOADS, loads)],
                ),
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=True, cleanup_expired_logs=False
                ),
            )
        except CommitFailedError as error:
            _remove(parts, table.path)
            raise ConcurrentCommitError(str(error)) from error
    return before + 1


def add_columns(table: SinkTable, schema: pa.Schema) -> SinkTable:
    """Add the missing columns of `schema` to the table, without values in all rows, and return the changed
    table.

    The columns are added in a separate commit. The record of the new commit is the record of the previous
    commit, and also shows that data files may lack these columns. If the load fails before its rows are
    committed, the commit with the new columns remains. Raises ConcurrentCommitError, StorageError.
    """
    assert table.delta is not None
    lacking = [item for item in schema if item.name not in table.schema.names]
    if not lacking:
        return table
    note = {**table.note, "later": sorted({*table.note.get("later", ()), *(item.name for item in lacking)})}
    with storage_errors(table.path):
        try:
            table.delta.alter.add_columns(
                list(Schema.from_arrow(pa.schema(lacking)).fields),
                commit_properties=CommitProperties(
                    custom_metadata={"gridmill": json.dumps(note)}, max_commit_retries=0
                ),
            )
        except CommitFailedError as error:
            raise ConcurrentCommitError(str(error)) from error
    return open_sink_table(table.path, table.delta.version())


Times: TypeAlias = Mapping[tuple[str, str], int]
"""The modification time of each source file (by key and content), in milliseconds since 1970."""


def times_of(files: Iterable[SourceFile], loaded: Iterable[LoadedFile]) -> Times:
    """Return the modification times of these source files and of the loaded source files."""
    modified_by_key = {(entry.key, entry.content): entry.modified_ms for entry in loaded}
    return modified_by_key | {(file.key, file.content): file.modified_ms for file in files}


def move(parts: Sequence[ParquetPart], folder: Path, times: Times) -> list[AddAction]:
    """Move the new data files to the folder of the table, and return the Delta actions that add them."""
    actions: list[AddAction] = []
    for part in parts:
        part.path.rename(folder / part.path.name)
        match = _NAME.fullmatch(part.path.name)
        modified_ms = times.get((match[1], match[2]), 0) if match else 0
        actions.append(record_file(part.path.name, part.rows, part.size_bytes, modified_ms))
    sync_folder(folder)
    return actions


def record_file(name: str, rows: int, size_bytes: int, modified_ms: int = 0) -> AddAction:
    """Return the Delta action that adds a data file to a table.

    The modification time in this action is that of the source file whose rows the data file contains.
    """
    return AddAction(
        path=name,
        size=size_bytes,
        partition_values={},
        modification_time=modified_ms or int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )


def _is_committed(folder: Path, parts: Sequence[ParquetPart]) -> bool:
    """Return whether the commit succeeded although it raised an error.

    A commit can succeed and raise an error if a checkpoint after the commit failed, or if a signal arrived.
    """
    names = {part.path.name for part in parts}
    return any(entry.path in names for entry in open_sink_table(folder).loaded)


def _remove(parts: Sequence[ParquetPart], folder: Path) -> None:
    for part in parts:
        part.path.unlink(missing_ok=True)
        (folder / part.path.name).unlink(missing_ok=True)
