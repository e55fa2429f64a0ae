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

    BLOCKED = "blocked"  # a needed job has not ended yet
    WAITING = "waiting"  # ready; has no place yet
    RUNNING = "running"  # has a live attempt
    SUCCEEDED = "succeeded"
    UNCHANGED = "unchanged"  # an earlier result is still valid
    FAILED = "failed"
    SKIPPED = "skipped"  # a needed job did not succeed, or has no rows yet
    STOPPED = "stopped"


class AttemptState(StrEnum):
    """The states that an attempt can have. An attempt never leaves a final state, because a retry is a new
    attempt."""

    PLACED = "placed"  # committed; the pod may not have it yet
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # its pod has ended; later messages of it are ignored


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
    ENDING = "ending"  # it has stopped its jobs and accepts no others
    GONE = "gone"


class Cause(StrEnum):
    """The reason why an attempt ended without success."""

    EXIT = "exit"  # the program ended with an error
    MEMORY = "memory"  # it used more memory than its limit
    SHORTAGE = (
        "shortage"  # its pod or machine ran out of memory, it was within its size: tried again as it is
    )
    TIMEOUT = "timeout"
    SIGNAL = "signal"
    STOPPED = "stopped"
    LOST = "lost"
    INPUT = "input"  # the job's declaration or data is wrong: a retry cannot help
    OUTPUT = "output"  # its output cannot be stored, or a declared output is missing
    STORAGE = "storage"  # disk full, ...
    DISK = "disk"  # it wrote more than its limit, or filled the disk itself
    ENVIRONMENT = "environment"  # the package index did not answer, or the installer was killed: tried again
    INTERNAL = "internal"


State = TypeVar("State", RunState, JobState, AttemptState, DeploymentState, PodState)

RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.ACTIVE: frozenset({RunState.STOPPING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.STOPPING: frozenset({RunState.STOPPED, RunState.SUCCEEDED, RunState.FAILED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset({RunState.ACTIVE}),  # resume
    RunState.STOPPED: frozenset({RunState.ACTIVE}),  # resume
}
_RESUMED = frozenset({JobState.BLOCKED, JobState.WAITING})
JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.BLOCKED: frozenset(
        {
            JobState.WAITING,
            JobState.RUNNING,  # it runs in parts
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
    """Raise ConflictError if the table of transitions does not contain `old -> new`. A state that does not
    change is always allowed."""
    if new != old and new not in moves[old]:
        raise ConflictError(f"{what} is {old} and cannot become {new}")
