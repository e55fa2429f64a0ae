"""This module has runs, job runs and attempts, the preemption of an attempt, and the critical path of a run.

`Preemption` records why a running job is asked to end for another job. The critical path consists of the
jobs that determine the length of the run.
"""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.amounts import Amounts, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobSize
from gridmill.domain.pipeline import FieldLines
from gridmill.domain.pod_protocol import AttemptOutcome, JobPart, PartReport
from gridmill.domain.project import DEFAULT
from gridmill.domain.rental_estimate import CostForecast
from gridmill.domain.resource import MeasuredUse, Sizing
from gridmill.domain.route import AttemptTransfers
from gridmill.domain.sql_statement import Given
from gridmill.domain.states import AttemptState, Cause, JobState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The reason why a running job was preempted. `job_run` is the id of the waiting job for which the
    running job is interrupted. `shorter_seconds` is the difference between the remaining time of the
    interrupted job and the expected time of the waiting job. If the waiting job has precedence because of
    its priority or its long wait, `shorter_seconds` is 0. `left_seconds` is the remaining time of the
    interrupted job, which determines its later position in the queue."""

    job_run: str
    left_seconds: float
    shorter_seconds: float = 0.0

    @property
    def whom(self) -> str:
        """The job for which the running job is interrupted, as text, such as `weather-7/train, 4 m 00 s
        shorter`."""
        shorter = f"{show_seconds(self.shorter_seconds)} shorter"
        return f"{self.job_run}, {shorter if self.shorter_seconds > 0 else 'whose turn comes first'}"

    @property
    def why(self) -> str:
        """The reason of the interruption as text, such as `interrupted for weather-7/train, 4 m 00 s
        shorter`."""
        return f"interrupted for {self.whom}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The properties of a client's request to start a run. `attended` means that the client waits for the
    end of the run. `request` is a key that the client chooses for the run: with this key the client can
    repeat the request if the control node ends before it answers."""

    attended: bool = False
    request: str = ""


@dataclass(slots=True, kw_only=True)
class RunStart:
    """A run that is being started. `run_id` is empty until the run has an id. It is set from the beginning if
    an earlier call with the same request has started the run."""

    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a pipeline, without its jobs. The id of a run is `pipeline-N`; its jobs are separate
    JobRun records.

    `order` is the order number of the run, which increases with every run of the home. Among runs of the same
    priority, earlier runs have precedence. `due` is the due time for which the schedule of the pipeline
    started the run, or None if a person started the run. `chunk` is the id of the chunk of a backfill to
    which the run belongs; empty if the run does not belong to a backfill. `probe` is the name of the one job
    that the run executes on a part of its data, to measure its workers; empty if the run is not a probe.
    `only` has the names of the requested jobs, if a person or a schedule requested single jobs; the jobs that
    they need run too. If `only` is empty, all jobs of the pipeline run. `data` are the files of the project
    that sinks of the pipeline load, and that therefore do not belong to the code of the commands. `commit` is
    the Git commit of the folder of the pipeline, or empty if the folder has no Git commit. `project` is the
    project whose share and quota the run uses. `settled` has the names of versions of other pipelines that
    the jobs read, each with the id of the version that the name meant when the run began. `attended` means
    that the client of the run waits for it, and that the run is stopped when the client disconnects.
    `request` is the key that the client chose for the run (see RunRequest). `jobs` is the number of jobs of
    the run (0: unknown). `forecast` is the cost of rented machines that was expected when the run started, or
    None if no machine was expected to be rented. `used_budgets` has the reasons why no machine was rented for
    the run, about which the run has an event: budgets that are used up. `damage` lists the records of the run
    that were damaged in the store and are lost; empty if there are none.
    """

    id: str
    pipeline: str
    order: int
    state: RunState
    created: float
    started: float | None = None
    ended: float | None = None
    parameters: Mapping[str, Given] = field(default_factory=dict)
    folder: str = ""
    bundle: str | None = None
    commit: str = ""
    force: bool = False
    message: str = ""
    due: float | None = None
    chunk: str = ""
    probe: str = ""
    project: str = DEFAULT
    only: tuple[str, ...] = ()
    settled: Mapping[str, str] = field(default_factory=dict)
    request: str = ""
    data: tuple[str, ...] = ()
    file: str = ""
    attended: bool = False
    jobs: int = 0
    forecast: CostForecast | None = None
    used_budgets: tuple[str, ...] = ()
    damage: str = ""

    @property
    def scheduled(self) -> bool:
        """Whether a schedule started the run, for a due time or for new data; false for a run of a
        backfill."""
        return self.due is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job of a run, with its state. The id of a job run is `RUN/JOB`.

    `needs` has the ids of other JobRuns of the same run that the job needs. `sizing` is the size that was
    estimated for one attempt, with the reasons. `attempts` is the number of all attempts of the job.
    `failures` is the number of attempts that are counted against `retries`. `losses` is the number of
    attempts that were lost with their pod. `interruptions` is the number of attempts that were preempted,
    which ran for `served_seconds` in total and had waited for `waited_seconds` in total. `moves` is the
    number of times that the job changed from one of its resources to another while it waited. `not_before`
    is the time before which the job does not start (backoff). `artifacts` has the ids of the versions that
    the job made, or (UNCHANGED) of the earlier versions that are still valid. `external` has the ids of the
    versions of other pipelines that the job reads, as fixed at the start of its run. `size` is the size of
    the job's data that was known when the job became ready. `force` means that the job runs although nothing
    has changed. `probe` is the fraction of the data that a probe processes (the results of a probe are not
    stored); it is None if the job is not a probe. `parts` is the number of parts of the job (0: the job has
    no parts). A job with parts is RUNNING while its parts run, each of which is a separate JobRun with its
    `part`; after that, an attempt of the job makes one version from the results of the parts. `part_report`
    is the report of the attempt that ran a part. `checkpoints` is the folder, below the storage root, from
    which an attempt resumes; empty for a job without checkpoints. `lines` has the line numbers of the job's
    declaration, or None if the pipeline of the job was not read from a file. `reason` is the reason why the
    job executes or does not execute, such as the change since the previous version. It is empty until the
    job is ready. `forecast` is the cost of the rented machine that was expected when the run started.
    """

    id: str
    run_id: str
    pipeline: str
    job: Job
    order: int
    state: JobState
    resource: str
    project: str = DEFAULT
    needs: tuple[str, ...] = ()
    priority: int = 0
    sizing: Sizing = field(default_factory=lambda: Sizing(amounts=Amounts()))
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    moves: int = 0
    memory_kills: int = 0
    interruptions: int = 0
    served_seconds: float = 0.0
    waited_seconds: float = 0.0
    attempt_id: str | None = None
    not_before: float = 0.0
    fingerprint: str = ""
    artifacts: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    size: JobSize | None = None
    message: str = ""
    force: bool = False
    probe: float | None = None
    part: JobPart | None = None
    parts: int = 0
    part_report: PartReport | None = None
    checkpoints: str = ""
    lines: FieldLines | None = None
    forecast: CostForecast | None = None
    reason: str = ""
    ready: float | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        """The name of the artifact that the job makes, `pipeline/job`."""
        return f"{self.pipeline}/{self.job.name}"


