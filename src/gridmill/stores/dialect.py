"""SQL dialects: the methods that a record store needs from a database driver, the differences between
databases, and the connections of a store.

A store has one connection that writes, and several connections that read at the same time. This module
translates errors of the driver into messages.
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
        "the file is damaged or is not a database",
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
    """A cursor with the methods that both drivers have (PEP 249)."""

    @property
    def rowcount(self) -> int:
        """Returns the number of rows that the last statement changed, for all rows of values together."""

    def execute(self, statement: str, values: Values = ..., /) -> object:
        """Execute one statement once."""

    def executemany(self, statement: str, values: Iterable[Values], /) -> object:
        """Executes the statement once for each element of `values`."""

    def fetchall(self) -> Rows:
        """Returns the rows that the last statement returned."""


class Connection(Protocol):
    """A database connection with the methods that both drivers have. Outside a transaction, each statement
    is a separate transaction."""

    def cursor(self) -> Cursor:
        """Returns a cursor, which executes statements."""

    def commit(self) -> None:
        """Commits the transaction, so that all its changes are stored."""

    def rollback(self) -> None:
        """Rolls back the transaction, so that none of its changes is stored."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Describes how to use one kind of database. Statements are written once, with `:name` for values and
    with TRUE, and are translated for each database."""

    place: str
    """The name of the database in error messages, without the password."""
    open: Callable[[], Connection]
    begin: Sequence[str]
    """The statement that begins a transaction. This statement waits until no other transaction is
    writing."""
    spell: Callable[[str], str]
    lost: Callable[[Connection], bool]
    """A function that returns whether a connection is known to be lost. The function sends no query to the
    server."""
    tables: str
    """The query that returns the names of all tables."""
    number: str
    """The type of a column that counts rows."""
    counted: str
    """The type of a column that counts rows and whose numbers the database assigns."""
    shared: bool
    """True if several homes can use the database (see ownership.py)."""
    toolkit: str
    """The name that SQLAlchemy uses for this kind of database, such as `sqlite`. Migrations need this
    name."""
    failures: type[Exception]
    broken_rule: type[Exception]
    """The classes of the errors that the driver raises. The error class `broken_rule` means that a row with
    the same key already exists."""
    lenient: Callable[[Connection], None]
    """Allows a connection to read text that is not UTF-8, because damage to the database can cause such
    text."""
    examine: str
    """The query that checks the complete database and returns problems of its structure. The query is empty
    if the database cannot check itself."""
    space: Callable[[Connection], StoreSpace]
    """A function that returns the space that the database uses on the disk."""
    release: Callable[[Connection], bool]
    """A function that returns some free space to the file system. The function must be called outside a
    transaction. The result is true if there is more space that can be returned."""
    unknown: type[StorageError]
    """The class of an error that is not in the table of causes. For a database server, this class means that
    the server may become available again."""


@contextmanager
def translated(dialect: Dialect) -> Iterator[None]:
    """Translates errors of the database into StorageError or StoreLostError. The errors name the
    database."""
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
        # SQLite reports other errors if its log does not fit on the disk, but the cause is the full disk
        code = "SQLITE_FULL"
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
    """Returns whether the disk has too little space for the log and the shared memory of a SQLite file."""
    try:
        space = space_of("store", place)
    except OSError:
        return False
    return space.free_bytes < _LEAST_BYTES or (space.files > 0 and space.free_files < _LEAST_FILES)


_READERS = 6
"""The largest number of connections that read at the same time. Further readers wait until one of these
connections is free. Each connection has its own cache, and opening a connection takes longer than most
reads."""


@contextmanager
def transaction(dialect: Dialect, connection: Connection) -> Iterator[Cursor]:
    """Opens a transaction: either all changes in the `with` block are stored, or none. No other connection
    writes during this time."""
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
    """The connections of one record store to its database. The methods raise the errors of the driver. Only
    one thread at a time may use the writing connection, but any number of threads can read."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._writer = self._open_writer()
        self._free: list[Connection] = []
        self._places = threading.BoundedSemaphore(_READERS)

    def _open_writer(self) -> Connection:
        writer = self._dialect.open()
        # a writer has to read damaged records before it moves them to another table
        self._dialect.lenient(writer)
        return writer

    def writer(self) -> Connection:
        """Returns the connection that writes. If the writing connection was lost, a new connection is
        opened."""
        if self._dialect.lost(self._writer):
            self._writer = self._open_writer()
        return self._writer

    def rows(self, statement: str, values: Values) -> Rows:
        """Returns the rows that a reading statement returns. If the connection is lost, the function
        connects again once, because the server may have been restarted."""
        with self._places:
            return self._read_again(statement, values)

    def _read_again(self, statement: str, values: Values) -> Rows:
        while self._free:
            with suppress(IndexError):  # another thread may have taken the last idle connection
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
        self._free.append(connection)  # at most as many as can read at the same time
        return rows

    def close(self) -> None:
        """Closes all connections. The connections that read are closed before the connection that writes.
        When the last connection to a SQLite file is closed, SQLite merges its log into this file, so that
        only one file remains."""
        while self._free:
            self._free.pop().close()
        self._writer.close()
