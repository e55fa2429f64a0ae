"""Numbers that represent times: finds the time units that fit the numbers, and writes SQL that converts the
numbers to times.

The number of digits shows the time unit. Sinks use the same rule for a column that is declared as a time: 9
or 10 digits are seconds since 1970, 12 or 13 digits are milliseconds, 15 or 16 digits are microseconds, 18
or 19 digits are nanoseconds; 8, 10, 12 or 14 digits can be a date.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from gridmill.domain.calendar import show_moment
from gridmill.domain.dataset import NUMBER_FORMATS
from gridmill.domain.source import DATE_DIGITS, UNIX_UNITS
from gridmill.jobs.duckdb_engine import literal, quoted

NAMES: Mapping[str, str] = {
    "unix_s": "seconds since 1970",
    "unix_ms": "milliseconds since 1970",
    "unix_us": "microseconds since 1970",
    "unix_ns": "nanoseconds since 1970",
    "%Y%m%d": "year, month and day",
    "%Y%m%d%H": "year, month, day and hour",
    "%Y%m%d%H%M": "a date to the minute",
    "%Y%m%d%H%M%S": "a date to the second",
}
_DIGITS = dict(zip(UNIX_UNITS, (9, 12, 15, 18), strict=True))
"""The smallest number of digits that a time in each unit has. A time in a unit has at most one digit more
than the smallest number of digits of this unit."""
_PER_SECOND = dict(zip(UNIX_UNITS, (1, 10**3, 10**6, 10**9), strict=True))
_WIDTHS = dict(zip(DATE_DIGITS, (8, 10, 12, 14), strict=True))
_EPOCH = datetime(1970, 1, 1)
_MOST = 2**63 - 1
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The first and the last second of the years 1 to 9999, in seconds since 1970."""
_INEXACT = ("DOUBLE", "FLOAT", "DECIMAL")


def is_whole(type_: str) -> bool:
    """Return whether a DuckDB type has only whole numbers."""
    return type_.endswith("INT") or type_ in ("INTEGER", "UINTEGER")


def is_numeric(type_: str) -> bool:
    """Return whether numbers of a DuckDB type can represent times."""
    return is_whole(type_) or (type_.startswith(_INEXACT) and not type_.endswith("]"))


def value_sql(column: str, type_: str) -> str:
    """Return SQL that reads the numbers of a column in order to check them. The SQL replaces NaN by a
    missing value."""
    name = quoted(column)
    return f"CASE WHEN NOT isnan({name}) THEN {name} END" if type_ in ("DOUBLE", "FLOAT") else name


def shows_sql(unit: str, value: str) -> str:
    """Return an SQL condition that is true if the number of digits fits the time unit."""
    if unit in _DIGITS:
        least, end = 10 ** (_DIGITS[unit] - 1), min(10 ** (_DIGITS[unit] + 1), _MOST)
        return f"(abs({value}::DOUBLE) >= {least} AND abs({value}::DOUBLE) < {end})"
    return f"({_is_date(unit, value)} AND {_text(value)}[1:2] IN ('19', '20'))"


def fits_sql(unit: str, value: str) -> str:
    """Return an SQL condition that is true if the number can be a time in the declared time unit."""
    if unit not in _PER_SECOND:
        return _is_date(unit, value)
    per = _PER_SECOND[unit]
    first, last = max(_FIRST_SECOND * per, -_MOST), min((_LAST_SECOND + 1) * per, _MOST)
    return (
        f"({value} >= {first} AND {value} < {last})" if last < _MOST else f"(abs({value}::DOUBLE) < {_MOST})"
    )


def _text(value: str) -> str:
    return f"(TRY_CAST({value} AS BIGINT)::VARCHAR)"


def _is_date(unit: str, value: str) -> str:
    text, width = _text(value), _WIDTHS[unit]
    whole = f"{value} >= {10 ** (width - 1)} AND {value} < {10**width} AND {value} = trunc({value}::DOUBLE)"
    return f"coalesce({whole} AND try_strptime({text}, {literal(unit)}) IS NOT NULL, false)"


def time_sql(unit: str, column: str, type_: str) -> str:
    """Return SQL that converts the numbers of a column to times, in microseconds. All numbers of the column
    must fit the time unit.

    The SQL rounds fractions and truncates nanoseconds.
    """
    name = quoted(column)
    if unit in _WIDTHS:
        return _date_sql(f"({value_sql(column, type_)})", _WIDTHS[unit])
    per = _PER_SECOND[unit]
    if is_whole(type_):
        micros = f"{name}::BIGINT * {10**6 // per}" if per <= 10**6 else f"{name}::BIGINT // 1000"
    else:
        value = f"({value_sql(column, type_)})::DOUBLE"
        micros = (
            f"round({value} * {10**6 // per})::BIGINT" if per <= 10**6 else f"trunc({value} / 1000)::BIGINT"
        )
    return f"make_timestamp({micros})"


def _date_sql(name: str, width: int) -> str:
    """Return SQL that computes a date from the digits of a number by arithmetic, which is faster than
    parsing text."""
    full = f"({name}::BIGINT * {10 ** (14 - width)})"
    parts = [f"({full} // {10**place} % 100)::BIGINT" for place in (8, 6, 4, 2)]
    return f"make_timestamp({full} // {10**10}, {', '.join(parts)}, ({full} % 100)::DOUBLE)"


def time_of(unit: str, number: float) -> datetime | None:
    """Return the time that a number represents. Return None if Python cannot represent this time."""
    try:
        if unit in _WIDTHS:
            text = str(int(number))
            return datetime.strptime(text, unit) if len(text) == _WIDTHS[unit] else None
        per = _PER_SECOND[unit]
        if per > 10**6:
            micros = int(number / 1000) if isinstance(number, float) else _cut(int(number))
        else:
            micros = round(number * (10**6 // per))
        return _EPOCH + timedelta(microseconds=micros)
    except (OverflowError, ValueError):
        return None


def _cut(nanoseconds: int) -> int:
    """Convert nanoseconds to microseconds, truncated towards 1970."""
    return nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000)


def least_number(unit: str, moment: datetime) -> int:
    """Return a lower bound for the numbers that represent the time `moment` or a later time."""
    if unit in _WIDTHS:
        return int(f"{moment.year:04}{moment:%m%d%H%M%S}"[: _WIDTHS[unit]])
    micros = (moment - _EPOCH) // timedelta(microseconds=1)
    per = _PER_SECOND[unit]
    return micros * (per // 10**6) - 1000 if per >= 10**6 else micros // (10**6 // per) - 1


def shows(unit: str, number: float) -> bool:
    """Return whether the number of digits fits the time unit."""
    if unit in _DIGITS:
        least, end = 10 ** (_DIGITS[unit] - 1), min(10 ** (_DIGITS[unit] + 1), _MOST)
        return bool(least <= abs(number) < end)
    text = str(int(number)) if number == number // 1 else ""
    return text[:2] in ("19", "20") and time_of(unit, number) is not None


def readings(number: float, units: tuple[str, ...] = NUMBER_FORMATS) -> str:
    """Return the time that the number represents in each time unit that fits, such as `1 January 2024
    (seconds since 1970)`."""
    texts = (f"{show_moment(moment)} ({NAMES[unit]})" for unit in units if (moment := time_of(unit, number)))
    return " or ".join(texts)
