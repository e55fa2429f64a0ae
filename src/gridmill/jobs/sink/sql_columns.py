"""Converts the values of database drivers to Arrow columns batch by batch, without rounding or guessing.

This module also configures the connection before rows are read, so that the driver loses no values.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from gridmill.errors import DataError
from gridmill.jobs.sink.convert import TIMESTAMP, MisfitError, TextRules, convert

Rows = Sequence[tuple[Any, ...]]


class UnrepresentableTime(str):
    """A date or time that Python cannot represent, as the database writes it, such as infinity or the year
    12000."""

    __slots__ = ()


class Interval(str):
    """An interval, as the database writes it.

    If the interval has months or years, `seconds` is None, because their length varies.
    """

    __slots__ = ("seconds",)
    seconds: float | None


def batch_of(
    rows: Rows,
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
    texts: Collection[str] = (),
    place: str = "",
) -> pa.RecordBatch:
    """Return the rows as columns of a batch. If the values of a column fit its declared type, the column has
    this type. If the values of a column do not fit its declared type, the column has the type of its values.

    The columns in `texts` become texts as the database writes them. Raises DataError for a value that no
    type can represent.
    """
    columns = [
        _column(name, list(values), types.get(name), place, as_text=name in texts)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _column(
    name: str, values: list[Any], declared: pa.DataType | None, place: str, *, as_text: bool
) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values), declared or pa.null())
    if as_text and not kinds.isdisjoint(_WRITTEN):
        return _texts(values)
    _check(name, values, kinds, place)
    column = _by_kind(values, kinds)
    if Decimal in kinds and any(type_ and pa.types.is_floating(type_) for type_ in (column.type, declared)):
        _check_floats(name, values, place)
    if declared is None or column.type == declared or not _is_meant(column, declared):
        return column
    if declared == pa.float32():
        return _shortest(column)
    try:
        return convert(pa.chunked_array([column]), declared, TextRules(), exact=True).combine_chunks()
    except MisfitError:
        return column


_WRITTEN = (Decimal, Interval, UnrepresentableTime)
"""Types of values that have digits or words which other types cannot represent."""


def _check(name: str, values: list[Any], kinds: set[type], place: str) -> None:
    if kinds.isdisjoint((Interval, UnrepresentableTime)):
        return
    for value in values:
        if isinstance(value, UnrepresentableTime):
            raise DataError(
                f"column {name!r} holds {str(value)!r}, which is not a date or time of the years 1 to 9999",
                hint=f"Declare `columns: {{{name}: string}}`, or use nullif({name}, ...) in a `query`.",
                place=place,
            )
        if isinstance(value, Interval) and value.seconds is None:
            raise DataError(
                f"column {name!r} holds the interval {str(value)!r}: months and years have no fixed length",
                hint=f"Declare `columns: {{{name}: string}}`, or use extract(epoch from {name}) in a "
                "`query`.",
                place=place,
            )


def _check_floats(name: str, values: list[Any], place: str) -> None:
    """Raise DataError for a decimal that would become infinite as a float."""
    for value in values:
        if isinstance(value, Decimal) and value.is_finite() and not isfinite(float(value)):
            raise DataError(
                f"column {name!r} holds {value:.6e}, which is too large for a float",
                hint=f"Declare `columns: {{{name}: string}}`.",
                place=place,
            )


def _is_meant(column: pa.Array, declared: pa.DataType) -> bool:
    """Return whether the declared type can be used for these values.

    The declared type cannot be used for numbers in a column of times, because such numbers can count
    anything. Numbers other than 0 and 1 do not fit a boolean, and decimals do not fit a float. Floats are
    stored with the digits that they have.
    """
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if pa.types.is_temporal(declared):
        return not is_number
    if pa.types.is_boolean(declared) and is_number:
        return set(column.unique().to_pylist()) <= {0, 1, None}
    either = (column.type, declared)
    return not (any(map(pa.types.is_decimal, either)) and any(map(pa.types.is_floating, either)))


def _by_kind(values: list[Any], kinds: set[type]) -> pa.Array:
    """Return the values as an array of their common type. If the values have several types, return them as
    texts."""
    for kind_of_type, make in _KINDS:
        if all(issubclass(kind, kind_of_type) for kind in kinds):
            try:
                return make(values)
            except (OverflowError, ValueError, pa.ArrowException):
                break
    return _texts(values)


def _texts(values: list[Any]) -> pa.Array:
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _times(values: list[Any]) -> pa.Array:
    """Return the values as times. A time without a zone is read as UTC."""
    zoned = (v if v is None or v.tzinfo is not None else v.replace(tzinfo=UTC) for v in values)
    return pa.array(list(zoned), TIMESTAMP)


def _decimals(values: list[Any]) -> pa.Array:
    """Return the values as exact numbers.

    Whole numbers become integers. If a whole number is too long for an integer, all values become texts.
    Numbers that are not whole become decimals with at most 76 digits. If there are longer numbers, NaN or
    infinity, all numbers become floats.
    """
    present_values = [value for value in values if value is not None]
    if not all(isfinite(value) for value in present_values):
        return _floats(values)
    scale = max(-int(Decimal(value).as_tuple().exponent) for value in present_values)
    if scale <= 0:
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    for digits, type_ in ((38, pa.decimal128), (76, pa.decimal256)):
        with suppress(ValueError, pa.ArrowException):
            if scale <= digits:
                return pa.array(values, type_(digits, scale))
    return _floats(values)


def _floats(values: list[Any]) -> pa.Array:
    """Return the nearest float for each value.

    Raises ValueError for a whole number that a float cannot represent. If the function raises ValueError,
    the caller converts the column to texts.
    """
    for value in values:
        if isinstance(value, int | Decimal) and isfinite(value) and value == int(value) != int(float(value)):
            raise ValueError(value)
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _shortest(column: pa.Array) -> pa.Array:
    """Return numbers of single precision with the fewest digits that identify them, such as 0.1."""
    return column.cast(pa.float32(), safe=False).cast(pa.string()).cast(pa.float64())


_KINDS: tuple[tuple[type | tuple[type, ...], Callable[[list[Any]], pa.Array]], ...] = (
    (bool, lambda values: pa.array(values, pa.bool_())),
    (int, lambda values: pa.array(values, pa.int64())),
    ((int, float), lambda values: pa.array(values, pa.float64())),
    ((int, Decimal), _decimals),
    ((int, float, Decimal), _floats),
    (datetime, _times),
    (date, lambda values: pa.array(values, pa.date32())),
    ((bytes, memoryview, bytearray), lambda values: pa.array(values, pa.binary())),
    (timedelta, lambda values: _floats([v and v.total_seconds() for v in values])),
    (Interval, lambda values: _floats([v and v.seconds for v in values])),
    (str, lambda values: pa.array(values, pa.string())),
)


def _text(value: Any) -> str:  # noqa: ANN401  whatever a driver makes of a column
    match value:
        case Decimal():
            return format(value, "f")
        case dict() | list():
            return json.dumps(_element(value), default=str, ensure_ascii=False)
        case datetime():  # must equal the text that Arrow writes for a column that has only times
            moment = value.astimezone(UTC) if value.tzinfo else value
            return f"{moment.replace(tzinfo=None).isoformat(' ', 'microseconds')}Z"
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
    return str(value)


def _element(value: Any) -> Any:  # noqa: ANN401
    """Return the element of a list or map as JSON. Numbers and bytes that JSON cannot represent are written
    as PostgreSQL writes them."""
    match value:
        case list():
            return [_element(one) for one in value]
        case float() if not isfinite(value):
            return json.dumps(value)
        case bytes() | bytearray() | memoryview():
            return f"\\x{bytes(value).hex()}"
    return value


_TOLD: Mapping[str, tuple[str, ...]] = {
    "postgresql": (
        "SET LOCAL TIME ZONE 'UTC'",
        "SET LOCAL IntervalStyle = 'postgres'",
        "SET LOCAL DateStyle = 'ISO'",
    ),
    "mysql": ("SET time_zone = '+00:00'",),
    "mariadb": ("SET time_zone = '+00:00'",),
}
"""The settings of the database session, by the kind of the database. Gridmill reads times without a zone as
UTC, so the database must return times in UTC."""
_INTERVAL = re.compile(r"(?:([-+]?\d+) days?)? ?(?:([-+])?(\d+):(\d+):(\d+)(?:\.(\d+))?)?")
"""A pattern for an interval without months and years in the style of PostgreSQL, such as `-1 days
+02:03:04.5`."""
_AS_WRITTEN = (
    *("json", "jsonb", "time", "timetz"),
    *("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
    *(
        "int4multirange",
        "int8multirange",
        "nummultirange",
        "datemultirange",
        "tsmultirange",
        "tstzmultirange",
    ),
)
"""PostgreSQL types whose values become texts, as the database writes them."""


def connect_arguments(url: sa.URL) -> dict[str, Any]:
    """Return the options with which the driver connects to the database. Raises ModuleNotFoundError."""
    if (url.get_backend_name(), url.get_driver_name()) not in {("mysql", "pymysql"), ("mariadb", "pymysql")}:
        return {}
    from pymysql.constants import FIELD_TYPE
    from pymysql.converters import conversions, convert_date, convert_datetime

    ours = {
        FIELD_TYPE.TIME: str,  # as text, because a TIME may exceed a day: 25:00:00.5 is a valid TIME
        FIELD_TYPE.BIT: lambda value: int.from_bytes(value, "big"),
        FIELD_TYPE.DATE: _or_unreadable(convert_date),
        FIELD_TYPE.DATETIME: _or_unreadable(convert_datetime),
        FIELD_TYPE.TIMESTAMP: _or_unreadable(convert_datetime),
    }
    return {"conv": {**conversions, **ours}}


def _or_unreadable(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a converter that detects times which Python cannot represent.

    The converter is needed because PyMySQL returns the text of a value that it cannot parse, such as
    0000-00-00.
    """

    def read(text: str) -> Any:  # noqa: ANN401
        value = convert(text)
        return UnrepresentableTime(value) if isinstance(value, str) else value

    return read


