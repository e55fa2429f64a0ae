"""Encodes the rows of a feed as bytes whose order is the order in which the window engine sorts rows with the
same key and time.

For each column, the bytes contain one byte that is 0 or 1 for a missing value, and then the value. Numbers
and times have 8 bytes, with the most significant byte first and the sign inverted, as in keys of databases. A
text ends with two zero bytes; a zero byte in a text is followed by 255. At the end is a checksum of two
bytes. Negative zero is stored as zero.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError
from gridmill.online.plan import Feed, StoredColumn

Ints: TypeAlias = NDArray[np.int64]
Key: TypeAlias = int | float | str | bytes
_SIGN = np.uint64(1 << 63)
_END, _ZERO = b"\x00\x00", b"\x00\xff"
SUM_BYTES = 2
_PRIME = 65_521
ARROW = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
}
"""The Arrow type of each SQL type that a view stores."""


class DamagedViewError(UnavailableError):
    """The stored rows of a view are not those that were written."""

    code = "unavailable"
    default_hint = "The service builds the view again. Then send the request again."


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCodec:
    """The encoding of the rows of one feed. If no column is text or bytes, all rows have the same length."""

    columns: tuple[StoredColumn, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether all rows have the same length."""
        return not any(_is_text(column) for column in self.columns)

    @property
    def _layout(self) -> np.dtype[Any]:
        parts = [(f"f{n}", "u1") for n in range(len(self.columns))]
        values = [(f"v{n}", ">u8") for n in range(len(self.columns))]
        return np.dtype([*chain.from_iterable(zip(parts, values, strict=True)), ("sum", ">u2")])

    def encode(self, rows: pa.Table) -> list[bytes]:
        """Return the bytes of each row of a table that has the columns of the feed."""
        if not self.is_fixed:
            return list(self._encode_each(rows))
        layout = self._layout
        made = np.zeros(rows.num_rows, layout)
        for number, column in enumerate(self.columns):
            values, missing = _ordered_bits(rows[column.name])
            made[f"f{number}"] = missing != column.nulls_first
            made[f"v{number}"] = values
        width = layout.itemsize
        made["sum"] = _checksums(made.view(np.uint8).reshape(len(made), width)[:, :-SUM_BYTES])
        text = made.tobytes()
        return [text[at : at + width] for at in range(0, len(text), width)]

    def _encode_each(self, rows: pa.Table) -> Iterator[bytes]:
        parts = [_encoded_column(rows[column.name], column) for column in self.columns]
        for values in zip(*parts, strict=True):
            row = b"".join(values)
            yield row + _checksum(row)

    def decode(self, rows: Sequence[bytes], names: Sequence[str]) -> pa.Table:
        """Return the columns `names` of the rows. Raises DamagedViewError if a row is not as it was
        written."""
        made = self._decode_fixed(rows) if self.is_fixed else self._decode_each(rows)
        return pa.table([made[name] for name in names], names=list(names))

    def _decode_fixed(self, rows: Sequence[bytes]) -> dict[str, pa.Array]:
        layout, text = self._layout, b"".join(rows)
        if len(text) != layout.itemsize * len(rows):
            raise _damaged()
        made = np.frombuffer(text, layout)
        plain = made.view(np.uint8).reshape(len(rows), layout.itemsize)
        if len(rows) and (_checksums(plain[:, :-SUM_BYTES]) != made["sum"]).any():
            raise _damaged()
        return {
            column.name: _array(
                made[f"v{number}"].astype(np.uint64), made[f"f{number}"] != column.nulls_first, column
            )
            for number, column in enumerate(self.columns)
        }

    def _decode_each(self, rows: Sequence[bytes]) -> dict[str, pa.Array]:
        columns: list[list[Any]] = [[] for _ in self.columns]
        flags: list[list[bool]] = [[] for _ in self.columns]
        for row in rows:
            if _checksum(row[:-SUM_BYTES]) != row[-SUM_BYTES:]:
                raise _damaged()
            at = 0
            for number, column in enumerate(self.columns):
                flags[number].append(bool(row[at]) != column.nulls_first)
                value, at = _read_text(row, at + 1) if _is_text(column) else _read_bits(row, at + 1)
                columns[number].append(value)
        made: dict[str, pa.Array] = {}
        for column, values, missing in zip(self.columns, columns, flags, strict=True):
            mask = np.asarray(missing, np.bool_)
            if _is_text(column):
                made[column.name] = pa.array(values, pa.binary(), mask=mask).cast(ARROW[column.type])
            else:
                made[column.name] = _array(np.asarray(values, np.uint64), mask, column)
        return made


def codec_of(feed: Feed) -> RowCodec:
    """Return the encoding of the rows of a feed."""
    return RowCodec(columns=feed.columns)


def _damaged() -> DamagedViewError:
    return DamagedViewError("the view is damaged: the checksum of a row is wrong")


