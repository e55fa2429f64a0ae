"""Reads the rows of a large request to a service, and adds the predictions to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from gridmill.errors import DataError, InputError
from gridmill.jobs.write_rows import write_csv, write_jsonl, write_parquet

POSITION = "gridmill_position"
"""The column with the position of a row in the request, from 0."""
_WRITERS = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}
_FIRST_CSV_ROW = 2
"""The line of the first row of a CSV file without line breaks in values, after the line with the names."""


def read_request(source: Path, features: Mapping[str, str]) -> pa.Table:
    """Return the rows of a CSV, JSON Lines or Parquet file. `features` are the Arrow types of the features.
    The features of a CSV file stay texts. Raises InputError for a file that cannot be read."""
    try:
        if source.suffix == ".csv":
            texts = pa.csv.ConvertOptions(
                column_types=dict.fromkeys(features, pa.string()), strings_can_be_null=True
            )
            return pa.csv.read_csv(source, convert_options=texts)
        if source.suffix == ".jsonl":
            return pa.json.read_json(source)
        if source.suffix == ".parquet":
            return pq.read_table(source)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{source} cannot be read: {error}", place="data") from error
    raise InputError(
        f"{source} is no .csv, .jsonl or .parquet file",
        hint="Name a file with one of these endings, or a version such as `weather/hourly`.",
        place="data",
    )


def checked_request(table: pa.Table, features: Mapping[str, str], label: str) -> pa.Table:
    """Return the rows with the features as numbers and texts. `label` names the request in errors. Raises
    DataError that names the missing columns, or the row and the column of the first wrong value."""
    missing = [name for name in features if name not in table.column_names]
    if missing:
        raise DataError(
            f"{label} lacks {'the column' if len(missing) == 1 else 'the columns'} "
            f"{', '.join(f'`{name}`' for name in missing)}",
            hint=f"The service computes predictions from {', '.join(features)}. Without an HTTP request, it "
            "computes no feature by key.",
            place="data",
        )
    if not table.num_rows:
        raise DataError(f"{label} has no rows", place="data")
    for name, kind in features.items():
        converted = _converted(table[name], kind, name, label)
        table = table.set_column(table.column_names.index(name), name, converted)
    return table


def write_request(table: pa.Table, features: Mapping[str, str], to: Path) -> None:
    """Write the features of all rows with their positions as Parquet."""
    positions = pa.array(range(table.num_rows), pa.int64())
    pq.write_table(table.select(list(features)).append_column(POSITION, positions), to)


def _converted(column: pa.ChunkedArray, kind: str, name: str, label: str) -> pa.ChunkedArray:
    """Return a column as numbers, or as texts for a feature that is no number."""
    wanted = pa.float64() if _is_number(kind) else pa.string()
    if wanted == pa.float64() and pa.types.is_boolean(column.type):
        return column.cast(pa.int8()).cast(wanted)
    try:
        return column.cast(wanted)
    except pa.ArrowException:
        raise _first_wrong(column, wanted, name, label) from None


def _is_number(kind: str) -> bool:
    try:
        found = pa.type_for_alias(kind)
    except ValueError:
        return False
    return bool(pa.types.is_floating(found) or pa.types.is_integer(found) or pa.types.is_boolean(found))


def _first_wrong(column: pa.ChunkedArray, wanted: pa.DataType, name: str, label: str) -> DataError:
    """Return the error that names the first value that cannot be converted."""
    what = "a number" if wanted == pa.float64() else "a text"
    for position, value in enumerate(column):
        try:
            value.cast(wanted)
        except pa.ArrowException:
            line = f", line {position + _FIRST_CSV_ROW}" if label.endswith(".csv") else ""
            shown = str(value.as_py())[:80]
            return DataError(
                f"{label}, row {position + 1}{line}: column `{name}` has {shown!r}, which is not {what}",
                place="data",
            )
    return DataError(f"{label}: column `{name}` has the type {column.type}, not {what}", place="data")


def write_answer(table: pa.Table, predictions: pa.Table, file: IO[bytes], ending: str) -> int:
    """Write the rows of the request with the columns of their predictions, and return the number of rows.
    Raises InputError if a row has no prediction."""
    own = [name for name in predictions.column_names if name.startswith("prediction")]
    own += [name for name in predictions.column_names if name.startswith("probability_")]
    ordered = predictions.take(pc.sort_indices(predictions["row"]))
    if ordered.num_rows != table.num_rows:
        raise InputError(f"{ordered.num_rows} of {table.num_rows} rows have a prediction")
    kept = table.drop_columns([name for name in own if name in table.column_names])
    for name in own:
        kept = kept.append_column(name, ordered[name])
    return int(_WRITERS[ending](kept.to_reader(), file))


def answer_endings() -> tuple[str, ...]:
    """Return the endings of the files that an answer can have."""
    return tuple(_WRITERS)
