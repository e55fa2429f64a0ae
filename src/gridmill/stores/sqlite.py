"""The SQLite dialect: one file per home."""

import sqlite3
from functools import partial

from gridmill.errors import InputError, StorageError
from gridmill.stores.dialect import Connection, Dialect

_PRAGMAS = (
    "busy_timeout = 5000",  # milliseconds; first, as the others may have to wait already
    "journal_mode = WAL",  # readers and the writer do not wait for each other
    "synchronous = NORMAL",  # no fsync per commit: see docs/adr/0002-store.md
    "foreign_keys = ON",
    "journal_size_limit = 67108864",  # bytes; gives the disk back after a burst
)


def in_file(path: str) -> Dialect:
    """The database in that file; nothing is opened yet. Raises InputError."""
    if path in ("", ":memory:"):
        raise InputError(
            "a SQLite store needs a file", hint="The store named `memory` keeps nothing on disk."
        )
    return Dialect(
        place=path,
        open=partial(_open, path),
        begin=("BEGIN IMMEDIATE",),
        spell=_spell,
        lost=lambda connection: False,
        tables="SELECT name FROM sqlite_master WHERE type = 'table'",
        number="INTEGER NOT NULL",  # only INTEGER can be the row id
        counted="INTEGER NOT NULL",
        shared=False,
        toolkit="sqlite",
        failures=sqlite3.Error,
        broken_rule=sqlite3.IntegrityError,
        lenient=read_any_text,
        examine="PRAGMA integrity_check(20)",
        unknown=StorageError,
    )


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def read_any_text(connection: Connection) -> None:
    """Let a connection read text that is not UTF-8, as damage leaves it."""
    connection.text_factory = _decoded  # type: ignore[attr-defined]


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _spell(statement: str) -> str:
    return statement.replace("TRUE", "1")  # only so written, partial indices are used
