"""What a database is told before it is read, and how its driver's values are read: without losing any."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from gridmill.jobs.sink.sql.columns import Interval, Unreadable

_TOLD: Mapping[str, tuple[str, ...]] = {
    "postgresql": (
        "SET LOCAL TIME ZONE 'UTC'",
        "SET LOCAL IntervalStyle = 'postgres'",
        "SET LOCAL DateStyle = 'ISO'",
    ),
    "mysql": ("SET time_zone = '+00:00'",),
    "mariadb": ("SET time_zone = '+00:00'",),
}
"""Times without a zone are taken as UTC, so the database has to show them so."""
_INTERVAL = re.compile(r"(?:([-+]?\d+) days?)? ?(?:([-+])?(\d+):(\d+):(\d+)(?:\.(\d+))?)?")
"""One without months and years, in PostgreSQL's own style: `-1 days +02:03:04.5`."""
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
"""PostgreSQL's types that are texts in a table, as the database writes them."""


def connect_arguments(url: sa.URL) -> dict[str, Any]:
    """What the driver is told when it connects. Raises ModuleNotFoundError."""
    if (url.get_backend_name(), url.get_driver_name()) not in {("mysql", "pymysql"), ("mariadb", "pymysql")}:
        return {}
    from pymysql.constants import FIELD_TYPE
    from pymysql.converters import conversions, convert_date, convert_datetime

    ours = {
        FIELD_TYPE.TIME: str,  # 25:00:00.5 is one
        FIELD_TYPE.BIT: lambda value: int.from_bytes(value, "big"),
        FIELD_TYPE.DATE: _or_unreadable(convert_date),
        FIELD_TYPE.DATETIME: _or_unreadable(convert_datetime),
        FIELD_TYPE.TIMESTAMP: _or_unreadable(convert_datetime),
    }
    return {"conv": {**conversions, **ours}}


def _or_unreadable(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """PyMySQL gives back the text of what it cannot read, such as 0000-00-00."""

    def read(text: str) -> Any:  # noqa: ANN401
        value = convert(text)
        return Unreadable(value) if isinstance(value, str) else value

    return read


def begin(connection: sa.Connection) -> None:
    """Tell the database, in the transaction that has begun, how to show values."""
    for statement in _TOLD.get(connection.dialect.name, ()):
        connection.exec_driver_sql(statement)


def read_as_written(connection: sa.Connection) -> None:
    """Read as texts, from now on, what Python's values would change. Not sooner: SQLAlchemy needs JSON as
    values when it looks at a table."""
    if connection.dialect.driver != "psycopg":
        return
    from psycopg.adapt import Loader
    from psycopg.types.string import TextLoader

    class Reading(Loader):
        """Intervals as they are written, with their seconds."""

        def load(self, data: Any) -> Interval:  # noqa: ANN401  a buffer
            found = Interval(bytes(data).decode())
            found.seconds = _seconds_of(found)
            return found

    adapters = _adapters(connection)
    for name in _AS_WRITTEN:
        adapters.register_loader(name, TextLoader)
    adapters.register_loader("interval", Reading)


def _seconds_of(interval: str) -> float | None:
    """Its length, which can be longer than any `timedelta`; None with months or years."""
    found = _INTERVAL.fullmatch(interval)
    if found is None:
        return None
    days, sign, hours, minutes, seconds, parts = found.groups(default="0")
    microseconds = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(f"{parts:0<6}")
    return (int(days) * 86_400_000_000 + (-microseconds if sign == "-" else microseconds)) / 1_000_000


def read_all_times(connection: sa.Connection) -> bool:
    """Read those too that Python has no value for, as `Unreadable`, which takes longer. False where the
    driver does so in any case."""
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
                    return Unreadable(bytes(data).decode())

        return Lenient

    adapters = _adapters(connection)
    adapters.register_loader("date", lenient(times.DateLoader))
    adapters.register_loader("timestamp", lenient(times.TimestampLoader))
    adapters.register_loader("timestamptz", lenient(times.TimestamptzLoader))
    return True


def _adapters(connection: sa.Connection) -> Any:  # noqa: ANN401  psycopg's, which is loaded only where used
    driver: Any = connection.connection.driver_connection
    return driver.adapters
