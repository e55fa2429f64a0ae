"""Stores the rejected rows of a sink in a second Delta table in the folder of the sink.

Two Delta tables cannot be changed in the same commit. The rejected rows of a load are committed before its
other rows. The rejected rows are valid only after the commit of the table of the sink, which contains the
version of the table of rejected rows. If an attempt is killed between the two commits, its rejected rows are
not valid, and the next change of the table of rejected rows removes them. The function `misfit` builds the
error message for a value that does not fit its column.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from gridmill.errors import DataError
from gridmill.jobs.parquet import ParquetPart, storage_errors
from gridmill.jobs.sink.constraints import RejectSpool
from gridmill.jobs.sink.convert import TYPES, ConversionLoss, MisfitError, TextRules
from gridmill.jobs.sink.files import SourceFile
from gridmill.jobs.sink.files_to_load import LoadedFile
from gridmill.jobs.sink.formats import Reader
from gridmill.jobs.sink.table import (
    ConcurrentCommitError,
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
"""The columns of a table of rejected rows: the source file, the number of the row in the file (from 1), the
line where the row begins (text formats), the reason, and the values as JSON."""


def placed(file: SourceFile, reader: Reader, spools: Iterable[RejectSpool]) -> Iterator[pa.Table]:
    """Yield the rejected rows with their row numbers and lines in the source file."""
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
    """Open the table of rejected rows at the version that the commit of the sink contains. Raises
    StorageError."""
    return SinkTable(path=path, delta=None) if version is None else open_sink_table(path, version)


def count_reasons(table: SinkTable) -> Counter[str]:
    """Return the number of rejected rows for each reason, over all loads."""
    counted: Counter[str] = Counter()
    if table.delta is not None:
        for batch in table.delta.to_pyarrow_dataset().to_batches(columns=["reasons"]):
            counted.update(reason for reasons in batch["reasons"].to_pylist() for reason in reasons)
    return counted


def commit_rejects(
    path: Path,
    before: Sequence[LoadedFile],
    outdated: Iterable[LoadedFile],
    parts: Sequence[ParquetPart],
    times: Times,
) -> int | None:
    """Commit the files of `before`, except outdated files, and the new files. Return the version of the
    table.

    Return None if the table does not exist and no row was rejected. Raises ConcurrentCommitError if another
    attempt committed first, StorageError.
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
            raise ConcurrentCommitError(str(error)) from error


def _commit(
    delta: DeltaTable,
    path: Path,
    loaded_files: Sequence[LoadedFile],
    kept: dict[str, LoadedFile],
    parts: Sequence[ParquetPart],
    times: Times,
) -> int:
    now = int(time.time() * 1000)
    removed = [RemoveAction(entry.path, True, now) for entry in loaded_files if entry.path not in kept]
    lacking = [kept[name] for name in kept.keys() - {entry.path for entry in loaded_files}]
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


def _again(entry: LoadedFile) -> AddAction:
    return record_file(entry.path, entry.rows, entry.size_bytes, entry.modified_ms)


_DECLARED = (
    "Correct the value, change the type under `columns`, add the text to the source's `nulls`, or set "
    "`on_misfit: reject`."
)
_INFERRED = "All rows loaded before had this type. Declare another type under `columns`: {{{name}: string}}."
_DIGITS = (
    "`columns: {{{name}: string}}` keeps every digit, `columns: {{{name}: float}}` takes the nearest float."
)
_ZEROS = "`columns: {{{name}: string}}` keeps it, `columns: {{{name}: {type}}}` drops it."
_TIMES = (
    " If the value is a time, declare its form under `source`, for example "
    "`timestamp_format: {{{name}: '%d.%m.%Y %H:%M'}}`."
)
_NUMERIC = (
    " If numbers are times, `timestamp_format: {{{name}: unix_s}}` under `source` declares their unit "
    "(`unix_s`, `unix_ms`, `unix_us`, `unix_ns`, or a pattern such as '%Y%m%d')."
)
_DECIMAL = " If the comma is the decimal sign: `decimal: ','` under `source`."


def misfit(item: pa.Field, error: MisfitError, place: str, rules: TextRules) -> DataError:
    """Return the error for a value that does not have the type of the column `item`."""
    name, value, type_ = item.name, shown(error.value), TYPES.get(item.type, item.type)
    if error.loss == ConversionLoss.DIGITS:
        message = (
            f"column {name!r} has fractions, but {value} is a whole number that a float cannot "
            "represent exactly"
        )
        return DataError(message, hint=_DIGITS.format(name=name), place=place)
    if error.loss == ConversionLoss.ZEROS:
        sign = "a plus" if str(error.value).strip().startswith("+") else "a zero"
        message = f"column {name!r} has numbers, but {value} begins with {sign}, which a number cannot keep"
        return DataError(message, hint=_ZEROS.format(name=name, type=type_), place=place)
    hint = _DECLARED if rules.declared else _INFERRED.format(name=name)
    return DataError(
        f"column {name!r}: {value} is not of type {type_}",
        hint=hint + _cure(item, error.value, rules).format(name=name),
        place=place,
    )


def _cure(item: pa.Field, value: object, rules: TextRules) -> str:
    """Return the line of the declaration that is needed if the value is correct but its form is unknown."""
    text = str(value).strip()
    if pa.types.is_temporal(item.type) and rules.time_format is None:
        return _NUMERIC if text.replace(".", "", 1).lstrip("-").isdigit() else _TIMES
    if item.type in (pa.int64(), pa.float64()) and "," in text:
        return _DECIMAL
    return ""


def no_wider(name: str, number: int, place: str) -> DataError:
    """Return the error for a column of whole numbers that now has a fraction, if a number of the column is
    too large for a float."""
    message = (
        f"column {name!r} has a fraction here, but the table has {number}, which a float cannot "
        "represent exactly"
    )
    return DataError(message, hint=_DIGITS.format(name=name), place=place)


def shown(value: object) -> str:
    """Return a value of a file as text, which is shortened if it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
