"""Computes mean and standard deviation of a column of numbers per batch, and merges them without reading the
rows again."""

from collections.abc import Mapping
from math import isfinite, sqrt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass


@dataclass(slots=True)
class Moments:
    """The count of finite numbers, their mean, and the sum of their squared deviations from the mean.

    Moments are merged by Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
    Sample Variances" (1979). Unlike an SQL aggregate, the result does not depend on the number of threads.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def known(cls, facts: Mapping[str, Any], count: int) -> "Moments":
        """Moments from the statistics that `facts` returns, for `count` numbers."""
        if not count or facts.get("mean") is None:
            return cls()
        std = facts.get("std") or 0.0
        return cls(count, facts["mean"], std * std * (count - 1))

    def see(self, column: pa.Array) -> None:
        """Add the finite numbers of a column."""
        numbers = pc.cast(column, pa.float64(), safe=False)
        mean = pc.mean(numbers).as_py()
        if mean is not None and not isfinite(mean):
            numbers = numbers.filter(pc.is_finite(numbers))
            mean = pc.mean(numbers).as_py()
        count = len(numbers) - numbers.null_count
        if count:
            self.add(Moments(count, mean, pc.variance(numbers, ddof=0).as_py() * count))

    def add(self, other: "Moments") -> None:
        """Add the numbers that the other moments count."""
        count = self.count + other.count
        if not other.count:
            return
        apart, share = other.mean - self.mean, other.count / count
        # `** 2` would raise OverflowError
        self.squares += other.squares + apart * apart * self.count * share
        self.mean += apart * share
        self.count = count

    def facts(self) -> dict[str, float | None]:
        """Mean and standard deviation (of a sample); None if there is no number or the value is
        not finite."""
        std = sqrt(self.squares / (self.count - 1)) if self.count > 1 else None
        return {
            "mean": self.mean if self.count and isfinite(self.mean) else None,
            "std": std if std is not None and isfinite(std) else None,
        }
