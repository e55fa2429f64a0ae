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
    """A part of a job: the node of its newest attempt (empty before the first attempt), the exit code and
    seconds of that attempt (None before its end), all attempts of the part, oldest first, the reason why it
    waits, and the body of the newest progress event. The job's `message` has the last output of a command on
    a node, and the reason of its failure."""

    job: JobRun
    node: str = ""
    exit_code: int | None = None
    seconds: float | None = None
    attempts: tuple[Attempt, ...] = ()
    why: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job of a run. `why` is the reason why the job waits; this includes a started job whose site does not
    answer or whose data cannot be transferred. `progress` is the body of the newest progress event. `metrics`
    has the newest value of each metric. `attempts` are oldest first; for a gang only rank 0, which represents
    all ranks. `ranks` are the other ranks. `parts` are the parts of the job. Of many attempts, only the last
    are included; of many parts, first the failed and running parts: `job` has the numbers of both."""

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
    """A run and its jobs, in declaration order. Of a run with many jobs, only the most important are
    included: first the failed and running jobs, then the waiting jobs; `counts` has the number of jobs in
    each state, of all jobs. `critical` is the critical path; None if jobs are left out.

    `version` changes with everything else in the view. A reader that sends it as `since` gets a view with
    `unchanged` and without jobs while its view is still current. `last_event` is the id of the run's newest
    event that the view includes (empty: none): a reader that follows the events after it misses none.
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
    """A version. `names` are its present names (`latest`, `best`, aliases). `lineage` are all versions that
    it was made from, nearest first. `sources` are the sources of the sinks in the lineage, by id. `used_by`
    are the versions that were made directly from it. `bundle` is the hash of the code that it was made with
    (empty: Gridmill's own). `parameters` are the parameters of the run that made it."""

    artifact: Artifact
    names: tuple[str, ...] = ()
    lineage: tuple[Artifact, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    used_by: tuple[str, ...] = ()
    bundle: str = ""
    parameters: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPreview:
    """The effects of removing `versions`, and the obstacles: `aliases` of the versions, versions that were
    made from them (`used_by`), active runs that may use them (`running`). `already_removed` means that all of
    them were removed before."""

    versions: tuple[str, ...]
    size_bytes: int = 0
    aliases: tuple[str, ...] = ()
    used_by: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    already_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRemovalPreview:
    """The effects of removing a run: it deletes the records of its jobs and attempts, its log lines and other
    events, and `size_bytes` of files (its report, files of failed attempts). `versions` are the versions that
    the run made: they are kept, without the parameters and the code version of the run."""

    run: str
    jobs: int
    attempts: int
    size_bytes: int = 0
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of a dry run. `wave` numbers groups of jobs that can run at the same time, from 1. `starts` and
    `ends` are expected seconds from the start of the run (None: there are no measurements). `advice` is a
    line on the gain of other numbers of workers; empty if nothing was measured. `problem` is the reason why
    the job cannot run, `doubt` the reason why it may fail. `transfer` is the expected transfer to its site
    and back (None: none). If a job may use several resources, `alternatives` are the expectations for each,
    and `choice` is the reason for the chosen resource. `when` is as the job declares it: the times are for a
    run without failures. `waiting` describes the files of its source that are not settled yet. `reason` is
    why the job would execute, or that it would be restored and from which version. `most_cpus` is the number
    of CPUs of an attempt that is alone in its pod; None: the declared number. `inferred` are sentences on
    undeclared facts that it derives from its data. `asked` are the amounts that its site is asked for if the
    job is alone and the site has a queue, and `request` is the same request in the syntax of the site.
    `unchecked` is the reason why it is unknown whether the job fits there."""

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
    """A farm that is one of the grid's sites: the status that it reports now (None: it does not answer, and
    `problem` is the reason), and the measured route to it."""

    site: str
    status: FarmStatus | None = None
    route: Route | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The output of `gridmill plan`. `expected_seconds` is None if a job's time is not known yet. `conflict`
    is the reason why the run would be refused as a whole. `unchecked` are the jobs that were not checked
    against data, each with the reason (`JOB: WHY`)."""

    pipeline: str
    jobs: tuple[PlannedJob, ...]
    peak_memory_bytes: int
    expected_seconds: float | None = None
    conflict: str = ""
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule, its next due times (Unix seconds), and the reason why it waits, if it does."""

    schedule: Schedule
    next: tuple[float, ...] = ()
    why: str = ""

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.schedule.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A client of a control node on its machine: its process, its command line, and the runs that are stopped
    when it ends."""

    pid: int
    command: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """The control node itself. `problems` are its lasting problems, such as a site that does not answer or a
    job that waits for room. `disks` are the file systems of the home and the storage root. `evicted_bytes`
    were deleted there since the start because space was short. `embedded` means that the control node ends
    with the last of its `clients`."""

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
