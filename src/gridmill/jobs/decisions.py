"""Which class a row is given by its probabilities, and the threshold that this goes by."""

import numpy as np

from gridmill.jobs.features import Floats, Integers


def decide(probabilities: Floats, threshold: float | None = None) -> Integers:
    """The number of each row's class, of probabilities [rows, classes]: the likeliest, of equal ones the
    first; with a `threshold` the second of two from that probability on."""
    if threshold is None:
        return np.asarray(probabilities.argmax(axis=1), np.int64)
    return np.asarray(probabilities[:, 1] >= threshold, np.int64)


def best_threshold(truth: Integers, probabilities: Floats) -> float:
    """The threshold with the best f1 of the second of two classes; of equal ones the highest. It lies halfway
    between two probabilities that occur, so that rounding changes nothing."""
    scores, place = np.unique(probabilities[:, 1], return_inverse=True)
    positive = truth == 1
    right = np.bincount(place, weights=positive, minlength=len(scores))[::-1].cumsum()
    said = np.bincount(place, minlength=len(scores))[::-1].cumsum()
    f1 = 2 * right / (said + np.count_nonzero(positive))
    best = len(scores) - 1 - int(f1.argmax())  # the first from the top
    below = scores[best - 1] if best else 0.0
    return float((scores[best] + below) / 2)
