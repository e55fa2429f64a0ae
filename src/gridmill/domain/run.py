"""Runs, job runs and attempts; the preemption of an attempt; the critical path of a run.

`Preemption` records why a running job is asked to make room for another. The critical path is the jobs that
determine the length of the run.
"""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.amounts import Amounts, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job, JobSize
from gridmill.domain.pipeline import FieldLines
from gridmill.domain.pod_protocol import AttemptOutcome, JobPart, PartReport
from gridmill.domain.project import DEFAULT
from gridmill.domain.resource import MeasuredUse, Sizing
from gridmill.domain.route import AttemptTransfers
from gridmill.domain.sql_statement import Given
from gridmill.domain.states import AttemptState, Cause, JobState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The reason of a preemption. `job_run` is the id of the waiting job that gets the room. Its expected
    time is `shorter_seconds` less than the remaining time of the interrupted job; 0 if it runs first because
    of its priority or its long wait. `left_seconds` is the remaining time of the interrupted job, which
    decides its later place in the queue."""

    job_run: str
    left_seconds: float
    shorter_seconds: float = 0.0

    @property
    def whom(self) -> str:
        """A text such as `weather-7/train, 4 m 00 s shorter`."""
        shorter = f"{show_seconds(self.shorter_seconds)} shorter"
        return f"{self.job_run}, {shorter if self.shorter_seconds > 0 else 'whose turn comes first'}"

    @property
    def why(self) -> str:
        """A text such as `interrupted for weather-7/train, 4 m 00 s shorter`."""
        return f"interrupted for {self.whom}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """How a client requests a run. `attended` means that the client waits for the run. `request` is the
    client's key for the run: with it the client can repeat the request if the control node ends before it
    answers."""

    attended: bool = False
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a pipeline. Its id is `pipeline-N`; its jobs are separate JobRun records.

    `order` increases with every run of the home: within a priority, earlier runs have precedence. `due` is
    the time for which the pipeline's schedule started the run; None: a person started it. `chunk` is the id
    of its backfill's chunk; empty: it is not of a backfill. `probe` names the one job that the run tries on a
    part of its data, to measure its workers; empty: the run is no probe. `only` are the requested jobs, if a
    person or a schedule requested single jobs; the jobs that they need run too. Empty means all jobs of the
    pipeline. `data` are the files of the project that sinks of the pipeline load: they do not belong to the
    code of its commands. `commit` is the Git commit of its folder (empty: none). `project` is the project
    whose share and quota the run uses. `settled` are the names of other pipelines' versions that its jobs
    read, each with the id of the version that the name meant when the run began. `attended` means that its
    client waits for the run, and that the run is stopped when the client disconnects. `request` is its
    client's key for the run (see RunRequest). `jobs` is its number of jobs (0: unknown). `damage` lists the
    run's records that were damaged in the store and are lost; empty: none.
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
    damage: str = ""

    @property
    def scheduled(self) -> bool:
        """Whether a schedule started the run, for a due time or for new data; false for a run of a
        backfill."""
        return self.due is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job within a run. Its id is `RUN/JOB`.

    `needs` are ids of JobRuns of the same run. `sizing` is the estimate for one attempt, with its reasons.
    `attempts` counts all attempts; `failures` counts the attempts that count against `retries`; `losses`
    counts the attempts lost with their pod; `interruptions` counts the attempts that were preempted, which
    ran for `served_seconds` in all and had waited for `waited_seconds` in all. `moves` counts the changes
    from one of its resources to another while it waited. `not_before` delays it (backoff). `artifacts` are
    the ids of the versions that it made, or (UNCHANGED) of the earlier versions that are still valid.
    `external` are the ids of the versions of other pipelines that it reads, as fixed at the start of its run.
    `size` is its known size at the time when it became ready. `force` means that it runs although nothing
    changed. `probe` is the share of its data that a probe processes, whose results are not kept; None: no
    probe. `parts` is the number of its parts (0: it has none). A job with parts is RUNNING while its parts
    run, each of them a separate JobRun with its `part`; after that an attempt of the job makes one version
    from the results of the parts. `part_report` is the report of the attempt that ran a part. `checkpoints`
    is the folder, below the storage root, from which an attempt resumes; empty for a job without checkpoints.
    `lines` are the lines of the job's declaration; None if its pipeline was not read from a file. `reason` is
    why the job executes or does not execute: the change since the version before; empty until the job is
    ready.
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
    reason: str = ""
    ready: float | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        """The name of the artifact that the job makes, `pipeline/job`."""
        return f"{self.pipeline}/{self.job.name}"


def attempt_id_of(job_run_id: str, number: int) -> str:
    """The id of the attempt with that number (from 1): `RUN.JOB.K`."""
    return f"{job_run_id.replace('/', '.', 1)}.{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of one job. Its id is `RUN.JOB.K`; messages with an older `token` are ignored.

    `given` is the hard memory limit, the CPUs (threads) and the number of GPUs of this attempt. `gpu_indices`
    are the node's numbers of those GPUs, which no other live attempt on that node has. `project` and
    `asked_cpus` (1 if its job declares no CPUs) count against a quota. `resumable` means that the next
    attempt continues from its checkpoint. `interrupted` is the reason of its preemption.

    An attempt of a gang has one record per rank. Each record has the id of rank 0's record in `gang` and the
    number of ranks in `ranks` (0: no gang). The ids of the other records end in their rank. `address` and
    `port` are where other ranks reach the rank. A rank that has ended keeps its place and its `outcome` until
    all ranks have ended; then rank 0's record describes the gang: its state is the gang's final state, and
    its use is the use of all ranks together. A `dismissed` rank only served the other ranks, which have all
    succeeded: it counts as succeeded however it ends. `transfers` are the transfers for the attempt, at a
    site in another place.
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
    """The critical path of a run. `path` are JobRun ids from the first to the last. `seconds` is the measured
    or expected time of each job. `slack` is the time by which each job could be longer without making the run
    longer. `known` is false if a job's time is not known yet and counts as 0."""

    path: tuple[str, ...]
    seconds: Mapping[str, float]
    slack: Mapping[str, float]
    total_seconds: float
    known: bool

    @property
    def branches(self) -> bool:
        """Whether the critical path is informative: the run has jobs that take time, and other jobs with
        slack."""
        return any(self.slack.values()) and any(self.seconds[key] for key in self.path)
