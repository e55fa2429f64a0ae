"""The lock of a PostgreSQL store. Only one session at a time can write, until its connection is lost."""

from contextlib import suppress

from gridmill.errors import StoreInUseError, StoreLostError
from gridmill.stores.dialect import Connection, Cursor, Dialect, transaction

# two arbitrary numbers that other programs hardly use: "grid" in ASCII, and 1 for Gridmill's first lock
_LOCK = "1735551332, 1"
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
# several, because the lock can be released between the attempt to take it and the query for its owner
_TRIES = 3
_LONGEST_NAME = 63  # PostgreSQL cuts the application name to this many bytes


class StoreLock:
    """The lock that gives one session the right to write to a PostgreSQL store. The lock belongs to a
    database session, and the database releases it when the session ends. Therefore all changes in a session
    that has the lock come from the only owner of the store.

    A SQLite store needs no such lock, because it is in a home, and the lock of the home has the same
    purpose.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._session: Connection | None = None
        self._wanted = False

    def take(self, writer: Connection, owner: str) -> None:
        """Takes the lock, unless this session already has it. Raises StoreInUseError, which names the owner,
        if another owner has the lock.

        If an earlier session of the same owner still has the lock, that earlier session is ended and
        StoreLostError is raised.
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
        """Releases the lock explicitly, because a server needs some time to notice that a connection was
        closed."""
        if self._session is not None:
            with suppress(self._dialect.failures):
                self._session.cursor().execute(_GIVE)

    def check(self, writer: Connection) -> None:
        """Raises StoreLostError if the session of the owner is not the session that has the lock."""
        if self._wanted and writer is not self._session:
            raise StoreLostError(
                "the connection to the store was lost, and with it the lock for writing",
                hint="Repeat the command: Gridmill takes the lock again before the next change.",
                place=self._dialect.place,
            )

    def _refuse(self, cursor: Cursor, name: str) -> None:
        """Raises an error that names the owner of the lock. If the lock was released in the meantime, the
        function returns without an error."""
        cursor.execute(_OWNER)
        for other, pid in cursor.fetchall():
            if other != name:
                raise self._in_use(other or "unknown")
            # ended, because it is an old session of this owner, whose loss the server has not noticed yet
            cursor.execute(_END, {"pid": pid})
            raise StoreLostError(
                "the database server still holds the lock for a lost connection", place=self._dialect.place
            )

    def _in_use(self, who: str) -> StoreInUseError:
        return StoreInUseError(f"a control node ({who}) already owns this store", place=self._dialect.place)
