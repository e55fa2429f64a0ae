"""This module orders waiting jobs whose durations are unknown, by the Gittins index of measured durations.
The Gittins index of a job is its expected remaining time: the minimum, over all service times that the job
might receive, of the expected service until then divided by the probability that the job ends by then
(Gittins 1979,  and for queues Aalto, Ayesta and Righter 2009). The distribution of service times in this
index is that of measured similar jobs. If no measured job ran as long as the job, its expected remaining
time is the time that it has already run, so that the job with the least attained service is first (this
order is called LAS, and Tiresias, NSDI 2019, uses it for GPUs and gangs).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

STRETCH = 10.0
"""The due time of a job is its arrival time plus this many times its expected total time. Jobs that arrive
later but have an earlier due time run before this job."""
GAIN = 2.0
"""A running job is interrupted only for a job whose expected work is at most 1/GAIN of the work of the
running job. With a smaller difference, the loss caused by wrong forecasts would be larger than the gain."""
SHORTEST_PATIENCE_SECONDS, LONGEST_PATIENCE_SECONDS = 3_600.0, 10 * 86_400.0
PATIENCE_PER_BACKLOG = 2.5
"""A job is delayed after it has waited PATIENCE_PER_BACKLOG times as long as the resource needs for all
waiting jobs, but at least SHORTEST_PATIENCE_SECONDS and at most LONGEST_PATIENCE_SECONDS. In a long queue
every job waits, so a fixed time such as an hour would be too short."""
DELAYED_SHARE = 0.7
"""The fraction of a resource that delayed jobs may hold with precedence; the most delayed job is first. The
remaining part of the resource is assigned by due time, so that short jobs also run while long jobs have
waited too long."""
UNKNOWN_SECONDS = 600.0
"""The expected time of a job if no similar job was measured."""
RESTART_SECONDS = 60.0
"""The cost in seconds of interrupting a job that can resume: the time to write a checkpoint, to start again,
and to read the checkpoint."""
FIRST_CHECK_SECONDS, CHECK_GROWTH = 300.0, 1.5
"""A running job is protected from interruption for FIRST_CHECK_SECONDS after each start. Later, the due time
of the job is computed again each time the run time of the job has grown by the factor CHECK_GROWTH."""
URGENT_ALONE_SECONDS = 10.0
"""The seconds for which a job is protected from jobs of a higher priority, which is about the time of a
start."""
ALONE_GROWTH = 2.0
"""Each interruption multiplies the protection of a job by this factor, so that the cost of interruptions
stays a limited fraction of the job's time and the job finishes."""


class Interruptible(NamedTuple):
    """A running job that can resume: its present due time, the number of jobs of the waiting kind for which
    it makes space when it ends (`places`), its id, its `work` (see the function `work`), its expected
    remaining seconds, and the number of GPUs that it holds (1 without GPUs)."""

    due: float
    gain: int
    id: str
    work: float = inf
    left_seconds: float = inf
    amount: float = 1.0


class Wanting(NamedTuple):
    """A waiting job that does not fit beside the running jobs: its due time, its `work` (see the function
    `work`), its expected remaining seconds, and the amount that it will hold."""

    due: float
    work: float = 0.0
    left_seconds: float = 0.0
    amount: float = 1.0


def expected_left(lasted: Sequence[float], attained: float) -> float:
    """Return the expected remaining seconds of a job, by the Gittins index. `lasted` has the durations of
    similar jobs, in ascending order. `attained` is the time for which the job has already run. One
    additional job that is longer than all measured jobs keeps the result finite."""
    first = bisect_right(lasted, attained)
    longest = max(2 * attained, 2 * lasted[-1] if lasted else 0.0, UNKNOWN_SECONDS)
    count, served, best = len(lasted) - first + 1, 0.0, float("inf")
    for ended in range(1, count):
        more = lasted[first + ended - 1] - attained
        served += more
        best = min(best, (served + (count - ended) * more) / ended)
    return min(best, (served + longest - attained) / count)


def remaining(lasted: Sequence[float], attained: float, share: float) -> float:
    """Return the number of seconds after which a given fraction of the similar jobs has ended. Only similar
    jobs that lasted longer than `attained` are considered. If no similar job lasted longer, the job is
    expected to run again as long as it has already run."""
    first = bisect_right(lasted, attained)
    longer = len(lasted) - first
    if not longer:
        return max(attained, 1.0) * 2 * share
    return lasted[first + min(longer - 1, int(share * longer))] - attained


