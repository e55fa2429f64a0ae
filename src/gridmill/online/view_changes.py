"""Records the changed rows of a view, so that a copy of the view at another place can make the same changes.

A view that is sent belongs to a *series*: a snapshot of the view, and numbered changes after it. A change has
the changed rows with how often they occur afterwards, so that applying it twice has the same effect as once.
It is recorded in the transaction that makes it.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from gridmill.domain.frozen import dataclass

_SERIES, _NUMBER = "series", "number"
_SIDES = (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a view in a series: after the change with this number. The snapshot has the number 0."""

    series: str
    number: int


def place_of(db: sqlite3.Connection) -> Place | None:
    """Return the place of a view in its series, or None if it belongs to no series."""
    names = (_SERIES, _NUMBER)
    meta = dict(db.execute("SELECT name, value FROM meta WHERE name IN (?, ?)", names))
    return Place(series=meta[_SERIES], number=int(meta[_NUMBER])) if meta.get(_SERIES) else None


def set_place(db: sqlite3.Connection, place: Place) -> None:
    """Record the place of a view in a series."""
    rows = ((_SERIES, place.series), (_NUMBER, place.number))
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def begin_series(db: sqlite3.Connection, series: str) -> None:
    """Record all later changes of the view as changes of a new series."""
    stop_recording(db)
    db.execute("CREATE TABLE changed (number INTEGER, feed INTEGER, key, known INTEGER, row BLOB, n INTEGER)")
    db.execute("CREATE TABLE change (number INTEGER PRIMARY KEY, held TEXT, floor_us INTEGER)")
    set_place(db, Place(series=series, number=0))


def stop_recording(db: sqlite3.Connection) -> None:
    """Record no more changes. The view keeps its place in its series."""
    for table in ("changed", "change"):
        db.execute(f"DROP TABLE IF EXISTS {table}")


def recorded_numbers(db: sqlite3.Connection) -> list[int]:
    """Return the numbers of the recorded changes, in order."""
    if not _records(db):
        return []
    return [number for (number,) in db.execute("SELECT number FROM change ORDER BY number")]


def forget_changes(db: sqlite3.Connection, number: int) -> None:
    """Delete the recorded changes up to this number."""
    for table in ("changed", "change"):
        db.execute(f"DELETE FROM {table} WHERE number <= ?", (number,))


@contextmanager
def recording(db: sqlite3.Connection) -> Iterator[None]:
    """Record the changes inside the `with` block, which is a transaction, as one change of the series. If the
    view belongs to no series, or if neither rows nor versions change, nothing is recorded."""
    if not _records(db):
        yield
        return
    before, feeds = _held(db), _feeds(db)
    _watch(db, feeds)
    yield
    (touched,) = db.execute("SELECT count(*) FROM touched").fetchone()
    place = place_of(db)
    if place is None or (not touched and _held(db) == before):
        return
    number = place.number + 1
    for feed in feeds:
        db.execute(
            "INSERT INTO changed SELECT ?, t.feed, t.key, t.known, t.row, coalesce(f.n, 0) FROM touched AS t"
            f" LEFT JOIN feed_{feed} AS f ON f.key = t.key AND f.known = t.known AND f.row = t.row"
            " WHERE t.feed = ?",
            (number, feed),
        )
    floor = db.execute("SELECT value FROM meta WHERE name = 'floor_us'").fetchone()
    db.execute("INSERT INTO change VALUES (?, ?, ?)", (number, _held(db), floor[0] if floor else None))
    set_place(db, Place(series=place.series, number=number))


def _records(db: sqlite3.Connection) -> bool:
    found = db.execute("SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = 'change'")
    return found.fetchone() is not None


def _held(db: sqlite3.Connection) -> str:
    rows = db.execute("SELECT name, uri, number, outages FROM held ORDER BY name").fetchall()
    return json.dumps(rows)


def _feeds(db: sqlite3.Connection) -> list[int]:
    names = db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' AND name GLOB 'feed_*'")
    return sorted(int(name.removeprefix("feed_")) for (name,) in names)


def _watch(db: sqlite3.Connection, feeds: list[int]) -> None:
    """Collect the primary keys of changed rows in a temporary table of the connection."""
    db.execute(
        "CREATE TEMP TABLE IF NOT EXISTS touched (feed INTEGER, key, known INTEGER, row BLOB,"
        " PRIMARY KEY (feed, key, known, row)) WITHOUT ROWID"
    )
    db.execute("DELETE FROM touched")
    for feed in feeds:
        for verb, side in _SIDES:
            place = f"{feed}, {side}.key, {side}.known, {side}.row"
            # not INSERT OR IGNORE, because the conflict clause of an upsert replaces that of its triggers
            db.execute(
                f"CREATE TEMP TRIGGER IF NOT EXISTS touched_{feed}_{verb} AFTER {verb} ON main.feed_{feed}"
                f" WHEN NOT EXISTS (SELECT 1 FROM touched WHERE (feed, key, known, row) = ({place}))"
                f" BEGIN INSERT INTO touched VALUES ({place}); END"
            )


def write_change(db: sqlite3.Connection, number: int) -> None:
    """Copy a recorded change to the attached database `change_file`."""
    db.execute("CREATE TABLE change_file.meta (series TEXT, number INTEGER, held TEXT, floor_us INTEGER)")
    place = place_of(db)
    assert place is not None
    db.execute(
        "INSERT INTO change_file.meta SELECT ?, number, held, floor_us FROM main.change WHERE number = ?",
        (place.series, number),
    )
    db.execute("CREATE TABLE change_file.changed (feed INTEGER, key, known INTEGER, row BLOB, n INTEGER)")
    db.execute(
        "INSERT INTO change_file.changed SELECT feed, key, known, row, n FROM main.changed WHERE number = ?"
        " ORDER BY feed, key, known, row",
        (number,),
    )


def change_in_file(db: sqlite3.Connection) -> tuple[Place, str, int | None]:
    """Return the place of the change in the attached database `change_file`, the versions after it as JSON,
    and the oldest as-of time after it."""
    rows = db.execute("SELECT series, number, held, floor_us FROM change_file.meta").fetchall()
    if len(rows) != 1:
        raise sqlite3.DatabaseError("the file of a change has no description")
    series, number, held, floor_us = rows[0]
    return Place(series=series, number=number), held, floor_us


def apply_change(db: sqlite3.Connection) -> None:
    """Make the change in the attached database `change_file`. Call this in a transaction."""
    place, held, floor_us = change_in_file(db)
    for feed in _feeds(db):
        db.execute(
            f"INSERT INTO main.feed_{feed} SELECT key, known, row, n FROM change_file.changed"
            " WHERE feed = ? AND n > 0 ON CONFLICT DO UPDATE SET n = excluded.n",
            (feed,),
        )
        db.execute(
            f"DELETE FROM main.feed_{feed} WHERE (key, known, row) IN"
            " (SELECT key, known, row FROM change_file.changed WHERE feed = ? AND n <= 0)",
            (feed,),
        )
    db.execute("DELETE FROM main.held")
    db.executemany("INSERT INTO main.held VALUES (?, ?, ?, ?)", json.loads(held))
    db.execute("INSERT OR REPLACE INTO main.meta VALUES ('floor_us', ?)", (floor_us,))
    set_place(db, place)