def _is_text(column: StoredColumn) -> bool:
    return column.type in ("VARCHAR", "BLOB")


def _checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the checksum of each row: the sum of its bytes, each multiplied by its place."""
    weights = np.arange(1, rows.shape[1] + 1, dtype=np.int64)
    sums: NDArray[np.uint64] = ((rows.astype(np.int64) @ weights + 1) % _PRIME).astype(np.uint64)
    return sums


def _checksum(row: bytes) -> bytes:
    plain = np.frombuffer(row, np.uint8).reshape(1, len(row))
    return int(_checksums(plain)[0]).to_bytes(SUM_BYTES, "big")


def _ordered_bits(column: pa.ChunkedArray | pa.Array) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return for each value a number whose order is the order of the values, and whether the value is
    missing (its number is then 0)."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    missing = np.asarray(whole.is_null())
    if pa.types.is_floating(whole.type):
        numbers = whole.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        bits = numbers.view(np.uint64)
        ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    else:
        ordered = _whole_numbers(whole).fill_null(0).to_numpy().view(np.uint64) ^ _SIGN
    return np.where(missing, np.uint64(0), ordered), missing


def _whole_numbers(array: pa.Array) -> pa.Array:
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).cast(pa.int64())
    return array.cast(pa.int8() if pa.types.is_boolean(array.type) else pa.int64()).cast(pa.int64())


def _array(ordered: NDArray[np.uint64], missing: NDArray[np.bool_], column: StoredColumn) -> pa.Array:
    """Return the column of the values with these ordered bits."""
    mask = missing if missing.any() else None
    kind = ARROW[column.type]
    if pa.types.is_floating(kind):
        bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
        return pa.array(bits.view(np.float64), mask=mask).cast(kind)
    numbers = (ordered ^ _SIGN).view(np.int64)
    if mask is not None:
        numbers = np.where(missing, 0, numbers)
    if pa.types.is_boolean(kind):
        return pa.array(numbers.astype(np.bool_), mask=mask)
    if pa.types.is_date32(kind):
        return pa.array(numbers.astype(np.int32), mask=mask).view(kind)
    whole = pa.array(numbers, mask=mask)
    return whole.view(kind) if pa.types.is_timestamp(kind) else whole.cast(kind)


def _encoded_column(values: pa.ChunkedArray, column: StoredColumn) -> list[bytes]:
    flags = (b"\x00", b"\x01") if not column.nulls_first else (b"\x01", b"\x00")
    if not _is_text(column):
        ordered, missing = _ordered_bits(values)
        text = ordered.astype(">u8").tobytes()
        pieces = (text[at : at + 8] for at in range(0, len(text), 8))
        return [flags[int(gone)] + piece for gone, piece in zip(missing.tolist(), pieces, strict=True)]
    texts = values.cast(pa.binary()).to_pylist()
    return [
        flags[1] + _END if one is None else flags[0] + one.replace(b"\x00", _ZERO) + _END for one in texts
    ]


def _read_bits(row: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(row[at : at + 8], "big"), at + 8


def _read_text(row: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while True:
        end = row.find(b"\x00", end)
        if end < 0:
            raise _damaged()
        if row[end + 1 : end + 2] != b"\xff":
            return row[at:end].replace(_ZERO, b"\x00"), end + 2
        end += 2


def key_maker(types: Sequence[str]) -> Callable[[Sequence[Any]], Key | None]:
    """Return a function that converts the values of key columns to one value that SQLite compares.

    Numbers that are equal have the same key, also if their types differ. A key with a missing value is None,
    because it equals no other key.
    """
    if not types:
        return lambda _: 0
    if len(types) == 1:
        return lambda values: _single(values[0])
    return _composite


def _single(value: Any) -> Key | None:  # noqa: ANN401  a value of any type
    if value is None or isinstance(value, str | bytes):
        return value
    return _number(value)


def _number(value: float) -> int | float | str:
    if isinstance(value, float):
        if isnan(value):  # NaN equals NaN in SQL, and SQLite would store it as NULL
            return "NaN"
        return int(value) if value.is_integer() and abs(value) < 2**63 else value
    return int(value)


def _composite(values: Sequence[Any]) -> bytes | None:
    if any(value is None for value in values):
        return None
    return b"".join(_tagged(value) for value in values)


def _tagged(value: Any) -> bytes:  # noqa: ANN401  a value of any type
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return b"t" + text.replace(b"\x00", _ZERO) + _END
    number = _number(value)
    return b"n" + str(number).encode() + _END


def plain_keys(rows: pa.Table, names: Sequence[str]) -> list[list[Any]]:
    """Return the values of the key columns as Python values; dates and times become microseconds."""
    return [_plain_key(rows[name]).to_pylist() for name in names]


def _plain_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64())
    return column
