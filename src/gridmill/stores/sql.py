"""The store over SQL databases: SQLite in a file, PostgreSQL by its URL; records and events as rows.

Opening creates or migrates the tables (records, events, and the numbers used up for ids), or refuses the
database with a reason. One control node at a time owns a store, as long as its connection that writes lasts.
"""

import gc
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, get_args

from gridmill.codec import decode, encode
from gridmill.domain.pod_protocol import Event, event_id
from gridmill.domain.run import JobRun, Run
from gridmill.errors import InputError, StaleVersionError, StorageError, StoreInUseError, StoreLostError
from gridmill.ports.store import (
    Change,
    Delete,
    Mark,
    Noun,
    Order,
    Put,
    Record,
    Store,
    is_live,
    key_of,
    parent_of,
)
from gridmill.stores.compare_and_set import Address, check_versions, numbers_used, rounds
from gridmill.stores.dialect import Connection, Connections, Cursor, Dialect, Rows, transaction, translated
from gridmill.stores.postgresql import at
from gridmill.stores.sqlite import in_file

VERSIONS = ("0002",)
"""Every schema version this Gridmill can open, oldest first; the migrations lead from each to the last."""

RETIRED = ("0001",)
"""Schema versions of development that cannot be opened: fields of their records had other names."""

STAMP = "alembic_version"  # the table, as Alembic makes it, that says which

