"""Reads the undamaged records and numbers of a damaged SQLite store."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.ports.store import Noun
from gridmill.stores.rows import RECORD, DamagedRowError, Row, is_counter, read_record
from gridmill.stores.sqlite import read_any_text

_ROWS = 256
_LONGEST_GAP = 1 << 24
"""The function stops if no record can be read within about this many positions after the last readable
record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The records, in the order of their first puts, and the highest numbers of ids."""

    nouns: tuple[Noun, ...]
    counters: Mapping[str, int]


def salvage(path: Path) -> Salvage:
    """Returns the records and numbers that can be read; there are none if the file is not a database. The
    argument must be a copy of the file, because SQLite writes to the file when it merges the log after a
    crash."""
    nouns: tuple[Noun, ...] = ()
    counters: dict[str, int] = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
        read_any_text(connection)
        nouns = tuple(_nouns(connection))
        with suppress(sqlite3.Error):
            for name, value, checksum in connection.execute("SELECT name, value, checksum FROM counter"):
                if is_counter(name, value, checksum):
                    counters[name] = value
    return Salvage(nouns=nouns, counters=counters)


def _nouns(connection: sqlite3.Connection) -> Iterator[Noun]:
    for row in _rows(connection):
        with suppress(DamagedRowError):
            yield read_record(row).noun


def _rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """Yields all rows. The rows are read from the table without its indexes, because the indexes can be
    damaged. If a page cannot be read, ranges of positions are skipped until a page can be read. Each range
    is twice as long as the previous range."""
    after, step = 0, 1
    query = f"SELECT {RECORD} FROM record NOT INDEXED WHERE position > ? ORDER BY position LIMIT ?"
    while step < _LONGEST_GAP:
        rows: list[Row] = []
        try:
            for row in connection.execute(query, (after, _ROWS)):
                rows.append(row)
            if not rows:
                return
        except sqlite3.Error:
            pass
        yield from rows
        if rows:
            after, step = rows[-1][0], 1
        else:
            after, step = after + step, step * 2
