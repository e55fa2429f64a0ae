"""This module has the delayed jobs of a resource: which jobs are delayed, and the share of the resource that
they get first.

Short jobs may start before long jobs and may preempt long jobs. To prevent starvation, a job that has waited
longer than the patience of its resource is delayed and starts first, until delayed jobs hold `DELAYED_SHARE`
of the resource. While a delayed job runs, no job of the same priority preempts it. The rules for delayed
jobs, with their constants, are in gridmill.domain.ordering.
"""

from collections.abc import Iterator

from gridmill.domain.amounts import Amounts
from gridmill.domain.ordering import SHORTEST_PATIENCE_SECONDS, has_share, patience, with_precedence
from gridmill.scheduler.fair_share import ProjectShares
from gridmill.scheduler.lane import Lane
from gridmill.scheduler.outcomes import delay_of
from gridmill.scheduler.queue import Demand, Ticket
from gridmill.scheduler.snapshot import Snapshot


class DelayedJobs:
    """The delayed jobs of one resource, waiting and running. `patience` is the number of seconds after which
    a waiting job is treated as delayed. `protected` are the running jobs that hold the share for delayed
    jobs. `held` is the share of the resource that the protected jobs hold."""

    __slots__ = ("_capacity", "_places", "held", "patience", "protected")

    def __init__(self, snapshot: Snapshot, lane: Lane) -> None:
        wholes = [slot.whole for _, slot in lane.up.items()]
        self._capacity = sum((whole.capacity for whole in wholes), Amounts())
        self._places = max(1, sum(whole.most for whole in wholes))
        self.patience = patience(lane.queue.work / (self._capacity.gpus or self._places))
        self.held, self.protected = with_precedence(self._running(snapshot, lane), self.patience, 1.0)

    def _running(self, snapshot: Snapshot, lane: Lane) -> Iterator[tuple[float, float, str]]:
        """Return for each running job the time for which it has waited, the fraction of the resource that it
        holds, and its id."""
        shares: dict[str, float] = {}
        delays: dict[str, float] = {}
        for pod_id, _ in lane.up.items():
            for key in snapshot.places.on.get(pod_id, ()):
                attempt = snapshot.attempts[key]
                job_run = snapshot.job_runs.get(attempt.job_run_id)
                if job_run is not None:
                    delays[job_run.id] = delay_of(job_run, attempt)
                    more = self._share(attempt.given.memory_bytes, attempt.given.gpus)
                    shares[job_run.id] = shares.get(job_run.id, 0.0) + more
        return ((delay, shares[key], key) for key, delay in delays.items())

    def _share(self, memory_bytes: int, gpus: int) -> float:
        """Return the fraction of the resource that a job holds: the largest of the fractions of the places,
        the memory and the GPUs."""
        return max(
            1 / self._places,
            memory_bytes / max(1, self._capacity.memory_bytes),
            gpus / max(1, self._capacity.gpus),
        )

    def has_share_for(self, demand: Demand) -> bool:
        """Return whether delayed jobs may hold this demand in addition, without exceeding the share of the
        resource that is for delayed jobs."""
        more = demand.workers * self._share(demand.memory_bytes, demand.gpus)
        return has_share(self.held, more, 1.0)

    def take(self, demand: Demand) -> None:
        """Add the share of the resource that a delayed job gets when it starts."""
        self.held += demand.workers * self._share(demand.memory_bytes, demand.gpus)


def first_delayed(lane: Lane, shares: ProjectShares | None) -> Iterator[Ticket]:
    """Return the waiting jobs of a resource, the most delayed job first. Jobs of the highest priority come
    first; among jobs of the same priority, the most delayed job comes first. If jobs of several projects
    wait, the jobs of the project with the lowest use come first."""
    queues = lane.queue.delayed
    firsts = {name: first for name, line in queues.items() if (first := line.first()) is not None}
    if not firsts:
        return
    project = min(
        firsts, key=lambda name: (firsts[name][0], 0.0 if shares is None else shares[name].score, name)
    )
    for _, _, _, ticket in queues[project]:
        yield ticket


def may_have_delayed(lane: Lane, now: float) -> bool:
    """Return whether a job may have waited long enough to be delayed. The check is quick, because it
    examines only the first job of each project."""
    firsts = (line.first() for line in lane.queue.delayed.values())
    return any(first is not None and now - first[1] >= SHORTEST_PATIENCE_SECONDS for first in firsts)