TABLES = (
    # position grows: the order of first puts; noun: the class's name; live: false for every JobRun, which is
    # live while its run is; body: the noun as JSON
    """
    CREATE TABLE record (
        position {counted},
        noun VARCHAR NOT NULL,
        key VARCHAR NOT NULL,
        version BIGINT NOT NULL,
        parent VARCHAR NOT NULL,
        live BOOLEAN NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (position)
    )
    """,
    "CREATE UNIQUE INDEX record_key ON record (noun, key)",
    "CREATE INDEX record_order ON record (noun, position)",
    "CREATE INDEX record_parent ON record (noun, parent, position)",
    "CREATE INDEX record_live ON record (live, noun, key) WHERE live = TRUE",
    # The sequence is given by the writer, not by the database: then sequences grow in the order of commits,
    # and a reader that asks for what is `after` the last one it saw misses nothing.
    """
    CREATE TABLE event (
        sequence {number},
        time FLOAT NOT NULL,
        type VARCHAR NOT NULL,
        run_id VARCHAR NOT NULL,
        job VARCHAR NOT NULL,
        attempt_id VARCHAR NOT NULL,
        pod_id VARCHAR NOT NULL,
        number BIGINT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (sequence)
    )
    """,
    "CREATE UNIQUE INDEX event_number ON event (pod_id, number) WHERE number > 0",
    "CREATE INDEX event_run ON event (run_id, sequence)",
    "CREATE INDEX event_job ON event (run_id, job, sequence)",
    """
    CREATE TABLE counter (
        name VARCHAR NOT NULL,
        value BIGINT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    f"""
    CREATE TABLE {STAMP} (
        version_num VARCHAR(32) NOT NULL,
        CONSTRAINT {STAMP}_pkc PRIMARY KEY (version_num)
    )
    """,
)
"""The statements that make an empty database a store; {counted} and {number} are types (see Dialect)."""


def prepare(dialect: Dialect, connection: Connection) -> None:
    """Make sure of the schema; may be repeated, and by several processes at once. Raises StorageError."""
    version = _version(dialect, connection)
    if version is None:
        with transaction(dialect, connection) as cursor:
            if _version(dialect, connection) is None:  # still: another process may have been first
                _make(dialect, cursor)
    elif version != VERSIONS[-1]:
        from gridmill.stores.migrate import upgrade  # and with it Alembic and SQLAlchemy

        upgrade(dialect)


def _make(dialect: Dialect, cursor: Cursor) -> None:
    for statement in TABLES:
        cursor.execute(dialect.spell(statement).format(number=dialect.number, counted=dialect.counted))
    cursor.execute(dialect.spell(f"INSERT INTO {STAMP} VALUES (:version)"), {"version": VERSIONS[-1]})


def _version(dialect: Dialect, connection: Connection) -> str | None:
    """The schema's version; None for an empty database, '' before the first migration."""
    cursor = connection.cursor()
    cursor.execute(dialect.tables)
    tables = {name for (name,) in cursor.fetchall()}
    if not tables:
        return None
    if STAMP not in tables:
        raise StorageError(
            "this database is not a Gridmill store: it holds other tables",
            hint="Name another file or database.",
            place=dialect.place,
        )
    cursor.execute(f"SELECT version_num FROM {STAMP}")
    version: str = next((version for (version,) in cursor.fetchall()), "")
    if version in RETIRED:
        raise StorageError(
            f"the store was written before the first release of Gridmill (schema {version}), and cannot be"
            f" read by this one (schema {VERSIONS[-1]})",
            hint="Set GRIDMILL_HOME to a new folder, and run the pipelines there. The old folder keeps its"
            " artifacts; the manifests beside them say what each is.",
            place=dialect.place,
        )
    if version and version not in VERSIONS:
        raise StorageError(
            f"the store was written by a newer Gridmill (schema {version}; this one knows {VERSIONS[-1]})",
            hint="Update Gridmill, or set GRIDMILL_HOME to another folder.",
            place=dialect.place,
        )
    return version


_LOCK = "1735551332, 1"  # any two numbers that are ours: "grid", and its first lock
_NAME = "SELECT set_config('application_name', %(owner)s, false)"
_TAKE = f"SELECT pg_try_advisory_lock({_LOCK})"
_GIVE = f"SELECT pg_advisory_unlock({_LOCK})"
_OWNER = (
    "SELECT application_name, pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND (classid::bigint, objid::bigint) = ("
    + _LOCK
    + ") AND objsubid = 2 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_END = "SELECT pg_terminate_backend(%(pid)s)"
_TRIES = 3  # it may be given back between the question and the look at who has it
_LONGEST_NAME = 63  # bytes that the server keeps of it


class StoreLock:
    """The lock of a PostgreSQL store. It belongs to a session, and the database gives it back with that: so
    what is written through a session that has it is written by the only owner.

    A SQLite store lies in a home, whose own lock does the same.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._session: Connection | None = None
        self._wanted = False

    def take(self, writer: Connection, owner: str) -> None:
        """Take the lock, unless this session has it. Raises StoreInUseError, naming who has.

        Raises StoreLostError while an earlier session of the same owner is still there: it is ended.
        """
        if not self._dialect.shared:
            return
        with transaction(self._dialect, writer) as cursor:
            if writer is self._session:
                return
            self._wanted, self._session = True, None
            name = owner.encode()[:_LONGEST_NAME].decode(errors="ignore")
            cursor.execute(_NAME, {"owner": name})
            for _ in range(_TRIES):
                cursor.execute(_TAKE)
                if cursor.fetchall() == [(True,)]:
                    self._session = writer
                    return
                self._refuse(cursor, name)
            raise self._in_use("unknown")

    def give(self) -> None:
        """Free for the next one at once: a server takes a moment to see that a connection was closed."""
        if self._session is not None:
            with suppress(self._dialect.failures):
                self._session.cursor().execute(_GIVE)

    def check(self, writer: Connection) -> None:
        """Raise StoreLostError when the session of an owner is not the one that has the lock."""
        if self._wanted and writer is not self._session:
            raise StoreLostError(
                "the connection to the store was lost, and with it the right to write",
                hint="It is taken again before the next change; nothing is half-written.",
                place=self._dialect.place,
            )

    def _refuse(self, cursor: Cursor, name: str) -> None:
        """Raise for whoever has the lock; return when it was given back since it was asked for."""
        cursor.execute(_OWNER)
        for other, pid in cursor.fetchall():
            if other != name:
                raise self._in_use(other or "unknown")
            # Ours, cut off from us: the server has not noticed yet.
            cursor.execute(_END, {"pid": pid})
            raise StoreLostError(
                "the store still serves a connection that was lost", place=self._dialect.place
            )

    def _in_use(self, who: str) -> StoreInUseError:
        return StoreInUseError(f"a control node ({who}) already owns this store", place=self._dialect.place)


Values: TypeAlias = dict[str, Any]

_CLASSES: Mapping[str, type[Noun]] = {noun.__name__: noun for noun in get_args(Noun)}


def put_row(put: Put) -> Values:
    """What a put writes, and either whom it makes or what the row must have been (`old_…`).

    It is read back at once: what could not be (JSON has no NaN) must not get into the store.
    Raises InputError.
    """
    noun, expected = put.noun, put.expected
    kind, key = type(noun), key_of(noun)
    try:
        body = encode(noun)
        decode(body, kind)
    except (InputError, ValueError, TypeError) as error:
        raise InputError(f"{kind.__name__} {key!r} cannot be kept: {error}") from error
    row: Values = _old(kind.__name__, key, expected) if expected else {"noun": kind.__name__, "key": key}
    row["version"] = expected + 1
    row["parent"] = parent_of(noun)
    row["live"] = kind is not JobRun and is_live(noun)
    row["body"] = body.decode()
    return row


def delete_row(delete: Delete) -> Values:
    """What a row to be deleted must be."""
    return _old(delete.noun.__name__, delete.key, delete.expected)


def _old(name: str, key: str, version: int) -> Values:
    return {"old_noun": name, "old_key": key, "old_version": version}


def event_row(event: Event) -> Values:
    """The row of an event. Raises InputError."""
    try:
        body = encode(event.body).decode()
    except (ValueError, TypeError) as error:
        raise InputError(f"an event of {event.run_id} cannot be kept: {error}") from error
    return {
        "sequence": 0,
        "time": event.time,
        "type": str(event.type),
        "run_id": event.run_id,
        "job": event.job,
        "attempt_id": event.attempt_id,
        "pod_id": event.pod_id,
        "number": event.number,
        "body": body,
    }


def to_records(rows: Sequence[Sequence[Any]]) -> Sequence[Record]:
    """The records of (noun, version, body, ...). Raises StorageError when one cannot be read."""
    with _collector_paused():
        return [to_record(row) for row in rows]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Looking for cycles among a million new objects that have none takes longer than making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def to_record(row: Sequence[Any]) -> Record:
    """The record of (noun, version, body, ...). Raises StorageError when it cannot be read."""
    name, version, body = row[:3]
    try:
        return Record(noun=decode(body, _CLASSES[name]), version=version)
    except (InputError, KeyError) as error:
        raise StorageError(
            f"a record of the store cannot be read: {name}: {error}: {body[:200]}",
            hint="It was changed by hand or by another version of Gridmill: put a backup in its place.",
        ) from error


def to_event(row: Sequence[Any]) -> Event:
    """The event of a row of the event table."""
    sequence, time, kind, run_id, job, attempt_id, pod_id, number, body = row
    return Event(
        id=event_id(sequence),
        time=time,
        type=kind,
        run_id=run_id,
        job=job,
        attempt_id=attempt_id,
        pod_id=pod_id,
        number=number,
        body=decode(body, dict[str, Any]),
    )


_Batch: TypeAlias = tuple[str, list[Values]]

_AS_EXPECTED = "noun = :old_noun AND key = :old_key AND version = :old_version"
_INSERT = (
    "INSERT INTO record (noun, key, version, parent, live, body) "
    "VALUES (:noun, :key, :version, :parent, :live, :body)"
)
_UPDATE = (
    f"UPDATE record SET version = :version, parent = :parent, live = :live, body = :body WHERE {_AS_EXPECTED}"
)
_DELETE = f"DELETE FROM record WHERE {_AS_EXPECTED}"
_RAISE_COUNTER = (
    "INSERT INTO counter (name, value) VALUES (:name, :value) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE counter.value < excluded.value"
)
_EVENT = "sequence, time, type, run_id, job, attempt_id, pod_id, number, body"
_INSERT_EVENT = (
    f"INSERT INTO event ({_EVENT}) "
    "VALUES (:sequence, :time, :type, :run_id, :job, :attempt_id, :pod_id, :number, :body)"
)
_LAST_SEQUENCE = "SELECT coalesce(max(sequence), 0) FROM event"
_NUMBERS_OF_POD = (  # `number > 0` says that the index on (pod_id, number) will do
    "SELECT number FROM event WHERE pod_id = :pod AND number > 0 AND number BETWEEN :low AND :high"
)
_DROP_EVENTS = "DELETE FROM event WHERE run_id = :run_id AND sequence < (SELECT max(sequence) FROM event)"
_RECORD = "SELECT noun, version, body FROM record WHERE noun = :noun"
_ORDERS: Mapping[Order, tuple[str, str, str]] = {
    Order.OLDEST_FIRST: ("position", ">", "ASC"),
    Order.NEWEST_FIRST: ("position", "<", "DESC"),
    Order.BY_KEY: ("key COLLATE BINARY", ">", "ASC"),
}
"""For each order the column, the comparison with the mark, and the direction."""

_NAMES = 100
_PARENTS = f"""
WITH wanted (name) AS (VALUES {", ".join(f"(:name{number})" for number in range(_NAMES))})
SELECT name FROM wanted WHERE EXISTS (SELECT 1 FROM record WHERE noun = :noun AND parent = wanted.name)
"""
_LIVE = f"""
SELECT noun, version, body, position FROM record WHERE live = TRUE
UNION ALL
SELECT noun, version, body, position FROM record WHERE noun = '{JobRun.__name__}' AND parent IN (
    SELECT key FROM record WHERE live = TRUE AND noun = '{Run.__name__}'
)
"""


class SqlStore:
    """Implements `gridmill.ports.store.Store`. One connection writes, under a lock; others read."""

    def __init__(self, dialect: Dialect) -> None:
        """Opens the database, and makes or migrates its tables. Raises StorageError."""
        self._dialect = dialect
        self._lock = threading.Lock()
        self._ownership = StoreLock(dialect)
        with translated(dialect):
            self._connections = Connections(dialect)
            try:
                prepare(dialect, self._connections.writer())
            except BaseException:
                self._connections.close()
                raise

    def own(self, owner: str) -> None:
        """See Store. A SQLite store has the lock of the home that it lies in."""
        with self._lock, translated(self._dialect):
            self._ownership.take(self._connections.writer(), owner)

    def commit(self, changes: Sequence[Change], events: Sequence[Event] = ()) -> tuple[int, ...]:
        """See Store. Raises InputError, too, for nouns that JSON cannot carry."""
        batches = [batch for some in rounds(changes) for batch in _batches(some)]
        rows = [event_row(event) for event in events]
        used = [{"name": name, "value": value} for name, value in numbers_used(changes).items()]
        with self._lock, translated(self._dialect):
            writer = self._connections.writer()
            self._ownership.check(writer)
            try:
                with transaction(self._dialect, writer) as cursor:
                    for batch in batches:
                        self._apply(cursor, batch)
                    if used:
                        cursor.executemany(self._dialect.spell(_RAISE_COUNTER), used)
                    return self._keep(cursor, rows) if rows else ()
            except (StaleVersionError, self._dialect.broken_rule) as error:
                check_versions(changes, self._version)  # says which, and how
                raise StaleVersionError("a record was changed by another control node") from error

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
            if row["number"] > 0:
                kept.add(mark)
        fresh = [row for row in rows if row["sequence"]]
        if fresh:
            cursor.executemany(self._dialect.spell(_INSERT_EVENT), fresh)
        return tuple(row["sequence"] for row in rows)

    def _kept_numbers(self, cursor: Cursor, rows: Iterable[Values]) -> set[tuple[str, int]]:
        """Of the (pod_id, number) that occur in `rows`, at least those that are kept already."""
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
        return to_record(rows[0]) if rows else None

    def live(self) -> Iterable[Record]:
        """See Store."""
        return to_records(sorted(self._rows(_LIVE), key=lambda row: int(row[3])))

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
        return to_records(self._rows(" ".join(query), noun=noun.__name__, parent=parent, limit=limit))

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
        query = [f"SELECT noun, version, body, {column} FROM record WHERE noun = :noun"]
        query += ["AND parent = :parent"] if parent is not None else []
        query += [f"AND {column} {follows} :after"] if after is not None else []
        query += [f"ORDER BY {column} {direction} LIMIT :limit"]
        rows = self._rows(" ".join(query), noun=noun.__name__, parent=parent, after=after, limit=limit)
        return [(row[3], record) for row, record in zip(rows, to_records(rows), strict=True)]

    def parents(self, noun: type[Any], among: Sequence[str]) -> Set[str]:
        """See Store. All queries ask for the same number of names: it is one statement, kept ready."""
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
        rows = self._rows(" ".join(query), run_id=run_id, job=job, after=after, limit=limit)
        return [to_event(row) for row in rows]

    def drop_events(self, run_ids: Sequence[str]) -> None:
        """See Store."""
        with self._lock, translated(self._dialect):
            writer = self._connections.writer()
            with transaction(self._dialect, writer) as cursor:
                cursor.executemany(
                    self._dialect.spell(_DROP_EVENTS), [{"run_id": run_id} for run_id in run_ids]
                )

    def counters(self) -> Mapping[str, int]:
        """See Store."""
        return dict(self._rows("SELECT name, value FROM counter"))

    def _rows(self, query: str, **values: str | int | None) -> Rows:
        with translated(self._dialect):
            return self._connections.rows(self._dialect.spell(query), values)

    def close(self) -> None:
        """See Store."""
        with self._lock, translated(self._dialect):
            self._ownership.give()
            self._connections.close()


def _batches(changes: Sequence[Change]) -> Iterator[_Batch]:
    """One statement for each sort of change; none of `changes` is to the same record."""
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
    """The store in a file (SQLite) or behind a database URL, its tables made or brought up to date.

    Raises InputError for a URL that cannot be used, StorageError for a database that cannot.
    """
    return SqlStore(dialect_of(url_or_path))


def dialect_of(url_or_path: str | Path) -> Dialect:
    """That of a path (SQLite) or of a database URL; nothing is opened yet. Raises InputError."""
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return in_file(str(url_or_path))
    scheme, _, rest = url_or_path.partition("://")
    if scheme == "sqlite":
        return in_file(rest.removeprefix("/"))
    return at(url_or_path)
