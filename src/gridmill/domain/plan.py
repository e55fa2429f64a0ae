"""A plan of the scheduler: which jobs to start, which deployments to bring up or release, as values.

A pure function decides the plan (`scheduler/plan.py`).
"""

from typing import NamedTuple

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.run import Preemption


class StartJob(NamedTuple):
    """Start an attempt of a job on a pod, with this much. A gang has one per rank, one after the other. A
    tuple, as a plan may hold 100,000 of them: it is made in a quarter of a frozen dataclass's time."""

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
    """Bring up a deployment of `resource`: one pod per entry of `nodes` (node names). `pinned`: there and
    nowhere else."""

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
    """Ask these attempts of one job (a gang's ranks) to end and make room for another; the job goes on from
    its checkpoint later."""

    attempt_ids: tuple[str, ...]
    interruption: Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """A job that can never run as things are (larger than any site): fail it, saying so."""

    job_run_id: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`again_at` is when time alone changes the plan (keep expiry, back-off end); None: only events do.

    `complete` is false when the plan was cut at its bound, or refused jobs, and planning again may find more.
    """

    starts: tuple[StartJob, ...] = ()
    bring_ups: tuple[BringUp, ...] = ()
    releases: tuple[Release, ...] = ()
    refusals: tuple[Refuse, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    again_at: float | None = None
    complete: bool = True
