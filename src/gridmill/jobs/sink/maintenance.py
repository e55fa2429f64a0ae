"""Maintenance of the table of a sink: combines small data files, and removes rows that are too old.

If a data file contains rows of several source files, the metadata of the data file lists the source files in
the order of the rows. The data files themselves therefore record which source files are loaded. If all rows
of a source file are too old, the source file keeps an empty data file, so that it is not loaded again. Data
files of earlier versions are not deleted. The function `check_times` checks the time columns that are named
by the `outages` and the `retention` of a sink.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.domain.sink import Retain, SinkSpec
from gridmill.errors import InputError
from gridmill.jobs.parquet import FILE_ROWS, ParquetPart, write_parquet
from gridmill.jobs.sink.files_to_load import LoadedFile, LoadPlan
from gridmill.jobs.sink.lossless import inexact_rows
from gridmill.jobs.sink.table import (
    ConcurrentCommitError,
    SinkTable,
    compact_stem,
    marked_with,
    open_sink_table,
    replace_files,
)

SMALL_BYTES = 16 * 2**20
MOST_SMALL = 32
"""Small files are combined in groups of this number of files. With groups of this size, a row is written
again only when its file becomes 32 times as large."""
YOUNG_SECONDS = 24 * 3600.0
"""Unused data files that are younger than this number of seconds are kept, because another attempt may be
about to commit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionGroup:
    """Parts of data files that are combined into a single file."""

    pieces: tuple[LoadedFile, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the data files that are replaced by the new file."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))


def by_path(loaded: Sequence[LoadedFile]) -> dict[str, list[LoadedFile]]:
    """Return the pieces of each data file, in the order of the rows of the file."""
    loaded_files: dict[str, list[LoadedFile]] = {}
    for entry in loaded:
        loaded_files.setdefault(entry.path, []).append(entry)
    return loaded_files


def small_groups(loaded: Sequence[LoadedFile]) -> list[CompactionGroup]:
    """Return the groups of small files to combine. The result is empty while there are only few small files.
    This function has no side effects."""
    files = by_path([entry for entry in loaded if not entry.foreign])
    small = {
        path: pieces
        for path, pieces in files.items()
        if sum(piece.size_bytes for piece in pieces) < SMALL_BYTES
    }
    if len(small) < MOST_SMALL:
        return []
    groups: list[list[LoadedFile]] = [[]]
    for pieces in small.values():
        rows = sum(piece.rows for piece in (*groups[-1], *pieces))
        if groups[-1] and rows > FILE_ROWS:
            groups.append([])
        groups[-1] += pieces
    return [CompactionGroup(pieces=tuple(group)) for group in groups if len(by_path(group)) > 1]


def tidy(table: SinkTable, retain: Retain | None, now: float, folder: Path) -> int | None:
    """Compact the table and remove old rows in a single commit. Return the new version, or None if nothing
    was changed.

    If another attempt changes the table at the same time, the change of the other attempt is kept, and the
    next load repeats the maintenance.
    """
    loaded = table.loaded
    groups = small_groups(loaded)
    done = {path for group in groups for path in group.paths}
    cutoff = retain.cutoff(now) if retain else None
    if retain is not None and cutoff is not None:
        for path, pieces in by_path([entry for entry in loaded if not entry.foreign]).items():
            if path not in done and _has_older(table.path / path, retain.time, cutoff):
                groups.append(CompactionGroup(pieces=tuple(pieces)))
    if not groups:
        return None
    trim = RetentionCutoff(column=retain.time, cutoff=cutoff) if retain and cutoff else None
    parts = [write_group(table, group, table.schema, folder, trim) for group in groups]
    try:
        return replace_files(table, [path for group in groups for path in group.paths], parts)
    except ConcurrentCommitError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionCutoff:
    """The rule of retention: rows whose `column` is before `cutoff` are removed, and rows without a time are
    kept."""

    column: str
    cutoff: datetime

    def keep_mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether the row stays in the table by this rule."""
        times = table[self.column].cast(pa.timestamp("us", "UTC"))
        young = pc.greater_equal(times, pa.scalar(self.cutoff, pa.timestamp("us", "UTC")))
        return pc.fill_null(young, True)

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows that stay in the table by this rule."""
        return table.filter(self.keep_mask(table))


def _has_older(path: Path, column: str, cutoff: datetime) -> bool:
    with pq.ParquetFile(path) as file:
        # the column was added to the table later, so the file has no times
        if column not in file.schema_arrow.names:
            return False
        trim = RetentionCutoff(column=column, cutoff=cutoff)
        return any(
            trim.rows(pa.Table.from_batches([batch])).num_rows < batch.num_rows
            for batch in file.iter_batches(columns=[column])
        )


def write_group(
    table: SinkTable,
    group: CompactionGroup,
    schema: pa.Schema,
    folder: Path,
    trim: RetentionCutoff | None = None,
) -> ParquetPart:
    """Write a single data file with the rows of the pieces."""
    files = by_path(group.pieces)
    counts = [count for path, pieces in files.items() for count in _counts(table.path / path, pieces, trim)]
    if len(group.pieces) == 1:
        stem, marked = f"{group.pieces[0].key}-{group.pieces[0].content}-{uuid4().hex}", schema
    else:
        held = [replace(piece, rows=rows) for piece, rows in zip(group.pieces, counts, strict=True)]
        stem, marked = compact_stem(), marked_with(schema, held)
    if not sum(counts):
        return _empty(folder / f"{stem}-00000.parquet", marked)
    batches = (
        _cast(rows, marked)
        for path, pieces in files.items()
        for rows in _rows(table.path / path, pieces, trim)
    )
    (part,) = write_parquet(batches, marked, folder, stem, file_rows=sum(counts) + 1)
    return part


def _counts(path: Path, pieces: Sequence[LoadedFile], trim: RetentionCutoff | None) -> list[int]:
    """Return for each piece of a data file the number of rows that retention keeps."""
    as_before = [piece.rows for piece in pieces]
    if trim is None:
        return as_before
    with pq.ParquetFile(path) as file:
        if trim.column not in file.schema_arrow.names:
            return as_before
        batches = file.iter_batches(columns=[trim.column])
        kept = [
            trim.keep_mask(pa.Table.from_batches([batch])).to_numpy(zero_copy_only=False) for batch in batches
        ]
    before = np.concatenate([[0], *kept], dtype=np.int64).cumsum()
    return [int(before[piece.start + piece.rows] - before[piece.start]) for piece in pieces]


def _rows(
    path: Path, pieces: Sequence[LoadedFile], trim: RetentionCutoff | None, column: str | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of the pieces of a data file. The file is read only once for all pieces.

    With `column`, only this column is read, if the file has such a column.
    """
    stretches, at = _stretches(pieces), 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=None if column is None else [column]):
            slices = []
            while stretches and stretches[0][0] < at + batch.num_rows:
                first, last = stretches[0]
                begins = max(first - at, 0)
                slices.append(batch.slice(begins, min(last - at, batch.num_rows) - begins))
                if last > at + batch.num_rows:
                    break
                stretches.popleft()
            at += batch.num_rows
            if slices:
                rows = pa.Table.from_batches(slices)
                yield trim.rows(rows) if trim and trim.column in rows.column_names else rows


def _stretches(pieces: Sequence[LoadedFile]) -> deque[tuple[int, int]]:
    """Return the ranges of rows of these pieces of a data file. Adjacent pieces are merged into a single
    range."""
    result: deque[tuple[int, int]] = deque()
    for piece in sorted((one for one in pieces if one.rows), key=lambda one: one.start):
        begins, ends = piece.start, piece.start + piece.rows
        if result and result[-1][1] == begins:
            begins = result.pop()[0]
        result.append((begins, ends))
    return result


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert the rows to the types of the schema.

    The caller has already excluded whole numbers that a float cannot represent.
    """
    filled = {name for name in rows.column_names if rows[name].null_count < rows.num_rows}
    columns = [
        rows[item.name].cast(item.type, safe=False)
        if item.name in filled
        else pa.nulls(rows.num_rows, item.type)
        for item in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _empty(path: Path, schema: pa.Schema) -> ParquetPart:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(schema.empty_table(), path)
    return ParquetPart(path=path, rows=0, size_bytes=path.stat().st_size)


def remove_unused(folder: Path, versions: Iterable[int], now: float) -> int:
    """Delete the data files that belong neither to these versions nor to the newest version. Return the
    number of deleted files.

    Recent files are not deleted, because another attempt may be about to commit them.
    """
    old = (path for path in folder.glob("*.parquet") if now - path.stat().st_mtime > YOUNG_SECONDS)
    unused = {path.name for path in old}
    for version in chain((None,), versions):
        if not unused:  # usually true after the newest version, so that the other versions are not opened
            return 0
        unused -= {entry.path for entry in open_sink_table(folder, version).loaded}
    for name in unused:
        (folder / name).unlink(missing_ok=True)
    return len(unused)


def spare(table: SinkTable, plan: LoadPlan, folder: Path) -> list[ParquetPart]:
    """If the plan removes only some rows of a data file, write the other rows to a new file. Return all new
    data files."""
    if plan.anew or not plan.remove:
        return []
    gone = set(plan.remove)
    paths = {entry.path for entry in plan.remove}
    parts: list[ParquetPart] = []
    for path, pieces in by_path(table.loaded).items():
        stays = tuple(piece for piece in pieces if piece not in gone)
        if path in paths and stays:
            parts.append(write_group(table, CompactionGroup(pieces=stays), table.schema, folder))
    return parts


def find_inexact(table: SinkTable, plan: LoadPlan, name: str) -> int | None:
    """Return a whole number in the rows of the column that stay in the table, if a float cannot represent
    the number exactly. Return None if there is no such whole number."""
    if table.schema.field(name).type != pa.int64():
        return None
    gone = set(plan.remove)
    kept = by_path([entry for entry in table.loaded if entry not in gone])
    batches = (
        rows[name]
        for path, pieces in kept.items()
        for rows in _rows(table.path / path, pieces, None, name)
        if name in rows.column_names
    )
    values = (column[row].as_py() for column in batches for row in inexact_rows(column))
    return next(values, None)


def rewrite(table: SinkTable, plan: LoadPlan, schema: pa.Schema, folder: Path) -> list[ParquetPart]:
    """Write the rows that stay in the table to files with wider types. Each new file still records its
    source files."""
    gone = set(plan.remove)
    kept = {
        path: tuple(piece for piece in pieces if piece not in gone)
        for path, pieces in by_path(table.loaded).items()
    }
    return [
        write_group(table, CompactionGroup(pieces=pieces), schema, folder)
        for pieces in kept.values()
        if pieces
    ]


def check_times(spec: SinkSpec, schema: pa.Schema) -> None:
    """Raise InputError for a column that does not exist or does not contain times."""
    for number, outage in enumerate(spec.outages):
        _check_time(schema, outage.time, f"sink.outages[{number}].time")
    if spec.retain is not None:
        _check_time(schema, spec.retain.time, "sink.retain.time")


def _check_time(schema: pa.Schema, name: str, place: str) -> None:
    kind = schema.field(name).type if name in schema.names else None
    if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise InputError(
            f"column {name!r} holds no times", hint=f"The columns are {', '.join(schema.names)}.", place=place
        )
