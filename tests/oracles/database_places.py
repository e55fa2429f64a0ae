"""Where the tables of random cases are: a server for all cases of this process, a new database for each."""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pymysql

from tests.kit import at_end, mariadb, postgresql, redisserver
from tests.kit.mariadb import MariadbServer, mariadb_server
from tests.kit.postgresql import PostgresqlServer, postgresql_server
from tests.kit.redisserver import redis_server

_STACK = ExitStack()
at_end.STACK.callback(_STACK.close)

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Chatham", "America/New_York")
OFFSETS = ("SYSTEM", "+00:00", "+05:45", "-11:00")


class MissingServerError(Exception):
    """The server is not installed here; the message says how to get it."""


@cache
def postgresql_place() -> PostgresqlServer:
    server = _STACK.enter_context(postgresql_server())
    if server is None:
        raise MissingServerError(postgresql.HOW_TO_GET_IT)
    return server


@cache
def mariadb_place() -> MariadbServer:
    """Its own zone is one that changes its clocks."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    try:
        server = _STACK.enter_context(mariadb_server())
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
    if server is None:
        raise MissingServerError(mariadb.HOW_TO_GET_IT)
    return server


@cache
def redis_place() -> int:
    """The port."""
    folder = _STACK.enter_context(tempfile.TemporaryDirectory(prefix="redis-"))
    port = _STACK.enter_context(redis_server(Path(folder)))
    if port is None:
        raise MissingServerError(redisserver.HOW_TO_GET_IT)
    return port


def close() -> None:
    """End all servers; the next case starts them again."""
    _STACK.close()
    for place in (postgresql_place, mariadb_place, redis_place):
        place.cache_clear()


class Database(Protocol):
    """An empty database of one case."""

    url: str
    quote: str

    def do(self, *statements: str) -> None:
        """Each statement is a transaction."""

    def late(self, statement: str) -> Callable[[], None]:
        """Execute it in a transaction that is open until what is returned is called."""

    def cut(self) -> None:
        """End the connections of others, if there are any."""

    def restart(self) -> None:
        """Stop the server and start it again."""

    def close(self) -> None: ...


class Postgresql:
    quote = '"'

    def __init__(self, random: Random) -> None:
        self.server = postgresql_place()
        self.name = self.server.create_database()
        zone = random.choice(ZONES)
        self.server.execute(f"ALTER DATABASE {self.name} SET timezone = '{zone}'")
        self.url = self.server.socket_url(self.name)
        self._connection: Any = self.server.connect(self.name)

    def do(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def late(self, statement: str) -> Callable[[], None]:
        other = self.server.connect(self.name)
        other.execute("SET application_name = 'late'")
        other.autocommit = False
        other.execute(statement.encode())

        def commit() -> None:
            other.commit()
            other.close()

        return commit

    def cut(self) -> None:
        self._connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{self.name}' AND pid <> pg_backend_pid() AND application_name <> 'late'"
        )

    def restart(self) -> None:
        self._connection.close()
        self.server.crash_and_recover()
        self._connection = self.server.connect(self.name)

    def close(self) -> None:
        self._connection.close()
        self.server.execute(f"DROP DATABASE {self.name} WITH (FORCE)")


class Mariadb:
    quote = "`"

    def __init__(self, random: Random) -> None:
        self.server = mariadb_place()
        self.name = self.server.create_database()
        self.server.execute(f"SET GLOBAL time_zone = '{random.choice(OFFSETS)}'")
        self.url = self.server.url(self.name)
        self._connect()

    def _connect(self) -> None:
        self._connection = self._in_utc()

    def _in_utc(self) -> Any:
        connection = self.server.connect(self.name)
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        return connection

    def do(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def late(self, statement: str) -> Callable[[], None]:
        other = self._in_utc()
        other.begin()
        with other.cursor() as cursor:
            cursor.execute(statement)

        def commit() -> None:
            other.commit()
            other.close()

        return commit

    def cut(self) -> None:
        self._end("user = 'gridmill'")

    def _end(self, which: str) -> None:
        ids = f"SELECT id FROM information_schema.processlist WHERE {which} AND id <> connection_id()"
        for (number,) in self.server.execute(ids):
            with suppress(pymysql.OperationalError):  # it has just ended
                self.server.execute(f"KILL CONNECTION {number}")

    def restart(self) -> None:
        self._connection.close()
        self.server.stop()
        self.server.start()
        self._connect()

    def close(self) -> None:
        self._end(f"db = '{self.name}'")
        self.server.execute(f"DROP DATABASE {self.name}")


class Sqlite:
    quote = '"'

    def __init__(self, random: Random, folder: Path) -> None:
        self._file = folder / "shop.db"
        self.url = f"sqlite:///{self._file}"
        self._connection = sqlite3.connect(self._file, isolation_level=None)
        if random.random() < 0.5:
            self.do("PRAGMA journal_mode = WAL")

    def do(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def late(self, statement: str) -> Callable[[], None]:
        other = sqlite3.connect(self._file, isolation_level=None)
        other.execute("BEGIN")
        other.execute(statement)

        def commit() -> None:
            other.execute("COMMIT")
            other.close()

        return commit

    def cut(self) -> None:
        """A file has no connections to cut."""

    def restart(self) -> None:
        """Nor a server."""

    def close(self) -> None:
        self._connection.close()


@contextmanager
def database(kind: str, random: Random, folder: Path) -> Iterator[Database]:
    """A new, empty one."""
    made: Database = (
        Postgresql(random)
        if kind == "postgresql"
        else Mariadb(random)
        if kind == "mariadb"
        else Sqlite(random, folder)
    )
    try:
        yield made
    finally:
        made.close()
