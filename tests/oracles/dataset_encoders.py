"""Encoders, fitted on the training rows of a dataset; from "Encode and scale" of docs/how-to/data.md and the
section Encoder of docs/reference/pipeline.md.

Not documented, and decided as users of scikit-learn expect: `standard` divides by the deviation of a
population; a column without spread is not divided; quartiles are interpolated between values; of equally
frequent values the smallest counts first; categories are numbered in their order; a missing category is one
that training never saw.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gridmill.domain.dataset import SCALERS, DatasetSpec, Encoder, Method
from tests.oracles.dataset_values import Near, is_missing, total
from tests.oracles.datasets import Made


def encode(spec: DatasetSpec, made: Sequence[Made]) -> None:
    """Apply the encoders in their order to all rows, `made`.

    Numbers are fitted on the rows of the training split, those left out for want of a label among them.
    """
    training = [
        one for one in made if one.split == "train" and not one.reasons & {"until", "gap", "disagree"}
    ]
    for encoder in spec.encoders:
        for column in encoder.columns:
            if encoder.method in SCALERS:
                _scale(spec, encoder, column, training, made)
            elif encoder.method in FILLED:
                _fill(encoder, column, training, made)
            else:
                _categories(spec, encoder, column, training, made)


FILLED = (Method.MEAN, Method.MEDIAN, Method.MOST_FREQUENT, Method.CONSTANT)


def numbers(column: str, rows: Sequence[Made]) -> list[Any]:
    """What is missing, infinite or not a number is passed over."""
    values = [one.values[column] for one in rows if one.values[column] is not None]
    return [one for one in values if not isinstance(one, float) or math.isfinite(one)]


def center_and_width(method: Method, values: Sequence[Any]) -> tuple[float, float]:
    """What is subtracted, and what it is divided by."""
    if not values:
        return 0.0, 1.0
    if method is Method.STANDARD:
        center, width = total(values) / len(values), statistics.pstdev(values)
    elif method is Method.MINMAX:
        center, width = min(values), max(values) - min(values)
    else:
        center, width = quantile(values, 0.5), quantile(values, 0.75) - quantile(values, 0.25)
    return float(center), float(width) if width > 1e-12 * max(1.0, abs(center)) else 1.0


def quantile(values: Sequence[Any], share: float) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))


def _scale(
    spec: DatasetSpec, encoder: Encoder, column: str, training: Sequence[Made], rows: Sequence[Made]
) -> None:
    """The column, and labels that are its later values."""
    values = numbers(column, training)
    center, width = center_and_width(encoder.method, values)
    size = max([abs(value) for value in values], default=0.0)
    for one in rows:
        one.values[column] = _scaled(one.values[column], center, width, size)
        for name in _later_values(spec, column, one):
            one.labels[name] = _scaled(one.labels[name], center, width, size)


def _later_values(spec: DatasetSpec, column: str, made: Made) -> list[str]:
    label = spec.label
    if label is None or label.is_own or label.table is not None or column not in label.sources:
        return []
    return [name for name in made.labels if label.next_rows is None or name.startswith(f"{column}_")]


def _scaled(value: Any, center: float, width: float, size: float) -> Any:
    if value is None:
        return None
    scale = getattr(value, "scale", abs(value)) + abs(center) + size
    return Near((value - center) / width, scale / width)


def _fill(encoder: Encoder, column: str, training: Sequence[Made], rows: Sequence[Made]) -> None:
    values = numbers(column, training)
    filled: Any = encoder.value
    if values and encoder.method is Method.MEAN:
        filled = Near(total(values) / len(values), total(map(abs, values)) / len(values))
    elif values and encoder.method is Method.MEDIAN:
        filled = Near(quantile(values, 0.5), max(map(abs, values)))
    elif values and encoder.method is Method.MOST_FREQUENT:
        counts = Counter(values)
        filled = min(value for value in counts if counts[value] == max(counts.values()))
    for one in rows:
        if is_missing(one.values[column]) and filled is not None:
            one.values[column] = filled


def _categories(
    spec: DatasetSpec, encoder: Encoder, column: str, training: Sequence[Made], rows: Sequence[Made]
) -> None:
    counts = Counter(numbers(column, training))
    known = sorted(counts)
    frequent = sorted(known, key=lambda one: (-counts[one], one))[: encoder.most]
    for one in rows:
        value = one.values[column]
        if encoder.method is Method.ONEHOT:
            one.values |= {f"{column}_{name}": value == name for name in frequent}
        elif encoder.method is Method.ORDINAL:
            one.values[f"{column}_ordinal"] = known.index(value) if value in counts else -1
        elif encoder.method is Method.FREQUENCY:
            share = counts[value] / len(training) if value in counts else 0.0
            one.values[f"{column}_frequency"] = Near(share, 1.0)
        else:
            one.values[f"{column}_target"] = _target(spec, encoder, column, training, one)
    for one in rows:
        if not encoder.keep:
            del one.values[column]


def _target(spec: DatasetSpec, encoder: Encoder, column: str, training: Sequence[Made], made: Made) -> Any:
    """The mean label of the training rows of the same category that were known before the row's time; the
    mean of all such labels weighs as much as `smoothing` rows (Encoder)."""
    assert spec.label is not None
    before = [one for one in training if not one.reasons and _is_before(one.label_known, made.time)]
    labels = [float(one.labels[spec.label.name]) for one in before]
    if not labels:
        return None
    mean = total(labels) / len(labels)
    value = made.values[column]
    mine = [label for one, label in zip(before, labels, strict=True) if one.values[column] == value]
    scale = total(map(abs, labels))
    found = (total(mine) + encoder.smoothing * mean) / (len(mine) + encoder.smoothing) if mine else mean
    return None if math.isnan(found) else Near(found if value is not None else mean, scale)


def _is_before(known: datetime | None, time: datetime) -> bool:
    return known is not None and known < time
