"""Load tasks: each source of a sink, what came from it, and when it is looked at again. Made on request."""

from gridmill.model.noun import dataclass
from gridmill.model.state import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One source of a sink (`pipeline/job`). Times are Unix seconds, None where there is none.

    `rows` and `rejects` are those of the sink's newest version that came from this source, `rows_added` those
    of all its sources in the load that made it; `position` says how far the source is read. `state` is the
    job's in its newest run, `looked` when that ended, `loaded` when rows came last. `lag_seconds` is how far
    a position that is a time is behind now. `following` is when the schedule looks again, `why` what it or
    the job waits for, or why the job failed. `drifted` are columns, `alterations` counts.
    """

    sink: str
    source: str
    state: JobState | None = None
    version: str = ""
    rows: int = 0
    rows_added: int = 0
    rejects: int = 0
    position: str = ""
    lag_seconds: float | None = None
    loaded: float | None = None
    looked: float | None = None
    schedule: str = ""
    following: float | None = None
    why: str = ""
    run: str = ""
    drifted: tuple[str, ...] = ()
    alterations: int = 0