def work(left_seconds: float, served_seconds: float, amount: float) -> float:
    """Return the value that decides the position of a job in the queue: its expected total time, times the
    amount that it holds while it runs (GPUs, or 1). The time that the job has already run is included,
    because forecasts are worst for jobs that have already run long."""
    return (left_seconds + served_seconds) * amount


def due(since: float, expected_work: float) -> float:
    """Return the due time of a job; the job with the earliest due time is first in the queue. `since` is the
    arrival time of the job. The due time of a job does not change while the job waits."""
    return since + STRETCH * expected_work


def patience(backlog_seconds: float) -> float:
    """Return the waiting time after which a job is delayed, if the resource needs `backlog_seconds` for all
    waiting jobs."""
    limit = PATIENCE_PER_BACKLOG * backlog_seconds
    return min(max(limit, SHORTEST_PATIENCE_SECONDS), LONGEST_PATIENCE_SECONDS)


def has_share(held: float, more: float, whole: float) -> bool:
    """Return whether delayed jobs, which already hold the amount `held`, may receive the additional amount
    `more` before other jobs. `whole` is the total amount of the resource. The first delayed job may always
    receive its amount, whatever its size."""
    return held <= 0.0 or held + more <= DELAYED_SHARE * whole


def with_precedence(
    running: Iterable[tuple[float, float, str]], patience_seconds: float, whole: float
) -> tuple[float, frozenset[str]]:
    """Return the total amount and the keys of the most delayed running jobs, as many as fit into the
    fraction for delayed jobs. `running` has the waiting time, the amount and the key of each job."""
    held, chosen = 0.0, set[str]()
    for delay, amount, key in sorted(running, key=lambda one: (-one[0], one[2])):
        if delay < patience_seconds:
            break
        if has_share(held, amount, whole):
            held += amount
            chosen.add(key)
    return held, frozenset(chosen)


def next_check_seconds(attained: float) -> float:
    """Return the run time of a running job at which its due time is computed again."""
    run_seconds = FIRST_CHECK_SECONDS
    # 1 s more, because rounding can make the result slightly less: the same time would be found again
    while run_seconds < attained + 1.0:
        run_seconds *= CHECK_GROWTH
    return run_seconds


def alone_seconds(interruptions: int, *, urgent: bool = False) -> float:
    """Return the seconds for which a job is protected from interruption after a start, given its number of
    earlier interruptions. With `urgent`, the result is the time of protection from jobs of a higher
    priority."""
    return (URGENT_ALONE_SECONDS if urgent else FIRST_CHECK_SECONDS) * ALONE_GROWTH**interruptions


def may_interrupt(waiting: Wanting, running: Interruptible) -> bool:
    """Return whether a preemption gains more than it costs. The due time of the waiting job must be earlier
    than that of the running job by at least the cost of a preemption. The work of the waiting job must be
    much less, because forecasts are uncertain. The gain from the places that the waiting job gets earlier
    must exceed the loss of the places of the running job until that job starts again."""
    if not _comes_before(waiting, running) or running.work < GAIN * waiting.work:
        return False
    lost = (waiting.left_seconds + RESTART_SECONDS) * max(running.amount, waiting.amount)
    return running.left_seconds * waiting.amount >= lost


def _comes_before(waiting: Wanting, running: Interruptible) -> bool:
    return running.due > waiting.due + 2 * STRETCH * RESTART_SECONDS


def to_interrupt(
    needed: int, free: int, waiting: Wanting, latest_first: Iterable[Interruptible]
) -> tuple[str, ...]:
    """Return the running jobs to preempt so that `waiting` gets the places that it needs; jobs with the
    latest due times are first. The result is empty if these jobs do not have enough places, because
    preempting them would not help."""
    chosen: list[Interruptible] = []
    for running in latest_first:
        if free >= needed or not _comes_before(waiting, running):
            break
        if may_interrupt(waiting, running):
            chosen.append(running)
            free += running.gain
    return tuple(one.id for one in chosen) if free >= needed else ()
