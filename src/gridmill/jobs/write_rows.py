"""Writes rows into a file as CSV, Parquet or JSON Lines, batch by batch."""

import json
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from gridmill.errors import InputError


def write_parquet(reader: pa.RecordBatchReader, file: IO[bytes]) -> int:
    """Write all rows with their types, and return the number of rows."""
    rows = 0
    with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def write_csv(reader: pa.RecordBatchReader, file: IO[bytes]) -> int:
    """Write all rows after a header line. A missing value becomes empty, an empty text becomes `""`, and
    lists become JSON.

    Times are written in ISO 8601. Raises InputError for columns of bytes, which CSV cannot store.
    """
    _refuse_bytes(reader.schema, "CSV")
    names, rows = reader.schema.names, 0
    schema = pa.schema([(item.name, _csv_type(item.type)) for item in reader.schema])
    with pa.csv.CSVWriter(file, schema) as writer:
        for batch in reader:
            cells = [_csv_column(batch.column(place)) for place in range(len(names))]
            writer.write_batch(pa.record_batch(cells, schema=schema))
            rows += batch.num_rows
    return rows


def _csv_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _csv_type(kind.value_type)
    if pa.types.is_nested(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.string()
    return kind


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        values = column.to_pylist()
        return pa.array([None if value is None else _json(value) for value in values], pa.string())
    if pa.types.is_timestamp(kind):
        form = "%Y-%m-%dT%H:%M:%SZ" if kind.tz else "%Y-%m-%dT%H:%M:%S"
        return pc.replace_substring_regex(pc.strftime(column, format=form), r"\.0+(Z?)$", r"\1")
    return column.cast(_csv_type(kind))


def write_jsonl(reader: pa.RecordBatchReader, file: IO[bytes]) -> int:
    """Write each row as a JSON object in a line of its own. NaN and infinite numbers become null. Raises
    InputError for columns of bytes."""
    _refuse_bytes(reader.schema, "JSON")
    rows = 0
    for batch in reader:
        file.write("".join(_json(row) + "\n" for row in batch.to_pylist()).encode())
        rows += batch.num_rows
    return rows


def _refuse_bytes(schema: pa.Schema, form: str) -> None:
    names = [item.name for item in schema if _holds_bytes(item.type)]
    if names:
        raise InputError(
            f"{form} cannot store the binary values of column {', '.join(map(repr, names))}",
            hint="Write a .parquet file, or select other columns with --columns.",
        )


def _holds_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _json(value: object) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:  # noqa: ANN401  a cell
    match value:
        case float():
            return value if isfinite(value) else None
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case Decimal() | timedelta():
            return str(value)
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return value
