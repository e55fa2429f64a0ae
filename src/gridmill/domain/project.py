"""This module has the projects that share a grid: the quota of each project and its resource use."""

import re

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

DEFAULT = "default"
"""The project of pipelines that name no project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project that shares the grid with other projects. `share` is the weight of the project relative to
    the shares of other projects: while two projects have waiting jobs, a project with share 2 gets twice as
    much as a project with share 1. `cpus`, `memory_bytes` and `gpus` are the quota of the project: the
    largest amounts that all its jobs together hold at the same time, or None if an amount has no limit.

    `used_seconds` is the total time for which attempts of the project ran; the time of an attempt with
    several GPUs is multiplied by the number of its GPUs. The weight of past use halves every week, so the
    value is valid at the Unix time `used_at`. `budget_micros` is the highest cost of rented machines in one
    month, in micro-units of `currency`, or None if there is no limit. If the budget of a project is used up,
    no further machines are rented in the month; the jobs of the project use the machines that are rented
    already.
    """

    name: str
    share: float = 1.0
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    used_seconds: float = 0.0
    used_at: float = 0.0
    budget_micros: int | None = None
    currency: str = "USD"

    @property
    def bounded(self) -> bool:
        """Whether the project has a quota."""
        return not (self.cpus is None and self.memory_bytes is None and self.gpus is None)

    def check(self) -> None:
        """Raise InputError if the share or the quota of the project is invalid."""
        if not 0.0 < self.share < float("inf"):
            raise InputError(f"{self.share:g} is not a share", hint="A share must be above 0.", place="share")
        quota = (("cpus", self.cpus), ("memory", self.memory_bytes), ("gpus", self.gpus))
        for name, most in quota:
            if most is not None and not 0.0 <= most < float("inf"):
                raise InputError(f"{most:g} is not a quota", hint="A quota must be 0 or more.", place=name)
        if self.budget_micros is not None and self.budget_micros < 0:
            raise InputError(
                f"{self.budget_micros} is not a budget", hint="A budget must be 0 or more.", place="budget"
            )
        if not re.fullmatch("[A-Z]{3}", self.currency):
            raise InputError(
                f"{self.currency!r} is not the code of a currency", hint="Write USD.", place="currency"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    """The current state of a project and its use. `used_seconds` is the use of the project, decayed to the
    present time and including running attempts. `used_share` is the use of the project as a fraction of the
    use of all projects. The next fields are the amounts that the project holds now, counted as for a
    quota. `month_micros` is the highest possible cost of its rented machines in the present month, in the
    currency of its budget."""

    project: Project
    used_seconds: float
    used_share: float
    cpus: float
    memory_bytes: int
    gpus: int
    month_micros: int = 0

    @property
    def name(self) -> str:
        """The name of the project."""
        return self.project.name
