"""This module has the states of runs, jobs, attempts, deployments and pods, each with its table of allowed
transitions."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gridmill.errors import ConflictError


class RunState(StrEnum):
    """The states that a run can have. A run is finished in every state except ACTIVE and STOPPING."""

    ACTIVE = "active"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class JobState(StrEnum):
    """The states that a job within a run can have."""

    BLOCKED = "blocked"
    """A job that this job needs has not ended yet."""
    WAITING = "waiting"
    """The job is ready, but no pod has been chosen for it yet."""
    RUNNING = "running"
    """The job has a live attempt."""
    SUCCEEDED = "succeeded"
    UNCHANGED = "unchanged"
    """The job was not executed, because its earlier result is still valid."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """A job that this job needs did not succeed, or its result has no rows yet."""
    STOPPED = "stopped"


class AttemptState(StrEnum):
    """The states that an attempt can have. An attempt never leaves a final state, because a retry is a new
    attempt."""

    PLACED = "placed"
    """The attempt is committed, but its pod may not have received it yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    """The pod of the attempt has ended. Later messages of the attempt are ignored."""


class DeploymentState(StrEnum):
    """The states that a deployment can have."""

    STARTING = "starting"
    UP = "up"
    RELEASING = "releasing"
    GONE = "gone"


class PodState(StrEnum):
    """The states of a pod, which is one worker of a deployment."""

    STARTING = "starting"
    UP = "up"
    ENDING = "ending"
    """The pod has stopped its jobs and accepts no other jobs."""
    GONE = "gone"


class Cause(StrEnum):
    """The reason why an attempt ended without success."""

    EXIT = "exit"
    """The program ended with an error."""
    MEMORY = "memory"
    """The attempt used more memory than its limit."""
    SHORTAGE = "shortage"
    """The pod or the machine ran out of memory, although the attempt used less than its limit. The attempt is
    retried with the same size."""
    TIMEOUT = "timeout"
    SIGNAL = "signal"
    STOPPED = "stopped"
    LOST = "lost"
    TAKEN = "taken"
    """The provider or its user has ended the rented machine of the attempt. The attempt is not counted."""
    INPUT = "input"
    """The declaration or the data of the job is wrong, so a retry cannot help."""
    OUTPUT = "output"
    """The output of the attempt cannot be stored, or a declared output is missing."""
    STORAGE = "storage"
    """A file cannot be written, for example because the disk is full."""
    DISK = "disk"
    """The attempt wrote more data than its limit, or filled the disk itself."""
    ENVIRONMENT = "environment"
    """The package index did not answer, or the installer was killed. The attempt is retried."""
    INTERNAL = "internal"


State = TypeVar("State", bound=StrEnum)

RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.ACTIVE: frozenset({RunState.STOPPING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.STOPPING: frozenset({RunState.STOPPED, RunState.SUCCEEDED, RunState.FAILED}),
    RunState.SUCCEEDED: frozenset(),
    # a run that failed or was stopped becomes active again when it is resumed
    RunState.FAILED: frozenset({RunState.ACTIVE}),
    RunState.STOPPED: frozenset({RunState.ACTIVE}),
}
_RESUMED = frozenset({JobState.BLOCKED, JobState.WAITING})
JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.BLOCKED: frozenset(
        {
            JobState.WAITING,
            # a job in parts runs as soon as it is ready, because only its parts need places
            JobState.RUNNING,
            JobState.UNCHANGED,
            JobState.SKIPPED,
            JobState.STOPPED,
            JobState.FAILED,
        }
    ),
    JobState.WAITING: frozenset(
        {JobState.RUNNING, JobState.UNCHANGED, JobState.STOPPED, JobState.FAILED, JobState.BLOCKED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.UNCHANGED, JobState.FAILED, JobState.STOPPED, JobState.WAITING}
    ),
    # When a run is resumed, a job runs again if it runs after failures too, or if it reads a result of such a
    # job.
    JobState.SUCCEEDED: frozenset({JobState.BLOCKED}),
    JobState.UNCHANGED: frozenset({JobState.BLOCKED}),
    JobState.FAILED: _RESUMED,
    JobState.SKIPPED: _RESUMED,
    JobState.STOPPED: _RESUMED,
}
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.PLACED: frozenset(
        {
            AttemptState.RUNNING,
            AttemptState.SUCCEEDED,
            AttemptState.FAILED,
            AttemptState.STOPPED,
            AttemptState.LOST,
        }
    ),
    AttemptState.RUNNING: frozenset(
        {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.STOPPED, AttemptState.LOST}
    ),
    AttemptState.SUCCEEDED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.STOPPED: frozenset(),
    AttemptState.LOST: frozenset(),
}
DEPLOYMENT_MOVES: Mapping[DeploymentState, frozenset[DeploymentState]] = {
    DeploymentState.STARTING: frozenset(
        {DeploymentState.UP, DeploymentState.RELEASING, DeploymentState.GONE}
    ),
    DeploymentState.UP: frozenset({DeploymentState.RELEASING, DeploymentState.GONE}),
    DeploymentState.RELEASING: frozenset({DeploymentState.GONE}),
    DeploymentState.GONE: frozenset(),
}
POD_MOVES: Mapping[PodState, frozenset[PodState]] = {
    PodState.STARTING: frozenset({PodState.UP, PodState.GONE}),
    PodState.UP: frozenset({PodState.ENDING, PodState.GONE}),
    PodState.ENDING: frozenset({PodState.GONE}),
    PodState.GONE: frozenset(),
}

FINISHED_RUNS = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
DONE_JOBS = frozenset({JobState.SUCCEEDED, JobState.UNCHANGED})
FINISHED_JOBS = DONE_JOBS | {JobState.FAILED, JobState.SKIPPED, JobState.STOPPED}
URGENCY = (
    JobState.RUNNING,
    JobState.FAILED,
    JobState.WAITING,
    JobState.BLOCKED,
    JobState.STOPPED,
    JobState.SKIPPED,
    JobState.SUCCEEDED,
    JobState.UNCHANGED,
)
"""The states of jobs, ordered by their importance for a reader; the first state is the most important."""
LIVE_ATTEMPTS = frozenset({AttemptState.PLACED, AttemptState.RUNNING})


def check_move(moves: Mapping[State, frozenset[State]], old: State, new: State, what: str) -> None:
    """Raise ConflictError if the table of transitions does not contain `old -> new`. A transition from a
    state to the same state is always allowed."""
    if new != old and new not in moves[old]:
        raise ConflictError(f"{what} is {old} and cannot become {new}")