def begin(connection: sa.Connection) -> None:
    """Configure how the database writes values in the transaction that has begun."""
    for statement in _TOLD.get(connection.dialect.name, ()):
        connection.exec_driver_sql(statement)


def read_as_written(connection: sa.Connection) -> None:
    """Make the driver return texts for all values that Python types would change.

    Call this function after SQLAlchemy has inspected the table, because the inspection needs JSON values.
    """
    if connection.dialect.driver != "psycopg":
        return
    from psycopg.adapt import Loader
    from psycopg.types.string import TextLoader

    class Reading(Loader):
        """Reads intervals as the database writes them, together with their seconds."""

        def load(self, data: Any) -> Interval:  # noqa: ANN401  a buffer
            found = Interval(bytes(data).decode())
            found.seconds = _seconds_of(found)
            return found

    adapters = _adapters(connection)
    for name in _AS_WRITTEN:
        adapters.register_loader(name, TextLoader)
    adapters.register_loader("interval", Reading)


def _seconds_of(interval: str) -> float | None:
    """Return the length of the interval in seconds, which can exceed any `timedelta`. Return None if the
    interval has months or years."""
    match = _INTERVAL.fullmatch(interval)
    if match is None:
        return None
    days, sign, hours, minutes, seconds, parts = match.groups(default="0")
    microseconds = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(f"{parts:0<6}")
    return (int(days) * 86_400_000_000 + (-microseconds if sign == "-" else microseconds)) / 1_000_000


def read_all_times(connection: sa.Connection) -> bool:
    """Make the driver also return times that Python cannot represent, as `UnrepresentableTime`. Reading such
    times is slower.

    Returns False if the driver always reads such times.
    """
    if connection.dialect.driver != "psycopg":
        return False
    from psycopg import DataError
    from psycopg.types import datetime as times

    def lenient(loader: type[Any]) -> type[Any]:
        class Lenient(loader):  # type: ignore[misc]
            def load(self, data: Any) -> Any:  # noqa: ANN401
                try:
                    return super().load(data)
                except DataError:
                    return UnrepresentableTime(bytes(data).decode())

        return Lenient

    adapters = _adapters(connection)
    adapters.register_loader("date", lenient(times.DateLoader))
    adapters.register_loader("timestamp", lenient(times.TimestampLoader))
    adapters.register_loader("timestamptz", lenient(times.TimestamptzLoader))
    return True


def _adapters(connection: sa.Connection) -> Any:  # noqa: ANN401  psycopg's, which is loaded only where used
    driver: Any = connection.connection.driver_connection
    return driver.adapters
