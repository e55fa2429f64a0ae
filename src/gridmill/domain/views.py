"""This module has the views that the user interfaces show: records that are joined for a reader, computed
when a client requests them, and never stored."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import When
from gridmill.domain.rental_estimate import RentalEstimate
from gridmill.domain.resource import ResourceAlternative, Sizing, TransferEstimate
from gridmill.domain.route import Route
from gridmill.domain.run import Attempt, CriticalPath, JobRun, Run
from gridmill.domain.schedule import Schedule
from gridmill.domain.sql_statement import Given
from gridmill.domain.states import JobState
from gridmill.domain.usage import DiskSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """A part of a job, with all attempts of the part, oldest first. For the newest attempt, the record has
    the node (empty before the first attempt), and the exit code and seconds (None before the end of the
    attempt). The record also has the reason why the part waits, and the body of its newest progress event.
    For a command on every node, the `message` of the part's JobRun has the last output of the command on
    this node, or the reason why it failed."""

    job: JobRun
    node: str = ""
    exit_code: int | None = None
    seconds: float | None = None
    attempts: tuple[Attempt, ...] = ()
    why: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job of a run, as the user interfaces show it. `why` is the reason why the job waits, also for a job
    that has started but whose site does not answer or whose data cannot be transferred. `progress` is the
    body of the newest progress event of the job. `metrics` has the newest value of each metric. `attempts`
    are the attempts of the job, oldest first; for a gang only the attempt of rank 0, which represents all
    ranks. `ranks` are the attempts of the other ranks of a gang. `parts` are the parts of the job, if it
    runs in parts. If there are many attempts, only the last are included; if there are many parts, failed
    and running parts are included first. The record `job` has the total numbers of attempts and parts of the
    job."""

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
    """A run and its jobs, in the order of their declaration. If a run has many jobs, only the most important
    jobs are included: first failed and running jobs, then waiting jobs. `counts` has the number of jobs in
    each state, for all jobs of the run. `critical` is the critical path of the run. The critical path is
    None if jobs are left out of the view.

    `version` changes whenever anything else in the view changes. If a reader sends the `version` of its view
    as `since` and this view is still current, the reader gets a view with `unchanged` and without jobs.
    `last_event` is the id of the newest event of the run that the view includes, or empty if there is none.
    A reader that follows the events after this id misses no event.
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
        """Return the number of jobs in each state."""
        return self.counts or Counter(job.job.state for job in self.jobs)

    @property
    def left_out(self) -> int:
        """The number of jobs that are counted but are not in `jobs`."""
        return sum(self.states.values()) - len(self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionView:
    """A version of an artifact, as the user interfaces show it. `names` are the present names of the version
    (`latest`, `best`, aliases). `lineage` has all versions from which this version was made, nearest first.
    `sources` are the sources of the sinks in the lineage, by the id of the sink's version. `used_by` has the
    versions that were made directly from this version. `bundle` is the hash of the code with which the
    version was made (empty if it is Gridmill's own code). `parameters` are the parameters of the run that
    made the version."""

    artifact: Artifact
    names: tuple[str, ...] = ()
    lineage: tuple[Artifact, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    used_by: tuple[str, ...] = ()
    bundle: str = ""
    parameters: Mapping[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPreview:
    """The effects of removing `versions`, and the facts that prevent the removal: the `aliases` of these
    versions, other versions that were made from these versions (`used_by`), the active runs that may use
    these versions (`running`), and the services that serve these versions or can return to them
    (`services`). `already_removed` means that the content of all these versions was removed earlier."""

    versions: tuple[str, ...]
    size_bytes: int = 0
    aliases: tuple[str, ...] = ()
    used_by: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    already_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRemovalPreview:
    """The effects of removing a run: the removal deletes the records of its jobs and attempts, its log lines
    and other events, and `size_bytes` of files (its report, and files of failed attempts). `versions` are
    the versions that the run made: they are kept, but without the parameters and the code version of the
    run."""

    run: str
    jobs: int
    attempts: int
    size_bytes: int = 0
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of a dry run, which plans a run without starting it. `wave` is the number (from 1) of a group
    of jobs that can run at the same time. `starts` and `ends` are the expected seconds from the start of the
    run to the start and the end of the job (None if there are no measurements). `advice` is a line about the
    gain of another number of workers; empty if nothing was measured. `problem` is the reason why the job
    cannot run, and `doubt` is the reason why it may fail. `transfer` has the data that is expected to be
    transferred to the site of the job and back (None if there is no transfer). If a job may use several
    resources, `alternatives` has the expected times for each resource, and `choice` is the reason why the
    resource was chosen. `when` is the condition that the job declares. The planned times assume a run
    without failures. `waiting` describes the files of the job's source that are not settled yet. `reason` is
    the reason why the job would execute, or a text with the version from which the job would be restored.
    `most_cpus` is the number of CPUs of an attempt that is alone in its pod; if it is None, the attempt gets
    the declared number of CPUs. `inferred` has sentences about facts that are not declared and that the job
    derives from its data. `asked` are the amounts that Gridmill requests from the site if the job is alone
    and the site has a queue, and `request` is the same request in the syntax of the site. `unchecked` is the
    reason why it is unknown whether the job fits at the site. `rentals` has the machine that would be rented
    for each of the resources at cloud sites, by the name of the resource."""

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
    rentals: Mapping[str, RentalEstimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmView:
    """A farm that is one of the grid's sites, with the status that the farm reports now and the measured
    route to the farm. If the farm does not answer, the status is None and `problem` is the reason."""

    site: str
    status: FarmStatus | None = None
    route: Route | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The plan of a run that was not started, which `gridmill plan` prints. `expected_seconds` is None if
    the time of a job is not known yet. `conflict` is the reason why the control node would refuse the whole
    run. `unchecked` has one text for each job that was not checked against its data: the name of the job, a
    colon and the reason."""

    pipeline: str
    jobs: tuple[PlannedJob, ...]
    peak_memory_bytes: int
    expected_seconds: float | None = None
    conflict: str = ""
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule with its next due times (Unix seconds), and the reason if the schedule waits."""

    schedule: Schedule
    next: tuple[float, ...] = ()
    why: str = ""

    @property
    def name(self) -> str:
        """The name of the pipeline of the schedule."""
        return self.schedule.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A client of a control node on its machine: the process of the client, its command line, and the runs
    that are stopped when the client ends."""

    pid: int
    command: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """The state of the control node, as the user interfaces show it. `problems` are the lasting problems of
    the control node, for example that a site does not answer, or that a job waits for free memory. `disks`
    are the file systems of the home and of the storage root. `evicted_bytes` is the number of bytes that
    were deleted from these disks since the control node started, because disk space was short. `embedded`
    means that the control node ends when the last of its `clients` ends."""

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
