"""Metrics in detail: of each label or step ahead, of each class, and which class is taken for which."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridmill.jobs import metrics
from gridmill.jobs.decisions import decide
from gridmill.jobs.features import Floats, Integers

OTHER = "(another class)"
"""In a confusion matrix the truths that are none of the model's classes."""


def by_label(labels: Sequence[str], truth: Floats, predicted: Floats, naive: Floats) -> list[dict[str, Any]]:
    """For each of several labels its metrics in its own unit; empty for one. All are [rows, labels]."""
    if truth.ndim == 1:
        return []
    return [
        {"label": name, **metrics.regression(truth[:, n], predicted[:, n], naive[:, n])}
        for n, name in enumerate(labels)
    ]


def by_class(
    classes: Sequence[str], truth: Integers, probabilities: Floats, threshold: float | None = None
) -> dict[str, Any]:
    """`classes`: for each its rows, how often it is predicted, f1, precision, recall, auc, average_precision.
    `macro`: the means of f1, precision and recall over the classes that occur, one of them the classes that
    the model does not know. `confusion`: rows by truth (the last row: another class, if there is any) and
    prediction."""
    predicted = decide(probabilities, threshold)
    found = [_of_class(name, n, truth, predicted, probabilities) for n, name in enumerate(classes)]
    macro = metrics.mean_of_classes(truth, predicted)
    return {"classes": found, "macro": macro, "confusion": _confusion(classes, truth, predicted)}


def _of_class(
    name: str, number: int, truth: Integers, predicted: Integers, probabilities: Floats
) -> dict[str, Any]:
    mine, said = truth == number, predicted == number
    rows = int(np.count_nonzero(mine))
    found = {"class": name, "rows": rows, "predicted": int(np.count_nonzero(said))}
    found |= metrics.of_class(mine, said)
    if 0 < rows < len(truth):
        score = probabilities[:, number]
        found["auc"] = metrics.area_under_curve(mine, score)
        found["average_precision"] = metrics.average_precision(mine, score)
    return found


def _confusion(classes: Sequence[str], truth: Integers, predicted: Integers) -> dict[str, Any]:
    count = len(classes)
    place = np.where(truth < 0, count, truth) * count + predicted
    counts = np.bincount(place, minlength=(count + 1) * count).reshape(count + 1, count)
    unknown = counts[count].any()
    rows = [*classes, OTHER] if unknown else list(classes)
    return {"truth": rows, "predicted": list(classes), "counts": counts[: len(rows)].tolist()}
