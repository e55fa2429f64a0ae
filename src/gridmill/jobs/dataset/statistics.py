"""What a dataset's columns look like: distributions, missing values, correlations; as JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.jobs.features import Floats, is_number, is_text, numbers

SAMPLE_ROWS = 200_000
BLOCK_ROWS = 16_384
MOST_COLUMNS = 60
BINS, TOP = 20, 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LARGE = 2.0**1000
"""Numbers from here on are scaled down before they are subtracted: a difference of doubles can overflow."""
_NOISE = 1e-12
"""A variance of less than this share of the squares is rounding: the values do not vary."""


def looked_at(schema: pa.Schema, features: Sequence[str], label: str | None) -> tuple[str, ...]:
    """The columns that statistics tell of: the first MOST_COLUMNS of the features, and the label."""
    chosen = dict.fromkeys((*features[:MOST_COLUMNS], *([label] if label else [])))
    return tuple(name for name in chosen if name in schema.names)


def other_numbers(schema: pa.Schema, features: Sequence[str], label: str | None) -> tuple[str, ...]:
    """The numbers among the other features, and the label: only held against each other."""
    names = [name for name in features[MOST_COLUMNS:] if is_number(schema.field(name).type)]
    return (*names, label) if names and label is not None and label in schema.names else ()


@dataclass(slots=True, kw_only=True)
class Sample:
    """Every n-th of each file's rows that go by, in `columns`; of so many `rows` about `most`."""

    schema: pa.Schema
    columns: Sequence[str]
    rows: int
    most: int = SAMPLE_ROWS
    _parts: list[pa.RecordBatch] = field(default_factory=list)
    _seen: int = 0

    @property
    def every(self) -> int:
        """The n."""
        return max(1, -(-self.rows // self.most))

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, of one file."""
        self._seen = 0
        for batch in batches:
            self._see(batch.select(list(self.columns)))
            yield batch

    def _see(self, batch: pa.RecordBatch) -> None:
        first = -self._seen % self.every
        if first < batch.num_rows:
            chosen = np.arange(first, batch.num_rows, self.every)
            self._parts.append(batch.take(chosen) if self.every > 1 else batch)
        self._seen += batch.num_rows

    def take(self, table: pa.Table) -> None:
        """Rows that another one chose."""
        self._parts += table.to_batches()

    def table(self) -> pa.Table:
        """What was kept of them."""
        schema = pa.schema([self.schema.field(name) for name in self.columns])
        return pa.Table.from_batches(self._parts, schema)


def statistics(sample: Sample) -> dict[str, Any]:
    """Return what a sample of the training rows (or all rows) shows.

    Per column: the share of missing values; of numbers quantiles and a histogram (20 bins between the 1 % and
    99 % quantiles, what lies outside in the outer ones), of text the most frequent values. `correlation` is
    Pearson's, between the numbers. A statistic that cannot be computed is missing, and `problem` says why.
    """
    table = sample.table()
    facts = {name: _facts(table[name]) for name in sample.columns}
    numeric = [name for name in sample.columns if is_number(table[name].type)]
    return {
        "rows": table.num_rows,
        "every": sample.every,
        "columns": {name: found for name, found in facts.items() if found},
        "correlation": _correlation(table, numeric),
    }


def _facts(column: pa.ChunkedArray) -> dict[str, Any]:
    try:
        return _described(column)
    except (ArithmeticError, ValueError, TypeError, pa.ArrowException) as error:
        missing = column.null_count / max(1, len(column))
        return {"missing": missing, "problem": str(error).partition("\n")[0][:200]}


def _described(column: pa.ChunkedArray) -> dict[str, Any]:
    rows = max(1, len(column))
    if is_number(column.type):
        values = numbers(column)
        known = values[~np.isnan(values)]
        return {"missing": 1 - len(known) / rows} | (_distribution(known) if len(known) else {})
    if is_text(column.type):
        counts = pc.value_counts(column.drop_null()).to_pylist()
        top = sorted(counts, key=lambda item: (-item["counts"], item["values"]))[:TOP]
        shares = [[str(item["values"])[:80], item["counts"] / rows] for item in top]
        return {"missing": column.null_count / rows, "different": len(counts), "top": shares}
    return {}


def _distribution(known: Floats) -> dict[str, Any]:
    scale = 0.25 if np.abs(known).max() >= _LARGE else 1.0  # a power of two: nothing is rounded
    low, high, *quantiles = np.quantile(known * scale, (0.01, 0.99, *QUANTILES)) / scale
    return {
        "quantiles": {f"{share:g}": float(q) for share, q in zip(QUANTILES, quantiles, strict=True)},
        "histogram": {"from": float(low), "to": float(high), "counts": _counts(known, low, high, scale)},
    }


def _counts(known: Floats, low: float, high: float, scale: float) -> list[int]:
    """Return how many values are in each of BINS bins of equal width, or in one where there is no width.

    Not `np.histogram`: its edges must be different doubles, and a range can be a few doubles wide.
    """
    if not high > low:
        return [len(known)]
    share = (np.clip(known, low, high) * scale - low * scale) / (high * scale - low * scale)
    counts: list[int] = np.bincount(
        np.minimum((share * BINS).astype(np.int64), BINS - 1), minlength=BINS
    ).tolist()
    return counts


def _correlation(sample: pa.Table, names: Sequence[str]) -> Mapping[str, Any]:
    """Pairwise over the rows that have both; None where a column does not vary."""
    if len(names) < 2 or sample.num_rows < 2:
        return {}
    count, sums, products, squares = _moments(sample, names)
    covariance = products - sums * sums.T / np.maximum(count, 1)
    varied = squares - sums**2 / np.maximum(count, 1)
    varied = np.where(varied > _NOISE * squares, varied, 0.0)
    spread = np.sqrt(varied * varied.T)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where((spread > 0) & (count > 1), covariance / spread, np.nan)
    found = np.clip(found, -1.0, 1.0)
    rounded = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in found]
    return {"columns": list(names), "values": rounded}


def _moments(sample: pa.Table, names: Sequence[str]) -> Floats:
    """Of each pair over the rows that have both: how many these are, the sum of the first, of their products
    and of the first's squares, all about the means and scaled. [4, columns, columns], block by block: all
    rows at once would take several times the sample's memory."""
    ranges = [_range(numbers(sample[name])) for name in names]
    centers, scales = np.array(ranges).T
    found = np.zeros((4, len(names), len(names)))
    for first in range(0, sample.num_rows, BLOCK_ROWS):
        part = sample.slice(first, BLOCK_ROWS)
        values = np.column_stack([numbers(part[name]) for name in names])
        known = ~np.isnan(values)
        centred = np.where(known, values * scales - centers, 0.0)
        flags = known.astype(np.float64)
        found += (flags.T @ flags, centred.T @ flags, centred.T @ centred, (centred**2).T @ flags)
    return found


def _range(values: Floats) -> tuple[float, float]:
    """Return the mean, scaled, and the power of two to scale by: then no value is far from 1, and neither a
    difference nor a square overflows or is lost. The mean of equal values is that value."""
    known = values[~np.isnan(values)]
    if not len(known):
        return 0.0, 1.0
    scale = _scale(known)
    scaled = known * scale
    return float(np.clip(scaled.mean(), scaled.min(), scaled.max())), scale


def _scale(known: Floats) -> float:
    half = float(known.max()) / 2 - float(known.min()) / 2
    exponent = int(np.frexp(half or np.abs(known).max() or 1.0)[1])
    return float(np.ldexp(1.0, min(1000, max(-1000, -exponent))))
