"""The record store in an SQL database, which is SQLite in a file, or PostgreSQL at a URL. When the store is
opened, its tables are created or migrated, or the database is refused with a reason. Only one control node
at a time owns a store, while its writing connection exists.
"""

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from gridmill.domain.deployment import Deployment
from gridmill.domain.lease import Lease
from gridmill.domain.pod_protocol import Event
from gridmill.domain.run import JobRun, Run
from gridmill.domain.usage import StoreSpace
from gridmill.errors import StaleVersionError
from gridmill.ports.store import (
    Change,
    DamagedRecord,
    Delete,
    Mark,
    Order,
    Put,
    Record,
    Store,
)
from gridmill.stores.compare_and_set import Address, check_versions, numbers_used, rounds
from gridmill.stores.dialect import (
    Connections,
    Cursor,
    Dialect,
    Rows,
    transaction,
    translated,
)
from gridmill.stores.ownership import StoreLock
from gridmill.stores.postgresql import at
from gridmill.stores.rows import (
    COUNTERS,
    EVENTS,
    FILE,
    RECORD,
    RECORDS,
    DamagedRowError,
    DamageNotes,
    Row,
    Values,
    check_event,
    counter_rows,
    delete_row,
    describe,
    describe_counter,
    describe_event,
    event_checksum,
    event_row,
    is_counter,
    is_damaged,
    put_row,
    read_record,
    to_event,
)
from gridmill.stores.schema import prepare
from gridmill.stores.sqlite import in_file

T = TypeVar("T")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector, whose search would take longer than creating a million objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_Batch: TypeAlias = tuple[str, list[Values]]

_AS_EXPECTED = "noun = :old_noun AND key = :old_key AND version = :old_version"
_INSERT = (
    "INSERT INTO record (noun, key, version, parent, live, body, checksum) "
    "VALUES (:noun, :key, :version, :parent, :live, :body, :checksum)"
)
_UPDATE = (
    "UPDATE record SET version = :version, parent = :parent, live = :live, body = :body, "
    f"checksum = :checksum WHERE {_AS_EXPECTED}"
)
_DELETE = f"DELETE FROM record WHERE {_AS_EXPECTED}"
_RAISE_COUNTER = (
    "INSERT INTO counter (name, value, checksum) VALUES (:name, :value, :checksum) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum "
    "WHERE counter.value < excluded.value"
)
_DROP_COUNTER = "DELETE FROM counter WHERE name = :name"
_COUNTERS = "SELECT name, value, checksum FROM counter"
_EVENT_COLUMNS = ("sequence", "time", "type", "run_id", "job", "attempt_id", "pod_id", "number", "body")
_EVENT = ", ".join((*_EVENT_COLUMNS, "checksum"))
_INSERT_EVENT = (
    f"INSERT INTO event ({_EVENT}) "
    "VALUES (:sequence, :time, :type, :run_id, :job, :attempt_id, :pod_id, :number, :body, :checksum)"
)
_LAST_SEQUENCE = "SELECT coalesce(max(sequence), 0) FROM event"
_LAST_OF_RUN = f"{_LAST_SEQUENCE} WHERE run_id = :run_id"
_NUMBERS_OF_POD = (  # `number > 0` lets the database use the index on (pod_id, number)
    "SELECT number FROM event WHERE pod_id = :pod AND number > 0 AND number BETWEEN :low AND :high"
)
_DROP_EVENTS = "DELETE FROM event WHERE run_id = :run_id AND sequence < (SELECT max(sequence) FROM event)"
_RECORD = f"SELECT {RECORD} FROM record WHERE noun = :noun"
_AT = f"SELECT {RECORD} FROM record WHERE position = :position"
_DROP = "DELETE FROM record WHERE position = :position"
_SET_ASIDE = (
    "INSERT INTO damaged (noun, key, parent, problem, told, body) "
    "SELECT :noun, :key, :parent, :problem, :told, coalesce(body, '') FROM record WHERE position = :position"
)
_DAMAGED = "SELECT noun, key, parent, problem, told FROM damaged ORDER BY number"
_CHUNK = 500
"""The number of rows that a check of the complete store reads at a time."""
_ORDERS: Mapping[Order, tuple[str, str, str]] = {
    Order.OLDEST_FIRST: ("position", ">", "ASC"),
    Order.NEWEST_FIRST: ("position", "<", "DESC"),
    Order.BY_KEY: ("key COLLATE BINARY", ">", "ASC"),
}
"""The SQL texts for each order of records: the column, the comparison with the position or key at which the
page begins, and the direction."""

