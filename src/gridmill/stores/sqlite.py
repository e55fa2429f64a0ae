"""The dialect of SQLite, with one database file for each home."""

import os
import sqlite3
from contextlib import suppress
from functools import partial

from gridmill.disk_space import space_of
from gridmill.domain.usage import StoreSpace
from gridmill.errors import InputError, StorageError
from gridmill.stores.dialect import Connection, Dialect

_PRAGMAS = (
    "busy_timeout = 5000",  # milliseconds; set first, because the next statements may have to wait
    "journal_mode = WAL",  # so that readers and the writer do not block each other
    "synchronous = NORMAL",  # no fsync per commit: see docs/adr/0002-store.md
    "foreign_keys = ON",
    "journal_size_limit = 67108864",  # bytes; the log is cut to this size after a burst of writes
)


def in_file(path: str) -> Dialect:
    """Returns the dialect for the database in this file. The function does not open the file. Raises
    InputError."""
    if path in ("", ":memory:"):
        raise InputError(
            "a SQLite store needs a file", hint="For a store that is not on disk, set GRIDMILL_STORE=memory."
        )
    return Dialect(
        place=path,
        open=partial(_open, path),
        begin=("BEGIN IMMEDIATE",),
        spell=_spell,
        lost=lambda connection: False,
        tables="SELECT name FROM sqlite_master WHERE type = 'table'",
        number="INTEGER NOT NULL",  # only a column of type INTEGER can be the row id
        counted="INTEGER NOT NULL",
        shared=False,
        toolkit="sqlite",
        failures=sqlite3.Error,
        broken_rule=sqlite3.IntegrityError,
        lenient=read_any_text,
        examine="PRAGMA integrity_check(20)",
        space=partial(_space, path),
        release=partial(_release, path),
        unknown=StorageError,
    )


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    if not os.path.exists(path) or not os.path.getsize(path):
        # set here, because it has an effect only before the first table is created
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def read_any_text(connection: Connection) -> None:
    """Allows a connection to read text that is not UTF-8, because damage to the database can cause such
    text."""
    connection.text_factory = _decoded  # type: ignore[attr-defined]


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


_STEP_PAGES = 1000
"""The number of database pages that are released in one step. A commit waits for at most one such step."""
_REWRITTEN_SHARE = 4
_INCREMENTAL = 2


def _ask(connection: Connection, pragma: str) -> int:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA {pragma}")
    return int(cursor.fetchall()[0][0])


def _space(path: str, connection: Connection) -> StoreSpace:
    """Returns the size of the database file and its log, and the number of free pages in the file."""
    size_bytes = 0
    for name in (path, f"{path}-wal"):
        with suppress(OSError):
            size_bytes += os.stat(name).st_blocks * 512
    free_bytes = _ask(connection, "freelist_count") * _ask(connection, "page_size")
    note = (
        ""
        if _ask(connection, "auto_vacuum") == _INCREMENTAL
        else "SQLite rewrites the file when most of its space is free"
    )
    return StoreSpace(size_bytes=size_bytes, free_bytes=free_bytes, note=note)


def _release(path: str, connection: Connection) -> bool:
    """Releases some pages of the file, and shortens the log at the end. A file that was created without
    `auto_vacuum` is rewritten completely if most of it is free and the disk has space for the copy."""
    cursor = connection.cursor()
    free = _ask(connection, "freelist_count")
    if free and _ask(connection, "auto_vacuum") == _INCREMENTAL:
        script = f"PRAGMA incremental_vacuum({_STEP_PAGES})"
        connection.executescript(script)  # type: ignore[attr-defined]  # `execute` ends after its first page
        if free > _STEP_PAGES:
            return True
    elif _is_worth_rewriting(path, connection, free):
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        cursor.execute("VACUUM")
    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cursor.fetchall()
    return False


def _is_worth_rewriting(path: str, connection: Connection, free: int) -> bool:
    pages = _ask(connection, "page_count")
    left_bytes = (pages - free) * _ask(connection, "page_size")
    # twice, because the copy and its log need space
    has_room = space_of("store", path).free_bytes > 2 * left_bytes
    return free > _STEP_PAGES and free * _REWRITTEN_SHARE > pages and has_room


def _spell(statement: str) -> str:
    return statement.replace(
        "TRUE", "1"
    )  # SQLite uses partial indexes only for conditions that are written like this
