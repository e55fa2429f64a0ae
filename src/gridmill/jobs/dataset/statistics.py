"""What a dataset's columns look like: distributions, missing values, correlations; as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from gridmill.jobs.features import Floats, is_number, is_text, numbers

SAMPLE_ROWS = 200_000
MOST_COLUMNS = 60
BINS, TOP = 20, 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def statistics(table: ds.Dataset, columns: Sequence[str], label: str | None, rows: int) -> dict[str, Any]:
    """Of the first MOST_COLUMNS of `columns` and the label, over the training rows (or all).

    Every n-th row is looked at so that at most SAMPLE_ROWS are. Per column: the share of missing values; of
    numbers quantiles and a histogram (20 bins between the 1 % and 99 % quantiles, what lies outside in the
    outer ones), of text the most frequent values. `correlation` is Pearson's, between the numbers.
    """
    chosen = list(dict.fromkeys((*columns[:MOST_COLUMNS], *([label] if label else []))))
    chosen = [name for name in chosen if name in table.schema.names]
    every = max(1, -(-rows // SAMPLE_ROWS))
    sample = _sample(table, chosen, every)
    facts = {name: _facts(sample[name]) for name in chosen}
    return {
        "rows": sample.num_rows,
        "every": every,
        "columns": {name: found for name, found in facts.items() if found},
        "correlation": _correlation(sample, [name for name in chosen if is_number(sample[name].type)]),
    }


def _sample(table: ds.Dataset, columns: Sequence[str], every: int) -> pa.Table:
    train = ds.field("split") == "train" if "split" in table.schema.names else None
    schema = pa.schema([table.schema.field(name) for name in columns])
    parts, seen = [], 0
    for batch in table.to_batches(columns=list(columns), filter=train):
        first = -seen % every
        if first < batch.num_rows:
            parts.append(batch.take(np.arange(first, batch.num_rows, every)) if every > 1 else batch)
        seen += batch.num_rows
    return pa.Table.from_batches(parts, schema)


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
    values = np.column_stack([numbers(sample[name]) for name in names])
    known = ~np.isnan(values)
    centred = np.where(
        known, values - np.nan_to_num(np.nanmean(np.where(known.any(0), values, 0.0), axis=0)), 0.0
    )
    flags = known.astype(np.float64)
    count = flags.T @ flags
    one, other = centred.T @ flags, flags.T @ centred
    covariance = centred.T @ centred - one * other / np.maximum(count, 1)
    squares = (centred**2).T @ flags - one**2 / np.maximum(count, 1)
    spread = np.sqrt(np.maximum(squares * squares.T, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where((spread > 0) & (count > 1), covariance / spread, np.nan)
    rounded = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in found]
    return {"columns": list(names), "values": rounded}
