"""The lock of a PostgreSQL store: one session at a time may write, until its connection is lost."""

from contextlib import suppress

from gridmill.errors import StoreInUseError, StoreLostError
from gridmill.stores.dialect import Connection, Cursor, Dialect, transaction

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
                "the connection to the store was lost, and with it the lock for writing",
                hint="Repeat the command: Gridmill takes the lock again before the next change.",
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
                "the database server still holds the lock for a lost connection", place=self._dialect.place
            )

    def _in_use(self, who: str) -> StoreInUseError:
        return StoreInUseError(f"a control node ({who}) already owns this store", place=self._dialect.place)
