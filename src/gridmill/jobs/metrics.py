"""Metrics of predictions per split, label, step ahead and class, and the decision threshold for two classes.

This module also defines whether a higher value of a metric is better, the confusion matrix, and how
probabilities determine the class of a row.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gridmill.domain.metrics import HIGHER_IS_BETTER
from gridmill.domain.naming import suggestion
from gridmill.domain.training import Objective
from gridmill.errors import InputError
from gridmill.jobs.features import Floats, Integers


def decide(probabilities: Floats, threshold: float | None = None) -> Integers:
    """Return the number of the class of each row, from probabilities in the shape [rows, classes].

    The class is the most likely class. If several classes have the same probability, the first of them is
    taken. With a `threshold`, the second of two classes is taken if its probability is at least the
    threshold.
    """
    if threshold is None:
        return np.asarray(probabilities.argmax(axis=1), np.int64)
    return np.asarray(probabilities[:, 1] >= threshold, np.int64)


def best_threshold(truth: Integers, probabilities: Floats) -> float:
    """Return the threshold that gives the best f1 for the second of two classes. If several thresholds give
    the best f1, return the highest threshold.

    The threshold is halfway between two probabilities that occur, so that rounding cannot change the class
    of a row.
    """
    scores, place = np.unique(probabilities[:, 1], return_inverse=True)
    positive = truth == 1
    right = np.bincount(place, weights=positive, minlength=len(scores))[::-1].cumsum()
    predicted_count = np.bincount(place, minlength=len(scores))[::-1].cumsum()
    f1 = 2 * right / (predicted_count + np.count_nonzero(positive))
    # of several maxima the last, because it has the highest threshold
    best = len(scores) - 1 - int(f1.argmax())
    below = scores[best - 1] if best else 0.0
    return float((scores[best] + below) / 2)


NAMES: Mapping[Objective, tuple[str, ...]] = {
    Objective.REGRESSION: ("rmse", "mse", "mae", "r2", "skill"),
    Objective.CLASSIFICATION: (
        *("log_loss", "accuracy", "auc", "brier"),
        *("average_precision", "f1", "precision", "recall"),
    ),
}
"""The metrics of each objective. Models are compared by the first metric of the objective, unless the
declaration names another metric."""


SEARCH_METRIC, BEST_BY = "training.search.metric", "prediction.best_by"
"""The fields of a declaration that can name a metric."""


def check_metric(metric: str | None, objective: Objective, place: str) -> str:
    """Return the metric by which models or trials are compared.

    `place` is the field of the declaration that names the metric. Raises InputError for a metric that the
    objective does not have.
    """
    names = NAMES[objective]
    if metric is None:
        return names[0]
    if metric not in names:
        raise InputError(
            f"there is no metric {metric!r} for {objective}",
            hint=suggestion(metric, names, f"The metrics are {', '.join(names)}."),
            place=place,
        )
    return metric


Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def regression(
    truth: Floats, predicted: Floats, naive: Floats | None = None, spread: Floats | None = None
) -> dict[str, float]:
    """Return the regression metrics rmse, mse, mae and r2. With `naive`, another prediction of the same
    rows, also return skill, which is 1 - rmse / rmse of `naive`.

    All arrays have the shape [rows] or [rows, labels]. If there are several labels, the errors of each label
    are divided by the `spread` of the label, and are then averaged over all values. `spread` is 1, or the
    standard deviation in training if the labels have different units. The metric r2 is the mean over the
    labels. If the true values of a label are constant, r2 is left out. If the naive prediction is perfect,
    the metric skill is left out.
    """
    scale = 1.0 if spread is None or truth.ndim == 1 else np.where(spread > 0, spread, 1.0)
    error = _rmse(truth / scale, predicted / scale)
    result = {"rmse": error, "mse": error * error, "mae": float(np.mean(np.abs(truth - predicted) / scale))}
    variance = np.var(truth, axis=0)
    if (variance > 0).all():
        result["r2"] = 1 - float(np.mean(np.mean((truth - predicted) ** 2, axis=0) / variance))
    if naive is not None and (baseline := _rmse(truth / scale, naive / scale)) > 0:
        result["skill"] = 1 - error / baseline
    return result


def _rmse(truth: Floats, predicted: Floats) -> float:
    return float(np.sqrt(np.mean((truth - predicted) ** 2)))


def classification(
    truth: Integers, probabilities: Floats, threshold: float | None = None
) -> dict[str, float]:
    """Return the classification metrics of true class numbers [rows] and probabilities [rows, classes]. The
    metric brier is the mean over the rows of the sum of the squared errors of all probabilities (Brier 1950,
    "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78(1)). For two
    classes, brier is half of that sum, which is the squared error of a single probability. A class that the
    model does not know has the number -1, and the prediction of such a row is always wrong.

    For two classes, the metrics auc, average_precision, f1, precision and recall refer to the second class.
    For more than two classes, these metrics are means over classes. For auc and average_precision, each
    class that occurs in the truth is compared with all other classes. For f1, precision and recall, the
    classes are those that occur in the truth or in the prediction. A metric that is undefined because only
    one class occurs is left out. With `threshold`, the second of two classes is predicted if its probability
    is at least the threshold. Without `threshold`, the most likely class is predicted.
    """
    counts = confusion_counts(truth, probabilities, threshold)
    return means(truth, probabilities, counts) | of_counts(counts, partial(_ranks_of, truth, probabilities))


def means(truth: Integers, probabilities: Floats, counts: Integers) -> dict[str, float]:
    """Return the metrics that are means over rows: log_loss, accuracy and brier. `counts` are the result of
    `confusion_counts` for these rows."""
    is_labelled = truth >= 0
    given = np.where(is_labelled, probabilities[np.arange(len(truth)), truth], 0.0)
    return {
        # adds 0.0, because -0.0 would be printed as -0
        "log_loss": float(np.mean(-np.log(np.clip(given, 1e-15, 1.0)))) + 0.0,
        "accuracy": float(np.trace(counts) / counts.sum()),
        "brier": _brier(truth, probabilities),
    }


def confusion_counts(truth: Integers, probabilities: Floats, threshold: float | None = None) -> Integers:
    """Return the numbers of rows in the shape [classes + 1, classes], by true class and predicted class. The
    last row counts classes that the model does not know. Counts of several parts of the rows can be added."""
    count = probabilities.shape[1]
    place = np.where(truth < 0, count, truth) * count + decide(probabilities, threshold)
    counts: Integers = np.bincount(place, minlength=(count + 1) * count).reshape(count + 1, count)
    return counts


Ranks = Callable[[int], Mapping[str, float]]
"""A function that returns the metrics auc and average_precision of the class with this number."""


def _ranks_of(truth: Integers, probabilities: Floats, number: int) -> dict[str, float]:
    is_class, score = truth == number, probabilities[:, number]
    return {
        "auc": area_under_curve(is_class, score),
        "average_precision": average_precision(is_class, score),
    }


def of_counts(counts: Integers, ranks: Ranks) -> dict[str, float]:
    """Return the metrics that need only the counts of the classes and the ranks of the rows: auc,
    average_precision, f1, precision and recall."""
    scores: dict[str, float] = {}
    classes = range(1, 2) if counts.shape[1] == 2 else range(counts.shape[1])
    each = [ranks(number) for number in classes if is_ranked(counts, number)]
    if each:
        scores = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
    if counts.shape[1] == 2:
        return scores | (_of_class(counts, 1) if counts[1].any() else {})
    return scores | _mean_of_classes(counts)


def is_ranked(counts: Integers, number: int) -> bool:
    """Return whether some rows belong to the class, and some to other classes."""
    return bool(0 < counts[number].sum() < counts.sum())


def _mean_of_classes(counts: Integers) -> dict[str, float]:
    """Return the means of f1, precision and recall over the classes that occur in the truth or in the
    prediction. All classes that the model does not know count as a single class, for which all three metrics
    are 0."""
    count = counts.shape[1]
    present = [number for number in range(count) if counts[number].any() or counts[:, number].any()]
    each = [_of_class(counts, number) for number in ([count] if counts[count].any() else []) + present]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def _of_class(counts: Integers, number: int) -> dict[str, float]:
    """Return f1, precision and recall of a class. A metric is 0 if its denominator is 0."""
    is_known = number < counts.shape[1]
    right = int(counts[number, number]) if is_known else 0
    predicted_count = int(counts[:, number].sum()) if is_known else 0
    true_count = int(counts[number].sum())
    return {
        "f1": 2 * right / (predicted_count + true_count) if predicted_count + true_count else 0.0,
        "precision": right / predicted_count if predicted_count else 0.0,
        "recall": right / true_count if true_count else 0.0,
    }


def _brier(truth: Integers, probabilities: Floats) -> float:
    classes = probabilities.shape[1]
    squares = ((probabilities - (truth[:, None] == np.arange(classes))) ** 2).sum(axis=1)
    squares = squares + (truth < 0)  # an unknown class adds 1, because the model gave it the probability 0
    return float(np.mean(squares)) / (2 if classes == 2 else 1)


def calibration(truth: Integers, probabilities: Floats, bins: int = 10) -> list[list[float]]:
    """Return [[mean predicted probability, observed fraction, rows], ...] for bins of probabilities of equal
    width.

    For two classes, the probability is that of the second class. For more classes, the probability is that
    of the predicted class. Bins without rows are left out.
    """
    if probabilities.shape[1] == 2:
        predicted, came = probabilities[:, 1], truth == 1
    else:
        predicted, came = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    place = np.minimum((predicted * bins).astype(int), bins - 1)
    return [
        [float(predicted[place == one].mean()), float(came[place == one].mean()), int((place == one).sum())]
        for one in np.unique(place)
    ]


def average_precision(positive: Mask, score: Floats) -> float:
    """Return the mean of the precision at each threshold, weighted by the increase of the recall (not
    interpolated)."""
    values, place = np.unique(score, return_inverse=True)
    right = np.bincount(place, weights=positive, minlength=len(values))[::-1].cumsum()
    predicted_count = np.bincount(place, minlength=len(values))[::-1].cumsum()
    gained = np.diff(right, prepend=0.0) / right[-1]
    return float((gained * right / predicted_count).sum())


def area_under_curve(positive: Mask, score: Floats) -> float:
    """Return the probability that a positive row has a higher score than a negative row. If both rows have
    equal scores, the pair counts as half."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    ones = np.count_nonzero(positive)
    return float((rank[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(score) - ones)))


def better(name: str, one: float, other: float) -> bool:
    """Return whether the value `one` of this metric is better than the value `other`."""
    return one > other if name in HIGHER_IS_BETTER else one < other


OTHER = "(another class)"
"""The name of the row of a confusion matrix that counts classes which the model does not know."""


def by_label(labels: Sequence[str], truth: Floats, predicted: Floats, naive: Floats) -> list[dict[str, Any]]:
    """Return the metrics of each label in the unit of the label. The result is empty if there is only one
    label.

    All arrays have the shape [rows, labels].
    """
    if truth.ndim == 1:
        return []
    return [
        {"label": name, **regression(truth[:, n], predicted[:, n], naive[:, n])}
        for n, name in enumerate(labels)
    ]


def by_class(
    classes: Sequence[str], truth: Integers, probabilities: Floats, threshold: float | None = None
) -> dict[str, Any]:
    """Return details of the classification of rows.

    `classes` contains for each class the number of its rows, the number of its predictions, f1, precision,
    recall, auc and average_precision. `macro` contains the means of f1, precision and recall over the
    classes that occur. All classes that the model does not know count as a single class. `confusion` is the
    number of rows by true class and predicted class. If there are classes that the model does not know,
    `confusion` has an additional last row for them.
    """
    counts = confusion_counts(truth, probabilities, threshold)
    return describe_classes(classes, counts, partial(_ranks_of, truth, probabilities))


def describe_classes(classes: Sequence[str], counts: Integers, ranks: Ranks) -> dict[str, Any]:
    """Return the result of `by_class` from the counts of the classes and the ranks of the rows."""
    rows_by_class = [
        {
            "class": name,
            "rows": int(counts[number].sum()),
            "predicted": int(counts[:, number].sum()),
            **_of_class(counts, number),
            **(ranks(number) if is_ranked(counts, number) else {}),
        }
        for number, name in enumerate(classes)
    ]
    unknown = counts[len(classes)].any()
    rows = [*classes, OTHER] if unknown else list(classes)
    confusion = {"truth": rows, "predicted": list(classes), "counts": counts[: len(rows)].tolist()}
    return {"classes": rows_by_class, "macro": _mean_of_classes(counts), "confusion": confusion}
