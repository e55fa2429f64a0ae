"""Opens the file or the table of a large request to a service."""

import csv
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import time

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.service_features import FeatureDefinition
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError
from gridmill.jobs.model_files import ModelCard, load_card
from gridmill.online.definition import load_definition
from gridmill.serving.bulk_features import BulkFeatures, BulkOrder
from gridmill.serving.feature_processes import MOST_PROCESSES, usable_cpus
from gridmill.serving.fields import RowReader
from gridmill.serving.keyed_rows import KeyedCsvRows, KeyedLineRows, KeyedRows, KeyedTableRows
from gridmill.serving.request_file import PIECE_ROWS, CsvRows, LineRows, RequestRows, TableRows, reading

RowSource = Path | Callable[[], pa.RecordBatchReader]
"""A file, or a function that opens a table."""


def open_request(
    data: RowSource,
    label: str,
    model: Path,
    ending: str,
    hint: str = "",
    *,
    root: Path | None = None,
    definition: FeatureDefinition | None = None,
    wish: str = "",
    processes: int | None = None,
) -> RequestRows:
    """Return the rows of a .csv, .jsonl or .parquet file, or of a function that opens a table, as rows for
    the model in the folder `model`.

    `ending` is the ending of the file of the answer. `hint` is the hint of errors in rows that have none. If
    the rows are those of requests to a service that computes features by key, `definition` is the definition
    of the features, below the storage `root`, and `wish` is what the answer shows about the features. Up to
    `processes` processes compute the features (default: one for each CPU, at most MOST_PROCESSES). If the
    rows have all features of the model, they are used as they are. Raises InputError for another file.
    """
    card = load_card(model)
    reader = RowReader(card.encodings, card.sequence)
    if isinstance(data, Path) and data.suffix not in (".jsonl", ".csv", ".parquet"):
        raise InputError(
            f"{data} is no .csv, .jsonl or .parquet file",
            hint="Name a file with one of these endings, or a version such as `weather/hourly`.",
            place="data",
        )
    by_key = None
    if definition is not None and root is not None and not _is_complete(data, reader, definition, root, wish):
        order = BulkOrder(
            folder=str(below(root, definition.folder)),
            encodings=tuple(card.encodings),
            sequence=card.sequence,
            began=time(),
            wish=wish,
        )
        by_key = BulkFeatures(order)
    rows: RequestRows
    if by_key is not None:
        rows = _keyed(data, label, reader, ending, by_key)
        rows.processes = processes or min(usable_cpus(), MOST_PROCESSES)
    else:
        rows = _plain(data, label, reader, ending)
    if card.sequence is not None and (by_key or isinstance(rows, LineRows)):
        _check_sequence_keys(card, reader)
    rows.hint = hint
    return rows


def _plain(data: RowSource, label: str, reader: RowReader, ending: str) -> RequestRows:
    if isinstance(data, Path) and data.suffix == ".jsonl":
        return LineRows(data, reader, ending)
    if reader.sequence is not None:
        raise InputError(
            f"{label} cannot be used, because the model reads sequences of up to {reader.sequence} rows",
            hint="Use a .jsonl file. Each of its lines is a list of objects, as in a request to the "
            "service. Or declare a prediction in a pipeline, whose dataset has the entity and the time "
            "of each row.",
            place="data",
        )
    if not isinstance(data, Path):
        return TableRows(label, reader, ending, data)
    if data.suffix == ".csv":
        return CsvRows(data, reader, ending)
    return TableRows(label, reader, ending, lambda: _parquet(data))


def _keyed(data: RowSource, label: str, reader: RowReader, ending: str, by_key: BulkFeatures) -> KeyedRows:
    if not isinstance(data, Path):
        return KeyedTableRows(label, reader, ending, data, by_key)
    if data.suffix == ".jsonl":
        return KeyedLineRows(data, reader, ending, by_key)
    if data.suffix == ".csv":
        return KeyedCsvRows(data, reader, ending, by_key)
    return KeyedTableRows(label, reader, ending, lambda: _parquet(data), by_key)


def _is_complete(
    data: RowSource, reader: RowReader, definition: FeatureDefinition, root: Path, wish: str
) -> bool:
    """Return whether the rows are rows of the dataset of the model. An encoder can keep the name of the
    column that it encodes, so that the names do not show whether the values are encoded."""
    names = _names(data)
    if names is None:  # complete sequences
        return reader.sequence is not None
    if wish or reader.sequence is not None or load_definition(below(root, definition.folder)).encoders:
        return False
    return {field.name for field in reader.fields} <= {*names}


def _names(data: RowSource) -> Sequence[str] | None:
    """Return the names of the columns, or those in the first row of a JSON Lines file; None if this row is a
    list. Errors in the file are found when its rows are read."""
    if not isinstance(data, Path):
        return list(data().schema.names)
    with reading(str(data)):
        if data.suffix == ".parquet":
            return list(pq.read_schema(data).names)
        if data.suffix == ".csv":
            with data.open(encoding="utf-8-sig", newline="") as file:
                return next(filter(None, csv.reader(file)), [])
        with data.open("rb") as lines, suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            row = msgspec.json.decode(next(filter(bytes.strip, lines), b"{}"))
            return None if isinstance(row, list) else list(row) if isinstance(row, dict) else []
    return []


def _check_sequence_keys(card: ModelCard, reader: RowReader) -> None:
    """Raise InputError if the entity or the time is a feature of a model that reads sequences, because a list
    may then have rows of several entities, which a prediction job would separate."""
    names = {field.name for field in reader.fields}
    keys = [name for name in (*card.entity, *([card.time] if card.time else [])) if name in names]
    if keys:
        raise InputError(
            f"the model reads sequences, and its features include {', '.join(map(repr, keys))}, which "
            "identifies rows",
            hint="Declare a prediction in a pipeline, or send requests to the service.",
            place="service",
        )


def _parquet(path: Path) -> pa.RecordBatchReader:
    file = pq.ParquetFile(path)
    batches = file.iter_batches(PIECE_ROWS, use_threads=False)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, batches)
