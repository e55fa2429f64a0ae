"""This module declares the hyperparameter search of a training job."""

from collections.abc import Mapping
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

Value = float | int | bool | str


class EarlyStop(StrEnum):
    """The rule by which trials that are not promising are ended early."""

    MEDIAN = "median"
    """A trial ends if it is worse than the median of the other trials at the same epoch."""
    HYPERBAND = "hyperband"
    """The trials form brackets with many short trials and few long trials."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The possible values of a setting: a number `between` two bounds, a number between two bounds on a
    logarithmic scale (`log`), or one value `among` several. If the setting is a whole number, only whole
    numbers are tried. For an option of a custom training, only whole numbers are tried if both bounds are
    written as whole numbers: [0, 1] means 0 or 1, and [0.0, 1.0] means any number between 0 and 1."""

    between: tuple[int | float, ...] = ()
    log: tuple[int | float, ...] = ()
    among: tuple[Value, ...] = ()

    @property
    def bounds(self) -> tuple[int | float, ...]:
        """The lowest and the highest value of the range; empty for `among`."""
        return self.between or self.log

    def check(self) -> None:
        """Raise InputError unless exactly one of the three fields is set, with a valid value."""
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
    """The declaration of a search, which tries different settings of a training in `trials` trials. The
    settings with the best `metric` on the validation split are used.

    `parameters` are options of the kind of model (for a custom training, its `options`). `metric` is one of
    the metrics by which a prediction can choose its model, with the same default. `parallel` is the number
    of trials that run at the same time (default: one for each CPU).
    """

    parameters: Mapping[str, Range]
    trials: int = 20
    metric: str | None = None
    parallel: int | None = None
    early_stop: EarlyStop = EarlyStop.MEDIAN

    def check(self) -> None:
        """Raise InputError if a count is below one, or if the search has no parameters."""
        for name in ("trials", "parallel"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1", place=f"search.{name}")
        if not self.parameters:
            raise InputError("no parameters to search are given", place="search.parameters")
