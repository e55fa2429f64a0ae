"""Builds a view whole from versions of its tables, beside the view that serves.

The rows of each feed are sorted by key and written in that order. After an interruption, the build continues
at the last key that was written. The new file replaces the old one only when it is complete.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.service_features import REACH_BACK_SECONDS
from gridmill.jobs.dataset.key_order import integers
from gridmill.jobs.dataset.window_ranges import changes
from gridmill.jobs.expressions import KNOWN, quote_all
from gridmill.jobs.parquet import storage_errors
from gridmill.online.plan import Feed, OnlinePlan
from gridmill.online.row_codec import Key, codec_of, key_maker, plain_keys
from gridmill.online.source_rows import (
    BATCH_ROWS,
    COUNT,
    MEMORY_BYTES,
    SourceTable,
    known_rows_sql,
    open_sources,
    table_types,
)
from gridmill.online.view import (
    BUILDING,
    CURRENT,
    DAMAGED,
    SUFFIX,
    HeldVersion,
    ViewFile,
    ViewState,
    writer_lock,
)
from gridmill.transfer.contents import sync_folder

COMMIT_ROWS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLimits:
    """The rows that a view keeps, and the memory that reading tables may take (`memory_bytes`); larger
    intermediate results are written to files.

    A request may have an as-of time up to `reach_back_seconds` in the past. If it is None, the view keeps all
    rows, and any as-of time is answered.
    """

    reach_back_seconds: float | None = REACH_BACK_SECONDS
    memory_bytes: int = MEMORY_BYTES

    def floor_us(self, now: float) -> int | None:
        """Return the oldest as-of time that a view built at `now` (Unix seconds) answers."""
        if self.reach_back_seconds is None:
            return None
        return round((now - self.reach_back_seconds) * 1_000_000)


def cutoff_us(feed: Feed, floor_us: int | None) -> int | None:
    """Return the time up to which a feed needs only the newest rows of each key."""
    return None if floor_us is None else floor_us - round(feed.seconds * 1_000_000) - 1


def oldest_as_of(plan: OnlinePlan, limits: ViewLimits | None, now: float) -> int | None:
    """Return the oldest as-of time that the view of a plan answers, or None if it answers any time.

    The features of a sequence are computed at the times of its rows, which may be long ago. Therefore, the
    view of a model that reads sequences keeps all rows.
    """
    if plan.history is not None:
        return None
    return (limits or ViewLimits()).floor_us(now)


def build_view(
    folder: Path,
    plan: OnlinePlan,
    tables: Mapping[str, SourceTable],
    *,
    now: float,
    limits: ViewLimits | None = None,
    threads: int = 2,
) -> ViewState:
    """Build the view in `folder` from these versions, and let it serve. Return its state.

    If an earlier build of the same versions was interrupted, it continues. Raises StorageError,
    DamagedViewError.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with writer_lock(folder):
            return build_locked(folder, plan, tables, now=now, limits=limits, threads=threads)


def build_locked(
    folder: Path,
    plan: OnlinePlan,
    tables: Mapping[str, SourceTable],
    *,
    now: float,
    limits: ViewLimits | None,
    threads: int,
) -> ViewState:
    """Build the view, like `build_view`, in a process that holds the lock of the writer."""
    held = {name: tables[name].held for name in plan.tables}
    view, floor_us = _continued(folder, plan, held, oldest_as_of(plan, limits, now))
    try:
        state = ViewState(held=held, floor_us=floor_us, synced_at=now)
        with open_sources(folder, threads, (limits or ViewLimits()).memory_bytes) as engine:
            table_types(engine, {name: tables[name] for name in plan.tables})
            for number, feed in enumerate(plan.stored):
                _fill(view, number, feed, engine, floor_us)
        with view.writing():
            view.set_state(state)
        view.finish()
    finally:
        view.close()
    serve_built(folder)
    return state


def _continued(
    folder: Path, plan: OnlinePlan, held: Mapping[str, HeldVersion], floor_us: int | None
) -> tuple[ViewFile, int | None]:
    """Open the file of an interrupted build of the same versions, or a new file. Return it with the oldest
    as-of time that it answers."""
    path, notes = folder / BUILDING, folder / f"{BUILDING}.json"
    text = repr((plan.fingerprint, sorted(held.items())))
    if path.exists() and notes.exists():
        earlier, _, floor = notes.read_text("utf-8").rpartition("\n")
        if earlier == text:
            return ViewFile(path, writable=True), None if floor == "None" else int(floor)
    for old in folder.glob(f"{BUILDING}*"):
        old.unlink()
    view = ViewFile(path, writable=True)
    view.create(plan)
    notes.write_text(f"{text}\n{floor_us}", "utf-8")
    return view, floor_us


