"""Who owns a store: one control node at a time, as long as the connection that it writes through lasts."""

from sqlalchemy import Connection, text

from gridmill.errors import StoreInUseError, StoreLostError

_LOCK = "1735551332, 1"  # any two numbers that are ours: "grid", and its first lock
_NAME = text("SELECT set_config('application_name', :owner, false)")
_TAKE = text(f"SELECT pg_try_advisory_lock({_LOCK})")
_OWNER = text(
    "SELECT application_name, pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND (classid::bigint, objid::bigint) = ("
    + _LOCK
    + ") AND objsubid = 2 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_END = text("SELECT pg_terminate_backend(:pid)")
_LONGEST_NAME = 63  # bytes that the server keeps of it


class Ownership:
    """The lock of a PostgreSQL store. It belongs to a session, and the database gives it back with that: so
    what is written through a session that has it is written by the only owner.

    A SQLite store lies in a home, whose own lock does the same.
    """

    def __init__(self) -> None:
        self._session: object = None
        self._wanted = False

    def take(self, writer: Connection, owner: str) -> None:
        """Take the lock, unless this session has it. Raises StoreInUseError, naming who has.

        Raises StoreLostError while an earlier session of the same owner is still there: it is ended.
        """
        if writer.dialect.name != "postgresql":
            return
        with writer.begin():
            session = _session(writer)
            if session is self._session:
                return
            self._wanted, self._session = True, None
            name = owner.encode()[:_LONGEST_NAME].decode(errors="ignore")
            writer.execute(_NAME, {"owner": name})
            if not writer.execute(_TAKE).scalar_one():
                raise _refusal(writer, name)
            self._session = session

    def check(self, writer: Connection) -> None:
        """Raise StoreLostError when the session of an owner is not the one that has the lock."""
        if self._wanted and _session(writer) is not self._session:
            raise StoreLostError(
                "the connection to the store was lost, and with it the right to write",
                hint="It is taken again before the next change; nothing is half-written.",
                place=writer.engine.url.render_as_string(),
            )


def _refusal(writer: Connection, name: str) -> StoreInUseError | StoreLostError:
    place = writer.engine.url.render_as_string()
    other, pid = writer.execute(_OWNER).first() or ("", 0)
    if other != name:
        return StoreInUseError(f"a control node ({other or 'unknown'}) already owns this store", place=place)
    # Ours, cut off from us: the server has not noticed yet.
    writer.execute(_END, {"pid": pid})
    return StoreLostError("the store still serves a connection that was lost", place=place)


def _session(connection: Connection) -> object:
    """What stands for the server's session; another one after a reconnect, which this does if need be."""
    return connection.connection.dbapi_connection
