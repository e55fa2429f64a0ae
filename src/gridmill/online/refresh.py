"""Keeps a view fresh: applies the changes between the held versions of its tables and newer (or older)
versions.

Only the data files that differ between two versions are read. Rows that occur in removed and in added files
are unchanged. All changes of all tables, and the new versions, are one transaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from gridmill.domain.frozen import dataclass, replace
from gridmill.jobs.expressions import KNOWN, quote_all
from gridmill.jobs.parquet import storage_errors
from gridmill.online.build import ViewLimits, build_locked, cutoff_us, encoded_rows, oldest_as_of
from gridmill.online.plan import Feed, OnlinePlan
from gridmill.online.row_codec import Key, key_maker, plain_keys
from gridmill.online.source_rows import (
    BATCH_ROWS,
    COUNT,
    SourceTable,
    changed_files,
    known_rows_sql,
    open_sources,
    register,
)
from gridmill.online.view import ViewFile, ViewState, current_file, open_view, writer_lock

MOST_CHANGED = 0.5
"""If more than this share of the bytes of a table changed, the view is built whole."""
_KEYS, _DELTA = "__keys", "__delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """The data files of a table that were added and removed."""

    table: SourceTable
    added: Sequence[str]
    removed: Sequence[str]

    @property
    def is_large(self) -> bool:
        """Whether building the view whole reads less than applying the changes."""
        if not self.removed:
            return False
        sizes = sum((self.table.path / name).stat().st_size for name in (*self.added, *self.removed))
        whole = max(self.table.output.size_bytes, 2**20)
        return sizes > 2 * MOST_CHANGED * whole and sizes > 2**26


def refresh_view(
    folder: Path,
    plan: OnlinePlan,
    tables: Mapping[str, SourceTable],
    *,
    now: float,
    limits: ViewLimits | None = None,
    threads: int = 2,
) -> ViewState:
    """Bring the view in `folder` to these versions, and return its state. The versions can be later or
    earlier than the held versions.

    If the changes of a table are unknown or very large, the view is built whole, and the old view serves
    until then. Raises MissingViewError, DamagedViewError, StorageError.
    """
    current_file(folder)
    with storage_errors(folder), writer_lock(folder):
        view = open_view(folder, plan, writable=True)
        try:
            state = view.state()
            changes = list(_all_changes(plan, tables, state))
            known = [one for one in changes if one is not None]
            if len(known) == len(changes):
                return _apply(folder, view, plan, known, state, tables, now, limits, threads)
        finally:
            view.close()
        return build_locked(folder, plan, tables, now=now, limits=limits, threads=threads)


def _all_changes(
    plan: OnlinePlan, tables: Mapping[str, SourceTable], state: ViewState
) -> Iterator[_Changes | None]:
    """Yield the changes of each table, or None for a table whose changes cannot be applied."""
    for name in plan.tables:
        held = state.held.get(name)
        if held == tables[name].held:
            continue
        found = changed_files(tables[name], held) if held is not None else None
        if found is None:
            yield None
            continue
        changes = _Changes(table=tables[name], added=found[0], removed=found[1])
        yield None if changes.is_large else changes


def _apply(
    folder: Path,
    view: ViewFile,
    plan: OnlinePlan,
    changes: Sequence[_Changes],
    state: ViewState,
    tables: Mapping[str, SourceTable],
    now: float,
    limits: ViewLimits | None,
    threads: int,
) -> ViewState:
    floor_us = state.floor_us
    wanted = oldest_as_of(plan, limits, now)
    if floor_us is not None and wanted is not None:
        floor_us = max(floor_us, wanted)
    after = replace(
        state, held={name: tables[name].held for name in plan.tables}, synced_at=now, floor_us=floor_us
    )
    memory_bytes = (limits or ViewLimits()).memory_bytes
    with open_sources(folder, threads, memory_bytes) as engine, view.writing():
        for one in changes:
            schema = one.table.schema()
            for number, feed in enumerate(plan.stored):
                if feed.table == one.table.name:
                    _make_delta(engine, feed, one, schema)
                    _apply_feed(view, engine, number, feed, one, floor_us)
        view.set_state(after)
    return after


def _make_delta(engine: duckdb.DuckDBPyConnection, feed: Feed, changes: _Changes, schema: pa.Schema) -> None:
    """Write the rows that were added (with a positive count) and removed (negative) to a table of the engine,
    which writes it to files if it is large."""
    text = known_rows_sql(feed)
    engine.execute(f"DROP TABLE IF EXISTS {_DELTA}")
    parts: list[str] = []
    for files, sign in ((changes.added, 1), (changes.removed, -1)):
        if files:
            register(engine, changes.table, changes.table.rows_of(files, schema))
            name = f"__changed_{'added' if sign > 0 else 'removed'}"
            engine.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {text}")
            parts.append(f"SELECT *, {sign} AS {COUNT} FROM {name}")
    if not parts:
        return
    union = " UNION ALL ".join(parts)
    summed = f"SELECT * EXCLUDE ({COUNT}), sum({COUNT})::BIGINT AS {COUNT} FROM ({union}) GROUP BY ALL"
    engine.execute(f"CREATE TEMP TABLE {_DELTA} AS SELECT * FROM ({summed}) WHERE {COUNT} <> 0")
    for name in ("added", "removed"):
        engine.execute(f"DROP TABLE IF EXISTS __changed_{name}")


def _has_delta(engine: duckdb.DuckDBPyConnection) -> bool:
    found = engine.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [_DELTA]).fetchall()
    return bool(found)


def _delta(engine: duckdb.DuckDBPyConnection, feed: Feed) -> Iterator[pa.Table]:
    """Yield the changed rows, sorted by key."""
    order = ", ".join((*quote_all(feed.on), f'"{KNOWN}"'))
    for batch in engine.sql(f"SELECT * FROM {_DELTA} ORDER BY {order}").to_arrow_reader(BATCH_ROWS):
        yield pa.Table.from_batches([batch])


def _changed_keys(engine: duckdb.DuckDBPyConnection, feed: Feed) -> Iterator[Key]:
    """Yield the keys with changed rows."""
    make = key_maker(feed.key_types)
    names = ", ".join(quote_all(feed.on)) or "1"
    for batch in engine.sql(f"SELECT DISTINCT {names} FROM {_DELTA}").to_arrow_reader(BATCH_ROWS):
        columns = plain_keys(pa.Table.from_batches([batch]), feed.on)
        keys = map(make, zip(*columns, strict=True)) if feed.on else iter([make(())])
        yield from (key for key in keys if key is not None)


def _apply_feed(
    view: ViewFile,
    engine: duckdb.DuckDBPyConnection,
    number: int,
    feed: Feed,
    changes: _Changes,
    floor_us: int | None,
) -> None:
    if not _has_delta(engine):
        return
    cutoff = cutoff_us(feed, floor_us)
    oldest = _apply_rows(view, number, feed, _delta(engine, feed), cutoff)
    if cutoff is None:
        return
    short = [key for key, known in oldest.items() if _lacks_rows(view, number, feed, key, known, cutoff)]
    if short:
        _reload(view, engine, number, feed, changes.table, short, cutoff)
    for key in _changed_keys(engine, feed):
        view.remove_old(number, key, cutoff, feed.rows)


def _apply_rows(
    view: ViewFile, number: int, feed: Feed, delta: Iterator[pa.Table], cutoff: int | None
) -> dict[Key, int]:
    """Remove and add the changed rows, batch by batch. Return the time of the oldest removed row of each key
    that is not after the cutoff."""
    oldest: dict[Key, int] = {}
    for table in delta:
        rows = list(encoded_rows(feed, table))
        view.take_away(number, [(key, known, row, -count) for key, known, row, count in rows if count < 0])
        view.add(number, [one for one in rows if one[3] > 0])
        for key, known, _, count in rows:
            if count < 0 and cutoff is not None and known <= cutoff:
                oldest[key] = min(known, oldest.get(key, known))
    return oldest


def _lacks_rows(view: ViewFile, number: int, feed: Feed, key: Key, known: int, cutoff: int) -> bool:
    """Return whether a row that the view left out is now among the newest rows of the key.

    The rows that the view left out are not newer than the oldest removed row, at `known`.
    """
    return bool(feed.rows) and view.count_between(number, key, known, cutoff) < feed.rows


def _reload(
    view: ViewFile,
    engine: duckdb.DuckDBPyConnection,
    number: int,
    feed: Feed,
    table: SourceTable,
    keys: Sequence[Key],
    cutoff: int,
) -> None:
    """Read all rows of some keys again from the version of the table."""
    register(engine, table, table.rows())
    wanted, make = set(keys), key_maker(feed.key_types)
    for key in keys:
        view.remove_key(number, key)
    names = ", ".join(quote_all(feed.on)) or "1"
    distinct = engine.sql(f"SELECT DISTINCT {names} FROM ({known_rows_sql(feed)})").to_arrow_table()
    plain = zip(*plain_keys(distinct, feed.on), strict=True) if feed.on else iter([()])
    places = [at for at, values in enumerate(plain) if make(values) in wanted]
    engine.register(_KEYS, distinct.take(pa.array(places, pa.int64())))
    same = " AND ".join(f"r.{name} = k.{name}" for name in quote_all(feed.on)) or "true"
    order = ", ".join((*(f"r.{name}" for name in quote_all(feed.on)), f'r."{KNOWN}"'))
    text = (
        f"SELECT r.* FROM ({known_rows_sql(feed, cutoff)}) AS r JOIN {_KEYS} AS k ON {same} ORDER BY {order}"
    )
    for batch in engine.sql(text).to_arrow_reader(BATCH_ROWS):
        view.add(number, encoded_rows(feed, pa.Table.from_batches([batch])))
    engine.unregister(_KEYS)
