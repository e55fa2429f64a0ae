"""Declaration of a hyperparameter search of a training job."""

from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

Value = float | int | bool | str


class EarlyStop(StrEnum):
    """How trials that will not be the best are ended early."""

    MEDIAN = "median"  # worse than the median of the others at the same epoch
    HYPERBAND = "hyperband"  # brackets of many short and few long trials
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What a setting may be: a number `between` two, the same on a scale of powers (`log`), or one `among`
    several. Whole numbers stay whole where the setting is one; of a custom training's options where both
    bounds are written as whole numbers: [0, 1] is 0 or 1, [0.0, 1.0] any number between."""

    between: tuple[int | float, ...] = ()
    log: tuple[int | float, ...] = ()
    among: tuple[Value, ...] = ()

    @property
    def bounds(self) -> tuple[int | float, ...]:
        """Lowest and highest; empty for one among several."""
        return self.between or self.log

    def check(self) -> None:
        """Raise InputError unless exactly one of the three is given, rightly."""
        if sum(map(bool, (self.between, self.log, self.among))) != 1:
            raise InputError(
                "needs a list of two numbers, `log` or `among`",
                hint="Write [16, 128], {log: [0.0001, 0.1]} or {among: [1, 2]}.",
            )
        if self.among:
            return
        if len(self.bounds) != 2 or self.bounds[0] >= self.bounds[1]:
            raise InputError(f"{list(self.bounds)} is not a range: write the lower number first")
        if self.log and self.log[0] <= 0:
            raise InputError(
                f"{self.log[0]:g} cannot begin a logarithmic range: it must be above 0", place="log"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Try `trials` settings of a training and keep the best, by `metric` on the validation split.

    `parameters` are options of the model kind (of a custom one: its `options`). `metric` is one of those a
    prediction can choose by, and has its default. `parallel` trials run side by side (default: one per CPU).
    """

    parameters: Mapping[str, Range]
    trials: int = 20
    metric: str | None = None
    parallel: int | None = None
    early_stop: EarlyStop = EarlyStop.MEDIAN

    def check(self) -> None:
        """Raise InputError for counts below one and for nothing to search."""
        for name in ("trials", "parallel"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1", place=f"search.{name}")
        if not self.parameters:
            raise InputError("no parameters to search are given", place="search.parameters")
