"""The interface to a managed batch service, which runs one container for each job that is submitted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.states import Cause


class BatchPhase(StrEnum):
    """The phase of a job at the service."""

    QUEUED = "queued"
    """The service has accepted the job, and no machine runs it yet."""
    STARTING = "starting"
    """A machine was selected and loads the image."""
    RUNNING = "running"
    ENDED = "ended"
    """No container of the job runs any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A job for the service. `name` identifies the job, so that a caller finds the job after a lost answer.

    `command` and `variables` are the command line and the environment of its container. `cpus` are whole
    CPUs. The service starts the container at most once, and ends it after `limit_seconds`. `spot` requests
    machines that the provider may take back, if the service permits this choice for each job. If `nodes` is
    larger than 1, the container runs on this number of machines at the same time, each with these CPUs,
    memory and GPUs. The end of node 0 ends all nodes.
    """

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    cpus: int
    memory_bytes: int
    gpus: int
    limit_seconds: float
    spot: bool = False
    nodes: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """The state of a job at the service.

    `status` is the state in the words of the service. Times are Unix times in seconds, or None before the
    event. `reason` is the reason of the state in the words of the service. `cause` is the reason for the end
    of a job that did not end by itself: TAKEN if the provider took the machine back, MEMORY if the container
    used more memory than it had requested, TIMEOUT if the job reached its longest time, and otherwise LOST.
    """

    id: str
    phase: BatchPhase
    status: str
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    cause: Cause = Cause.LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProblem:
    """The reason why a queued job does not start. If it is `hopeless`, the job never starts unless a person
    changes the settings of the service."""

    message: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A job that has not ended. `name` is the name of its request, `status` the state in the words of the
    service, and `end_command` a command line that ends the job."""

    id: str
    name: str
    status: str
    end_command: str


def node_id(id: str, node: int) -> str:
    """Return the id of a node of a job with several nodes."""
    return f"{id}#{node}"


def whole_id(id: str) -> str:
    """Return the id of the job to which a node belongs, or the same id if it is the id of a job."""
    return id.partition("#")[0]


class BatchPort(Protocol):
    """A batch service. All methods may be called by several threads, and every method may be repeated. They
    raise UnavailableError if a later call may succeed, and another GridmillError if the service refuses the
    request."""

    def check(self) -> str:
        """Check the credentials and that the queue accepts jobs. Returns the account and the queue in
        words."""

    def account(self) -> str:
        """Return the name of the account to which the present credentials belong. The jobs of other accounts
        cannot be found with these credentials."""

    def submit(self, request: BatchRequest) -> str:
        """Submit a job and return its id. A caller that gets no answer must look for the job with `find`
        before it submits the job again."""

    def find(self, name: str) -> str | None:
        """Return the id of the job with this name, or None if the service has no such job."""

    def describe(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        """Return the states of jobs by their ids. Jobs that the service does not know are left out. The id
        of a node of a job is `node_id`; a node that does not exist yet has the state of its job."""

    def open_jobs(self, mark: str) -> Sequence[OpenJob]:
        """Return all jobs that have not ended and whose names begin with `gm-MARK-`."""

    def cancel(self, id: str, reason: str) -> None:
        """End a job, or the job with all its nodes if `id` is the id of a node. Its container gets SIGTERM,
        and later SIGKILL. The method does not wait until the job has ended, and ignores jobs that have ended
        or that the service does not know."""

    def diagnose(self, job: BatchJob, request: BatchRequest) -> QueueProblem | None:
        """Return the reason why a queued job does not start, or None if the service shows no reason."""

    def bucket_credentials(self, bucket: str) -> Callable[[], Mapping[str, Any]] | None:
        """Return a function that returns the present credentials of the home for a bucket, whose URL is
        `bucket`, in the form of obstore. The result is None if the bucket is not of this provider, or if the
        settings of the bucket or the environment have the credentials."""

    def close(self) -> None:
        """Close all connections."""