def attempt_id_of(job_run_id: str, number: int) -> str:
    """Return the id of the attempt of a job that has this number (from 1), in the form `RUN.JOB.K`."""
    return f"{job_run_id.replace('/', '.', 1)}.{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to execute one job of a run. The id of an attempt is `RUN.JOB.K`; messages with an older
    `token` are ignored.

    `given` has the memory limit, the CPUs (threads) and the number of GPUs that this attempt received.
    `gpu_indices` has the numbers of these GPUs on the node; no other live attempt on that node has them.
    `project` and `asked_cpus` (1 if the job declares no CPUs) are counted against the quota of the project.
    `resumable` means that the next attempt continues from the checkpoint of this attempt. `interrupted` is
    the reason why the attempt was preempted.

    An attempt of a gang has one record for each rank. Each of these records has the id of the record of rank
    0 in `gang`, and the number of ranks in `ranks` (0: the attempt is not a gang). The ids of the records of
    all other ranks end in the number of the rank. `address` and `port` are the address and the port where
    other ranks can connect to the rank. A rank that has ended keeps its place and its `outcome` until all
    ranks have ended. After that, the record of rank 0 describes the gang: its state is the final state of
    the gang, and its use is the use of all ranks together. If `dismissed` is true, the rank only served the
    other ranks, and all of them have succeeded. A dismissed rank is treated as succeeded, however it ends.
    `transfers` are the transfers of data for the attempt, at a site in another place.
    """

    id: str
    run_id: str
    job_run_id: str
    token: str
    deployment_id: str
    pod_id: str
    state: AttemptState
    given: Amounts
    placed: float
    gpu_indices: tuple[int, ...] = ()
    started: float | None = None
    ended: float | None = None
    stop_requested: bool = False
    project: str = DEFAULT
    asked_cpus: float = 1.0
    resumable: bool = False
    interrupted: Preemption | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    use: MeasuredUse | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    gang: str = ""
    rank: int = 0
    ranks: int = 0
    address: str = ""
    port: int = 0
    outcome: AttemptOutcome | None = None
    transfers: AttemptTransfers | None = None
    dismissed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The critical path of a run, with the slack of its jobs. `path` has the ids of the JobRuns on the
    critical path, from the first to the last. `seconds` has the measured or expected time of each job of the
    run. `slack` has the time by which each job could be longer without making the run longer. `known` is
    false if the time of some job is not known yet, so that 0 is used for this job."""

    path: tuple[str, ...]
    seconds: Mapping[str, float]
    slack: Mapping[str, float]
    total_seconds: float
    known: bool

    @property
    def branches(self) -> bool:
        """Whether the critical path is informative, which means that the run has jobs that take time and
        other jobs with slack."""
        return any(self.slack.values()) and any(self.seconds[key] for key in self.path)
