"""The resources of the simulated AWS Batch. Times are Unix times in seconds."""

from enum import StrEnum

from gridmill.domain.frozen import dataclass

Pairs = tuple[tuple[str, str], ...]


class Status(StrEnum):
    """The status of a job.

    Source: https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
    """

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNABLE = "RUNNABLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_over(self) -> bool:
        """Returns whether a job in this status can never run again."""
        return self in (Status.SUCCEEDED, Status.FAILED)

    @property
    def is_placed(self) -> bool:
        """Returns whether a job in this status has a machine."""
        return self in (Status.STARTING, Status.RUNNING)


class Kind(StrEnum):
    """The kind of the machines of a compute environment."""

    EC2 = "EC2"
    SPOT = "SPOT"
    FARGATE = "FARGATE"
    FARGATE_SPOT = "FARGATE_SPOT"

    @property
    def is_fargate(self) -> bool:
        """Returns whether the environment has no instances."""
        return self in (Kind.FARGATE, Kind.FARGATE_SPOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A managed compute environment. Its name is unique in the region. `instance_types` are names, families
    such as `g5`, or `optimal`."""

    name: str
    region: str
    kind: Kind = Kind.EC2
    max_vcpus: int = 256
    instance_types: tuple[str, ...] = ("optimal",)
    is_enabled: bool = True
    is_valid: bool = True
    status_reason: str = "ComputeEnvironment Healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A job queue, with the names of its compute environments in the order in which they are tried."""

    name: str
    region: str
    environments: tuple[str, ...]
    is_enabled: bool = True
    priority: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container of a job or of a node of a job, with the resources that the container needs. `vcpus` can
    be a fraction on Fargate."""

    image: str
    command: tuple[str, ...] = ()
    environment: Pairs = ()
    vcpus: float = 1.0
    memory_mib: int = 0
    gpus: int = 0
    job_role: str = ""
    execution_role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition of a retry strategy. An empty pattern matches everything.

    Source: https://docs.aws.amazon.com/batch/latest/APIReference/API_EvaluateOnExit.html
    """

    action: str
    on_status_reason: str = ""
    on_reason: str = ""
    on_exit_code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A retry strategy."""

    attempts: int = 1
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A revision of a job definition. `nodes` are the containers of a multi-node parallel job by index;
    else `nodes` has one container."""

    name: str
    region: str
    revision: int
    kind: str
    nodes: tuple[Container, ...]
    main_node: int = 0
    retry: Retry = Retry()
    timeout_seconds: int | None = None
    parameters: Pairs = ()
    platforms: tuple[str, ...] = ("EC2",)
    tags: Pairs = ()
    propagates_tags: bool = False
    is_active: bool = True

    @property
    def is_multi_node(self) -> bool:
        """Returns whether jobs of the definition have several nodes."""
        return self.kind == "multinode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that has ended. `exit_code` is None if its container did not exit by itself."""

    started_at: float | None
    stopped_at: float
    status_reason: str
    exit_code: int | None
    reason: str
    log_stream: str
    task: str
    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, a child of an array job, or a node of a multi-node parallel job.

    `task` is the id of the container of the present attempt, and `instance_id` its instance, which is empty
    on Fargate. `end_reason` is set if the job ends by a request or a timeout: such a job is not retried.
    """

    id: str
    name: str
    region: str
    queue: str
    definition: Definition
    container: Container
    status: Status
    created_at: float
    visible_from: float
    status_reason: str = ""
    retry: Retry = Retry()
    timeout_seconds: int | None = None
    parameters: Pairs = ()
    tags: Pairs = ()
    propagates_tags: bool = False
    size: int = 0
    nodes: tuple[Container, ...] = ()
    main_node: int = 0
    parent: str = ""
    index: int = 0
    task: str = ""
    instance_id: str = ""
    environment: str = ""
    placed_at: float | None = None
    started_at: float | None = None
    stopped_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    attempts: tuple[Attempt, ...] = ()
    is_cancelled: bool = False
    is_terminated: bool = False
    end_reason: str = ""
    is_stuck: bool = False

    @property
    def is_array(self) -> bool:
        """Returns whether the job only represents its children."""
        return self.size > 0

    @property
    def is_gang(self) -> bool:
        """Returns whether the job has nodes."""
        return len(self.nodes) > 0

    @property
    def is_node(self) -> bool:
        """Returns whether this is a node of a multi-node parallel job."""
        return "#" in self.id

    @property
    def log_stream(self) -> str:
        """Returns the name of the log stream of the present attempt: the name of the job definition, the name
        of the container, which is always `default`, and the id of the task."""
        return f"{self.definition.name}/default/{self.task}" if self.task else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine of a compute environment. `jobs` are the ids of the jobs on it."""

    id: str
    region: str
    zone: str
    type: str
    environment: str
    is_spot: bool
    launched_at: float
    ready_at: float
    jobs: tuple[str, ...] = ()
    ended_at: float | None = None
    is_dead: bool = False
    idle_since: float | None = None
