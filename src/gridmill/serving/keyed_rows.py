"""The rows of a large request that have keys, and whose features are computed by key."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.errors import DataError, InputError
from gridmill.online.plan import OnlinePlan
from gridmill.online.requests import WHOLE
from gridmill.serving.bulk_features import BulkFeatures
from gridmill.serving.errors import FieldsError, RequestError
from gridmill.serving.fields import RowReader
from gridmill.serving.keyed_features import Row, read_keyed_line
from gridmill.serving.request_file import (
    CsvRows,
    LineRows,
    RequestRows,
    RowCallback,
    TableRows,
    check_columns,
)

_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NUMBERS = (*WHOLE, "DOUBLE", "FLOAT")


class KeyedRows(RequestRows):
    """The rows of a request whose features `by_key` computes."""

    by_key: BulkFeatures

    def write_features(self, to: Path, on_rows: RowCallback | None = None) -> int:
        """Compute the features of all rows from one state of the view, and write them as `RequestRows`
        does. Also raises MissingViewError, DamagedViewError."""
        with self.by_key:
            self.by_key.begin(to.parent)
            written = super().write_features(to, on_rows)
        self.table_versions, self.not_present = self.by_key.table_versions, self.by_key.not_present
        return written

    def shown(self) -> Any:  # noqa: ANN401  batches or None
        """Return the statuses and values of the features of each row."""
        return self.by_key.shown()

    def computed(self, rows: Sequence[Row], place: Callable[[int], str]) -> pa.Table:
        """Return the features of rows. `place` returns the text that names a row in errors."""
        try:
            return self.by_key.table_of(rows)
        except FieldsError as error:
            row = error.problems[0].row if error.problems else None
            raise self.refused(place(row or 0), error) from error


class KeyedLineRows(KeyedRows, LineRows):
    """The lines of a JSON Lines file, each an object with the fields of an HTTP request."""

    def __init__(self, path: Path, reader: RowReader, ending: str, by_key: BulkFeatures) -> None:
        super().__init__(path, reader, ending)
        self.by_key, self.is_list = by_key, False

    def features_of(self, piece: Sequence[tuple[int, bytes]]) -> pa.Table:
        """Return the features of a piece of numbered lines."""
        rows: list[Row] = []
        for number, line in piece:
            try:
                rows.append(read_keyed_line(line))
            except RequestError as error:
                raise self.refused(f"line {number}", error) from error
        return self.computed(rows, lambda row: f"line {piece[row][0]}")


class KeyedTableRows(KeyedRows, TableRows):
    """The rows of a Parquet file, or of a version of a sink."""

    has_cells = False
    """Whether all values are the texts of cells."""

    def __init__(
        self,
        label: str,
        reader: RowReader,
        ending: str,
        opened: Callable[[], pa.RecordBatchReader],
        by_key: BulkFeatures,
    ) -> None:
        super().__init__(label, reader, ending, opened)
        self.by_key = by_key

    def check_names(self, names: Sequence[str]) -> None:
        """Raise DataError if a column is missing that each request sends."""
        optional = [key for key, features in self.by_key.optional.items() if features <= {*names}]
        needed = [name for name in self.by_key.plan.request if name not in optional]
        check_columns(self.label, names, needed, self.hint)

    def checked(self, batch: pa.RecordBatch, before: int) -> pa.Table:
        """Return the features of a batch, whose first row is the row `before`."""
        try:
            rows = requests_of(batch, self.by_key.plan, has_cells=self.has_cells)
        except InputError as error:
            raise DataError(f"{self.label}: {error.message}", place="data") from error
        return self.computed(rows, lambda row: self.place_of(before + row))


class KeyedCsvRows(KeyedTableRows, CsvRows):
    """The rows of a CSV file."""

    has_cells = True

    def __init__(self, path: Path, reader: RowReader, ending: str, by_key: BulkFeatures) -> None:
        CsvRows.__init__(self, path, reader, ending)
        self.by_key = by_key


def requests_of(batch: pa.RecordBatch, plan: OnlinePlan, *, has_cells: bool) -> list[Row]:
    """Return the rows of a batch in the form of requests, with the columns that a request can send. Raises
    InputError for a column with values that a request cannot have."""
    kinds: dict[str, str] = {name: plan.types.get(name) or "DOUBLE" for name in plan.computed}
    kinds |= {**plan.request, **({plan.time: "TIMESTAMP"} if plan.time is not None else {})}
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
