"""This module has a plan of the scheduler as values: the jobs to start, and the deployments to start or
release.

A pure function (`scheduler/plan.py`) decides the plan.
"""

from typing import NamedTuple

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Preemption


class StartJob(NamedTuple):
    """A decision to start an attempt of a job on a pod, with these amounts. A gang has one StartJob for each
    rank, in the order of the ranks. StartJob is a tuple because a plan may have 100,000 of them, and a tuple
    is made in a quarter of the time of a frozen dataclass."""

    job_run_id: str
    deployment_id: str
    pod_id: str
    cpus: float
    memory_bytes: int
    gpus: int

    @property
    def given(self) -> Amounts:
        """The memory limit, the CPUs (threads) and the number of GPUs that the attempt receives."""
        return Amounts(cpus=self.cpus, memory_bytes=self.memory_bytes, gpus=self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUp:
    """A decision to start a deployment of `resource`, with one pod for each entry of `nodes` (node names).
    `pinned` means that the pods may run only on these nodes."""

    resource: Resource
    sizing: Sizing
    nodes: tuple[str, ...]
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A decision to release a deployment."""

    deployment_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """A decision to preempt one job: its attempt (or all ranks of its gang) is asked to end, so that another
    job can start. The interrupted job continues later from its checkpoint."""

    attempt_ids: tuple[str, ...]
    interruption: Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """A decision that a job fails, with a message, because the job is larger than every site and can never
    run in the present grid."""

    job_run_id: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of the scheduler for one snapshot. `again_at` is the time at which the plan changes
    without an event (the end of a keep time or of a backoff). `again_at` is None if only events change the
    plan.

    `complete` is false if the plan reached its size limit or refused jobs, so that planning again may start
    more jobs.
    """

    starts: tuple[StartJob, ...] = ()
    bring_ups: tuple[BringUp, ...] = ()
    releases: tuple[Release, ...] = ()
    refusals: tuple[Refuse, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    again_at: float | None = None
    complete: bool = True
