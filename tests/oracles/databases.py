"""What a table must hold after each load from a database or a stream, by plain rules over plain lists.

The rules are those of docs/how-to/sources.md ("SQL databases", "What a cursor can and cannot see",
"Parameters and stretches of time in a query", "Redis Streams") and docs/adr/0009. Nothing here knows how
Gridmill reads.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from math import ceil, isfinite
from typing import Any

Value = Any
"""A value of the database: an int, a Decimal, a float, a date, a datetime, a text, or None."""


@dataclass(frozen=True)
class Row:
    """A row of the database: a number of its own, what its cursor holds, and a text that users edit."""

    number: int
    cursor: Value
    text: str


def shown(value: Value) -> str:
    """A value with its type and each of its digits; times by what they are, whatever their zone object."""
    if isinstance(value, datetime):
        offset = value.utcoffset()
        return (
            f"datetime {value.isoformat()}" if offset is None or not offset else f"datetime off UTC {value}"
        )
    return repr(value)


# How databases sort texts --------------------------------------------------------------------------------


def by_code_point(text: str) -> object:
    """PostgreSQL's `C`, SQLite's `BINARY`: the bytes of UTF-8, which sort as code points do."""
    return text.encode()


def ignoring_ascii_case(text: str) -> object:
    """SQLite's `NOCASE`: the 26 letters of ASCII are alike, nothing else is."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text).encode()


def ignoring_trailing_spaces(text: str) -> object:
    """SQLite's `RTRIM`."""
    return text.rstrip(" ").encode()


def padded_bytes(text: str) -> object:
    """MariaDB's `utf8mb4_bin`, PAD SPACE: the shorter text is compared as if spaces followed it."""
    return tuple(ord(c) for c in text.ljust(64))


def padded_ignoring_case(text: str) -> object:
    """MariaDB's `utf8mb4_general_ci`: no case, no accents, PAD SPACE; all beyond the BMP are alike."""
    return tuple(min(ord(_general(c)), 0xFFFD) for c in text.ljust(64))


def _general(character: str) -> str:
    """The letter that stands for a character: A for a, ä and Ä; S for ß."""
    if character == "ß":
        return "S"
    return unicodedata.normalize("NFD", character)[0].upper()


def as_in_icu(text: str) -> object:
    """ICU's `en`: letters first, then accents, then case (small first), then, for PostgreSQL, the bytes."""
    parts = [unicodedata.normalize("NFD", c) for c in text]
    letters = tuple(_ICU_ORDER.index(part[0].lower()) for part in parts)
    accents = tuple(part[1:] for part in parts)
    return letters, accents, tuple(part[0].isupper() for part in parts), text.encode()


_ICU_ORDER = " _-.0123456789abcdefghijklmnopqrstuvwxyz"
"""Characters that the cases use, as CLDR's root collation orders them."""


def itself(value: Value) -> object:
    """Sort numbers and times as they are."""
    return value


# Tables with a cursor ------------------------------------------------------------------------------------


def is_missing(cursor: Value) -> bool:
    """Whether no row could come after it: NULL, NaN or infinity."""
    if isinstance(cursor, str) and cursor.lstrip("-") in ("infinity", "NaN"):
        return True  # a time that is infinite, as a case writes it
    return cursor is None or (isinstance(cursor, float | Decimal) and not isfinite(cursor))


def less(cursor: Value, lag: Decimal) -> Value:
    """The value that far below a cursor: a number by as much, a time by as many seconds.

    Whole numbers and dates stand for all that lies before the next one, so the lag is rounded up.
    """
    if isinstance(cursor, datetime):
        return cursor - timedelta(microseconds=int(lag * 1_000_000))
    if isinstance(cursor, date):
        return _comparable(cursor) - timedelta(days=ceil(lag / 86_400))
    if isinstance(cursor, int):
        return cursor - ceil(lag)
    return _EXACT.subtract(_comparable(cursor), lag)


_EXACT = Context(prec=500)


