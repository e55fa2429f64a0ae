"""A plan of the scheduler: the jobs to start, and the deployments to start or release, as values.

A pure function decides the plan (`scheduler/plan.py`).
"""

from typing import NamedTuple

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Preemption


class StartJob(NamedTuple):
    """Start an attempt of a job on a pod, with these amounts. A gang has one StartJob per rank, in the order
    of ranks. It is a tuple because a plan may have 100,000 of them, and a tuple is made in a quarter of the
    time of a frozen dataclass."""

    job_run_id: str
    deployment_id: str
    pod_id: str
    cpus: float
    memory_bytes: int
    gpus: int

    @property
    def given(self) -> Amounts:
        """The hard memory limit, CPUs (threads) and number of GPUs."""
        return Amounts(cpus=self.cpus, memory_bytes=self.memory_bytes, gpus=self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUp:
    """Start a deployment of `resource`: one pod per entry of `nodes` (node names). `pinned` means that the
    pods may run only on these nodes."""

    resource: Resource
    sizing: Sizing
    nodes: tuple[str, ...]
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release a deployment."""

    deployment_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Ask these attempts of one job (a gang's ranks) to end, so that another job gets room. The job continues
    later from its checkpoint."""

    attempt_ids: tuple[str, ...]
    interruption: Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Fail a job that can never run in the present grid, because it is larger than every site, with a
    message."""

    job_run_id: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of the scheduler. `again_at` is when time alone changes the plan (the end of a keep time
    or of a backoff); None if only events change it.

    `complete` is false if the plan reached its size limit, or refused jobs: planning again may find more.
    """

    starts: tuple[StartJob, ...] = ()
    bring_ups: tuple[BringUp, ...] = ()
    releases: tuple[Release, ...] = ()
    refusals: tuple[Refuse, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    again_at: float | None = None
    complete: bool = True
