"""Converts the rows of a table with keys to the rows of requests."""

import re
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import InputError
from gridmill.online.plan import OnlinePlan
from gridmill.online.requests import WHOLE
from gridmill.serving.keyed_features import Row

_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NUMBERS = (*WHOLE, "DOUBLE", "FLOAT")


def requests_of(batch: pa.RecordBatch, plan: OnlinePlan, *, has_cells: bool) -> list[Row]:
    """Return the rows of a batch in the form of requests, with the columns that a request can send. Raises
    InputError for a column with values that a request cannot have."""
    kinds = _kinds(plan)
    names = [name for name in kinds if name in batch.schema.names]
    if not names:
        return [{} for _ in range(batch.num_rows)]
    read = _cells if has_cells else _values
    columns: list[list[Any]] = []
    for name in names:
        try:
            columns.append(read(batch[name], kinds[name]))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise InputError(
                f"the column `{name}` of the type {batch[name].type} has a value out of range, such as a "
                "year above 9999, or an unknown time zone"
            ) from error
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def sent_columns(batch: pa.RecordBatch, plan: OnlinePlan) -> pa.RecordBatch:
    """Return the columns of a batch that a request can send."""
    return batch.select([name for name in _kinds(plan) if name in batch.schema.names])


def _kinds(plan: OnlinePlan) -> dict[str, str]:
    """Return the SQL types of the columns that a request can send."""
    kinds: dict[str, str] = {name: plan.types.get(name) or "DOUBLE" for name in plan.computed}
    return kinds | {**plan.request, **({plan.time: "TIMESTAMP"} if plan.time is not None else {})}


def _values(column: pa.Array, kind: str) -> list[Any]:
    """Return the values of a column as a client sends them. NaN and infinity are missing, as in a binary
    tensor."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type):
        kind_us = pa.timestamp("us", column.type.tz)
        # an unsafe cast would also wrap a time that is out of range
        column = column.cast(options=pc.CastOptions(kind_us, allow_time_truncate=True))
    elif pa.types.is_date(column.type) and kind == "TIMESTAMP":
        column = column.cast(pa.timestamp("us"))
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [None if value is None or not isfinite(value) else value for value in values]
    if pa.types.is_decimal(column.type):
        return [_plain(value) for value in values]
    return values


def _plain(value: Decimal | None) -> int | float | None:
    if value is None:
        return None
    return int(value) if value == value.to_integral_value() else float(value)


def _cells(column: pa.Array, kind: str) -> list[Any]:
    """Return the values that JSON with the texts of the cells has. An empty cell is a missing value."""
    texts: list[str | None] = column.to_pylist()
    if kind in _NUMBERS:
        return [None if text is None else _number(text.strip()) for text in texts]
    if kind == "BOOLEAN":
        return [None if text is None else _BOOLEANS.get(text.strip().lower(), text) for text in texts]
    return texts


_BOOLEANS: Mapping[str, bool | None] = {"true": True, "false": False, "": None}


def _number(text: str) -> Any:  # noqa: ANN401  a scalar of JSON
    if _WHOLE_NUMBER.fullmatch(text) and len(text) < 25:
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return _BOOLEANS.get(text.lower(), text)
