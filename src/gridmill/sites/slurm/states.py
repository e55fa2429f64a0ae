"""Lists the states of Slurm jobs and their meaning for pods as a complete table. A second table lists the
pending reasons that never disappear."""

from collections.abc import Mapping
from enum import IntEnum

from gridmill.domain.frozen import dataclass
from gridmill.domain.states import Cause


class SlurmPhase(IntEnum):
    """The phase of a Slurm job. If several Slurm jobs have the same name, the job with the largest phase
    value is used."""

    OVER = 0
    """None of the processes of the pod remains."""
    PENDING = 1
    UNKNOWN = 2
    ENDING = 3
    """The processes of the pod are being ended."""
    RUNNING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmState:
    """`sentence` explains a state that users do not expect, and `cause` is the cause of attempts that ended
    with this state."""

    phase: SlurmPhase
    sentence: str = ""
    cause: Cause = Cause.LOST


def _over(sentence: str, cause: Cause = Cause.LOST) -> SlurmState:
    return SlurmState(phase=SlurmPhase.OVER, sentence=sentence, cause=cause)


def _pending(sentence: str = "") -> SlurmState:
    return SlurmState(phase=SlurmPhase.PENDING, sentence=sentence)


STATES: Mapping[str, SlurmState] = {
    "BOOT_FAIL": _over("its node could not be booted"),
    "CANCELLED": _over("somebody cancelled it (scancel), or an administrator did"),
    "COMPLETED": _over(""),
    "CONFIGURING": _pending("its nodes are being made ready"),
    "COMPLETING": SlurmState(phase=SlurmPhase.ENDING, sentence="its processes are being ended"),
    "DEADLINE": _over("it could not end before its deadline"),
    "EXPEDITING": _pending("it is scheduled before other jobs"),
    "FAILED": _over("its script ended with an error"),
    "LAUNCH_FAILED": _over("it could not be launched on its nodes"),
    "NODE_FAIL": _over("one of its nodes failed or stopped answering"),
    "OUT_OF_MEMORY": _over("it used more memory than it requested", Cause.MEMORY),
    "PENDING": _pending(),
    "POWER_UP_NODE": _pending("its nodes are being powered up"),
    "PREEMPTED": _over("it was preempted by a job of higher priority"),
    "RECONFIG_FAIL": _over("its node could not be reconfigured"),
    "REQUEUED": _over("Slurm put it back into its queue; a pod never starts a second time"),
    "REQUEUE_FED": _over("it was put back into the queue of a federation"),
    "REQUEUE_HOLD": _over("it was put back into the queue and is held there"),
    "RESIZING": SlurmState(phase=SlurmPhase.RUNNING, sentence="its size is being changed"),
    "RESV_DEL_HOLD": _pending("its reservation was deleted, and it is held"),
    "REVOKED": _over("another cluster of the federation runs it"),
    "RUNNING": SlurmState(phase=SlurmPhase.RUNNING),
    "SIGNALING": SlurmState(phase=SlurmPhase.RUNNING, sentence="it is being sent a signal"),
    "SPECIAL_EXIT": _over("it was put back into the queue in a special state and is held there"),
    "STAGE_OUT": SlurmState(phase=SlurmPhase.ENDING, sentence="its files are being staged out"),
    "STOPPED": SlurmState(phase=SlurmPhase.UNKNOWN, sentence="it was stopped (SIGSTOP) and keeps its nodes"),
    "SUSPENDED": SlurmState(
        phase=SlurmPhase.UNKNOWN, sentence="it is suspended, and other jobs use its nodes"
    ),
    "TIMEOUT": _over("its time limit was reached"),
    "UPDATE_DB": SlurmState(phase=SlurmPhase.RUNNING, sentence="its accounting is being updated"),
}
"""All states that squeue and sacct of Slurm 20 to 25 report."""


def state_of(word: str) -> SlurmState:
    """Returns the meaning of a Slurm state. `CANCELLED by 1000` is read as CANCELLED, and an unknown state
    as UNKNOWN."""
    state = STATES.get(word.split()[0].rstrip("+") if word.strip() else "")
    return state or SlurmState(
        phase=SlurmPhase.UNKNOWN, sentence=f"Slurm says {word!r}, a state that Gridmill does not know"
    )


NEVER: Mapping[str, str] = {
    "AccountNotAllowed": "its account may not use the partition",
    "BadConstraints": "no node can satisfy its request",
    "DeadLine": "it could not end before its deadline",
    "DependencyNeverSatisfied": "the job on which it depends did not end as required",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "JobHoldMaxRequeue": "it was put back into the queue too often",
    "PartitionConfig": "no node of the partition is large enough for it",
    "PartitionNodeLimit": "it requests more nodes than the partition permits for one job",
    "PartitionTimeLimit": "its time limit is longer than the partition's",
    "QOSNotAllowed": "its QoS may not be used in the partition",
    "launch_failed_requeued_held": "it could not be launched and is held",
}
"""The pending reasons with which a Slurm job never starts."""


def never_starts(reason: str) -> str:
    """Returns the reason why a pending Slurm job never starts, or an empty text if it may start."""
    sentence = NEVER.get(reason.replace(" ", "_"))
    if sentence is None and reason.endswith(("PerJobLimit", "PerJob")):
        sentence = "it requests more than one job may have"
    return sentence or ""
