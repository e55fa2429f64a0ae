"""Rows of a table to predictions with names: the same in a prediction job and in a program outside."""

from typing import Any

import numpy as np
import pyarrow as pa

from gridmill.jobs.classes import probability_columns
from gridmill.jobs.decisions import decide
from gridmill.jobs.features import Floats, Integers, as_lists, encode, is_number, numbers, runs
from gridmill.jobs.intervals import quantile_columns, quantiles_of
from gridmill.jobs.models import Card, Predictor, predict_rows
from gridmill.model.training import Objective


def predict_span(predictor: Predictor, table: pa.Table, kept: Integers, before: int = 0) -> Floats:
    """What the model answers for the rows `kept` of `table`; the rows before them are their history.

    `before` rows of the dataset come before the table. Raises DataError for a column that is missing or has
    another type than in training.
    """
    card = predictor.card
    inputs = encode(table, card.encodings)
    return predict_rows(predictor, inputs, runs(table, card.entity), kept, before=before)


def predicted_table(table: pa.Table, rows: Integers, predicted: Floats, card: Card) -> pa.Table:
    """The result for the rows of `table`: their keys, their numbers `rows`, and what the model predicts.

    The columns are `row`, `prediction`, quantiles, `truth` where the table has the labels, and
    `probability_CLASS`.
    """
    there = [name for name in card.keys if name in table.column_names]
    columns: dict[str, Any] = {name: table[name] for name in there}
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


def _numbers(values: Floats, card: Card) -> pa.Array:
    return as_lists(values) if card.many else pa.array(values, from_pandas=True)


def _truth(table: pa.Table, card: Card) -> pa.ChunkedArray | pa.Array:
    label = table[card.labels[0]]
    if card.objective == Objective.CLASSIFICATION:
        return card.classified.truth(label)
    if card.many:
        return as_lists(np.stack([numbers(table[name]) for name in card.labels], axis=1))
    return pa.array(numbers(label), from_pandas=True) if is_number(label.type) else label
