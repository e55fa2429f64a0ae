"""What the documentation promises of single values, in plain Python: their types, and what they become.

A CSV file holds texts. A line of JSON holds texts, numbers (as they are written), booleans and nothing. A
Parquet file holds typed values. Pages: docs/how-to/data.md "Load files onto a table", docs/how-to/quality.md
"When a source's columns change", docs/adr/0006 "Sinks".
"""

import json
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction

Value = int | float | bool | str | bytes | date | datetime | None
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGERS = range(-(2**63), 2**63)

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FRACTION = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
NAMED = ("%Y/%m/%d", "%b %d %Y", "%B %d, %Y", "%d %b %Y", "%d-%b-%Y", "%G-W%V-%u", "%a, %b %d %Y")
"""Forms of dates beside ISO 8601 that have one meaning."""
CLOCKS = ("%I:%M %p", "%H:%M:%S.%f %z", "%H:%M")
STAMPS = ("%a, %d %b %Y %H:%M:%S %z", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S %z", "%Y%m%dT%H%M%SZ")
_FLOAT = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|nan))")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    _DATE.pattern + r"[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


class MisfitError(Exception):
    """A value that is not of the column's type."""


@dataclass(frozen=True)
class Number:
    """A number in a line of JSON, as it is written there."""

    text: str

    @property
    def whole(self) -> bool:
        return _INTEGER.fullmatch(self.text) is not None


@dataclass(frozen=True)
class Quoted:
    """A text in a line of JSON."""

    text: str


@dataclass(frozen=True)
class Typed:
    """A value of a Parquet column, whose type is `kind` whatever the value is."""

    value: Value
    kind: str


@dataclass(frozen=True)
class Blank:
    """A text of CSV that means "missing", in quotes or beside space: a column of texts keeps it (data.md)."""

    text: str


Cell = str | Number | Quoted | bool | Typed | Blank | None


def kind_of(cell: Cell) -> str | None:
    """The narrowest type of a value; None where it is missing."""
    if cell is None or isinstance(cell, Blank):
        return None
    if isinstance(cell, Typed):
        return cell.kind
    if isinstance(cell, bool):
        return "boolean"
    if isinstance(cell, Number):
        if cell.whole:  # data.md: whole numbers that 64 bits do not hold stay texts
            return "integer" if int(cell.text) in INTEGERS else "string"
        return "float"
    if isinstance(cell, Quoted):  # times are texts in JSON; a text that looks like a number is none
        kind = _kind_of_text(cell.text)
        return kind if kind in ("date", "timestamp") else "string"
    return _kind_of_text(cell)


def _kind_of_text(text: str) -> str:
    if _INTEGER.fullmatch(text):
        return "integer" if int(text) in INTEGERS else "string"
    for kind in ("float", "boolean", "date", "timestamp"):
        try:
            _parse(text, kind)
        except MisfitError:
            continue
        return kind
    return "string"


def wider(one: str | None, other: str | None) -> str | None:
    """The type of both (data.md: types follow from all values of all files): text where nothing else is."""
    if one is None or other is None or one == other:
        return one or other
    pair = {one, other}
    if pair == {"integer", "float"}:
        return "float"
    return "timestamp" if pair == {"date", "timestamp"} else "string"


def kind_of_all(cells: Iterable[Cell]) -> str | None:
    """The type of all values of a column of a file. Texts 0 and 1 beside true or false are booleans."""
    found: str | None = None
    kinds: set[str | None] = set()
    digits = True
    for cell in cells:
        kind = kind_of(cell)
        kinds.add(kind)
        digits &= kind != "integer" or cell in ("0", "1")
        found = wider(found, kind)
    return "boolean" if kinds - {None} == {"integer", "boolean"} and digits else found


def convert(cell: Cell, kind: str | None) -> Value:
    """The value in a column of that type; None: one without any value. MisfitError where it is not of it."""
    if cell is None or kind is None:
        return None
    if isinstance(cell, Blank):
        return cell.text if kind == "string" else None
    if isinstance(cell, Typed):
        return _declared(cell.value, cell.kind, kind)
    if isinstance(cell, bool):
        return _declared(cell, "boolean", kind)
    if isinstance(cell, Number):
        return _number(cell, kind)
    return _read(cell.text, kind) if isinstance(cell, Quoted) else _parse(cell, kind)


def _read(text: str, kind: str) -> Value:
    """A text of a line of JSON or of a Parquet file. One of nothing but space is missing (data.md)."""
    if kind == "string":
        return text
    return _parse(text.strip(), kind) if text.strip() else None


def _declared(value: Value, had: str, kind: str) -> Value:
    """A typed value of a column that is declared otherwise (data.md, "An inferred type loses nothing")."""
    if isinstance(value, datetime) and kind == "date":
        return value.date()
    if isinstance(value, str) and had == "string":
        return _read(value, kind)
    if isinstance(value, bool) and kind in ("integer", "float"):
        return int(value) if kind == "integer" else float(value)
    if isinstance(value, float) and kind == "integer":
        return _whole(value)
    if isinstance(value, int | float) and kind == "boolean" and value in (0, 1):
        return bool(value)
    return widened(value, had, kind)


def widened(value: Value, had: str | None, kind: str | None) -> Value:
    """A typed value as one of a wider type."""
    if value is None or had == kind:
        return value
    if (had, kind) == ("integer", "float"):
        assert isinstance(value, int)
        return float(value)
    if (had, kind) == ("date", "timestamp"):
        assert isinstance(value, date)
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if kind == "string":
        return text_of(value)
    raise MisfitError


def text_of(value: Value) -> str:
    """A typed value in a column of texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return _text_of_float(value) if isinstance(value, float) else str(value)


def _text_of_float(value: float) -> str:
    """The fewest digits that tell it apart."""
    return re.sub(r"e([+-])0", r"e\1", repr(value)).removesuffix(".0")


def _whole(value: float) -> int:
    """A number whose fraction is zero is a whole number (data.md)."""
    if value.is_integer() and int(value) in INTEGERS:
        return int(value)
    raise MisfitError


def _number(number: Number, kind: str) -> Value:
    if kind == "string":
        return number.text
    if kind == "float":
        return float(number.text)
    if kind == "integer" and number.whole and int(number.text) in INTEGERS:
        return int(number.text)
    if kind == "integer" and not number.whole:
        return _whole(float(number.text))
    if kind == "boolean" and float(number.text) in (0, 1):
        return float(number.text) == 1
    raise MisfitError


def _parse(text: str, kind: str) -> Value:
    if kind == "string":
        return text
    if kind == "integer" and _INTEGER.fullmatch(text) and int(text) in INTEGERS:
        return int(text)
    if kind == "integer" and _FRACTION.fullmatch(text):
        return _whole_of(text)
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text)
    if kind == "boolean" and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    if kind == "date":
        return _date(text)
    if kind == "timestamp":
        return _timestamp(text)
    raise MisfitError


def _whole_of(text: str) -> int:
    """The digits tell, not the nearest float."""
    number = Fraction(text)
    if number.denominator == 1 and int(number) in INTEGERS:
        return int(number)
    raise MisfitError


def _date(text: str) -> date:
    found = _DATE.fullmatch(text)
    try:
        if found:
            return date(*(int(part) for part in found.groups()))
    except ValueError:
        pass
    for pattern in NAMED:  # data.md "Dates, times and numbers in common forms"
        with suppress(ValueError):
            return datetime.strptime(text, pattern).date()
    raise MisfitError


def _timestamp(text: str) -> datetime:
    """In UTC and whole microseconds (adr/0006), digits beyond are cut; without a zone in UTC (data.md)."""
    if _DATE.fullmatch(text):
        return datetime.combine(_date(text), datetime.min.time(), UTC)
    found = _TIME.fullmatch(text)
    if not found:
        return _clocked(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    micro = int((found[7] or "0").ljust(6, "0")[:6])
    try:
        local = datetime(year, month, day, hour, minute, second, micro, _zone(found[8]))
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        raise MisfitError from None


def _clocked(text: str) -> datetime:
    """A date in any form, and a time of day (data.md)."""
    patterns = [*(f"{one} {clock}" for one in ("%Y-%m-%d", *NAMED) for clock in CLOCKS), *STAMPS]
    for pattern in patterns:
        with suppress(ValueError, OverflowError):
            time = datetime.strptime(text, pattern)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return datetime.combine(_date(text), datetime.min.time(), UTC)


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    ahead = timedelta(hours=int(text[1:3]), minutes=int(text[4:6]))
    return timezone(-ahead if text[0] == "-" else ahead)


def exact(value: object) -> object:
    """A value to compare: type and every bit tell."""
    if isinstance(value, float):
        return "float", struct.pack(">d", value) if value == value else b"nan"
    if isinstance(value, datetime):
        assert value.tzinfo is not None, f"{value} has no zone"
        return "timestamp", (value - EPOCH) // timedelta(microseconds=1)
    return type(value).__name__, value


def readable(cell: Cell) -> object:
    """A cell as the JSON of a reject shows it."""
    if isinstance(cell, Number):
        return json.loads(cell.text)
    if isinstance(cell, Quoted | Blank):
        return cell.text
    return cell.value if isinstance(cell, Typed) else cell
