"""This module has reservations for jobs that do not fit now: the time when they can start, and the jobs that
may start before them.

The method is EASY backfilling (by Lifka in 1995, and by Mu'alem and Feitelson in 2001). The first job that
does not fit has a reservation for the time at which enough is expected to be free. Jobs behind the job with
the reservation may start earlier if they do not delay this job.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gridmill.domain.amounts import Amounts
from gridmill.domain.job import JobSize
from gridmill.domain.ordering import UNKNOWN_SECONDS, remaining
from gridmill.domain.run import Attempt
from gridmill.scheduler.capacity import Pods, PodSlot, places_in
from gridmill.scheduler.forecast import lasted
from gridmill.scheduler.queue import Demand
from gridmill.scheduler.sizing import subject_of
from gridmill.scheduler.snapshot import Snapshot

MOST_ENDS = 500
"""The largest number of running jobs whose ends are forecast for one reservation. If more jobs are running,
no job starts before the reserved job."""
LIKELY = 0.5
"""The quantile of the measured durations that is used as the duration of a job."""


class Reservation(NamedTuple):
    """A reservation for a job that does not fit now. `at` is the time at which enough is expected to be free
    for the job. `spare` is the amount that is expected to be left over when the reserved job starts."""

    at: float
    spare: int


def reserve(needed: int, free: int, now: float, ends: Iterable[tuple[float, int]]) -> Reservation | None:
    """Return the reservation for the amount `needed`. `ends` has the expected ends of running jobs, earliest
    first, with the amount that each end releases. The result is None if even the ends of all running jobs do
    not release enough."""
    at = now
    for end, amount in ends:
        if free >= needed:
            break
        at, free = max(now, end), free + amount
    return Reservation(at, free - needed) if free >= needed else None


def may_pass(reservation: Reservation, needed: int, end: float) -> bool:
    """Return whether a job that ends at `end` and needs this amount can start without delaying the job that
    has the reservation."""
    return end <= reservation.at or needed <= reservation.spare


def after(reservation: Reservation, needed: int, end: float) -> Reservation:
    """Return the reservation after another job was started before the job that has the reservation. If the
    other job still runs at the reserved time, its amount is subtracted from `spare`."""
    if end <= reservation.at:
        return reservation
    return reservation._replace(spare=reservation.spare - needed)


def reservation_in(snapshot: Snapshot, now: float, pods: Pods, demand: Demand) -> Reservation | None:
    """Return the time at which these pods are expected to have enough free memory, CPUs and GPUs for a job
    with this demand (for a gang, for all its ranks). The result is None if too many jobs run on the pods, or
    if the whole pods are not large enough."""
    slots = dict(pods.items())
    count = sum(len(snapshot.places.on.get(pod_id, ())) for pod_id in slots)
    if count > MOST_ENDS:
        return None
    free = sum(_room(slot, demand, ()) for slot in slots.values())
    ends = sorted(gain for pod_id in slots for gain in _gains(snapshot, now, slots[pod_id], pod_id, demand))
    return reserve(demand.workers, free, now, ends)


def _gains(
    snapshot: Snapshot, now: float, slot: PodSlot, pod_id: str, demand: Demand
) -> Iterator[tuple[float, int]]:
    """Return the expected ends of the jobs of a pod, with the number of places that each end releases."""
    freed: list[Amounts] = []
    room = _room(slot, demand, freed)
    attempts = (snapshot.attempts[key] for key in snapshot.places.on.get(pod_id, ()))
    for end, _, attempt in sorted(
        ((expected_end(snapshot, one, now), one.id, one) for one in attempts), key=lambda entry: entry[:2]
    ):
        freed.append(attempt.given)
        after_it = _room(slot, demand, freed)
        yield end, after_it - room
        room = after_it


def expected_end(snapshot: Snapshot, attempt: Attempt, now: float) -> float:
    """Return the expected end of a running job, from the median duration of similar measured jobs that
    lasted at least as long. If there are no measurements, the remaining time of the job is assumed to be the
    time for which it has already run."""
    job_run = snapshot.job_runs.get(attempt.job_run_id)
    served = 0.0 if job_run is None else job_run.served_seconds
    attained = served + max(0.0, now - (attempt.started or attempt.placed))
    durations = []
    if job_run is not None:
        subject, size = subject_of(job_run.job, job_run.pipeline), job_run.size or JobSize()
        durations = lasted(job_run.name, subject, size, snapshot.history)
    return now + (remaining(durations, attained, LIKELY) if durations else max(UNKNOWN_SECONDS, attained))


def _room(slot: PodSlot, demand: Demand, freed: list[Amounts] | tuple[()]) -> int:
    free = Amounts(
        memory_bytes=slot.free_memory + sum(one.memory_bytes for one in freed),
        gpus=slot.free_gpus + sum(one.gpus for one in freed),
    )
    most = slot.whole.most - slot.jobs + len(freed)
    return places_in(free, most, demand.memory_bytes, demand.gpus)
