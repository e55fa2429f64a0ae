"""A sink's rejected rows: a Delta table beside it, at the version that the sink's own commit names.

The two tables cannot change in one commit. So rejects are committed first, and count only once the sink's
commit refers to that version: what a killed attempt left at the head is no part of it, and the next change
to the table takes it out again.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from gridmill.jobs.parquet import Part, storage_errors
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.plan import Loaded
from gridmill.jobs.sink.reading import Reader
from gridmill.jobs.sink.sieve import Spool
from gridmill.jobs.sink.table import (
    LostRaceError,
    SinkTable,
    Times,
    create,
    move,
    open_sink_table,
    record_file,
)

REJECTS = pa.schema(
    [
        ("source", pa.string()),
        ("row", pa.int64()),
        ("line", pa.int64()),
        ("reasons", pa.list_(pa.string())),
        ("record", pa.string()),
    ]
)
"""Source file; row in it (from 1) and line where it begins (text formats); why; what was read, as JSON."""


def placed(file: SourceFile, reader: Reader, spools: Iterable[Spool]) -> Iterator[pa.Table]:
    """Spooled rows with their place in the file."""
    for spool in spools:
        lines = reader.lines(iter(spool.rows))
        for batch in spool.batches():
            rows = batch["row"].to_pylist()
            yield pa.table(
                [
                    pa.repeat(file.name, batch.num_rows),
                    [row + 1 for row in rows],
                    [next(lines) for _ in rows],
                    batch["reasons"],
                    batch["record"],
                ],
                REJECTS,
            )


def at_version(path: Path, version: int | None) -> SinkTable:
    """The rejects as the sink's commit has them. Raises StorageError."""
    return SinkTable(path=path, delta=None) if version is None else open_sink_table(path, version)


def count_reasons(table: SinkTable) -> Counter[str]:
    """How many rows were rejected for each reason, over all loads."""
    counted: Counter[str] = Counter()
    if table.delta is not None:
        for batch in table.delta.to_pyarrow_dataset().to_batches(columns=["reasons"]):
            counted.update(reason for reasons in batch["reasons"].to_pylist() for reason in reasons)
    return counted


def commit_rejects(
    path: Path, before: Sequence[Loaded], outdated: Iterable[Loaded], parts: Sequence[Part], times: Times
) -> int | None:
    """A version with the files of `before`, less the outdated, and the parts; None for a table never needed.

    Raises LostRaceError when another attempt was quicker, StorageError.
    """
    gone = {entry.path for entry in outdated}
    kept = {entry.path: entry for entry in before if entry.path not in gone}
    head = open_sink_table(path)
    if head.delta is None and not parts:
        return None
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        delta = head.delta or create(path, REJECTS)
        try:
            return _commit(delta, path, head.loaded, kept, parts, times)
        except CommitFailedError as error:
            raise LostRaceError(str(error)) from error


def _commit(
    delta: DeltaTable,
    path: Path,
    there: Sequence[Loaded],
    kept: dict[str, Loaded],
    parts: Sequence[Part],
    times: Times,
) -> int:
    now = int(time.time() * 1000)
    removed = [RemoveAction(entry.path, True, now) for entry in there if entry.path not in kept]
    lacking = [kept[name] for name in kept.keys() - {entry.path for entry in there}]
    restored = [_again(entry) for entry in lacking]
    if not (parts or removed or restored):
        return delta.version()
    before = delta.version()
    delta.create_write_transaction(
        [*move(parts, path, times), *restored, *removed],
        mode="append",
        schema=REJECTS,
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=True, cleanup_expired_logs=False
        ),
    )
    return before + 1


def _again(entry: Loaded) -> AddAction:
    return record_file(entry.path, entry.rows, entry.size_bytes, entry.modified_ms)
