"""Projects that share a grid: the quota of each project and its use."""

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

DEFAULT = "default"
"""The project of pipelines that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project. `share` is its share relative to the shares of other projects: while two projects have
    waiting jobs, a project with share 2 gets twice as much as a project with share 1. `cpus`, `memory_bytes`
    and `gpus` are its quota: the most that all its jobs together hold at the same time; None means no limit.

    `used_seconds` are the seconds for which its attempts held places (times their GPUs, if they had several),
    as of the Unix time `used_at`: the weight of past use halves every week.
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
        """Raise InputError for an invalid share or quota."""
        if not 0.0 < self.share < float("inf"):
            raise InputError(f"{self.share:g} is not a share", hint="A share must be above 0.", place="share")
        quota = (("cpus", self.cpus), ("memory", self.memory_bytes), ("gpus", self.gpus))
        for name, most in quota:
            if most is not None and not 0.0 <= most < float("inf"):
                raise InputError(f"{most:g} is not a quota", hint="A quota must be 0 or more.", place=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    """The current state of a project: `used_seconds` decayed to now, including its running attempts;
    `used_share`, its part of the use of all projects; and the amounts that it holds now, counted as for a
    quota."""

    project: Project
    used_seconds: float
    used_share: float
    cpus: float
    memory_bytes: int
    gpus: int

    @property
    def name(self) -> str:
        """The project's name."""
        return self.project.name
