"""Encodes columns of a dataset as a matrix of numbers, in the same way in training, prediction and
serving."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

AT_ONCE = 2**15
"""The number of rows that are encoded in one step."""
OTHERS = "(others)"
"""The name of the input that all rare categories of a column share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The conversion of a column into inputs of a model. A numeric column becomes one input. A column that
    is not numeric has a 0/1 input for each category.

    `type` is the Arrow type of the column. `categories` contains the categories that occur in the training
    rows. If there are too many categories, `categories` has only the most frequent categories, and the last
    input is 1 for all `others`. If a category has no input, or if the value is missing, all inputs of the
    column are
    0. The inputs of missing and infinite numbers are NaN.
    """

    column: str
    type: str
    categories: tuple[str, ...] | None = None
    others: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, such as `temp`, or `origin=EWR` and `origin=JFK`."""
        if self.categories is None:
            return (self.column,)
        names = (*self.categories, OTHERS) if self.others else self.categories
        return tuple(f"{self.column}={name}" for name in names)


def is_number(kind: pa.DataType) -> bool:
    """Return whether the column type is a number or boolean, or the type of a column without any values."""
    tests = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_boolean,
        pa.types.is_null,
    )
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Return whether the column type is text, plain or dictionary-encoded."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def encode(table: pa.Table, encodings: Sequence[Encoding]) -> Floats:
    """Return the inputs as an array of the shape [rows, inputs]. Raises DataError if a column is missing or
    has another type than in training."""
    matrix = np.empty((table.num_rows, sum(len(encoding.inputs) for encoding in encodings)))
    # to encode a whole column at once would write to every memory page of the matrix
    for start in range(0, table.num_rows or 1, AT_ONCE):
        _encode_rows(matrix[start : start + AT_ONCE], table.slice(start, AT_ONCE), encodings)
    return matrix


def _encode_rows(target: Floats, table: pa.Table, encodings: Sequence[Encoding]) -> None:
    at = 0
    for encoding in encodings:
        width = len(encoding.inputs)
        _fill(target[:, at : at + width], table, encoding)
        at += width


def _fill(target: Floats, table: pa.Table, encoding: Encoding) -> None:
    if encoding.column not in table.column_names:
        raise DataError(f"the model needs column {encoding.column!r}, which the dataset does not have")
    column = table[encoding.column]
    if (encoding.categories is None) != is_number(column.type):
        raise DataError(
            f"column {encoding.column!r} was {encoding.type} in training and is {column.type} now"
        )
    if encoding.categories is None:
        target[:, 0] = numbers(column)
    else:
        codes = pc.index_in(column.cast(pa.string()), value_set=pa.array(encoding.categories, pa.string()))
        filled = pc.fill_null(codes, -1).to_numpy()
        if encoding.others:
            filled = np.where((filled < 0) & pc.is_valid(column).to_numpy(), len(encoding.categories), filled)
        target[:] = filled[:, None] == np.arange(len(encoding.inputs))


def count_unknown(table: pa.Table, encodings: Sequence[Encoding], rows: Integers) -> int:
    """Return the number of rows with a category that the training rows do not have. All inputs of an unknown
    category are 0.

    Columns in which rare categories share an input are not counted, because an unknown category is treated
    as a rare category.
    """
    unknown = np.zeros(len(rows), bool)
    for encoding in encodings:
        if encoding.categories and not encoding.others:
            column = table[encoding.column].take(rows).cast(pa.string())
            is_known = pc.is_in(column, value_set=pa.array(encoding.categories, pa.string()))
            unknown |= ~np.asarray(pc.or_(is_known, pc.is_null(column)).to_numpy(), bool)
    return int(unknown.sum())


def numbers(column: pa.ChunkedArray) -> Floats:
    """Return a numeric column as doubles. Missing and infinite numbers become NaN in the result."""
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    values: Floats = pc.cast(column, pa.float64(), safe=False).to_numpy().astype(np.float64, copy=True)
    values[~np.isfinite(values)] = np.nan
    return values


def list_numbers(column: pa.ChunkedArray, width: int) -> Floats:
    """Return a column of lists as an array [rows, width]. A row without a list contains only NaN. Raises
    DataError if a list has another length than `width`."""
    is_valid = np.asarray(pc.is_valid(column).to_numpy(), bool)
    lists = column.filter(pc.is_valid(column)).combine_chunks()
    if len(lists) and pc.any(pc.not_equal(pc.list_value_length(lists), width)).as_py():
        raise DataError(f"some lists do not have {width} values")
    result = np.full((len(column), width), np.nan)
    result[is_valid] = numbers(pa.chunked_array([pc.list_flatten(lists)])).reshape(-1, width)
    return result


def has_all_values(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return for each row whether it has a value. If the value is a list, the result is true if no element
    of the list is missing or NaN."""
    result = np.array(pc.is_valid(column).to_numpy(), bool)
    if pa.types.is_list(column.type):
        lists = column.filter(pc.is_valid(column)).combine_chunks()
        row = np.repeat(np.flatnonzero(result), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
        missing = pc.is_null(pc.list_flatten(lists), nan_is_null=True).to_numpy(zero_copy_only=False)
        result[row[missing]] = False
    return result


def as_lists(values: Floats) -> pa.Array:
    """Return an array [rows, width] as a column of lists. A row of the array that contains NaN becomes a
    missing value."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    missing = pa.array(np.isnan(values).all(axis=1))
    items = pa.array(values.reshape(-1), from_pandas=True)
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=missing)


def present_values(table: pa.Table, columns: Sequence[str | None]) -> Floats:
    """Return the values of the label columns at the time of each row, in the shape [rows] or [rows, labels].
    Missing values are NaN."""
    missing = np.full(table.num_rows, np.nan)
    found = [
        numbers(table[name]) if name in table.column_names and is_number(table[name].type) else missing
        for name in columns
    ]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def runs(table: pa.Table, columns: Sequence[str]) -> Integers:
    """Return for each row the number of the first row of its run.

    A run is a sequence of consecutive rows with equal values in all `columns`.
    """
    changes = np.zeros(table.num_rows, bool)
    for name in columns:
        codes = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
        values = np.asarray(_indices(codes))
        changes[1:] |= values[1:] != values[:-1]
    first = np.where(changes, np.arange(table.num_rows), 0)
    starts: Integers = np.maximum.accumulate(first).astype(np.int64)
    return starts


def _indices(codes: pa.Array) -> npt.NDArray[np.int32]:
    array = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    indices: npt.NDArray[np.int32] = array.indices.to_numpy(zero_copy_only=False)
    return indices


def windows(rows: Integers, starts: Integers, length: int) -> Integers:
    """Return an array [rows, length] with the numbers of the last `length` rows up to each row, within the
    run of the row.

    If a run has fewer earlier rows, the first row of the run is repeated, so that every row has a full
    window.
    """
    reach = rows[:, None] + np.arange(1 - length, 1)
    result: Integers = np.maximum(reach, starts[rows][:, None])
    return result
