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


def looked_at(schema: pa.Schema, features: Sequence[str], label: str | None) -> tuple[str, ...]:
    """The columns that statistics tell of: the first MOST_COLUMNS of the features, and the label."""
    chosen = dict.fromkeys((*features[:MOST_COLUMNS], *([label] if label else [])))
    return tuple(name for name in chosen if name in schema.names)


@dataclass(slots=True, kw_only=True)
class Sample:
    """Every n-th of each file's rows that go by, in `columns`; of so many `rows` about SAMPLE_ROWS."""

    schema: pa.Schema
    columns: Sequence[str]
    rows: int
    _parts: list[pa.RecordBatch] = field(default_factory=list)
    _seen: int = 0

    @property
    def every(self) -> int:
        """The n."""
        return max(1, -(-self.rows // SAMPLE_ROWS))

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
    """Of a sample of the training rows (or all).

    Per column: the share of missing values; of numbers quantiles and a histogram (20 bins between the 1 % and
    99 % quantiles, what lies outside in the outer ones), of text the most frequent values. `correlation` is
    Pearson's, between the numbers.
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
    low, high, *quantiles = np.quantile(known, (0.01, 0.99, *QUANTILES))
    counts, edges = np.histogram(np.clip(known, low, high), BINS if high > low else 1)
    return {
        "quantiles": {f"{share:g}": float(q) for share, q in zip(QUANTILES, quantiles, strict=True)},
        "histogram": {"from": float(edges[0]), "to": float(edges[-1]), "counts": counts.tolist()},
    }


def _correlation(sample: pa.Table, names: Sequence[str]) -> Mapping[str, Any]:
    """Pairwise over the rows that have both; None where a column does not vary."""
    if len(names) < 2 or sample.num_rows < 2:
        return {}
    count, sums, products, squares = _moments(sample, names)
    covariance = products - sums * sums.T / np.maximum(count, 1)
    varied = squares - sums**2 / np.maximum(count, 1)
    spread = np.sqrt(np.maximum(varied * varied.T, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where((spread > 0) & (count > 1), covariance / spread, np.nan)
    rounded = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in found]
    return {"columns": list(names), "values": rounded}


def _moments(sample: pa.Table, names: Sequence[str]) -> Floats:
    """Of each pair over the rows that have both: how many these are, the sum of the first, of their products
    and of the first's squares, all about the means. [4, columns, columns], block by block: all rows at once
    would take several times the sample's memory."""
    means = np.array([_mean(numbers(sample[name])) for name in names])
    found = np.zeros((4, len(names), len(names)))
    for first in range(0, sample.num_rows, BLOCK_ROWS):
        part = sample.slice(first, BLOCK_ROWS)
        values = np.column_stack([numbers(part[name]) for name in names])
        known = ~np.isnan(values)
        centred, flags = np.where(known, values - means, 0.0), known.astype(np.float64)
        found += (flags.T @ flags, centred.T @ flags, centred.T @ centred, (centred**2).T @ flags)
    return found


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
