"""This module defines for each metric whether higher values are better and which metrics are shown first,
and computes the calibration of probabilities.

The calibration compares predicted probabilities with observed frequencies, by the calibration curve.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

from gridmill.domain.amounts import show_number
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

OWN = "own_"
"""The prefix of metrics that the code of a model reports and that Gridmill did not measure."""
HIGHER_IS_BETTER = frozenset(
    {"r2", "skill", "accuracy", "auc", "average_precision", "f1", "precision", "recall"}
)


def is_ranked(name: str) -> bool:
    """Return whether a higher or a lower value of the metric is better. A coverage cannot be ranked, because
    it is best at its target value."""
    return not name.endswith("coverage")


def marked(name: str) -> str:
    """Return the name of the metric. If Gridmill did not measure the metric, the result also names the
    source of the metric."""
    return f"{name} (reported by the model's code)" if name.startswith(OWN) else name


def read_metric(text: str) -> tuple[str, bool]:
    """Return the name of the metric, and whether a higher value is better. A metric is written as
    `validation_auc`, or as `max:NAME` or `min:NAME` if the name does not imply the direction. Raises
    InputError."""
    direction, colon, name = text.partition(":")
    if colon:
        if direction not in ("max", "min") or not name:
            raise InputError(f"{text!r} is not a metric", hint="Write NAME, max:NAME or min:NAME.")
        return name, direction == "max"
    return text, any(text == metric or text.endswith(f"_{metric}") for metric in HIGHER_IS_BETTER)


def metrics(values: Mapping[str, float]) -> str:
    """Format metrics as text, such as `rmse 1.73, r2 0.91`."""
    return ", ".join(f"{name} {show_number(value)}" for name, value in values.items())


_TELLING = ("auc", "accuracy", "rmse", "skill", "log_loss", "r2")
"""The metrics that describe a model best, the most informative metric first. `show job` and the report have
all metrics of the model."""


_FEW = 2


def headline(values: Mapping[str, float]) -> str:
    """Format the most informative metrics of a version: its number of rows, and its quality on the test
    split, or on another split if there are no metrics of the test split."""
    split = next((name for name in ("test", "validation", "train") if any(_of(name, values))), None)
    if split is None:
        return metrics(dict(list(values.items())[: 2 * _FEW]))
    amounts = [name for name in values if name in ("rows", "rows_added")][:1]
    good = [name for end in _TELLING if (name := f"{split}_{end}") in values] or list(_of(split, values))
    return metrics({name: values[name] for name in [*amounts, *good[:_FEW]]})


def _of(split: str, values: Mapping[str, float]) -> Iterator[str]:
    return (name for name in values if name.startswith(f"{split}_"))


_SURE = 2.326
"""The 99 % quantile of the normal distribution, so that only one in a hundred calibrated models is reported
as not calibrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The calibration of the probabilities that a model predicts. `off` is the expected calibration error:
    the mean over the rows of the distance between the predicted probability and the observed frequency in
    its bin, 0 to 1. `by_chance` means that the deviation may be chance: labels that are drawn at random with
    the predicted probabilities could deviate as much."""

    off: float
    by_chance: bool

    @property
    def text(self) -> str:
        """A sentence about the calibration of the model's probabilities."""
        chance = "could be chance" if self.by_chance else "more than chance explains"
        return f"off by {100 * self.off:.1f} percentage points on average, {chance}"


def judge(curve: Sequence[Sequence[float]]) -> Calibration:
    """Return the calibration from [[predicted, observed, rows], ...], the bins of a calibration curve (at
    least one bin). The function compares Pearson's chi-square over the bins with its 99 % quantile, by
    Wilson and Hilferty's approximation. The variance of a bin is at least the variance of one row, so that a
    single surprising row does not show bad calibration."""
    rows = sum(count for *_, count in curve)
    off = sum(abs(predicted - came) * count for predicted, came, count in curve) / rows
    square = sum(
        ((came - predicted) * count) ** 2 / max(count * predicted * (1 - predicted), 1.0)
        for predicted, came, count in curve
    )
    return Calibration(off=off, by_chance=square <= _most_by_chance(len(curve)))


def _most_by_chance(bins: int) -> float:
    spread = 2 / (9 * bins)
    return float(bins * (1 - spread + _SURE * sqrt(spread)) ** 3)
