"""What takes space, and what can go."""

from gridmill.model.noun import dataclass

HISTORY_DAYS = 90.0
"""How long events, reports, unused code and environments are kept unless said otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A folder or file and its bytes. `kind` is what it is (`models`, `sinks`, `pod`, `store`, ...), `job`
    whose (`pipeline/job`) and `version` which, where it is one's alone."""

    kind: str
    name: str
    size_bytes: int
    job: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Something that can go: `kind` (`version`, `output`, `events`, `pod`, ...), `name`, why, and its bytes
    (0 where nobody counts them)."""

    kind: str
    name: str
    why: str
    size_bytes: int = 0
