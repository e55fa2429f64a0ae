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
    """`job_run` is the id of the job that it makes room for, which is expected to need `shorter_seconds` less
    than what is left of it; 0 where it goes before it for its priority, or because it waited so long.
    `left_seconds` of the interrupted job are what decides its place in line from then on."""

    job_run: str
    left_seconds: float
    shorter_seconds: float = 0.0

    @property
    def whom(self) -> str:
        """`weather-7/train, 4 m 00 s shorter`."""
        shorter = f"{show_seconds(self.shorter_seconds)} shorter"
        return f"{self.job_run}, {shorter if self.shorter_seconds > 0 else 'whose turn comes first'}"

    @property
    def why(self) -> str:
        """`interrupted for weather-7/train, 4 m 00 s shorter`."""
        return f"interrupted for {self.whom}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """How a client asks for a run: `attended` if it waits for the run; `request` is its key for the run,
    in case the control node ends before it answers."""

    attended: bool = False
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a pipeline. Its id is `pipeline-N`; its jobs are JobRuns of their own.

    `order` grows with every run of the home: earlier runs go first within a priority. `due` is the time that
    the pipeline's schedule started it for; None: somebody started it. `chunk` is the id
    of the backfill's chunk that it is of; empty: of none. `probe` names the one job that it tries on a part
    of its data, to learn about its workers; empty: it is no probe. `only` are the jobs that were asked for,
    alone or by a schedule of theirs; what they need is run with them. Empty: all of the pipeline.
    `data` are the files of the project that sinks of the pipeline load: they are no code of its commands.
    `commit` is the Git commit of its folder (empty: none). `project` is whose share and quota it counts
    against. `settled` are the names of other pipelines' versions that its jobs read, each with the id of the
    version that it meant when the run began. `attended`: its client waits for it, and the run is stopped
    when that client goes. `request` is what its client knows it by (see Asked). `jobs` is how many jobs it
    has (0: not known), `damage` which of its records were damaged in the store and are lost; empty: none.
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
        """Whether a schedule started it, for a time or for something new; not a backfill."""
        return self.due is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job within a run. Its id is `RUN/JOB`.

    `needs` are ids of JobRuns of the same run. `sizing` is the estimate for one attempt, with why. `attempts`
    counts attempts made; `failures` those that count against `retries`; `losses` those lost with their pod;
    `interruptions` those that made room for other jobs, which ran for `served_seconds` together and had
    waited for `waited_seconds` before. `moves` counts how often it went from one of its resources to another
    while it waited. `not_before` holds it back (back-off). `artifacts` are the ids of the versions it made,
    or (UNCHANGED) the earlier ones that stand. `external` are the ids of the versions of other pipelines that
    it reads, as its run has settled them; `size` is what was known of its size when it became ready. `force`:
    it runs although nothing changed. `probe` is the share of its data that a probe does, and nothing it makes
    is kept; None: no probe. A job that is done in `parts` (0: in none) is RUNNING while these are done, each
    a JobRun of its own with its `part`; then an attempt of the job makes one version of what they made.
    `part_report` is what the attempt that did a part told of it. `checkpoints` is the folder, below the
    storage root, that an attempt goes on from; empty for a job that leaves none. `lines` says where the job
    is written; None where its pipeline was not read from a file. `reason` says why it executes, or why it
    does not: what changed since the version before; empty until it is ready."""

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
        """`pipeline/job`, the name of the artifact it makes."""
        return f"{self.pipeline}/{self.job.name}"


def attempt_id_of(job_run_id: str, number: int) -> str:
    """The id of the attempt of that number, from 1: `RUN.JOB.K`."""
    return f"{job_run_id.replace('/', '.', 1)}.{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of one job. Its id is `RUN.JOB.K`; `token` fences off anything older.

    `given` is the hard memory limit, CPUs (threads) and number of GPUs this attempt has; `gpu_indices` are
    the node's numbers of those GPUs, which no other live attempt on that node has. `project` and `asked_cpus`
    (1 where its job says nothing of CPUs) are what counts against a quota. `resumable`: the next one goes on
    from its checkpoint. `interrupted` says for whom it was asked to end.

    A gang's attempt is one record per rank, all with the id of rank 0's in `gang` and their number in
    `ranks` (0: no gang); ids of the others end in their rank. `address` and `port` are where the rank is
    reached. A rank that has ended keeps its place and its `outcome` until all have; then rank 0's record
    tells of the gang: its state is how the gang ended, its use what all used together. One that is
    `dismissed` only served the others, which have all succeeded: however it ends then, it has too.
    `transfers` is what was carried for it, at a site in another place.
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
