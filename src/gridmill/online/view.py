"""The view: the rows of each feed by key, in one SQLite file, with the versions of the tables that the file
holds.

The folder of a view has the file `current`, which contains the name of the SQLite file that serves. A new
SQLite file is written under another name. It serves from the moment at which `current` is replaced, so that
a view that is not complete never serves.
"""

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError
from gridmill.online.plan import OnlinePlan
from gridmill.online.row_codec import DamagedViewError, Key
from gridmill.online.view_changes import (
    Place,
    apply_change,
    begin_series,
    change_in_file,
    forget_changes,
    place_of,
    recorded_numbers,
    recording,
    stop_recording,
    write_change,
)

FORMAT = 1
CURRENT, BUILDING, SUFFIX, LOCK, DAMAGED = "current", "building.sqlite", ".sqlite", "lock", "damaged"
LOWEST = -(2**63)
CACHE_KIB = 65_536
_PLAN, _FLOOR, _SYNCED, _FORMAT, _AHEAD = "plan", "floor_us", "synced_at", "format", "ahead_seconds"

StoredRow = tuple[int, bytes, int]
"""The time at which a row became known (microseconds since 1970), its bytes, and how often it occurs."""


class MissingViewError(UnavailableError):
    """There is no view, or the view was built for other features."""

    code = "unavailable"
    default_hint = "The service builds the view again. Then send the request again."


