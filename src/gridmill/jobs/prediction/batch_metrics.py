"""Measures a prediction of any size: a small one with all rows in memory, and a larger one in batches.

Sums, means and counts are added up over the batches. AUC and average precision need the order of all scores
of a class. They are exact: the scores are counted in ranges, and the rows of some neighboring ranges are
read at a time, from the highest score to the lowest.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import Objective
from gridmill.jobs import metrics
from gridmill.jobs.classes import probability_columns
from gridmill.jobs.dataset_reader import Partitions
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.intervals import quantile_columns
from gridmill.jobs.model_files import ModelCard
from gridmill.jobs.prediction.finish import (
    break_down,
    classified,
    intervals,
    metrics_of,
    naive_values,
    rows_with_truth,
    values_of,
)
from gridmill.jobs.prediction.worker import part_name
from gridmill.jobs.training_rows import Mask

WHOLE_ROWS = 1_048_576
"""A prediction with at most this number of rows is measured with all rows in memory."""
BATCH_ROWS = 131_072
MOST_SCORES = 8_388_608
"""The scores that are sorted together, unless more scores lie in one range."""
_RANGE_BITS = 44
"""The bits of a score that its range does not have: a power of two has 256 ranges."""
_RANGES = 2 ** (63 - _RANGE_BITS)

Batches = Callable[[], Iterator[pa.Table]]
"""A function that reads all measured rows again, in batches that are not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The metrics of a prediction, and those of each label or class. Both are empty without measured rows."""

    metrics: dict[str, float]
    breakdown: Any


def measure_result(folder: Path, shards: int, parts: Partitions, card: ModelCard, fit: Mask) -> Measured:
    """Measure the rows of all shards that have a true value and a prediction, and for which `fit` is true."""
    columns = ["row", "truth", "prediction", *quantile_columns(card.quantiles)]
    columns += probability_columns(card.classes) if card.classes else []
    batches = partial(_batches, folder, shards, columns, fit)
    if len(fit) <= WHOLE_ROWS:
        tables = list(batches())
        if not tables:
            return Measured(metrics={}, breakdown={})
        table = pa.concat_tables(tables)
        return Measured(metrics=metrics_of(table, parts, card), breakdown=break_down(table, parts, card))
    if card.objective == Objective.CLASSIFICATION:
        return _classification(batches, card)
    return _regression(batches, parts, card)


def _batches(folder: Path, shards: int, columns: Sequence[str], fit: Mask) -> Iterator[pa.Table]:
    done = 0
    for shard in range(shards):
        file = pq.ParquetFile(folder / part_name(shard))
        names = [name for name in columns if name in file.schema_arrow.names]
        if "truth" not in names:
            return
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            kept = np.flatnonzero(fit[done : done + len(batch)])
            done += len(batch)
            table = rows_with_truth(pa.Table.from_batches([batch]).take(pa.array(kept)))
            if table.num_rows:
                yield table


@dataclass(slots=True)
class _LabelSums:
    """Sums over the rows by label: the squared and absolute errors of the prediction, the squared errors of
    the baseline prediction, and the mean, the squared deviations and the bounds of the true values."""

    rows: int
    squares: Floats
    absolutes: Floats
    naive_squares: Floats
    mean: Floats
    deviations: Floats
    least: Floats
    most: Floats

    def add(self, truth: Floats, predicted: Floats, naive: Floats) -> None:
        """Add the rows of a batch, as arrays [rows, labels]."""
        count = len(truth)
        self.squares = self.squares + ((truth - predicted) ** 2).sum(axis=0)
        self.absolutes = self.absolutes + np.abs(truth - predicted).sum(axis=0)
        self.naive_squares = self.naive_squares + ((truth - naive) ** 2).sum(axis=0)
        self.least = np.minimum(self.least, truth.min(axis=0))
        self.most = np.maximum(self.most, truth.max(axis=0))
        mean = truth.mean(axis=0)
        apart = mean - self.mean
        both = self.rows + count
        # Chan, Golub and LeVeque 1983: the deviations of two parts from their common mean
        self.deviations = (
            self.deviations + ((truth - mean) ** 2).sum(axis=0) + apart**2 * (self.rows * count / both)
        )
        self.mean, self.rows = self.mean + apart * (count / both), both

    def of(self, labels: slice, scale: Floats) -> dict[str, float]:
        """Return the metrics of some labels, as `metrics.regression` does."""
        error, baseline = (
            float(np.sqrt(np.mean(one[labels] / scale**2) / self.rows))
            for one in (self.squares, self.naive_squares)
        )
        result = {
            "rmse": error,
            "mse": error * error,
            "mae": float(np.mean(self.absolutes[labels] / scale) / self.rows),
        }
        if (self.most[labels] > self.least[labels]).all():
            result["r2"] = 1 - float(np.mean(self.squares[labels] / self.deviations[labels]))
        if baseline > 0:
            result["skill"] = 1 - error / baseline
        return result


def _no_sums(labels: int) -> _LabelSums:
    none = np.zeros(labels)
    return _LabelSums(0, none, none, none, none, none, none + np.inf, none - np.inf)


def _regression(batches: Batches, parts: Partitions, card: ModelCard) -> Measured:
    spread = np.array(card.spread) if card.spread else None
    sums, losses, rows = _no_sums(len(card.labels)), dict[str, float](), 0
    for table in batches():
        truth, predicted = (values_of(table[name], card) for name in ("truth", "prediction"))
        naive = naive_values(table, parts, card)
        for name, mean in intervals(table, card, truth, spread).items():
            losses[name] = losses.get(name, 0.0) + mean * len(truth)
        sums.add(*(one.reshape(len(truth), -1) for one in (truth, predicted, naive)))
        rows += len(truth)
    if not rows:
        return Measured(metrics={}, breakdown={})
    scale = np.ones(1)
    if spread is not None and card.many:
        scale = np.where(spread > 0, spread, 1.0)
    scores = sums.of(slice(None), scale) | {name: total / rows for name, total in losses.items()}
    each = [
        {"label": name, **sums.of(slice(number, number + 1), np.ones(1))}
        for number, name in enumerate(card.labels)
    ]
    return Measured(metrics=scores, breakdown=each if card.many else {})


def _classification(batches: Batches, card: ModelCard) -> Measured:
    count = len(card.classes)
    counts, totals, rows = np.zeros((count + 1, count), np.int64), dict[str, float](), 0
    for table in batches():
        truth, probabilities = classified(table, card)
        some = metrics.confusion_counts(truth, probabilities, card.threshold)
        for name, mean in metrics.means(truth, probabilities, some).items():
            totals[name] = totals.get(name, 0.0) + mean * len(truth)
        counts, rows = counts + some, rows + len(truth)
    if not rows:
        return Measured(metrics={}, breakdown={})
    ranked = {
        number: _ranks(batches, card, number) for number in range(count) if metrics.is_ranked(counts, number)
    }
    scores = {name: total / rows for name, total in totals.items()} | metrics.of_counts(
        counts, ranked.__getitem__
    )
    scores["accuracy"] = float(np.trace(counts) / rows)
    return Measured(
        metrics=scores, breakdown=metrics.describe_classes(card.classes, counts, ranked.__getitem__)
    )


def _ranks(batches: Batches, card: ModelCard, number: int) -> dict[str, float]:
    """Return the metrics auc and average_precision of a class."""
    sizes = np.zeros(2 * _RANGES, np.int64)
    positives = negatives = 0
    for is_class, scores in _scores(batches, card, number):
        sizes += np.bincount(_ranges(scores), minlength=len(sizes))
        positives, negatives = positives + int(is_class.sum()), negatives + int((~is_class).sum())
    pairs = right = taken = 0
    precision = 0.0
    for low, high in _groups(sizes):
        values, is_class = _in_ranges(batches, card, number, low, high)
        _, place, each = np.unique(-values, return_inverse=True, return_counts=True)
        mine = np.bincount(place, weights=is_class, minlength=len(each)).astype(np.int64)
        hits, seen = right + mine.cumsum(), taken + each.cumsum()
        others = each - mine
        below = negatives - (seen - hits)
        pairs += int((mine * (2 * below + others)).sum())
        precision += float((mine * hits / seen).sum())
        right, taken = int(hits[-1]), int(seen[-1])
    return {"auc": pairs / (2 * positives * negatives), "average_precision": precision / positives}


def _scores(batches: Batches, card: ModelCard, number: int) -> Iterator[tuple[Mask, Floats]]:
    for table in batches():
        truth, probabilities = classified(table, card)
        yield truth == number, probabilities[:, number] + 0.0  # -0.0 becomes 0.0


def _ranges(scores: Floats) -> Integers:
    """Return the range of each score. A larger score has the same range or a higher one."""
    bits = scores.astype(np.float64).view(np.int64)
    ordered = np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    found: Integers = (ordered >> _RANGE_BITS) + _RANGES
    return found


def _groups(sizes: Integers) -> Iterator[tuple[int, int]]:
    """Yield groups of neighboring ranges with at most MOST_SCORES scores (or a single range), from the
    highest: the lowest and the highest range of each group."""
    filled = np.flatnonzero(sizes)[::-1].tolist()
    group: list[int] = []
    total = 0
    for one in filled:
        if group and total + int(sizes[one]) > MOST_SCORES:
            yield group[-1], group[0]
            group, total = [], 0
        group.append(one)
        total += int(sizes[one])
    if group:
        yield group[-1], group[0]


def _in_ranges(batches: Batches, card: ModelCard, number: int, low: int, high: int) -> tuple[Floats, Mask]:
    values, classes = [], []
    for is_class, scores in _scores(batches, card, number):
        ranges = _ranges(scores)
        kept = (ranges >= low) & (ranges <= high)
        values.append(scores[kept])
        classes.append(is_class[kept])
    return np.concatenate(values), np.concatenate(classes)
