"""Computes the mean and standard deviation of a column of numbers per batch, and merges the results of
batches without reading the rows again."""

from collections.abc import Mapping
from math import isfinite, sqrt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass


@dataclass(slots=True)
class Moments:
    """The count of the finite numbers of a column, their mean, and the sum of their squared deviations from
    the mean.

    Moments are merged by the method of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm
    for Computing Sample Variances" (1979). The result does not depend on the number of threads, unlike the
    result of an SQL aggregate.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def known(cls, facts: Mapping[str, Any], count: int) -> "Moments":
        """Create the moments of `count` numbers from their statistics (`facts`), in the form in which the
        method `facts` returns statistics."""
        if not count or facts.get("mean") is None:
            return cls()
        std = facts.get("std") or 0.0
        return cls(count, facts["mean"], std * std * (count - 1))

    def see(self, column: pa.Array) -> None:
        """Add the finite numbers of a column to these moments."""
        numbers = pc.cast(column, pa.float64(), safe=False)
        mean = pc.mean(numbers).as_py()
        if mean is not None and not isfinite(mean):
            numbers = numbers.filter(pc.is_finite(numbers))
            mean = pc.mean(numbers).as_py()
        count = len(numbers) - numbers.null_count
        if count:
            self.add(Moments(count, mean, pc.variance(numbers, ddof=0).as_py() * count))

    def add(self, other: "Moments") -> None:
        """Add the numbers that `other` has counted to these moments."""
        count = self.count + other.count
        if not other.count:
            return
        apart, share = other.mean - self.mean, other.count / count
        # a product, because `** 2` would raise OverflowError for a large number
        self.squares += other.squares + apart * apart * self.count * share
        self.mean += apart * share
        self.count = count

    def facts(self) -> dict[str, float | None]:
        """Return the mean and the standard deviation (of a sample). A statistic is None if there are no
        numbers or if the statistic is not finite."""
        std = sqrt(self.squares / (self.count - 1)) if self.count > 1 else None
        return {
            "mean": self.mean if self.count and isfinite(self.mean) else None,
            "std": std if std is not None and isfinite(std) else None,
        }
