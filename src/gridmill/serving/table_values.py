"""Checks the values of a column by the rules for the fields of JSON rows."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.features import is_number
from gridmill.serving.errors import FieldsError, Problem
from gridmill.serving.fields import Field, FieldKind, problem_of

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def checked_values(field: Field, values: pa.Array) -> pa.Array:
    """Return the values of a column as doubles, or as texts for a field that is a text. NaN and infinity are
    missing, as in a binary tensor. Raises FieldsError for the first wrong value."""
    kind = values.type
    if field.kind == FieldKind.TEXT:
        if not (is_number(kind) or pa.types.is_nested(kind) or _is_binary(kind)):
            return values.cast(pa.string())
    elif is_number(kind) and (field.kind == FieldKind.BOOLEAN or not pa.types.is_boolean(kind)):
        return _doubles(values)
    for row, value in enumerate(values):
        if value.is_valid:
            raise _wrong(field, row, value.as_py())
    return pa.nulls(len(values), pa.string() if field.kind == FieldKind.TEXT else pa.float64())


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _doubles(values: pa.Array) -> pa.Array:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    numbers = pc.cast(values, pa.float64(), safe=False)
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def number_texts(field: Field, cells: pa.Array) -> pa.Array:
    """Return the cells of a CSV file as the doubles that JSON with the same texts has. An empty cell is a
    missing value. `true` and `false` are values of booleans. Raises FieldsError for the first wrong cell."""
    texts = pc.utf8_trim_whitespace(cells)
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if field.kind == FieldKind.BOOLEAN:
        lower = pc.utf8_lower(texts)
        texts = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", texts))
    wrong = pc.invert(pc.match_substring_regex(texts, _NUMBER))
    if not pc.any(wrong).as_py():
        numbers = pc.cast(pc.utf8_ltrim(texts, "+"), pa.float64())
        wrong = pc.invert(pc.is_finite(numbers))
    if not pc.any(wrong).as_py():
        return numbers
    row = int(np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))[0])
    raise _wrong(field, row, _json_value(texts[row].as_py()))


def _json_value(text: str) -> Any:  # noqa: ANN401  a scalar of JSON
    """Return the value that JSON with this text has: a boolean, a number that is too large, or a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text) if re.match(_NUMBER, text) else text


def _wrong(field: Field, row: int, value: object) -> FieldsError:
    if isinstance(value, Decimal):
        value = float(value)
    elif not isinstance(value, bool | int | float | str | list | dict):
        value = str(value)
    text = problem_of(field, {field.name: value})
    return FieldsError((Problem(row=row, field=field.name, problem=text or "the value is not valid"),))
