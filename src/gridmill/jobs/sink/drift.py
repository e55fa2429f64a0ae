"""How far a column's values in one load are from those of the load before: the population stability index.

PSI is the sum of (p - q) ln(p / q) over bins, p and q the shares of both loads (N. Siddiqi, Credit Risk
Scorecards, 2006, ch. 8; it is Jeffreys' divergence). Below 0.1 is usually read as stable, above 0.25 as
shifted. Without any drift, PSI / (1/n + 1/m) is about chi-square with one degree less than there are bins
(B. Yurdakul and J. Naranjo, Statistical properties of the population stability index, 2020): small loads
differ by chance, and are not warned of.
"""

from collections.abc import Mapping, Sequence
from math import log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    if _is_text(column.type):
        return _of_texts(_counted(column))
    return _of_numbers(column) if _is_number(column.type) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_boolean(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _counted(column: pa.ChunkedArray) -> dict[Any, int]:
    """How often each value is there, in the order in which they come; None is what is missing."""
    counted = pc.value_counts(column)
    values, counts = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
    return dict(zip(values, counts, strict=True))


def _of_texts(counted: Mapping[Any, int]) -> Histogram | None:
    there = {value: count for value, count in counted.items() if value is not None}
    if not there or len(there) > _KEY_SHARE * sum(there.values()):
        return None
    top = sorted(there, key=lambda value: -there[value])[:VALUES]
    return {"values": top, "counts": _by_value(counted, top)}


def _by_value(counted: Mapping[Any, int], values: Sequence[Any]) -> list[int]:
    places: dict[Any, int] = {value: number for number, value in enumerate(values)} | {None: -1}
    counts = [0] * (len(values) + 2)
    for value, count in counted.items():
        counts[places.get(value, len(values))] += count
    return counts


def _of_numbers(column: pa.ChunkedArray) -> Histogram | None:
    ordered = np.sort(_numbers(column))
    whole = pa.types.is_integer(column.type)
    if not len(ordered) or (whole and len(np.unique(ordered)) > _KEY_SHARE * len(ordered)):
        return None
    edges = np.unique([ordered[len(ordered) * number // BINS] for number in range(1, BINS)]).tolist()
    return {"edges": edges, "counts": _by_edge(column, edges)}


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """NaN and infinities count as missing: JSON, which keeps the edges of bins, has none of them."""
    values: npt.NDArray[Any] = column.drop_null().to_numpy()
    there: npt.NDArray[Any] = values[np.isfinite(values)]
    return there


def _by_edge(column: pa.ChunkedArray, edges: Sequence[Any]) -> list[int]:
    values = _numbers(column)
    bins = np.searchsorted(edges, values, side="right")
    counts: list[int] = np.bincount(bins, minlength=len(edges) + 1).tolist()
    return [*counts, len(column) - len(values)]


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
    if _is_text(column.type) and "values" in histogram:
        return _by_value(_counted(column), histogram["values"])
    if _is_number(column.type) and None not in histogram.get("edges", (None,)):
        return _by_edge(column, histogram["edges"])
    return None


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
