"""The statistics of the training rows, with which services compare the rows of requests, and the counting of
rows in their bins."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gridmill.codec import encode
from gridmill.domain.drift import PREDICTION, STATISTICS_FILE, Bins, Counts, TrainingStatistics
from gridmill.jobs.features import Encoding, Floats, Integers
from gridmill.jobs.metrics import decide
from gridmill.jobs.model_files import ModelCard

NUMBER_BINS = 10
"""The number of bins of a number, which have about the same number of training rows."""
MOST_FEATURES, MOST_CATEGORIES = 300, 30
"""The largest number of features, and of categories of a text, that are counted."""
MOST_ROWS = 50_000
"""The largest number of rows from which the statistics are computed."""


def spread_rows(rows: int) -> slice:
    """Return the rows of which at most MOST_ROWS are taken, at equal distances."""
    return slice(None, None, max(1, -(-rows // MOST_ROWS)))


def statistics_of(card: ModelCard, inputs: Floats, predicted: Floats) -> TrainingStatistics:
    """Return the statistics of rows [rows, inputs], and of the predictions of the model [rows] or [rows,
    outputs]. `predicted` may be of other rows."""
    features: list[Bins] = []
    at = 0
    for encoding in card.encodings[:MOST_FEATURES]:
        width = len(encoding.inputs)
        features.append(_empty(encoding, inputs[:, at : at + width]))
        at += width
    empty = TrainingStatistics(features=tuple(features), prediction=_empty_prediction(card, predicted))
    counts = (*count_features(card.encodings, empty, inputs), count_prediction(card, empty, predicted))
    filled = [replace(one, counts=counted) for one, counted in zip(empty.bins, counts, strict=True)]
    return TrainingStatistics(features=tuple(filled[:-1]), prediction=filled[-1])


def _empty(encoding: Encoding, values: Floats) -> Bins:
    if encoding.categories is None:
        edges = _edges(values[:, 0])
        return Bins(name=encoding.column, counts=(0,) * (len(edges) + 2), edges=edges)
    categories = encoding.categories[:MOST_CATEGORIES]
    return Bins(name=encoding.column, counts=(0,) * (len(categories) + 1), categories=categories)


def _edges(values: Floats) -> tuple[float, ...]:
    """Return the quantiles that separate the bins of numbers, each once."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ()
    shares = np.arange(1, NUMBER_BINS) / NUMBER_BINS
    inner = np.quantile(finite, shares, method="higher")
    # numbers outside the range of the training have bins of their own
    edges = np.unique([finite.min(), *inner, np.nextafter(finite.max(), np.inf)])
    return tuple(float(one) for one in edges[np.isfinite(edges)])


def _empty_prediction(card: ModelCard, predicted: Floats) -> Bins:
    if card.classes:
        categories = card.classes[:MOST_CATEGORIES]
        return Bins(name=PREDICTION, counts=(0,) * (len(categories) + 1), categories=categories)
    edges = _edges(_first(predicted))
    return Bins(name=PREDICTION, counts=(0,) * (len(edges) + 2), edges=edges)


def _first(predicted: Floats) -> Floats:
    """Return the predictions of the first label."""
    values: Floats = predicted if predicted.ndim == 1 else predicted[:, 0]
    return values


def count_features(
    encodings: Sequence[Encoding], statistics: TrainingStatistics, inputs: Floats
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of rows of `inputs` [rows, inputs] in the bins of each feature."""
    counts: list[tuple[int, ...]] = []
    at = 0
    for encoding, bins in zip(encodings, statistics.features, strict=False):
        width = len(encoding.inputs)
        if encoding.categories is None:
            counts.append(_count_numbers(bins, inputs[:, at]))
        else:
            known = inputs[:, at : at + len(bins.categories)].sum(axis=0)
            counts.append(_with_rest(known, len(inputs)))
        at += width
    return tuple(counts)


def count_prediction(card: ModelCard, statistics: TrainingStatistics, predicted: Floats) -> tuple[int, ...]:
    """Return the numbers of predictions in the bins of the prediction."""
    bins = statistics.prediction
    if not card.classes:
        return _count_numbers(bins, _first(predicted))
    chosen = decide(predicted, card.threshold)[~np.isnan(predicted).any(axis=1)]
    known = np.bincount(chosen, minlength=len(bins.categories)).astype(np.int64)[: len(bins.categories)]
    return _with_rest(known, len(predicted))


def _count_numbers(bins: Bins, values: Floats) -> tuple[int, ...]:
    finite = values[np.isfinite(values)]
    places = np.searchsorted(np.array(bins.edges), finite, side="right")
    known = np.bincount(places, minlength=len(bins.edges) + 1).astype(np.int64)
    return _with_rest(known, len(values))


def _with_rest(known: Floats | Integers, rows: int) -> tuple[int, ...]:
    counted = [int(one) for one in known]
    return (*counted, rows - sum(counted))


def count(card: ModelCard, statistics: TrainingStatistics, inputs: Floats, predicted: Floats) -> Counts:
    """Return the counts of rows with their predictions."""
    return (
        *count_features(card.encodings, statistics, inputs),
        count_prediction(card, statistics, predicted),
    )


def save_statistics(folder: Path, statistics: TrainingStatistics) -> None:
    """Write the statistics into the folder of a model."""
    (folder / STATISTICS_FILE).write_bytes(encode(statistics))
