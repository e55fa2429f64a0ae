"""The critical path of a run: the jobs that its length hangs on."""

from collections.abc import Mapping

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """`path` are JobRun ids from the first to the last; `seconds` how long each job takes or is expected to;
    `slack` how much longer it could take without making the run longer; `known` is false where a job's time
    is not known yet and counts as nothing."""

    path: tuple[str, ...]
    seconds: Mapping[str, float]
    slack: Mapping[str, float]
    total_seconds: float
    known: bool

    @property
    def branches(self) -> bool:
        """Whether there is anything to tell: jobs that take time, beside others that could take longer."""
        return any(self.slack.values()) and any(self.seconds[key] for key in self.path)
