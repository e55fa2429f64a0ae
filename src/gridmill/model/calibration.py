"""Whether what a model says with some probability comes true that often, by its calibration curve."""

from collections.abc import Sequence
from math import sqrt

from gridmill.model.noun import dataclass

_SURE = 2.326
"""Of the normal distribution, so that an honest model is called dishonest once in a hundred times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """`off` is the mean over the rows of how far what was said is from what came true in its bin, 0 to 1 (the
    expected calibration error); `by_chance` says that labels drawn with the probabilities that were said
    could well be as far off."""

    off: float
    by_chance: bool

    @property
    def text(self) -> str:
        """In words."""
        chance = "no more than chance explains" if self.by_chance else "more than chance explains"
        return f"off by {100 * self.off:.1f} percentage points on average, {chance}"


def judge(curve: Sequence[Sequence[float]]) -> Calibration:
    """Of [[said, came true, rows], ...], the bins of a calibration curve (at least one).

    Pearson's chi-square over the bins against its 99 % quantile, by Wilson and Hilferty's approximation; a
    bin's variance is at least one row's, so that a single row that came otherwise than was surely said
    proves nothing.
    """
    rows = sum(count for *_, count in curve)
    off = sum(abs(said - came) * count for said, came, count in curve) / rows
    square = sum(
        ((came - said) * count) ** 2 / max(count * said * (1 - said), 1.0) for said, came, count in curve
    )
    return Calibration(off=off, by_chance=square <= _most_by_chance(len(curve)))


def _most_by_chance(bins: int) -> float:
    spread = 2 / (9 * bins)
    return float(bins * (1 - spread + _SURE * sqrt(spread)) ** 3)