_NAMES = 100
_PARENTS = f"""
WITH wanted (name) AS (VALUES {", ".join(f"(:name{number})" for number in range(_NAMES))})
SELECT name FROM wanted WHERE EXISTS (SELECT 1 FROM record WHERE noun = :noun AND parent = wanted.name)
"""
_LIVE = f"""
SELECT {RECORD} FROM record WHERE live = TRUE
UNION ALL
SELECT {RECORD} FROM record WHERE noun = '{JobRun.__name__}' AND parent IN (
    SELECT key FROM record WHERE live = TRUE AND noun = '{Run.__name__}'
)
"""


class SqlStore:
    """Implements `gridmill.ports.store.Store`. One connection writes under a lock, and several other
    connections read."""

    def __init__(self, dialect: Dialect) -> None:
        """Opens the database, and creates or migrates its tables. Raises StorageError."""
        self._dialect = dialect
        self._lock = threading.Lock()
        self._ownership = StoreLock(dialect)
        self._damage = DamageNotes()
        with translated(dialect):
            self._connections = Connections(dialect)
            try:
                prepare(dialect, self._connections.writer())
            except BaseException:
                self._connections.close()
                raise

    def own(self, owner: str) -> None:
        """See Store. A SQLite store needs no lock except the lock of its home."""
        with self._lock, translated(self._dialect):
            self._ownership.take(self._connections.writer(), owner)

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """See Store. The method also raises InputError for records that JSON cannot represent."""
        batches = [batch for some in rounds(changes) for batch in _batches(some)]
        rows = [event_row(event) for event in events]
        used = counter_rows(numbers_used(changes))
        with self._lock, translated(self._dialect):
            writer = self._connections.writer()
            self._ownership.check(writer)
            try:
                with transaction(self._dialect, writer) as cursor:
                    quarantined = self._set_aside(cursor)
                    for batch in batches:
                        self._apply(cursor, batch)
                    if used:
                        cursor.executemany(self._dialect.spell(_RAISE_COUNTER), used)
                    sequences = self._keep(cursor, rows) if rows else ()
                self._damage.drop(quarantined)
                return sequences
            except (StaleVersionError, self._dialect.broken_rule) as error:
                # raises an error that names the record and the expected version
                check_versions(changes, self._version)
                raise StaleVersionError("a record was changed by another control node") from error

    def _set_aside(self, cursor: Cursor) -> Sequence[object]:
        """Moves damaged records that were found to the table `damaged`, if they are still damaged."""
        waiting = self._damage.of_records()
        for position, one in waiting.items():
            cursor.execute(self._dialect.spell(_AT), {"position": position})
            rows = cursor.fetchall()
            if rows and is_damaged(rows[0]):
                values = {"noun": one.noun, "key": one.key, "parent": one.parent, "problem": one.problem}
                cursor.execute(
                    self._dialect.spell(_SET_ASIDE), {**values, "told": False, "position": position}
                )
                cursor.execute(self._dialect.spell(_DROP), {"position": position})
        return tuple(waiting)

    def _apply(self, cursor: Cursor, batch: _Batch) -> None:
        statement, rows = batch
        cursor.executemany(self._dialect.spell(statement), rows)
        if statement is not _INSERT and cursor.rowcount != len(rows):
            raise StaleVersionError("fewer records than expected")

    def _keep(self, cursor: Cursor, rows: list[Values]) -> tuple[int, ...]:
        kept = self._kept_numbers(cursor, rows)
        cursor.execute(_LAST_SEQUENCE)
        last: int = cursor.fetchall()[0][0]
        for row in rows:
            mark = (row["pod_id"], row["number"])
            if mark not in kept:
                last += 1
                row["sequence"] = last
                row["checksum"] = event_checksum(row)
            if row["number"] > 0:
                kept.add(mark)
        fresh = [row for row in rows if row["sequence"]]
        if fresh:
            cursor.executemany(self._dialect.spell(_INSERT_EVENT), fresh)
        return tuple(row["sequence"] for row in rows)

    def _kept_numbers(self, cursor: Cursor, rows: Iterable[Values]) -> set[tuple[str, int]]:
        """Returns at least those pairs (pod_id, number) in `rows` that are already stored."""
        numbers: dict[str, list[int]] = {}
        for row in rows:
            if row["number"] > 0:
                numbers.setdefault(row["pod_id"], []).append(row["number"])
        kept: set[tuple[str, int]] = set()
        for pod_id, wanted in numbers.items():
            values = {"pod": pod_id, "low": min(wanted), "high": max(wanted)}
            cursor.execute(self._dialect.spell(_NUMBERS_OF_POD), values)
            kept.update((pod_id, number) for (number,) in cursor.fetchall())
        return kept

    def _version(self, address: Address) -> int:
        record = self.get(*address)
        return record.version if record else 0

    def get(self, noun: type[Any], key: str) -> Record | None:
        """See Store."""
        rows = self._rows(f"{_RECORD} AND key = :key", noun=noun.__name__, key=key)
        return next((record for _, record in self._read(rows)), None)

    def live(self) -> Iterable[Record]:
        """See Store."""
        with _collector_paused():
            found = [*self._read(self._rows(_LIVE))]
        found.sort(key=lambda one: int(one[0][0]))
        return [record for _, record in found]

    def list(
        self,
        noun: type[Any],
        *,
        parent: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Record]:
        """See Store."""
        query = [_RECORD]
        query += ["AND parent = :parent"] if parent is not None else []
        query += ["ORDER BY position", "DESC" if newest_first else "ASC"]
        query += ["LIMIT :limit"] if limit is not None else []
        found = self._whole(" ".join(query), self._read, limit, noun=noun.__name__, parent=parent)
        return [record for _, record in found]

    def page(
        self,
        noun: type[Any],
        *,
        order: Order,
        after: Mark | None = None,
        limit: int,
        parent: str | None = None,
    ) -> Sequence[tuple[Mark, Record]]:
        """See Store."""
        column, follows, direction = _ORDERS[order]
        query = [_RECORD]
        query += ["AND parent = :parent"] if parent is not None else []
        query += [f"AND {column} {follows} :after"] if after is not None else []
        query += [f"ORDER BY {column} {direction} LIMIT :limit"]
        found = self._whole(
            " ".join(query), self._read, limit, noun=noun.__name__, parent=parent, after=after
        )
        return [(row[2] if order == Order.BY_KEY else row[0], record) for row, record in found]

    def _read(self, rows: Rows) -> Iterator[tuple[Row, Record]]:
        """Yields the record of each row (with the columns RECORD). Damaged rows are noted and skipped."""
        for row in rows:
            try:
                yield row, read_record(row)
            except DamagedRowError as error:
                self._damage.add(RECORDS, row[0], describe(row, str(error)))

    def _whole(
        self,
        query: str,
        read: Callable[[Rows], Iterator[T]],
        limit: int | None,
        **values: str | int | None,
    ) -> Sequence[T]:
        """Returns the records of the first `limit` undamaged rows, or of all undamaged rows if there are
        fewer."""
        read_limit = limit
        with _collector_paused():
            while True:
                rows = self._rows(query, limit=read_limit, **values)
                found = [*read(rows)]
                if limit is None or read_limit is None or len(found) >= limit or len(rows) < read_limit:
                    return found[:limit]
                read_limit += limit + len(rows) - len(found)

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """See Store. All queries contain equally many names, so the prepared statement is reused."""
        result: set[str] = set()
        for start in range(0, len(among), _NAMES):
            names = among[start : start + _NAMES]
            values = {f"name{number}": names[min(number, len(names) - 1)] for number in range(_NAMES)}
            result.update(name for (name,) in self._rows(_PARENTS, noun=noun.__name__, **values))
        return result

    def events(
        self, *, run_id: str | None = None, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[Event]:
        """See Store."""
        query = [f"SELECT {_EVENT} FROM event WHERE sequence > :after"]
        query += ["AND run_id = :run_id"] if run_id is not None else []
        query += ["AND job = :job"] if job is not None else []
        query += ["ORDER BY sequence LIMIT :limit"]
        return self._whole(" ".join(query), self._read_events, limit, run_id=run_id, job=job, after=after)

    def _read_events(self, rows: Rows) -> Iterator[Event]:
        for *row, checksum in rows:
            try:
                check_event(_EVENT_COLUMNS, row, checksum)
                yield to_event(row)
            except DamagedRowError as error:
                self._damage.add(EVENTS, row[0], describe_event(row, str(error)))

    def last_event(self, run_id: str) -> int:
        """See Store."""
        return int(self._rows(_LAST_OF_RUN, run_id=run_id)[0][0])

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """See Store."""
        with self._lock, translated(self._dialect):
            writer = self._connections.writer()
            with transaction(self._dialect, writer) as cursor:
                cursor.executemany(
                    self._dialect.spell(_DROP_EVENTS), [{"run_id": run_id} for run_id in run_ids]
                )

    def space(self) -> StoreSpace:
        """See Store."""
        with self._lock, translated(self._dialect):
            return self._dialect.space(self._connections.writer())

    def release_space(self, goes_on: Callable[[], bool] = lambda: True) -> StoreSpace:
        """See Store."""
        more = True
        while more and goes_on():
            with self._lock, translated(self._dialect):
                more = self._dialect.release(self._connections.writer())
        return self.space()

    def counters(self) -> Mapping[str, int]:
        """See Store."""
        used, damaged = self._read_counters()
        # if the counters are damaged, the remaining records show which numbers are used up at least
        if damaged:
            nouns = [record.noun for kind in (Run, Deployment, Lease) for record in self.list(kind)]
            least = numbers_used(Put(noun=noun, expected=0) for noun in nouns)
            used |= {name: max(number, used.get(name, 0)) for name, number in least.items()}
        return used

    def _read_counters(self) -> tuple[dict[str, int], Sequence[str]]:
        """Returns the highest used number of ids for each name, and the names whose rows are damaged."""
        used: dict[str, int] = {}
        damaged: list[str] = []
        for name, value, checksum in self._rows(_COUNTERS):
            if is_counter(name, value, checksum):
                used[name] = value
            else:
                damaged.append(name)
                self._damage.add(COUNTERS, name, describe_counter(name))
        return used, damaged

    def use_numbers(self, used: Mapping[str, int]) -> None:
        """See Store. Damaged numbers are replaced."""
        _, damaged = self._read_counters()
        with self._lock, translated(self._dialect):
            writer = self._connections.writer()
            with transaction(self._dialect, writer) as cursor:
                for name in damaged:
                    cursor.execute(self._dialect.spell(_DROP_COUNTER), {"name": name})
                cursor.executemany(self._dialect.spell(_RAISE_COUNTER), counter_rows(used))

    def damage(self) -> Sequence[DamagedRecord]:
        """See Store."""
        quarantined = [
            DamagedRecord(noun=noun, key=key, parent=parent, problem=problem, told=bool(told))
            for noun, key, parent, problem, told in self._rows(_DAMAGED)
        ]
        return (*quarantined, *self._damage.all())

    def take_new_damage(self) -> Sequence[DamagedRecord]:
        """See Store."""
        return self._damage.take_new()

    def check(self) -> Sequence[DamagedRecord]:
        """See Store. Reads the tables in steps, so that other threads can run in between. After the tables
        were read, the database checks itself. When SQLite checks itself, it finds an index that does not
        lead to all rows."""
        for query, place, read in (
            (f"SELECT {RECORD} FROM record WHERE position > :after ORDER BY position", 0, self._read),
            (f"SELECT {_EVENT} FROM event WHERE sequence > :after ORDER BY sequence", 0, self._read_events),
        ):
            after = -1
            while rows := self._rows(f"{query} LIMIT {_CHUNK}", after=after):
                for _ in read(rows):
                    pass
                if (
                    rows[-1][place] <= after
                ):  # a damaged page leads back to earlier rows: reading on would never end
                    break
                after = rows[-1][place]
        self._read_counters()
        for problem in self._problems_of_file():
            self._damage.add(FILE, problem, DamagedRecord(noun="File", key="", parent="", problem=problem))
        return self.damage()

    def _problems_of_file(self) -> Sequence[str]:
        if not self._dialect.examine:
            return ()
        return [text for (text,) in self._rows(self._dialect.examine) if text != "ok"]

    def mark_told(self) -> None:
        """See Store."""
        with self._lock, translated(self._dialect):
            writer = self._connections.writer()
            with transaction(self._dialect, writer) as cursor:
                cursor.execute(self._dialect.spell("UPDATE damaged SET told = TRUE"))

    def _rows(self, query: str, **values: str | int | None) -> Rows:
        with translated(self._dialect):
            return self._connections.rows(self._dialect.spell(query), values)

    def close(self) -> None:
        """See Store."""
        with self._lock, translated(self._dialect):
            self._ownership.give()
            self._connections.close()


def _batches(changes: Sequence[Change]) -> Iterator[_Batch]:
    """Yields one statement for each type of change. No two of `changes` may concern the same record."""
    inserts: list[Values] = []
    updates: list[Values] = []
    deletes: list[Values] = []
    for change in changes:
        if isinstance(change, Delete):
            deletes.append(delete_row(change))
        else:
            (updates if change.expected else inserts).append(put_row(change))
    for statement, rows in ((_INSERT, inserts), (_UPDATE, updates), (_DELETE, deletes)):
        if rows:
            yield statement, rows


def make(url_or_path: str | Path) -> Store:
    """Opens the record store in a file or at a database URL, and creates or migrates its tables.

    Raises InputError if the URL cannot be used, and StorageError if the database cannot be used.
    """
    return SqlStore(dialect_of(url_or_path))


def dialect_of(url_or_path: str | Path) -> Dialect:
    """Returns the dialect for a path or URL, without opening a connection. Raises InputError."""
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return in_file(str(url_or_path))
    scheme, _, rest = url_or_path.partition("://")
    if scheme == "sqlite":
        return in_file(rest.removeprefix("/"))
    return at(url_or_path)
