"""The connections of a store: one that writes, and some that read at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gridmill.stores.dialect import Connection, Cursor, Dialect, Rows, Values

_KEPT = 4
"""So many that nobody reads from stay open for the next ones."""


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
        self._writer = dialect.open()
        self._free: list[Connection] = []

    def writer(self) -> Connection:
        """The one that writes; another one once it was lost."""
        if self._dialect.lost(self._writer):
            self._writer = self._dialect.open()
        return self._writer

    def rows(self, statement: str, values: Values) -> Rows:
        """What one statement that only reads gives. A server may have been restarted since the last one."""
        while self._free:
            with suppress(IndexError):  # another thread took the last one
                connection = self._free.pop()
                try:
                    return self._read(connection, statement, values)
                except self._dialect.failures:
                    if not self._dialect.lost(connection):
                        raise
        return self._read(self._dialect.open(), statement, values)

    def _read(self, connection: Connection, statement: str, values: Values) -> Rows:
        try:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows = cursor.fetchall()
        except BaseException:
            connection.close()
            raise
        if len(self._free) < _KEPT:
            self._free.append(connection)
        else:
            connection.close()
        return rows

    def close(self) -> None:
        """The last use. Readers first: who closes a SQLite file last leaves one file."""
        while self._free:
            self._free.pop().close()
        self._writer.close()
