"""The one file that tells databases apart: how they are opened, locked for writing, and how they fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from gridmill.errors import InputError, StorageError, StoreLostError
from gridmill.stores.schema import COUNTER, adapt_to

_PRAGMAS = (
    "busy_timeout = 5000",  # milliseconds; first, as the others may have to wait already
    "journal_mode = WAL",  # readers and the writer do not wait for each other
    "synchronous = NORMAL",  # no fsync per commit: see docs/adr/0002-store.md
    "foreign_keys = ON",
    "journal_size_limit = 67108864",  # bytes; gives the disk back after a burst
)
_KEEPALIVES = {"idle": 10, "interval": 5, "count": 3}  # seconds, seconds, times
_POSTGRESQL = {
    "connect_timeout": 10,  # seconds
    **{
        f"keepalives_{name}": value for name, value in _KEEPALIVES.items()
    },  # a server that is gone is noticed
    "tcp_user_timeout": 25_000,  # milliseconds; also in the middle of a statement
    # and the server notices that we are: it gives our lock to the next one
    "options": " ".join(f"-c tcp_keepalives_{name}={value}" for name, value in _KEEPALIVES.items()),
}
_WRITES = "gridmill_writes"
_POSTGRESQL_LOCK = 0x6772_6964  # any number that is ours: "grid"

_CAUSES = (
    (("SQLITE_FULL", "53100"), "the disk is full", "Free some space; nothing half-written is kept."),
    (
        ("SQLITE_NOTADB", "SQLITE_CORRUPT"),
        "it is damaged, or no database at all",
        "Move the file (and its -wal and -shm) aside and put a backup in its place, or start afresh without "
        "it: tables and models in the storage root are not touched.",
    ),
    (
        ("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH"),
        "it may not be written",
        "Give this user write permission to the file and its folder, or set GRIDMILL_HOME to another folder.",
    ),
    (
        ("25006", "42501"),
        "it may not be written",
        "Let this user make and write tables (GRANT ALL ON SCHEMA public TO ...); a standby takes no writes.",
    ),
    (
        ("SQLITE_CANTOPEN",),
        "it cannot be opened",
        "The folder must exist, and this user must be allowed to read and write it.",
    ),
    (("SQLITE_BUSY", "SQLITE_LOCKED"), "another process keeps it locked", "End that process, or try again."),
    (("SQLITE_IOERR",), "the disk does not work as it should", "Look at the system's log (`dmesg`)."),
)


def connect(url_or_path: str | Path) -> Engine:
    """An engine for a path (SQLite) or a database URL; nothing is opened yet. Raises InputError."""
    url = _url(url_or_path)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InputError(
            "a SQLite store needs a file", hint="The store named `memory` keeps nothing on disk."
        )
    try:
        engine = create_engine(
            url, pool_size=4, max_overflow=28, pool_reset_on_return="rollback", **_ways_to_connect(url)
        )
    except ImportError as error:  # NoSuchModuleError is none
        raise InputError(
            f"{url.render_as_string()} needs a driver that is not installed: {error}",
            hint="Install it: pip install 'gridmill[postgresql]'.",
        ) from error
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError(f"{url.render_as_string()} cannot be used: {error}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
    else:
        adapt_to(engine.dialect.name)
    event.listen(engine, "begin", _lock_for_writing)
    return engine


def _ways_to_connect(url: URL) -> dict[str, Any]:
    """Arguments of `create_engine`: a server may be restarted, or gone without a word."""
    if url.get_backend_name() != "postgresql":
        return {}
    arguments = {name: value for name, value in _POSTGRESQL.items() if name not in url.query}
    return {"connect_args": arguments, "pool_pre_ping": True}


def _url(url_or_path: str | Path) -> URL:
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return URL.create("sqlite", database=str(url_or_path))
    try:
        url = make_url(url_or_path)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        raise InputError(
            "this is no database URL", hint="Write sqlite:///PATH or postgresql://..."
        ) from error
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _set_up_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401  DBAPI has no type
    connection.isolation_level = None  # a transaction begins where `_lock_for_writing` says, not by itself
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def reading(engine: Engine) -> Engine:
    """The engine for reads, each of which is one statement and needs no transaction around it."""
    return (
        engine if engine.dialect.name == "sqlite" else engine.execution_options(isolation_level="AUTOCOMMIT")
    )


def writing(engine: Engine) -> Connection:
    """A connection each transaction of which waits for, and then is, the only one that writes."""
    return engine.connect().execution_options(**{_WRITES: True})


def _lock_for_writing(connection: Connection) -> None:
    if connection.get_execution_options().get(_WRITES):
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRESQL_LOCK})")


def raise_counter(engine: Engine) -> Executable:
    """The statement that sets a counter (`name`, `value`) unless it is as high already."""
    dialect = import_module(f"sqlalchemy.dialects.{engine.dialect.name}")  # only the one that is used
    insert = dialect.insert(COUNTER)
    statement: Executable = insert.on_conflict_do_update(
        index_elements=[COUNTER.c.name],
        set_={"value": insert.excluded.value},
        where=COUNTER.c.value < insert.excluded.value,
    )
    return statement


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Whatever the database raises leaves as StorageError or UnavailableError, naming the database."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _explained(engine, error) from error


def _explained(engine: Engine, error: SQLAlchemyError) -> StorageError:
    place = engine.url.database if engine.dialect.name == "sqlite" else engine.url.render_as_string()
    original = error.orig if isinstance(error, DBAPIError) else error
    code = str(getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None) or "")
    for prefixes, what, hint in _CAUSES:
        if code.startswith(prefixes):
            return StorageError(
                f"the store cannot be used: {what} ({original})", hint=hint, place=place or ""
            )
    hint = (
        "Look whether the database is up, and whether its address and password (PGPASSWORD, or ~/.pgpass) "
        "are right."
    )
    said = "; ".join(line.strip() for line in str(original).splitlines() if line.strip())
    kind = StorageError if engine.dialect.name == "sqlite" else StoreLostError  # a server may come back
    return kind(f"the store cannot be used: {said}", hint=hint, place=place or "")
