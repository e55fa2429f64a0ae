"""SQL dialects: what a store needs of a database driver, how databases differ; the store's connections.

A store has one connection that writes and some that read at the same time. Driver errors become messages
here.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeAlias

from gridmill.disk_space import space_of
from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import StoreSpace
from gridmill.errors import StorageError

Values: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = list[tuple[Any, ...]]

RECOVER = (
    "`gridmill recover` makes a new store from the readable records of this one and from the versions in "
    "the storage root, and keeps the old store beside it. Or restore a backup."
)
_CAUSES = (
    (("SQLITE_FULL", "53100"), "the disk is full", "Free some space. Incomplete changes were rolled back."),
    (
        ("SQLITE_NOTADB", "SQLITE_CORRUPT"),
        "it is damaged or is not a database",
        RECOVER,
    ),
    (
        ("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH"),
        "it may not be written",
        "Give this user write permission to the file and its folder, or set GRIDMILL_HOME to another folder.",
    ),
    (
        ("25006", "42501"),
        "it may not be written",
        "Let this user make and write tables: GRANT ALL ON SCHEMA public TO USER. A standby is read-only.",
    ),
    (
        ("SQLITE_CANTOPEN",),
        "it cannot be opened",
        "The folder must exist, and this user must be allowed to read and write it.",
    ),
    (("SQLITE_BUSY", "SQLITE_LOCKED"), "another process has locked it", "Stop that process, or try again."),
    (("SQLITE_IOERR",), "the disk reported an error", "Look for disk errors in the output of `dmesg`."),
)


class Cursor(Protocol):
    """As both drivers have it (PEP 249)."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed, summed up over all values."""

    def execute(self, statement: str, values: Values = ..., /) -> object:
        """One statement, once."""

    def executemany(self, statement: str, values: Iterable[Values], /) -> object:
        """One statement for each of `values`."""

    def fetchall(self) -> Rows:
        """The rows of what was executed."""


class Connection(Protocol):
    """As both drivers have it. Outside a transaction that was begun, each statement is one of its own."""

    def cursor(self) -> Cursor:
        """What executes statements."""

    def commit(self) -> None:
        """End the transaction; all of it is there."""

    def rollback(self) -> None:
        """End the transaction; nothing of it is there."""

    def close(self) -> None:
        """The last use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database. Statements are written once, with `:name` for values and TRUE, and spelled for it."""

    place: str
    """How errors name it; no password is in it."""
    open: Callable[[], Connection]
    begin: Sequence[str]
    """Begins a transaction that waits for, and then is, the only one that writes."""
    spell: Callable[[str], str]
    lost: Callable[[Connection], bool]
    """Whether a connection is known to be of no use any more; does not ask the server."""
    tables: str
    """The query for the names of all tables."""
    number: str
    """The type of a number that counts rows."""
    counted: str
    """The type of the same when the database itself gives it."""
    shared: bool
    """Whether several homes can reach it (see ownership.py)."""
    toolkit: str
    """SQLAlchemy's name for it: migrations are written with that."""
    failures: type[Exception]
    broken_rule: type[Exception]
    """What the driver raises, and what when a row is there already."""
    lenient: Callable[[Connection], None]
    """Lets a connection read text that is not UTF-8, as damage leaves it."""
    examine: str
    """The query that reads all of it, and says what is wrong with its structure; empty: it has none."""
    space: Callable[[Connection], StoreSpace]
    """The space of the database on the disk."""
    release: Callable[[Connection], bool]
    """Gives some free space back to the file system, outside a transaction; whether there is more to do."""
    unknown: type[StorageError]
    """What a failure is that has no cause in the table above: a server may come back."""


@contextmanager
def translated(dialect: Dialect) -> Iterator[None]:
    """Whatever the database raises leaves as StorageError or StoreLostError, naming the database."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise StorageError(
            "the store cannot be used: it is damaged (a text in it is not UTF-8)",
            hint=RECOVER,
            place=dialect.place,
        ) from error
    except dialect.failures as error:
        raise _explained(dialect, error) from error


def _explained(dialect: Dialect, error: Exception) -> StorageError:
    code = str(getattr(error, "sqlite_errorname", None) or getattr(error, "sqlstate", None) or "")
    if code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) and _is_full(dialect.place):
        code = "SQLITE_FULL"  # it could not make its shared memory, or its log, for want of space
    for prefixes, what, hint in _CAUSES:
        if code.startswith(prefixes):
            return StorageError(f"the store cannot be used: {what} ({error})", hint=hint, place=dialect.place)
    hint = (
        "Check that the database server is running and that the address and the password (PGPASSWORD or "
        "~/.pgpass) are right."
    )
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return dialect.unknown(f"the store cannot be used: {text}", hint=hint, place=dialect.place)


_LEAST_BYTES, _LEAST_FILES = 128 * 1024, 4


def _is_full(place: str) -> bool:
    """Whether the disk of a SQLite file has no space for what belongs to it."""
    try:
        space = space_of("store", place)
    except OSError:
        return False
    return space.free_bytes < _LEAST_BYTES or (space.files > 0 and space.free_files < _LEAST_FILES)


_READERS = 6
"""The most connections that read at the same time; further readers wait for one of them. Each has a cache of
its own, and opening one takes longer than most reads."""


@contextmanager
def transaction(dialect: Dialect, connection: Connection) -> Iterator[Cursor]:
    """All of it or nothing, and nobody else writes meanwhile."""
    cursor = connection.cursor()
    try:
        for statement in dialect.begin:
            cursor.execute(statement)
        yield cursor
        connection.commit()
    except BaseException:
        with suppress(dialect.failures):
            connection.rollback()
        raise


class Connections:
    """What they raise is the driver's. The writer is for one thread at a time; any number may read."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._writer = self._open_writer()
        self._free: list[Connection] = []
        self._places = threading.BoundedSemaphore(_READERS)

    def _open_writer(self) -> Connection:
        writer = self._dialect.open()
        self._dialect.lenient(writer)  # it looks at damaged records before it sets them aside
        return writer

    def writer(self) -> Connection:
        """The one that writes; another one once it was lost."""
        if self._dialect.lost(self._writer):
            self._writer = self._open_writer()
        return self._writer

    def rows(self, statement: str, values: Values) -> Rows:
        """What one statement that only reads gives. A server may have been restarted since the last one."""
        with self._places:
            return self._read_again(statement, values)

    def _read_again(self, statement: str, values: Values) -> Rows:
        while self._free:
            with suppress(IndexError):  # another thread took the last one
                connection = self._free.pop()
                try:
                    return self._read(connection, statement, values)
                except self._dialect.failures as error:
                    if not self._dialect.lost(connection) and "UTF-8" not in str(error):
                        raise
        try:
            return self._read(self._dialect.open(), statement, values)
        except self._dialect.failures as error:
            if "UTF-8" not in str(error):
                raise
        lenient = self._dialect.open()
        self._dialect.lenient(lenient)
        try:
            cursor = lenient.cursor()
            cursor.execute(statement, values)
            return cursor.fetchall()
        finally:
            lenient.close()

    def _read(self, connection: Connection, statement: str, values: Values) -> Rows:
        try:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows = cursor.fetchall()
        except BaseException:
            connection.close()
            raise
        self._free.append(connection)  # at most as many as may read at the same time
        return rows

    def close(self) -> None:
        """The last use. Readers first: who closes a SQLite file last leaves one file."""
        while self._free:
            self._free.pop().close()
        self._writer.close()
