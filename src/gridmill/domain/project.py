"""Projects that share a grid: the quota of each and how much each has used."""

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

DEFAULT = "default"
"""The project of pipelines that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """`share` counts against the shares of others: with 2 a project gets twice what one with 1 gets while
    both have jobs that wait. `cpus`, `memory_bytes` and `gpus` are its quota: the most that its jobs have at
    once, all together; None: no bound.

    `used_seconds` are the seconds that its attempts held places (times their GPUs, when they had several), as
    they counted at the Unix time `used_at`: what was used counts half as much each week.
    """

    name: str
    share: float = 1.0
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    used_seconds: float = 0.0
    used_at: float = 0.0

    @property
    def bounded(self) -> bool:
        """Whether it has a quota."""
        return not (self.cpus is None and self.memory_bytes is None and self.gpus is None)

    def check(self) -> None:
        """Raise InputError for a share or a quota that is none."""
        if not 0.0 < self.share < float("inf"):
            raise InputError(f"{self.share:g} is not a share", hint="A share must be above 0.", place="share")
        quota = (("cpus", self.cpus), ("memory", self.memory_bytes), ("gpus", self.gpus))
        for name, most in quota:
            if most is not None and not 0.0 <= most < float("inf"):
                raise InputError(f"{most:g} is not a quota", hint="A quota must be 0 or more.", place=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    """The current state of a project: `used_seconds` decayed to now, including its running attempts;
    `used_share`, its part of the use of all projects; and the amounts that it holds now, as a quota
    counts them."""

    project: Project
    used_seconds: float
    used_share: float
    cpus: float
    memory_bytes: int
    gpus: int

    @property
    def name(self) -> str:
        """The project's."""
        return self.project.name
