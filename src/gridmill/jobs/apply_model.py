"""Applies a model to rows. A prediction job and a program that has the rows in memory get the same results.

Columns of the rows are found by name. Rows of a program are converted to an Arrow table. The result is
converted back to the type that the program passed.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gridmill.domain.naming import similar_name
from gridmill.domain.training import Objective
from gridmill.errors import DataError, InputError
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.features import (
    Encoding,
    Floats,
    Integers,
    as_lists,
    count_unknown,
    encode,
    is_number,
    numbers,
    runs,
)
from gridmill.jobs.intervals import quantile_columns, quantiles_of
from gridmill.jobs.metrics import decide
from gridmill.jobs.model_files import ModelCard, Predictor, load_card, load_model, predict_rows
from gridmill.jobs.subprocess_model import CodePredictor, check_trust

Rows = Any
"""The types of rows that a program can pass: a pandas or polars data frame, an Arrow table or batch, a list
of dicts, or an object with an Arrow stream."""
_FORMS = "a pandas or polars DataFrame, an Arrow table, or a list of dicts"


def as_arrow(rows: Rows) -> pa.Table:
    """Return the rows as an Arrow table. Raises InputError for an object without rows, or for a column with
    values of several types."""
    if isinstance(rows, pa.Table):
        return _checked(rows)
    with _explained():
        if isinstance(rows, pa.RecordBatch):
            return _checked(pa.Table.from_batches([rows]))
        if _is_frame(rows, "pandas"):
            return _checked(pa.Table.from_pandas(rows, preserve_index=False))
        if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
            return _from_dicts(rows)
        if hasattr(rows, "__arrow_c_stream__"):
            return _checked(pa.table(rows))
    hint = "Write one row as [{...}], a list with one dict." if isinstance(rows, Mapping) else ""
    raise InputError(f"rows must be {_FORMS}, not {type(rows).__name__}", hint=hint)


def _from_dicts(rows: Sequence[Any]) -> pa.Table:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(
                f"row {number} is {type(row).__name__}; each row of a list must be a dict of "
                "column names and values"
            )
        names |= dict.fromkeys(map(str, row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def _checked(table: pa.Table) -> pa.Table:
    twice = {name for name in table.column_names if table.column_names.count(name) > 1}
    if twice:
        raise InputError(f"several columns have the same name: {', '.join(sorted(map(repr, twice)))}")
    return table


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the rows cannot be read as a table: {error}",
            hint="All values of a column must have the same type.",
        ) from error


def in_form_of(rows: Rows) -> Callable[[pa.Table], Any]:
    """Return a function that converts a result into the type of `rows`: a pandas frame (with the index of
    `rows`), a polars frame, a list of dicts, or otherwise an Arrow table."""
    if _is_frame(rows, "pandas"):
        return lambda table: table.to_pandas().set_axis(rows.index)
    if _is_frame(rows, "polars"):
        return lambda table: sys.modules["polars"].from_arrow(table)
    if isinstance(rows, Sequence):
        return lambda table: table.to_pylist()
    return lambda table: table


def _is_frame(rows: Rows, library: str) -> bool:
    """Return whether `rows` is a DataFrame of the library named `library`. This function does not import the
    library, because `rows` can be a DataFrame of the library only if the program has already imported the
    library."""
    module = sys.modules.get(library)
    return module is not None and isinstance(rows, module.DataFrame)


def predict_span(predictor: Predictor, table: pa.Table, kept: Integers, before: int = 0) -> Floats:
    """Return the output of the model for the rows of `table` whose numbers are in `kept`. The earlier rows
    of `table` are the history of these rows.

    `before` is the number of rows of the dataset that come before `table`. Raises DataError if a column of
    the model is missing, or has another type than in training.
    """
    card = predictor.card
    inputs = encode(table, card.encodings)
    return predict_rows(predictor, inputs, runs(table, card.entity), kept, before=before)


def predicted_table(table: pa.Table, rows: Integers, predicted: Floats, card: ModelCard) -> pa.Table:
    """Return the prediction table for the rows of `table`. It contains the key columns of these rows, their
    row numbers (`rows`), and the predictions of the model.

    The columns of the prediction table are `row`, `prediction`, quantiles, `truth` if `table` has the
    labels, and `probability_CLASS`.
    """
    key_columns = [name for name in card.keys if name in table.column_names]
    columns: dict[str, Any] = {name: table[name] for name in key_columns}
    columns["row"] = pa.array(rows, pa.int64())
    if card.objective == Objective.CLASSIFICATION:
        likeliest = pa.array(decide(predicted, card.threshold), mask=np.isnan(predicted).any(axis=1))
        columns["prediction"] = card.classified.values().take(likeliest)
    else:
        columns["prediction"] = _numbers(predicted, card)
        for name, values in zip(
            quantile_columns(card.quantiles), quantiles_of(predicted, card.offsets), strict=True
        ):
            columns[name] = _numbers(values, card)
    if set(card.labels) <= set(table.column_names):
        columns["truth"] = _truth(table, card)
    for number, name in enumerate(probability_columns(card.classes)):
        columns[name] = pa.array(np.ascontiguousarray(predicted[:, number]), from_pandas=True)
    return pa.table(columns)


def _numbers(values: Floats, card: ModelCard) -> pa.Array:
    return as_lists(values) if card.many else pa.array(values, from_pandas=True)


def _truth(table: pa.Table, card: ModelCard) -> pa.ChunkedArray | pa.Array:
    label = table[card.labels[0]]
    if card.objective == Objective.CLASSIFICATION:
        return card.classified.truth(label)
    if card.many:
        return as_lists(np.stack([numbers(table[name]) for name in card.labels], axis=1))
    return pa.array(numbers(label), from_pandas=True) if is_number(label.type) else label


PIECE_ROWS = 65_536
"""The number of rows that are encoded in one step. If the model has 100 inputs, these rows need 52 MB."""


def apply_model(folder: Path, name: str, table: pa.Table, *, trust: bool = False) -> pa.Table:
    """Return the predictions for all rows of `table`, in the order of `table`, with the columns that a
    prediction job writes.

    If `table` has the columns of the entity and the time, the result contains these columns too. Other
    columns are ignored. Raises InputError for missing columns, DataError for columns of another type than in
    training.
    """
    card = load_card(folder)
    check_trust(card, name, trust, "predict", how="write `predict(rows, trust=True)`")
    table = _with_types(_needed(table, card, name), card)
    order = _order(table, card, name)
    predictor = CodePredictor(card=card, folder=folder) if card.predict else load_model(folder)
    try:
        predicted = _predicted(predictor, table.take(order), card)
    finally:
        if isinstance(predictor, CodePredictor):
            predictor.close()
    _warn(table.take(order), card, name)
    back = np.argsort(order)
    return predicted_table(table, np.arange(table.num_rows), predicted[back], card)


def _needed(table: pa.Table, card: ModelCard, name: str) -> pa.Table:
    """Return the columns that the model reads and the columns of `table` that the prediction repeats. Raises
    InputError if a column that the model needs is missing."""
    column_names, features = table.column_names, [encoding.column for encoding in card.encodings]
    missing = [column for column in features if column not in column_names]
    if missing:
        others = [column for column in column_names if column not in features]
        near = {column: similar_name(column, others) for column in missing}
        texts = [f"{column!r}" + (f" (there is `{one}`)" if one else "") for column, one in near.items()]
        hint = (
            f"The model needs {', '.join(features)}, in any order. Further columns are ignored. "
            "Compute these columns as the dataset of the model does, or use a prediction job."
        )
        noun = "column" if len(missing) == 1 else "columns"
        raise InputError(f"model {name} needs the {noun} {', '.join(texts)}", hint=hint)
    lost = [column for column in card.keys if column not in column_names] if card.sequence is not None else []
    if lost:
        raise InputError(
            f"model {name} reads the last {card.sequence} rows of each entity, and needs "
            f"{', '.join(map(repr, lost))} to find these rows",
            hint="Pass the columns of the entity and the time, and also earlier rows of each entity.",
        )
    wanted = dict.fromkeys([*card.keys, *features, *card.labels])
    return table.select([column for column in wanted if column in column_names])


def _with_types(table: pa.Table, card: ModelCard) -> pa.Table:
    """Return the table with the column types that files have, because polars stores texts as views, and
    pandas has categories. If all values of a text column in a list or data frame are missing, the column has
    no type, and this function sets it.
    """
    texts = {encoding.column for encoding in card.encodings if encoding.categories is not None}
    types = [_type(item.type, item.name in texts) for item in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def _type(kind: pa.DataType, is_text: bool) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, is_text)
    is_empty = is_text and pa.types.is_null(kind)
    return pa.string() if is_empty or pa.types.is_string_view(kind) else kind


def _order(table: pa.Table, card: ModelCard, name: str) -> Integers:
    """Return the row numbers in the order in which the model reads the rows: sorted by entity and time for a
    sequence model, otherwise unchanged."""
    if card.sequence is None or not card.keys:
        return np.arange(table.num_rows)
    keys = [_codes(table[column]) for column in card.entity]
    if card.time is not None:
        keys.append(_times(table[card.time], card.time, name))
    return np.lexsort(keys[::-1]).astype(np.int64)


def _codes(column: pa.ChunkedArray) -> Integers:
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    array = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    return np.asarray(array.indices.to_numpy(zero_copy_only=False), np.int64)


def _times(column: pa.ChunkedArray, time: str, name: str) -> Integers:
    try:
        moments = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
    except pa.ArrowException as error:
        raise DataError(
            f"column {time!r} has type {column.type}, but model {name} orders its rows by this time",
            hint="Convert the column to timestamps, for example with pandas.to_datetime.",
        ) from error
    if moments.null_count:
        raise DataError(f"column {time!r} has {moments.null_count} missing times")
    return np.asarray(moments.cast(pa.int64()).to_numpy(), np.int64)


def _predicted(predictor: Predictor, table: pa.Table, card: ModelCard) -> Floats:
    """Yield the predictions for each chunk of the table. Each chunk of the table is read together with the
    earlier rows that are its history."""
    if table.num_rows == 0:
        width = len(card.classes) or (len(card.labels) if card.many else 0)
        return np.zeros((0, width) if width else 0)
    predictions = []
    for first in range(0, table.num_rows, PIECE_ROWS):
        lead = min(first, (card.sequence or 1) - 1)
        piece = table.slice(first - lead, lead + PIECE_ROWS)
        kept = np.arange(lead, piece.num_rows, dtype=np.int64)
        predictions.append(predict_span(predictor, piece, kept, before=first - lead))
    return np.concatenate(predictions)


def _warn(table: pa.Table, card: ModelCard, name: str) -> None:
    """Print a warning for unknown categories, and for rows that have less history than the rows in training
    had."""
    rows = np.arange(table.num_rows)
    unknown = count_unknown(table, card.encodings, rows) if table.num_rows else 0
    if unknown:
        columns = ", ".join(_unknown_columns(table, card.encodings))
        _warn_user(
            f"{unknown:,} of {len(rows):,} rows have a category in {columns} that model {name} did not "
            "see in training"
        )
    if card.sequence is not None and table.num_rows:
        short = int((rows - runs(table, card.entity) < card.sequence - 1).sum())
        if short:
            _warn_user(
                f"{short:,} of {len(rows):,} rows have fewer than {card.sequence - 1} earlier rows of their "
                f"entity, which model {name} needs: the first row of the entity is repeated"
            )


def _warn_user(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _unknown_columns(table: pa.Table, encodings: Sequence[Encoding]) -> list[str]:
    rows = np.arange(table.num_rows)
    return [encoding.column for encoding in encodings if count_unknown(table, [encoding], rows)]