def _comparable(cursor: Value) -> Value:
    """What `less` gives can be compared with it."""
    if isinstance(cursor, date) and not isinstance(cursor, datetime):
        return datetime.combine(cursor, time())
    return Decimal(repr(cursor)) if isinstance(cursor, float) else cursor


@dataclass
class CursorTable:
    """Each load takes the rows beyond the newest loaded value, up to the newest one less the lag."""

    order: Callable[[Value], Any] = itself
    rows: list[Row] = field(default_factory=list)
    newest: Any = None
    """The newest loaded cursor, as `order` gives it."""

    def load(self, database: Iterable[Row], lag: Decimal | None) -> list[Row]:
        """Return the rows that are added."""
        usable = [row for row in database if not is_missing(row.cursor)]
        if not usable:
            return []
        top = max(usable, key=lambda row: self.order(row.cursor)).cursor
        added = [row for row in usable if self._is_beyond(row) and self._is_ready(row, top, lag)]
        if added:
            self.newest = max(self.order(row.cursor) for row in added)
        self.rows += added
        return added

    def _is_beyond(self, row: Row) -> bool:
        return self.newest is None or self.order(row.cursor) > self.newest

    def _is_ready(self, row: Row, top: Value, lag: Decimal | None) -> bool:
        if lag is None:
            return True
        if isinstance(top, str):  # `lag: 0` alone
            return bool(self.order(row.cursor) < self.order(top))
        return bool(_comparable(row.cursor) < less(top, lag))

    def not_seen(self, database: Iterable[Row]) -> int:
        """How many rows no load takes as long as their cursor stays."""
        return sum(is_missing(row.cursor) for row in database)


@dataclass
class WholeTable:
    """Without a cursor the table is what the database holds now."""

    rows: list[Row] = field(default_factory=list)

    def load(self, database: Iterable[Row]) -> None:
        self.rows = list(database)


@dataclass
class Stretches:
    """A query of two bounds: the rows of a stretch replace those of it, and of stretches within it."""

    loaded: dict[tuple[datetime, datetime], list[Row]] = field(default_factory=dict)

    def is_refused(self, begins: datetime, ends: datetime) -> bool:
        """Whether it overlaps in part with a loaded one that has rows."""
        return any(
            rows and a < ends and begins < b and not (begins <= a and b <= ends)
            for (a, b), rows in self.loaded.items()
        )

    def load(self, begins: datetime, ends: datetime, database: Iterable[Row]) -> None:
        within = [(a, b) for a, b in self.loaded if begins <= a and b <= ends]
        for stretch in within:
            del self.loaded[stretch]
        self.loaded[begins, ends] = [
            row for row in database if row.cursor is not None and begins <= _at(row.cursor) < ends
        ]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.loaded.values() for row in rows]


def _at(cursor: date | datetime) -> datetime:
    """A time without a zone is in UTC, a date begins at midnight."""
    if not isinstance(cursor, datetime):
        return datetime.combine(cursor, time(), UTC)
    return cursor if cursor.tzinfo else cursor.replace(tzinfo=UTC)


# Streams -------------------------------------------------------------------------------------------------

Id = tuple[int, int]
Entry = tuple[Id, dict[str, str]]


@dataclass
class StreamTable:
    """Each load takes the entries after the last one it loaded, `max_rows` at most."""

    entries: list[Entry] = field(default_factory=list)
    last: Id = (-1, 0)

    def load(self, stream: Sequence[Entry], max_rows: int) -> list[Entry]:
        """Return the entries that are added."""
        added = [entry for entry in stream if entry[0] > self.last][:max_rows]
        if added:
            self.last = added[-1][0]
        self.entries += added
        return added


def entry_row(entry: Entry, columns: Iterable[str]) -> dict[str, object]:
    """An entry as the table has it: its id, its time in UTC, and its fields as texts."""
    (milliseconds, sequence), fields = entry
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    row: dict[str, object] = {"entry_id": f"{milliseconds}-{sequence}", "entry_time": moment}
    return row | {name: fields.get(name) for name in columns}
