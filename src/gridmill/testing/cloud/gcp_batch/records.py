"""The resources of the simulated Google Cloud Batch. Times are Unix times in seconds."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gridmill.domain.frozen import dataclass

Pairs = tuple[tuple[str, str], ...]


class JobState(StrEnum):
    """The state of a job.

    Source: https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs#State
    """

    QUEUED = "QUEUED"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DELETION_IN_PROGRESS = "DELETION_IN_PROGRESS"
    CANCELLATION_IN_PROGRESS = "CANCELLATION_IN_PROGRESS"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Returns whether the tasks of a job in this state can never run again."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def is_ending(self) -> bool:
        """Returns whether a job in this state starts no more tasks."""
        return self.is_over or self in (JobState.DELETION_IN_PROGRESS, JobState.CANCELLATION_IN_PROGRESS)


class TaskState(StrEnum):
    """The state of a task.

    Source: https://cloud.google.com/batch/docs/reference/rest/v1/State
    """

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    SUCCEEDED = "SUCCEEDED"

    @property
    def is_over(self) -> bool:
        """Returns whether a task in this state has ended."""
        return self in (TaskState.FAILED, TaskState.SUCCEEDED)


class ExitCode:
    """The exit codes that Batch reserves.

    Source: https://cloud.google.com/batch/docs/troubleshooting#reserved-exit-codes
    """

    PREEMPTED = 50001
    VM_LOST = 50002
    OVER_MAXIMUM = 50005


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A container or script of a task. `image` is empty for a script, whose text is the only word of
    `command`."""

    image: str = ""
    entry_point: str = ""
    command: tuple[str, ...] = ()
    environment: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A lifecycle policy: whether a task that ended with one of the exit codes is retried."""

    retries: bool
    exit_codes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The tasks of a job, and the machines that the tasks need."""

    runnables: tuple[Runnable, ...]
    environment: Pairs
    task_count: int
    parallelism: int
    max_retries: int
    policies: tuple[Policy, ...]
    max_run_seconds: float | None
    cpu_milli: int
    memory_mib: int
    machine_type: str
    is_spot: bool
    accelerator: str
    accelerators: int
    zones: tuple[str, ...]
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A status event of a job or task."""

    type: str
    description: str
    time: float
    task_state: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. `request` is the body of the request that created it."""

    name: str
    uid: str
    location: str
    spec: Spec
    request: Mapping[str, Any]
    state: JobState
    created_at: float
    updated_at: float
    visible_from: float
    labels: Pairs = ()
    events: tuple[Event, ...] = ()
    running_since: float | None = None
    ran_seconds: float = 0.0
    is_stuck: bool = False

    @property
    def group(self) -> str:
        """Returns the name of the only task group."""
        return f"{self.name}/taskGroups/group0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task. `run` is the id of the container that runs now, `step` its number among the runnables, and
    `end_code` the reserved exit code that a task gets because Batch ends it."""

    name: str
    job: str
    index: int
    state: TaskState = TaskState.PENDING
    events: tuple[Event, ...] = ()
    retries: int = 0
    vm_id: str = ""
    run: str = ""
    step: int = 0
    end_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A VM of a job. `task` is the name of the task on it, or empty."""

    id: str
    job: str
    zone: str
    type: str
    accelerator: str
    accelerators: int
    is_spot: bool
    created_at: float
    ready_at: float
    task: str = ""
    ended_at: float | None = None
    is_dead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A long-running operation."""

    name: str
    verb: str
    target: str
    created_at: float
    ended_at: float | None = None
