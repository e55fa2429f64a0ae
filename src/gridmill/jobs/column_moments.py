"""Mean and standard deviation of a column of numbers, batch by batch, merged without reading rows again."""

from collections.abc import Mapping
from math import isfinite, sqrt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass


@dataclass(slots=True)
class Moments:
    """How many finite numbers there were, their mean, and the sum of their squares about it.

    Merged by Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances" (1979): the result does not depend on threads, as that of an SQL aggregate does.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def known(cls, facts: Mapping[str, Any], count: int) -> "Moments":
        """Of facts as `facts` gives them, of so many numbers."""
        if not count or facts.get("mean") is None:
            return cls()
        std = facts.get("std") or 0.0
        return cls(count, facts["mean"], std * std * (count - 1))

    def see(self, column: pa.Array) -> None:
        """Count a column's finite numbers."""
        numbers = pc.cast(column, pa.float64(), safe=False)
        mean = pc.mean(numbers).as_py()
        if mean is not None and not isfinite(mean):
            numbers = numbers.filter(pc.is_finite(numbers))
            mean = pc.mean(numbers).as_py()
        count = len(numbers) - numbers.null_count
        if count:
            self.add(Moments(count, mean, pc.variance(numbers, ddof=0).as_py() * count))

    def add(self, other: "Moments") -> None:
        """Count what the other one counted."""
        count = self.count + other.count
        if not other.count:
            return
        apart, share = other.mean - self.mean, other.count / count
        self.squares += other.squares + apart * apart * self.count * share  # powers would raise OverflowError
        self.mean += apart * share
        self.count = count

    def facts(self) -> dict[str, float | None]:
        """Mean and standard deviation (of a sample); None where there is none, or it is no finite number."""
        std = sqrt(self.squares / (self.count - 1)) if self.count > 1 else None
        return {
            "mean": self.mean if self.count and isfinite(self.mean) else None,
            "std": std if std is not None and isfinite(std) else None,
        }