def plain_reason(error: UnavailableError) -> str:
    """Return why features cannot be computed, for a client of the service. Paths of the server belong to its
    log."""
    if isinstance(error, MissingViewError):
        return "the view of the features is missing, or was built for other features"
    if isinstance(error, DamagedViewError):
        return "the view of the features is damaged"
    return error.message


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVersion:
    """The version of a table that a view holds: the path of the table relative to the storage root, its
    version number, and its outages as JSON."""

    uri: str
    number: int
    outages: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The content of a view at one moment. `held` are the versions of the tables by their names in the
    declaration.

    `floor_us` is the oldest as-of time that the view answers (microseconds since 1970). If it is None, the
    view has all rows. `synced_at` is the time at which `held` were the newest versions (Unix seconds).
    `ahead_seconds` is how much the clock of this machine is ahead of the clock by which the view was made,
    if the view was received from another machine.
    """

    held: Mapping[str, HeldVersion]
    floor_us: int | None
    synced_at: float
    ahead_seconds: float = 0.0


class ViewFile:
    """An open SQLite file with the rows of all feeds of a plan.

    One thread uses the object at a time. Errors of SQLite become DamagedViewError.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        mode = "rwc" if writable else "ro"
        self.path = path
        self._db = sqlite3.connect(
            f"file:{_quoted(path)}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        with errors_of(path):
            self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._db.execute("PRAGMA mmap_size = 1073741824")
            if writable:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def create(self, plan: OnlinePlan) -> None:
        """Create the tables of a plan, unless they exist."""
        with self.writing():
            self._db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS held (name TEXT PRIMARY KEY, uri TEXT, number INTEGER,"
                " outages TEXT)"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS built (feed INTEGER PRIMARY KEY, rows INTEGER)")
            for number in range(len(plan.stored)):
                # the primary key is the whole row, so that rows are sorted as the window engine sorts them
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS feed_{number} (key, known INTEGER, row BLOB, n INTEGER,"
                    " PRIMARY KEY (key, known, row)) WITHOUT ROWID"
                )
            self._set(_FORMAT, FORMAT)
            self._set(_PLAN, plan.fingerprint)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that is committed at its end, or has no effect after an error. If the view is sent to
        another place, its changes are recorded."""
        with errors_of(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                with recording(self._db):
                    yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction in which all reads see the same commit. Inside of another one, it is a part of it."""
        if self._db.in_transaction:
            yield
            return
        with errors_of(self.path):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("COMMIT")

    def check(self, plan: OnlinePlan) -> None:
        """Raise MissingViewError if the file was made for other features or by another format."""
        with errors_of(self.path):
            meta = dict(self._db.execute("SELECT name, value FROM meta"))
        if meta.get(_FORMAT) != FORMAT or meta.get(_PLAN) != plan.fingerprint:
            raise MissingViewError(f"the view {self.path} was built for other features")

    def state(self) -> ViewState:
        """Return the versions that the view holds, and the oldest as-of time that it answers."""
        with errors_of(self.path):
            meta = dict(self._db.execute("SELECT name, value FROM meta"))
            rows = self._db.execute("SELECT name, uri, number, outages FROM held ORDER BY name").fetchall()
        return ViewState(
            held={
                name: HeldVersion(uri=uri, number=number, outages=text) for name, uri, number, text in rows
            },
            floor_us=meta.get(_FLOOR),
            synced_at=float(meta.get(_SYNCED) or 0.0),
            ahead_seconds=float(meta.get(_AHEAD) or 0.0),
        )

    def ahead_seconds(self) -> float:
        """Return how much the clock of this machine is ahead of the clock by which the view was made."""
        with errors_of(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE name = ?", (_AHEAD,)).fetchone()
        return float(row[0]) if row else 0.0

    def set_state(self, state: ViewState) -> None:
        """Record the versions that the view holds. Call this method in the transaction that writes their
        rows."""
        self._db.execute("DELETE FROM held")
        self._db.executemany(
            "INSERT INTO held VALUES (?, ?, ?, ?)",
            [(name, one.uri, one.number, one.outages) for name, one in state.held.items()],
        )
        self._set(_FLOOR, state.floor_us)
        self._set(_SYNCED, state.synced_at)
        self._set(_AHEAD, state.ahead_seconds)

    def _set(self, name: str, value: float | str | None) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def built_rows(self, feed: int) -> int:
        """Return the number of sorted rows of a feed that an interrupted build has already written."""
        row = self._db.execute("SELECT rows FROM built WHERE feed = ?", (feed,)).fetchone()
        return int(row[0]) if row else 0

    def set_built_rows(self, feed: int, rows: int) -> None:
        """Record the number of sorted rows of a feed that are written."""
        self._db.execute("INSERT OR REPLACE INTO built VALUES (?, ?)", (feed, rows))

    def add(self, feed: int, rows: Iterable[tuple[Key, int, bytes, int]]) -> None:
        """Add rows, each with its key, the time at which it became known, its bytes, and how often it
        occurs."""
        self._db.executemany(
            f"INSERT INTO feed_{feed} VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n", rows
        )

    def take_away(self, feed: int, rows: Sequence[tuple[Key, int, bytes, int]]) -> None:
        """Remove rows (with how often each is removed). A row that the view does not have is skipped."""
        where = "WHERE key = ? AND known = ? AND row = ?"
        self._db.executemany(
            f"UPDATE feed_{feed} SET n = n - ? {where}", [(n, key, known, row) for key, known, row, n in rows]
        )
        self._db.executemany(
            f"DELETE FROM feed_{feed} {where} AND n <= 0", [(key, known, row) for key, known, row, _ in rows]
        )

    def remove_key(self, feed: int, key: Key) -> None:
        """Remove all rows of a key."""
        self._db.execute(f"DELETE FROM feed_{feed} WHERE key = ?", (key,))

    def remove_old(self, feed: int, key: Key, until_us: int, rows: int) -> None:
        """Remove the rows of a key that were known at `until_us` or before, except for its newest `rows` such
        rows and rows with the same time as one of them."""
        before = until_us if not rows else self._nth(feed, key, until_us, rows)
        if before is not None:
            sign = "<" if rows else "<="
            self._db.execute(f"DELETE FROM feed_{feed} WHERE key = ? AND known {sign} ?", (key, before))

    def count_between(self, feed: int, key: Key, low_us: int, high_us: int) -> int:
        """Return the number of rows of a key with times from `low_us` to `high_us` (both inclusive)."""
        row = self._db.execute(
            f"SELECT coalesce(sum(n), 0) FROM feed_{feed} WHERE key = ? AND known BETWEEN ? AND ?",
            (key, low_us, high_us),
        ).fetchone()
        return int(row[0])

    def rows_of(
        self, feed: int, key: Key, low_us: int, high_us: int, newest: tuple[int, int]
    ) -> list[StoredRow]:
        """Return the rows of a key with times from `low_us` up to `high_us` (exclusive), in order.

        `newest` is a time and a number: the result begins early enough to contain that number of rows that
        were known at that time or before. The result may contain more rows.
        """
        until_us, rows = newest
        if rows:
            nth = self._nth(feed, key, until_us, rows)
            low_us = LOWEST if nth is None else min(low_us, nth)
        return self._db.execute(
            f"SELECT known, row, n FROM feed_{feed} WHERE key = ? AND known >= ? AND known < ?"
            " ORDER BY known, row",
            (key, low_us, high_us),
        ).fetchall()

    def _nth(self, feed: int, key: Key, until_us: int, rows: int) -> int | None:
        row = self._db.execute(
            f"SELECT known FROM feed_{feed} WHERE key = ? AND known <= ? ORDER BY known DESC"
            " LIMIT 1 OFFSET ?",
            (key, until_us, rows - 1),
        ).fetchone()
        return None if row is None else int(row[0])

    def has_key(self, feed: int, key: Key) -> bool:
        """Return whether the view has a row of the key."""
        return (
            self._db.execute(f"SELECT 1 FROM feed_{feed} WHERE key = ? LIMIT 1", (key,)).fetchone()
            is not None
        )

    def finish(self) -> None:
        """Write everything to the main file, so that the file can be renamed or copied."""
        with errors_of(self.path):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def place(self) -> Place | None:
        """Return the place of the view in its series, or None if it belongs to no series."""
        with errors_of(self.path):
            return place_of(self._db)

    def recorded(self) -> list[int]:
        """Return the numbers of the changes that are recorded, in order."""
        with errors_of(self.path):
            return recorded_numbers(self._db)

    def begin_series(self, series: str, path: Path) -> None:
        """Record all later changes in a new series, and write a copy of the view to a new file, the snapshot
        of the series."""
        with self.writing():
            begin_series(self._db, series)
        with errors_of(path):
            self._db.execute("VACUUM INTO ?", (str(path),))

    def write_change(self, number: int, path: Path) -> None:
        """Write a recorded change to a new file."""
        with self._attached(path), errors_of(self.path):
            self._db.execute("BEGIN")
            write_change(self._db, number)
            self._db.execute("COMMIT")

    def forget_changes(self, number: int) -> None:
        """Delete the recorded changes up to this number."""
        with self.writing():
            forget_changes(self._db, number)

    def stop_recording(self) -> None:
        """Record no more changes. The view keeps its place in its series."""
        with self.writing():
            stop_recording(self._db)

    def apply_change(self, path: Path) -> None:
        """Make the change in a file, in one transaction. Raises DamagedViewError if it is not the next change
        of the series."""
        with self._attached(path), self.writing():
            here, after = place_of(self._db), change_in_file(self._db)[0]
            if here is None or (here.series, here.number + 1) != (after.series, after.number):
                raise DamagedViewError(f"the change {path} is not the next one after {here}")
            apply_change(self._db)

    @contextmanager
    def _attached(self, path: Path) -> Iterator[None]:
        with errors_of(path):
            self._db.execute("ATTACH ? AS change_file", (str(path),))
            try:
                yield
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._db.execute("DETACH change_file")


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Convert errors of SQLite to DamagedViewError."""
    try:
        yield
    except sqlite3.Error as error:
        raise DamagedViewError(f"the view {path} cannot be used: {error}") from error


def mark_damaged(folder: Path) -> None:
    """Note that the view that serves is damaged, so that it is built again. A full disk is ignored."""
    with suppress(OSError):
        (folder / DAMAGED).touch()


def is_marked_damaged(folder: Path) -> bool:
    """Return whether a reader has found damage since the view was built."""
    return (folder / DAMAGED).exists()


def has_file(folder: Path) -> bool:
    """Return whether the file of the view exists."""
    try:
        return current_file(folder).is_file()
    except MissingViewError:
        return False


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """A lock that only one process holds at a time: it builds or refreshes the view. Other processes wait."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def current_file(folder: Path) -> Path:
    """Return the SQLite file that serves. Raises MissingViewError if there is no view."""
    try:
        name = (folder / CURRENT).read_text("utf-8").strip()
    except OSError as error:
        raise MissingViewError(f"there is no view in {folder}") from error
    path = folder / name
    if not path.is_file():
        raise MissingViewError(f"the file {path} of the view is missing")
    return path


def open_view(folder: Path, plan: OnlinePlan, *, writable: bool = False) -> ViewFile:
    """Open the view that serves. Raises MissingViewError if there is none or if it has other features, and
    DamagedViewError if it cannot be read."""
    path = current_file(folder)
    try:
        view = ViewFile(path, writable=writable)
    except sqlite3.Error as error:
        raise DamagedViewError(f"the view {path} cannot be opened: {error}") from error
    try:
        view.check(plan)
    except BaseException:
        view.close()
        raise
    return view


def _quoted(path: Path) -> str:
    return str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
