"""How far a column's values in one load are from those of the load before: the population stability index.

PSI is the sum of (p - q) ln(p / q) over bins, p and q the shares of both loads (N. Siddiqi, Credit Risk
Scorecards, 2006, ch. 8; it is Jeffreys' divergence). Below 0.1 is usually read as stable, above 0.25 as
shifted. Without any drift, PSI / (1/n + 1/m) is about chi-square with one degree less than there are bins
(B. Yurdakul and J. Naranjo, Statistical properties of the population stability index, 2020): small loads
differ by chance, and are not warned of.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan, log, sqrt
from typing import Any

import pyarrow as pa

BINS = 10
VALUES = 20
"""Of text, the most frequent values; the rest counts as one."""
_KEY_SHARE = 0.5
"""A text or whole number that differs in more of the rows is a key: it is new in every load."""
_SIGMAS = 3.0

Histogram = Mapping[str, Any]
"""`edges` (of numbers) or `values` (of text), and `counts`: one per bin, then what is missing."""


def histograms(sample: pa.Table) -> dict[str, Histogram]:
    """Of every column that can drift: no times, no keys, nothing nested."""
    found = {name: _histogram(sample[name]) for name in sample.column_names}
    return {name: histogram for name, histogram in found.items() if histogram is not None}


def _histogram(column: pa.ChunkedArray) -> Histogram | None:
    rows = _values(column) if _drifts(column.type) else []
    values = [value for value in rows if value is not None]
    different = len(set(values))
    if not values or (different > _KEY_SHARE * len(values) and not pa.types.is_floating(column.type)):
        return None
    if pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
        top = [value for value, _ in Counter(values).most_common(VALUES)]
        return {"values": top, "counts": _counts(rows, values=top)}
    ordered = sorted(values)
    edges = sorted({ordered[len(ordered) * number // BINS] for number in range(1, BINS)})
    return {"edges": edges, "counts": _counts(rows, edges=edges)}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """What is not a number counts as missing: it has no order."""
    return [None if isinstance(value, float) and isnan(value) else value for value in column.to_pylist()]


def _drifts(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(number or pa.types.is_string(kind) or pa.types.is_boolean(kind))


def _counts(
    column: Sequence[Any], *, edges: Sequence[Any] | None = None, values: Sequence[Any] = ()
) -> list[int]:
    places = {value: number for number, value in enumerate(values)}
    bins = len(values) if edges is None else len(edges)
    counts = [0] * (bins + 2)
    for value in column:
        if value is None:
            counts[-1] += 1
        elif edges is None:
            counts[places.get(value, bins)] += 1
        else:
            counts[bisect_right(edges, value)] += 1
    return counts


def drifts(before: Mapping[str, Histogram], sample: pa.Table) -> dict[str, float]:
    """The PSI of every column of the load before against a sample of this one; columns that only chance
    makes differ are 0."""
    found: dict[str, float] = {}
    for name, histogram in before.items():
        if name not in sample.column_names or not sample.num_rows:
            continue
        now = _in_same_bins(histogram, sample[name])
        if now is not None:
            found[name] = _psi(histogram["counts"], now)
    return found


def _in_same_bins(histogram: Histogram, column: pa.ChunkedArray) -> list[int] | None:
    text = pa.types.is_string(column.type) or pa.types.is_boolean(column.type)
    if text != ("values" in histogram) or not _drifts(column.type):
        return None
    return _counts(_values(column), edges=histogram.get("edges"), values=histogram.get("values", ()))


def _psi(before: Sequence[int], now: Sequence[int]) -> float:
    n, m = sum(before), sum(now)
    p, q = _shares(now), _shares(before)
    psi = sum((one - other) * log(one / other) for one, other in zip(p, q, strict=True))
    free = max(1, sum(1 for a, b in zip(before, now, strict=True) if a or b) - 1)
    chance = (1 / n + 1 / m) * (free + _SIGMAS * sqrt(2 * free))
    return round(psi, 4) if psi > chance else 0.0


def _shares(counts: Sequence[int]) -> list[float]:
    """Half a row more in each bin, so that none is empty."""
    total = sum(counts) + len(counts) / 2
    return [(count + 0.5) / total for count in counts]