def _fill(
    view: ViewFile, number: int, feed: Feed, engine: duckdb.DuckDBPyConnection, floor_us: int | None
) -> None:
    """Write the rows of a feed, key by key, without those that were written before."""
    skip = view.built_rows(number)
    done = 0
    order = ", ".join((*quote_all(feed.on), f'"{KNOWN}"'))
    rows_sql = known_rows_sql(feed, cutoff_us(feed, floor_us))
    relation = engine.sql(f"SELECT * FROM ({rows_sql}) ORDER BY {order}")
    for batches in _at_key_borders(relation.to_arrow_reader(BATCH_ROWS), feed.on):
        rows = sum(batch.num_rows for batch in batches)
        if done >= skip:
            with view.writing():
                for batch in batches:
                    view.add(number, encoded_rows(feed, batch))
                view.set_built_rows(number, done + rows)
        done += rows


def _at_key_borders(reader: Iterable[pa.RecordBatch], on: tuple[str, ...]) -> Iterator[list[pa.Table]]:
    """Yield groups of at least COMMIT_ROWS rows, so that all rows of a key are in one group."""
    group: list[pa.Table] = []
    rows = 0
    for batch in reader:
        table = pa.Table.from_batches([batch])
        while rows >= COMMIT_ROWS and table.num_rows and on:
            cut = _first_new_key(group[-1], table, on)
            if cut is None:
                break
            yield [*group, table.slice(0, cut)]
            group, rows, table = [], 0, table.slice(cut)
        if table.num_rows:
            group.append(table)
            rows += table.num_rows
    if group:
        yield group


def _first_new_key(before: pa.Table, table: pa.Table, on: tuple[str, ...]) -> int | None:
    """Return the position of the first row of a new key, or None if all rows have the key of the last row
    before them."""
    last = before.slice(before.num_rows - 1).select(on)
    at = np.flatnonzero(_key_changes(pa.concat_tables([last, table.select(on)]), on)[1:])
    return int(at[0]) if len(at) else None


def _key_changes(rows: pa.Table, on: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    changed = np.zeros(rows.num_rows, np.bool_)
    changed[:1] = True
    for name in on:
        codes = rows[name].combine_chunks().dictionary_encode()
        whole = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
        changed |= changes(whole.indices.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return changed


def encoded_rows(feed: Feed, rows: pa.Table) -> Iterator[tuple[Key, int, bytes, int]]:
    """Yield the rows of a feed as a view stores them. Rows without a key are left out.

    If the table has the column COUNT, it is how often each row occurs; otherwise each row occurs once.
    """
    make = key_maker(feed.key_types)
    starts = np.flatnonzero(_key_changes(rows, feed.on)) if feed.on else np.zeros(1, np.int64)
    heads = rows.take(pa.array(starts)) if rows.num_rows else rows
    columns = plain_keys(heads, feed.on)
    keys = [make(values) for values in zip(*columns, strict=True)] if feed.on else [make(())]
    lengths = np.diff(np.append(starts, rows.num_rows))
    repeated = (key for key, length in zip(keys, lengths.tolist(), strict=True) for _ in range(length))
    known = integers(rows[KNOWN]).tolist()
    counts = rows[COUNT].to_pylist() if COUNT in rows.column_names else repeat(1)
    for key, time, row, count in zip(repeated, known, codec_of(feed).encode(rows), counts, strict=False):
        if key is not None:
            yield key, time, row, count


def serve_built(folder: Path) -> None:
    """Give the complete file its own name, and let it replace the file that serves."""
    name = f"view-{uuid4().hex}{SUFFIX}"
    os.rename(folder / BUILDING, folder / name)
    for rest in folder.glob(f"{BUILDING}*"):
        rest.unlink()
    pointer = folder / f".{CURRENT}"
    try:
        pointer.write_text(name, "utf-8")
        sync_folder(folder)
        os.replace(pointer, folder / CURRENT)
    except OSError:
        (folder / name).unlink()
        raise
    (folder / DAMAGED).unlink(missing_ok=True)
    sync_folder(folder)
    for old in folder.glob(f"view-*{SUFFIX}*"):
        if not old.name.startswith(name):
            old.unlink(missing_ok=True)
