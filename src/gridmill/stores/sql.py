"""The store over SQL databases: SQLite in a file, PostgreSQL by its URL."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    Executable,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from gridmill.errors import StaleVersionError
from gridmill.model.event import Event
from gridmill.model.run import JobRun, Run
from gridmill.ports.store import Change, Delete, Put, Record, Store
from gridmill.stores.counting import numbers_used
from gridmill.stores.dialect import connect, raise_counter, reading, translated, writing
from gridmill.stores.opening import prepare
from gridmill.stores.ownership import Ownership
from gridmill.stores.rows import Values, delete_row, event_row, put_row, to_event, to_record, to_records
from gridmill.stores.schema import COUNTER, EVENT, IS_LIVE, RECORD
from gridmill.stores.versions import Address, check_versions, rounds

_Batch: TypeAlias = tuple[Executable, list[Values]]

_AS_EXPECTED = and_(
    RECORD.c.noun == bindparam("old_noun"),
    RECORD.c.key == bindparam("old_key"),
    RECORD.c.version == bindparam("old_version"),
)
_INSERT = insert(RECORD)
_UPDATE = update(RECORD).where(_AS_EXPECTED)
_DELETE = delete(RECORD).where(_AS_EXPECTED)
_INSERT_EVENT = insert(EVENT)
_LAST_SEQUENCE = select(func.coalesce(func.max(EVENT.c.sequence), 0))
_NUMBERS_OF_POD = select(EVENT.c.number).where(
    EVENT.c.pod_id == bindparam("pod"),
    EVENT.c.number > 0,  # says that the index on (pod_id, number) will do
    EVENT.c.number.between(bindparam("low"), bindparam("high")),
)
_COLUMNS = (RECORD.c.noun, RECORD.c.version, RECORD.c.body)
_GET = select(*_COLUMNS).where(RECORD.c.noun == bindparam("noun"), RECORD.c.key == bindparam("key"))


_LIVE_RUNS = select(RECORD.c.key).where(IS_LIVE, RECORD.c.noun == Run.__name__)
_LIVE = union_all(
    select(*_COLUMNS, RECORD.c.position).where(IS_LIVE),
    select(*_COLUMNS, RECORD.c.position).where(
        RECORD.c.noun == JobRun.__name__, RECORD.c.parent.in_(_LIVE_RUNS)
    ),
)


class SqlStore:
    """Implements `gridmill.ports.store.Store`. One connection writes, under a lock; others read."""

    def __init__(self, engine: Engine) -> None:
        """Opens the database, and makes or migrates its tables. Raises StorageError."""
        prepare(engine)
        self._engine, self._reader = engine, reading(engine)
        self._raise_counter = raise_counter(engine)
        self._lock = threading.Lock()
        self._ownership = Ownership()
        with translated(engine):
            self._writer = writing(engine)

    def own(self, owner: str) -> None:
        """See Store. A SQLite store has the lock of the home that it lies in."""
        with self._lock, translated(self._engine):
            self._ownership.take(self._writer, owner)

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """See Store. Raises InputError, too, for nouns that JSON cannot carry."""
        batches = [batch for some in rounds(changes) for batch in _batches(some)]
        rows = [event_row(event) for event in events]
        used = [{"name": name, "value": value} for name, value in numbers_used(changes).items()]
        with self._lock, translated(self._engine):
            try:
                with self._writer.begin():
                    self._ownership.check(self._writer)
                    for batch in batches:
                        self._apply(batch)
                    if used:
                        self._writer.execute(self._raise_counter, used)
                    return self._keep(rows) if rows else ()
            except (StaleVersionError, IntegrityError) as error:
                check_versions(changes, self._version)  # says which, and how
                raise StaleVersionError("a record was changed by another control node") from error

    def _apply(self, batch: _Batch) -> None:
        statement, rows = batch
        result: CursorResult[Any] = self._writer.execute(statement, rows)
        if statement is not _INSERT and result.rowcount != len(rows):
            raise StaleVersionError("fewer records than expected")

    def _keep(self, rows: list[Values]) -> tuple[int, ...]:
        kept = self._kept_numbers(rows)
        last: int = self._writer.execute(_LAST_SEQUENCE).scalar_one()
        for row in rows:
            mark = (row["pod_id"], row["number"])
            if mark not in kept:
                last += 1
                row["sequence"] = last
            if row["number"] > 0:
                kept.add(mark)
        fresh = [row for row in rows if row["sequence"]]
        if fresh:
            self._writer.execute(_INSERT_EVENT, fresh)
        return tuple(row["sequence"] for row in rows)

    def _kept_numbers(self, rows: Iterable[Values]) -> set[tuple[str, int]]:
        """Of the (pod_id, number) that occur in `rows`, at least those that are kept already."""
        numbers: dict[str, list[int]] = {}
        for row in rows:
            if row["number"] > 0:
                numbers.setdefault(row["pod_id"], []).append(row["number"])
        return {
            (pod_id, number)
            for pod_id, wanted in numbers.items()
            for number in self._writer.execute(
                _NUMBERS_OF_POD, {"pod": pod_id, "low": min(wanted), "high": max(wanted)}
            ).scalars()
        }

    def _version(self, address: Address) -> int:
        record = self.get(*address)
        return record.version if record else 0

    def get(self, noun: type[Any], key: str) -> Record | None:
        """See Store."""
        with self._reading() as connection:
            row = connection.execute(_GET, {"noun": noun.__name__, "key": key}).first()
        return to_record(row) if row else None

    def live(self) -> Iterable[Record]:
        """See Store."""
        with self._reading() as connection:
            rows = connection.execute(_LIVE).all()
        return to_records(sorted(rows, key=lambda row: int(row[3])))

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """See Store."""
        position = RECORD.c.position
        query = select(*_COLUMNS).where(RECORD.c.noun == noun.__name__)
        query = query if parent is None else query.where(RECORD.c.parent == parent)
        query = query.order_by(position.desc() if newest_first else position).limit(limit)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return to_records(rows)

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """See Store."""
        query = select(EVENT).where(EVENT.c.sequence > after)
        query = query if run_id is None else query.where(EVENT.c.run_id == run_id)
        query = query if job is None else query.where(EVENT.c.job == job)
        with self._reading() as connection:
            rows = connection.execute(query.order_by(EVENT.c.sequence).limit(limit)).all()
        return [to_event(row) for row in rows]

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """See Store."""
        newest = select(func.max(EVENT.c.sequence)).scalar_subquery()
        old = delete(EVENT).where(EVENT.c.run_id.in_(run_ids), EVENT.c.sequence < newest)
        with self._lock, translated(self._engine), self._writer.begin():
            self._writer.execute(old)

    def counters(self) -> Mapping[str, int]:
        """See Store."""
        with self._reading() as connection:
            rows = connection.execute(select(COUNTER.c.name, COUNTER.c.value)).all()
        return {name: value for name, value in rows}  # noqa: C416  a Row is no pair for mypy

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated(self._engine), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """See Store."""
        with self._lock, translated(self._engine):
            self._writer.close()
            self._engine.dispose()


def _batches(changes: Sequence[Change]) -> Iterator[_Batch]:
    """One statement for each sort of change; none of `changes` is to the same record."""
    inserts = [put_row(put) for put in changes if isinstance(put, Put) and put.expected == 0]
    updates = [put_row(put) for put in changes if isinstance(put, Put) and put.expected > 0]
    deletes = [delete_row(change) for change in changes if isinstance(change, Delete)]
    for statement, rows in ((_INSERT, inserts), (_UPDATE, updates), (_DELETE, deletes)):
        if rows:
            yield statement, rows


def make(url_or_path: str | Path) -> Store:
    """The store in a file (SQLite) or behind a database URL, its tables made or brought up to date.

    Raises InputError for a URL that cannot be used, StorageError for a database that cannot.
    """
    engine = connect(url_or_path)
    try:
        return SqlStore(engine)
    except BaseException:
        engine.dispose()
        raise
