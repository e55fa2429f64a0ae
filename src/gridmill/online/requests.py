"""Reads the rows of a request: the columns by their SQL types, and the as-of time of each row."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean, read_moment
from gridmill.errors import InputError
from gridmill.online.plan import OnlinePlan
from gridmill.online.row_codec import ARROW, Ints

WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """The columns of a request, and the as-of time of each row (microseconds since 1970). `given` has for
    each feature that a request may send whether each row has it."""

    table: pa.Table
    times: Ints
    given: Mapping[str, list[bool]]


def read_request(
    rows: Sequence[Mapping[str, Any]], plan: OnlinePlan, as_of: datetime | None, now_us: int
) -> RequestColumns:
    """Return the rows of a request as columns.

    A row may have the time of the dataset as its as-of time; otherwise `as_of` or else `now_us` is its time.
    A time without a zone is in UTC. Raises InputError that names the row and the field.
    """
    types = {**plan.request, **{name: plan.types.get(name, "") for name in plan.computed}}
    times = [_time(row, number, plan.time, as_of, now_us) for number, row in enumerate(rows)]
    columns: dict[str, pa.Array] = {}
    for name, kind in plan.request.items():
        columns[name] = pa.array(
            [_value(row, number, name, kind, plan) for number, row in enumerate(rows)], _arrow(kind)
        )
    given: dict[str, list[bool]] = {}
    for name in plan.computed:
        has = [name in row for row in rows]
        if any(has):
            given[name] = has
            columns[name] = pa.array(
                [
                    _converted(row.get(name), number, name, types[name] or "DOUBLE")
                    for number, row in enumerate(rows)
                ],
                _arrow(types[name] or "DOUBLE"),
            )
    return RequestColumns(
        table=pa.table(list(columns.values()), names=list(columns)),
        times=np.asarray(times, np.int64),
        given=given,
    )


def _arrow(kind: str) -> pa.DataType:
    return ARROW.get(kind, pa.float64())


def _value(row: Mapping[str, Any], number: int, name: str, kind: str, plan: OnlinePlan) -> Any:  # noqa: ANN401  a value of any type
    if name not in row:
        raise InputError(
            f"the field is missing{did_you_mean(name, row)}",
            hint=f"A row needs {', '.join(plan.request)}. Send null if a value is unknown.",
            place=f"rows[{number}].{name}",
        )
    return _converted(row[name], number, name, kind)


def _converted(value: Any, number: int, name: str, kind: str) -> Any:  # noqa: ANN401  a value of any type
    """Return the value in the type of its column. Raises InputError."""
    if value is None:
        return None
    place = f"rows[{number}].{name}"
    if kind in WHOLE:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_whole(value):
            raise _wrong(value, "a whole number", place)
        return _in_range(int(value), kind, place)
    if kind in ("DOUBLE", "FLOAT"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(value, "a number", place)
        return _float(value, place)
    if kind == "BOOLEAN":
        if not isinstance(value, bool):
            raise _wrong(value, "true or false", place)
        return value
    if kind == "TIMESTAMP":
        return microseconds_of(value, place)
    if kind == "DATE":
        return _date(value, place)
    if kind == "BLOB":
        return value if isinstance(value, bytes) else str(value).encode()
    if not isinstance(value, str) or not _is_text(value):
        raise _wrong(value, "a text", place)
    return value


def _is_whole(value: float) -> bool:
    return isfinite(value) and value == int(value) if isinstance(value, float) else True


def _float(value: float, place: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(value, "a number that a double can hold", place) from error


def _is_text(value: str) -> bool:
    """Return whether the text has a form in UTF-8; JSON can contain half of a pair of surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_range(value: int, kind: str, place: str) -> int:
    bits = ARROW[kind].bit_width
    low, high = (0, 2**bits) if kind.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= value < high:
        raise _wrong(value, f"a whole number from {low} to {high - 1}", place)
    return value


def _date(value: Any, place: str) -> date:  # noqa: ANN401  a value of any type
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if not isinstance(value, str):
        raise _wrong(value, "a date", place)
    return read_moment(value, place).date()


def _time(row: Mapping[str, Any], number: int, name: str | None, as_of: datetime | None, now_us: int) -> int:
    if name is not None and row.get(name) is not None:
        return microseconds_of(row[name], f"rows[{number}].{name}")
    return now_us if as_of is None else microseconds_of(as_of, "as_of")


def microseconds_of(value: Any, place: str) -> int:  # noqa: ANN401  a value of any type
    """Return a time (ISO 8601, or a datetime) in microseconds since 1970. A time without a zone is in UTC.
    Raises InputError."""
    if not isinstance(value, datetime | str):
        raise _wrong(value, "a time in ISO 8601", place)
    try:
        moment = read_moment(value, place) if isinstance(value, str) else _utc(value)
    except OverflowError as error:
        raise _wrong(value, "a time from the year 1 to the year 9999", place) from error
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _wrong(value: object, needed: str, place: str) -> InputError:
    shown = repr(value)
    return InputError(
        f"{shown if len(shown) <= 80 else shown[:77] + '...'} is not {needed}",
        hint="`GET /openapi.json` shows the type of each field.",
        place=place,
    )
