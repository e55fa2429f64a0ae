"""The dialect of PostgreSQL, for a database on a server that is named by its URL. Only this module loads the
PostgreSQL driver."""

import re
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from gridmill.domain.usage import StoreSpace
from gridmill.errors import InputError, StoreLostError
from gridmill.stores.dialect import Connection, Dialect

# in seconds, seconds and tries: a lost connection is noticed after 25 s
_KEEPALIVES = {"idle": 10, "interval": 5, "count": 3}
_ARGUMENTS = {
    "connect_timeout": 10,  # in seconds, because libpq waits for ever by default
    # so that this process detects a lost server
    **{f"keepalives_{name}": value for name, value in _KEEPALIVES.items()},
    # in milliseconds; keepalives do not detect a loss while data of a statement is unacknowledged
    "tcp_user_timeout": 25_000,
    # so that the server detects a lost client, and releases its lock for the next owner
    "options": " ".join(f"-c tcp_keepalives_{name}={value}" for name, value in _KEEPALIVES.items()),
}
_LOCK = 0x6772_6964  # an arbitrary number that other programs hardly use: "grid" in ASCII


def at(url: str) -> Dialect:
    """Returns the dialect for the database at this URL. The function does not connect to the database.
    Raises InputError."""
    address = _address(url)
    driver = _driver(_shown(address))
    return Dialect(
        place=_shown(address),
        open=partial(_open, driver, address),
        # one statement with many values saves round trips to the server
        begin=(f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK})",),
        spell=_spell,
        lost=lambda connection: connection.closed,  # type: ignore[attr-defined]
        tables="SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
        number="BIGINT NOT NULL",
        counted="BIGINT GENERATED ALWAYS AS IDENTITY",
        shared=True,
        toolkit="postgresql+psycopg",
        failures=driver.Error,
        broken_rule=driver.IntegrityError,
        lenient=lambda connection: None,  # nothing to do, because the server validates texts and pages itself
        examine="",
        space=_space,
        release=_release,
        unknown=StoreLostError,
    )


_TABLES = ("record", "event", "counter")


def _space(connection: Connection) -> StoreSpace:
    """Returns the disk space that the complete database uses. The free space in the tables is estimated from
    the number of deleted rows."""
    cursor = connection.cursor()
    names = ", ".join(f"'{name}'" for name in _TABLES)
    cursor.execute(
        "SELECT pg_database_size(current_database()), coalesce(sum("
        "pg_relation_size(relid) * n_dead_tup / greatest(1, n_live_tup + n_dead_tup)), 0)::bigint "
        f"FROM pg_stat_user_tables WHERE schemaname = current_schema() AND relname IN ({names})"
    )
    ((size_bytes, free_bytes),) = cursor.fetchall()
    note = "PostgreSQL reuses free space itself; `VACUUM FULL` returns the space to the file system"
    return StoreSpace(size_bytes=size_bytes, free_bytes=free_bytes, note=note)


def _release(connection: Connection) -> bool:
    """Makes the space of deleted rows reusable, and returns free space at the ends of tables to the file
    system."""
    for name in _TABLES:
        connection.cursor().execute(f"VACUUM {name}")
    return False


def _address(url: str) -> SplitResult:
    address = urlsplit(url)
    try:
        _ = address.port
    except ValueError as error:  # raised if the port is not a number
        raise InputError(
            "this is not a database URL", hint="Example: postgresql://USER@HOST/DATABASE"
        ) from error
    if address.scheme not in ("postgresql", "postgresql+psycopg"):
        raise InputError(f"{_shown(address)} cannot be used: write postgresql://USER@HOST/DATABASE")
    return address._replace(scheme="postgresql")


def _shown(address: SplitResult) -> str:
    """Returns the address without the password and without the query part, because the query part can
    contain a password."""
    user, at_, host = address.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return address._replace(netloc=f"{name}{colon and ':***'}{at_}{host}", query="").geturl()


def _driver(place: str) -> ModuleType:
    try:
        return import_module("psycopg")
    except ImportError as error:
        raise InputError(
            f"{place} needs a driver that is not installed: {error}",
            hint="Run: pip install 'gridmill[postgresql]'",
        ) from error


def _open(driver: Any, address: SplitResult) -> Connection:  # noqa: ANN401  a module that may be missing
    given = parse_qs(address.query)
    arguments = {name: value for name, value in _ARGUMENTS.items() if name not in given}
    connection: Connection = driver.connect(address.geturl(), autocommit=True, **arguments)
    return connection


@cache
def _spell(statement: str) -> str:
    by_code_point = statement.replace("COLLATE BINARY", 'COLLATE "C"')
    return re.sub(r":(\w+)", r"%(\1)s", by_code_point)
