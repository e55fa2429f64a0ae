"""A model applied to rows that a program holds: columns by name, results as in a prediction job."""

import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa

from gridmill.errors import DataError, InputError
from gridmill.jobs.features import Encoding, Floats, Integers, count_unknown, runs
from gridmill.jobs.foreign import CodePredictor, check_trust
from gridmill.jobs.models import Card, Predictor, load_card, load_model
from gridmill.jobs.predicting import predict_span, predicted_table

PIECE_ROWS = 65_536
"""Rows that are encoded at once: with 100 inputs 52 MB."""


def apply_model(folder: Path, name: str, table: pa.Table, *, trust: bool = False) -> pa.Table:
    """Predictions for all rows of `table`, in its order, as a prediction job writes them.

    Other columns are ignored; those of the entity and the time, where they are there, are in the result.
    Raises InputError for columns that are missing, DataError for those of another type than in training.
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


def _needed(table: pa.Table, card: Card, name: str) -> pa.Table:
    """The columns that the model reads, and those that the result repeats."""
    there, features = table.column_names, [encoding.column for encoding in card.encodings]
    missing = [column for column in features if column not in there]
    if missing:
        near = {column: get_close_matches(column, there, n=1) for column in missing}
        said = [f"{column!r}" + (f" (there is {n[0]!r})" if n else "") for column, n in near.items()]
        hint = f"It reads {', '.join(features)}; the order of the columns and further ones do not matter."
        raise InputError(f"model {name} needs the column {', '.join(said)}", hint=hint)
    lost = [column for column in card.keys if column not in there] if card.sequence is not None else []
    if lost:
        raise InputError(
            f"model {name} looks at the last {card.sequence} rows up to each one, and needs"
            f" {', '.join(map(repr, lost))} to know which these are",
            hint="Give it the entity, the time, and rows from before those that you want predicted.",
        )
    wanted = dict.fromkeys([*card.keys, *features, *card.labels])
    return table.select([column for column in wanted if column in there])


def _with_types(table: pa.Table, card: Card) -> pa.Table:
    """The table with the types of files: polars has texts as views, pandas has categories, and a column of
    text without any value has no type of its own in lists and data frames."""
    texts = {encoding.column for encoding in card.encodings if encoding.categories is not None}
    types = [_type(item.type, item.name in texts) for item in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def _type(kind: pa.DataType, is_text: bool) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, is_text)
    is_empty = is_text and pa.types.is_null(kind)
    return pa.string() if is_empty or pa.types.is_string_view(kind) else kind


def _order(table: pa.Table, card: Card, name: str) -> Integers:
    """The numbers of the rows by entity and time for a model of sequences; else as they are."""
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
            f"column {time!r} is {column.type}, and model {name} orders its rows by time",
            hint="Convert it to times, for example by pandas.to_datetime.",
        ) from error
    if moments.null_count:
        raise DataError(f"column {time!r} has {moments.null_count} missing times")
    return np.asarray(moments.cast(pa.int64()).to_numpy(), np.int64)


def _predicted(predictor: Predictor, table: pa.Table, card: Card) -> Floats:
    """Piece by piece, each after the rows that are its history."""
    if table.num_rows == 0:
        width = len(card.classes) or (len(card.labels) if card.many else 0)
        return np.zeros((0, width) if width else 0)
    found = []
    for first in range(0, table.num_rows, PIECE_ROWS):
        lead = min(first, (card.sequence or 1) - 1)
        piece = table.slice(first - lead, lead + PIECE_ROWS)
        kept = np.arange(lead, piece.num_rows, dtype=np.int64)
        found.append(predict_span(predictor, piece, kept, before=first - lead))
    return np.concatenate(found)


def _warn(table: pa.Table, card: Card, name: str) -> None:
    """Warn of rows that are predicted with less than the model was trained with."""
    rows = np.arange(table.num_rows)
    unknown = count_unknown(table, card.encodings, rows) if table.num_rows else 0
    if unknown:
        columns = ", ".join(_unknown_columns(table, card.encodings))
        _say(f"{unknown:,} of {len(rows):,} rows have a category in {columns} that {name} has not learned")
    if card.sequence is not None and table.num_rows:
        short = int((rows - runs(table, card.entity) < card.sequence - 1).sum())
        if short:
            _say(
                f"{short:,} of {len(rows):,} rows have fewer than {card.sequence - 1} rows before them, which"
                f" {name} looks at: their first row is repeated"
            )


def _say(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _unknown_columns(table: pa.Table, encodings: Sequence[Encoding]) -> list[str]:
    rows = np.arange(table.num_rows)
    return [one.column for one in encodings if count_unknown(table, [one], rows)]
