"""Views that the user interfaces show: records joined for a reader, computed on request, never stored."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import When
from gridmill.domain.resource import ResourceAlternative, Sizing, TransferEstimate
from gridmill.domain.route import Route
from gridmill.domain.run import Attempt, CriticalPath, JobRun, Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.sql_statement import Given
from gridmill.domain.states import JobState
from gridmill.domain.usage import DiskSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """A part of a job: the node of its newest attempt (empty before one), that attempt's exit code and
    seconds (None before its end), all its attempts, oldest first, what it waits for, and the newest progress
    event's body. What a command said last on a node, and why it failed, is in the job's `message`."""

    job: JobRun
    node: str = ""
    exit_code: int | None = None
    seconds: float | None = None
    attempts: tuple[Attempt, ...] = ()
    why: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job of a run: `why` says what it waits for, also where it was begun and its site does not answer or
    its data cannot be carried; `progress` is the newest
    progress event's body; `metrics` the newest value of each metric; `attempts` oldest first, of gangs rank 0
    that stands for all; `ranks` are the others; `parts` those that it is done in. Of many attempts these are
    the last ones, of many parts first those that failed or run: `job` has the numbers of both."""

    job: JobRun
    attempts: tuple[Attempt, ...] = ()
    ranks: tuple[Attempt, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    why: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[PartView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run and its jobs, in declaration order. Of a run with many jobs these are the ones that matter most
    now: first those that failed or run, then those that wait; `counts` has the number of jobs in each state,
    all jobs included. `critical` is the path that its length hangs on; None where jobs are left out.

    `version` changes with everything else in the view. A reader that sends it as `since` gets a view without
    jobs, `unchanged`, as long as it is right. `last_event` is the id of the run's newest event that the view
    takes into account (empty: of none): following the events after it misses nothing.
    """

    run: Run
    jobs: tuple[JobView, ...]
    critical: CriticalPath | None = None
    counts: Mapping[JobState, int] = field(default_factory=dict)
    version: str = ""
    last_event: str = ""
    unchanged: bool = False

    @property
    def states(self) -> Mapping[JobState, int]:
        """The number of jobs in each state."""
        return self.counts or Counter(job.job.state for job in self.jobs)

    @property
    def left_out(self) -> int:
        """The number of jobs that are counted and not in `jobs`."""
        return sum(self.states.values()) - len(self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionView:
    """A version: `names` stand for it now (`latest`, `best`, aliases); `lineage` is everything it was made
    from, nearest first; `sources` says where the sinks among them (by id) are loaded from; `used_by` are
    the versions made directly from it; `bundle` is the hash of the code it was made with (empty: Gridmill's
    own); `parameters` are those of the run that made it."""

    artifact: Artifact
    names: tuple[str, ...] = ()
    lineage: tuple[Artifact, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    used_by: tuple[str, ...] = ()
    bundle: str = ""
    parameters: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPreview:
    """What removing `versions` takes away, and what stands against it: `aliases` that stand for them,
    versions that were made from them (`used_by`), active runs that may use them (`running`).
    `already_removed`: all were removed before."""

    versions: tuple[str, ...]
    size_bytes: int = 0
    aliases: tuple[str, ...] = ()
    used_by: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    already_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRemovalPreview:
    """What removing a run deletes: the records of its jobs and attempts, its log lines and other events, and
    `size_bytes` of files (its report, what failed attempts left). `versions` are those that it made: they
    stay, without the parameters and the code version of the run."""

    run: str
    jobs: int
    attempts: int
    size_bytes: int = 0
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One line of a dry run. `wave` numbers jobs that can run side by side, from 1; `starts` and `ends`
    are expected seconds from the start of the run (None: no measurement to tell from). `advice` says
    in a line what other numbers of workers would buy; empty where nothing was measured. `problem` says why it
    cannot run, `doubt` why it may fail. `transfer` is what is carried to its site and back (None: nothing);
    of a job that may go to several resources `alternatives` are what is expected there, and `choice` says why
    it goes where it does. `when` is as the job declares it: the times are those of a run without failures.
    `waiting` says how many files of its source are not settled yet. `reason` says why it would execute, or
    that it would be restored and from which version. `most_cpus` is what an attempt gets that is alone
    in its pod; None: what it declares. `inferred` are sentences on what it reads out of its data that nobody
    has declared. `asked` is what its site is asked for when it is alone, where the site has a queue, and
    `request` the same in the site's words. `unchecked` says what nobody knows of whether it fits there."""

    job: str
    kind: str
    resource: str
    site: str
    needs: tuple[str, ...]
    wave: int
    sizing: Sizing
    unchanged: bool = False
    starts: float | None = None
    ends: float | None = None
    problem: str = ""
    doubt: str = ""
    advice: str = ""
    transfer: TransferEstimate | None = None
    alternatives: tuple[ResourceAlternative, ...] = ()
    choice: str = ""
    when: When = When.SUCCESS
    waiting: str = ""
    reason: str = ""
    most_cpus: float | None = None
    inferred: tuple[str, ...] = ()
    asked: Sizing | None = None
    request: str = ""
    unchecked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmView:
    """A farm that is one of the grid's sites: what it says of itself now (None: it does not answer, and
    `problem` says why), and what was measured of the way there."""

    site: str
    status: FarmStatus | None = None
    route: Route | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What `gridmill plan` shows. `expected_seconds` is None where a job's time is not known yet; `conflict`
    says why the run would be refused as a whole. `unchecked` are the jobs that were not checked against data,
    each with the reason (`JOB: WHY`)."""

    pipeline: str
    jobs: tuple[PlannedJob, ...]
    peak_memory_bytes: int
    expected_seconds: float | None = None
    conflict: str = ""
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule, its next due times (Unix seconds), and what it waits for, if it does."""

    schedule: Schedule
    next: tuple[float, ...] = ()
    why: str = ""

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.schedule.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A client of a control node on its machine: its process, its command line, and the runs that end with
    it."""

    pid: int
    command: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """The control node itself. `problems` are those that last: what does not answer, what waits for room.
    `disks` are those of home and root; `evicted_bytes` were freed there since the start, as they were short.
    `embedded`: it ends with the last of its `clients`."""

    version: str
    home: str
    root: str
    pid: int
    address: str
    embedded: bool
    started: float
    active_runs: int
    waiting_jobs: int
    running_jobs: int
    deployments: int
    disks: tuple[DiskSpace, ...] = ()
    evicted_bytes: int = 0
    problems: tuple[str, ...] = ()
    clients: tuple[ClientView, ...] = ()
