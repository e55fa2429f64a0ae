"""Columns that only grow, as random cases draw them: their types, values, and how the database sorts them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np

from tests.oracles.databases import (
    Value,
    as_in_icu,
    by_code_point,
    ignoring_ascii_case,
    ignoring_trailing_spaces,
    itself,
    padded_bytes,
    padded_ignoring_case,
)


@dataclass(frozen=True)
class Cursor:
    """`draw(random, place)` gives a value that is larger for larger places, more or less."""

    type: str
    draw: Callable[[Random, int], Value]
    order: Callable[[Value], Any] = itself
    stored: Callable[[Value], object] = itself
    literal: Callable[[Value], str] = repr
    lags: tuple[str, ...] = ("0",)
    missing: tuple[str, ...] = ()
    """Values in SQL that no load takes, beside NULL."""
    in_query: bool = True


def quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def integers(base: int, step: int) -> Callable[[Random, int], int]:
    return lambda random, place: base + place * step + random.randint(-step // 2, step)


def _tenths(random: Random, place: int) -> Decimal:
    return Decimal(place * 10 + random.randint(-5, 12)) / 10


def _many_digits(random: Random, place: int) -> Decimal:
    """They differ beyond what doubles tell apart."""
    return Decimal(f"{10**17 + place}.{random.randint(10**17 - 3, 10**17 + 3)}")


def _free_decimal(random: Random, place: int) -> Decimal:
    digits = random.choice((1, 3, 28))
    return Decimal(f"{place}.{random.randint(0, 10**digits - 1):0{digits}}") * random.choice((1, 1, 10**20))


def nearest(value: Decimal) -> float:
    return float(str(value))


def single(value: Decimal) -> object:
    """As single precision compares it."""
    return np.float32(str(value))


def moments(begin: datetime, seconds: float) -> Callable[[Random, int], datetime]:
    def draw(random: Random, place: int) -> datetime:
        if random.random() < 0.2:
            return begin + timedelta(seconds=seconds * place, microseconds=random.randint(-2, 2))
        return begin + timedelta(seconds=seconds * (place + random.choice((-0.5, 0, 0, 0.5, 1))))

    return draw


def _day(random: Random, place: int) -> date:
    return date(2024, 3, 25) + timedelta(days=place + random.randint(-1, 1))


def _zone(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)


FALL, SPRING = datetime(2024, 10, 26, 23), datetime(2024, 3, 30, 23)
"""Two hours before the clocks change in Europe, in UTC."""
HALF_HOURS = ("0", "1800", "0.5", "7200.25")


def letters(alphabet: str) -> Callable[[Random, int], str]:
    def draw(random: Random, place: int) -> str:
        ending = "".join(random.choice(alphabet) for _ in range(random.randint(0, 3)))
        return f"{place:02}{ending}"

    return draw


_CASES, _ACCENTS = "aAbBzZ", "aAäÄbéEz"


def _times(type_: str, begin: datetime, seconds: float, **more: Any) -> Cursor:
    return Cursor(type_, moments(begin, seconds), stored=_zone, literal=quoted, lags=HALF_HOURS, **more)


def _with_zone(value: datetime) -> str:
    return f"'{value}+00'"


POSTGRESQL = (
    Cursor("integer", integers(0, 4), lags=("0", "1", "3", "2.5")),
    Cursor("smallint", integers(-30, 2), lags=("0", "2")),
    Cursor("bigint", integers(2**53, 3), lags=("0", "1", "3")),
    Cursor("bigint", integers(2**63 - 200, 2), lags=("0", "2")),
    Cursor(
        "numeric(38, 18)",
        _many_digits,
        stored=nearest,
        literal=str,
        lags=("0", "1", "0.5"),
        missing=("'NaN'",),
    ),
    Cursor(
        "numeric",
        _free_decimal,
        stored=nearest,
        literal=str,
        lags=("0", "0.25"),
        missing=("'NaN'", "'Infinity'"),
    ),
    Cursor("real", _tenths, single, nearest, str, ("0", "0.25"), ("'NaN'", "'Infinity'")),
    Cursor("double precision", _tenths, nearest, nearest, str, ("0", "0.25"), ("'NaN'", "'Infinity'")),
    Cursor("date", _day, literal=quoted, lags=("0", "86400", "3600", "200000"), missing=("'infinity'",)),
    _times("timestamp", FALL, 1200, missing=("'infinity'",)),
    _times("timestamp", SPRING, 1200),
    Cursor(
        "timestamptz",
        moments(FALL, 1200),
        itself,
        _zone,
        _with_zone,
        HALF_HOURS,
        ("'infinity'", "'20000-01-01Z'"),
    ),
    Cursor("timestamptz", moments(SPRING, 1200), itself, _zone, _with_zone, HALF_HOURS),
    Cursor('text COLLATE "C"', letters(_ACCENTS + "😀~"), by_code_point, literal=quoted),
    Cursor("text", letters(_CASES + " '"), by_code_point, literal=quoted),
    Cursor('text COLLATE "en-x-icu"', letters(_ACCENTS + "-_. 5"), as_in_icu, literal=quoted),
    Cursor('varchar(20) COLLATE "en-x-icu"', letters(_CASES + " "), as_in_icu, literal=quoted),
    Cursor("char(6)", letters(_CASES), by_code_point, lambda text: text.ljust(6), quoted),
    Cursor("text COLLATE caseless", letters(_CASES), str.lower, literal=quoted),
    Cursor("citext", letters(_CASES), str.lower, literal=quoted),
)
POSTGRESQL_MADE = (
    "CREATE EXTENSION citext",
    "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
)

MARIADB = (
    Cursor("int", integers(0, 4), lags=("0", "1", "3", "2.5")),
    Cursor("bigint unsigned", integers(2**53, 3), lags=("0", "2")),
    Cursor("bigint unsigned", integers(2**64 - 200, 2), stored=str, lags=("0", "2")),
    Cursor("decimal(38, 18)", _many_digits, stored=nearest, literal=str, lags=("0", "1", "0.5")),
    Cursor("double", _tenths, nearest, nearest, lambda value: f"{value}e0", ("0", "0.25")),
    Cursor("float", _tenths, single, nearest, str, ("0", "0.25")),
    Cursor("year", integers(1950, 2), lags=("0", "2")),
    Cursor("date", _day, literal=quoted, lags=("0", "86400", "3600", "200000")),
    _times("datetime(6)", FALL, 1200),
    _times("datetime(6)", SPRING, 1200),
    _times("timestamp(6) NULL", FALL, 1200),
    _times("timestamp(6) NULL", SPRING, 1200),
    Cursor("varchar(20)", letters(_ACCENTS + "ß 5"), padded_ignoring_case, literal=quoted),
    Cursor("varchar(20)", letters(_ACCENTS + "\t "), padded_ignoring_case, literal=quoted),
    Cursor(
        "char(20)", letters(_CASES + " "), padded_ignoring_case, lambda text: text.rstrip(" "), literal=quoted
    ),
    Cursor("varchar(20) COLLATE utf8mb4_bin", letters(_ACCENTS + "😀 "), padded_bytes, literal=quoted),
    Cursor("varchar(20) COLLATE utf8mb4_nopad_bin", letters(_ACCENTS + " "), by_code_point, literal=quoted),
    Cursor(
        "varchar(20) CHARACTER SET latin1 COLLATE latin1_bin", letters("aBé "), padded_bytes, literal=quoted
    ),
)


def _text_time(value: datetime) -> str:
    """As people write times into SQLite: always with the same digits."""
    return value.isoformat(" ", "microseconds")


SQLITE = (
    Cursor("INTEGER", integers(0, 4), lags=("0", "1", "3", "2.5")),
    Cursor("BIGINT", integers(2**63 - 200, 2), lags=("0", "2")),
    Cursor("REAL", _tenths, nearest, nearest, str, ("0", "0.25"), ("9e999",)),
    Cursor("TEXT", letters(_ACCENTS + "😀' "), by_code_point, literal=quoted),
    Cursor("TEXT COLLATE NOCASE", letters(_ACCENTS), ignoring_ascii_case, literal=quoted),
    Cursor("TEXT COLLATE RTRIM", letters(_CASES + " "), ignoring_trailing_spaces, literal=quoted),
    Cursor(
        "TIMESTAMP",
        moments(FALL, 1200),
        itself,
        _zone,
        lambda value: quoted(_text_time(value)),
        in_query=False,
    ),
    Cursor("DATE", _day, literal=quoted, in_query=False),
)
CURSORS = {"postgresql": POSTGRESQL, "mariadb": MARIADB, "sqlite": SQLITE}
