"""Detects information that a conversion would lose: digits of numbers, leading zeros, parts of times."""

from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXACT = 2**53
"""All whole numbers up to this number can be stored exactly as floats. Only some of the larger whole numbers
can be stored exactly as floats."""
_DIGITS = 15
"""A float stores at least this number of digits of any number, and at most 17 digits."""
_WHOLE = r"^[+-]?[0-9]+$"
_KEY = r"^([+-]?0([0-9]+|[xX][0-9a-fA-F]+)|\+[0-9]{7,})$"
_NANOSECONDS = r"\.\d{6}\d*[1-9]"
_MICROSECONDS_LENGTH = len("2024-01-01T00:00:00.000000")
_DAY_MICROSECONDS = 24 * 3600 * 10**6


def has_keys(texts: pa.ChunkedArray) -> bool:
    """Return whether any text is a whole number that looks like a key.

    Numbers that look like a key begin with a zero, as ZIP codes can, or have `+` before at least seven
    digits, as telephone numbers have.
    """
    return bool(pc.any(is_key(texts)).as_py())


def is_key(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each text whether it looks like a key (see `has_keys`), or is a number such as `0x1f`,
    which Arrow reads as a number, too."""
    return pc.match_substring_regex(texts, _KEY)


def inexact_rows(column: pa.ChunkedArray) -> Iterator[int]:
    """Yield the rows with whole numbers that a float cannot represent exactly, in order. The texts in the
    column are trimmed numbers."""
    for row, number in _large(column):
        if int(float(number)) != number:
            yield row


def _large(column: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    """Yield the rows and values of whole numbers that are larger than 2^53. The function also yields some
    other numbers."""
    kind = column.type
    if pa.types.is_integer(kind):
        ends = pc.min_max(column)
        if column.null_count < len(column) and not _within(ends["min"].as_py(), ends["max"].as_py()):
            yield from _picked(column, pc.greater(pc.abs(column.cast(pa.float64(), safe=False)), EXACT - 1))
    elif pa.types.is_decimal(kind):
        if kind.scale <= 0:
            yield from _picked(column, pc.is_valid(column))
    elif pa.types.is_string(kind):
        long = pc.greater_equal(pc.binary_length(column), len(str(EXACT)))
        if pc.any(long).as_py():
            yield from _picked(column, pc.and_(long, pc.match_substring_regex(column, _WHOLE)))


def _within(least: int, most: int) -> bool:
    return least >= -EXACT and most <= EXACT


def _picked(column: pa.ChunkedArray, mask: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    rows = np.flatnonzero(pc.fill_null(mask, False).to_numpy())
    for row, value in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
        yield row, int(value)


def is_beyond(column: pa.ChunkedArray) -> bool:
    """Return whether any float is so large that it may have lost digits of a whole number."""
    ends = pc.min_max(pc.abs(column))
    most = ends["max"].as_py()
    return most is not None and most >= EXACT


def count_rounded(column: pa.ChunkedArray) -> int:
    """Return the number of values (whole numbers and decimals) that lose digits if they are stored as
    floats. The texts in the column are trimmed numbers."""
    if pa.types.is_decimal(column.type) and column.type.scale > 0:
        return 0 if column.type.precision <= _DIGITS else sum(map(_is_rounded, column.to_pylist()))
    return sum(1 for _ in inexact_rows(column))


def _is_rounded(value: Decimal | None) -> bool:
    return value is not None and Decimal(repr(float(value))) != value


def count_cut(column: pa.ChunkedArray) -> int:
    """Return the number of times that have fractions of a microsecond."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.unit != "ns":
            return 0
        numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        return int(np.count_nonzero(numbers % 1000))
    if pa.types.is_string(kind) and (pc.max(pc.binary_length(column)).as_py() or 0) > _MICROSECONDS_LENGTH:
        return int(pc.sum(pc.match_substring_regex(column, _NANOSECONDS)).as_py() or 0)
    return 0


def in_day(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each time (in microseconds) whether it is not midnight."""
    numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    return pa.chunked_array([pa.array(numbers % _DAY_MICROSECONDS != 0)])
