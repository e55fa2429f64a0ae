"""Orders waiting jobs whose durations are unknown by the Gittins index of measured durations.

The expected remaining time of a job is its Gittins index: the minimum, over all service times that it might
get, of the expected service until then divided by the chance that it ends by then (Gittins 1979; Aalto,
Ayesta and Righter 2009 for queues). The distribution is that of measured similar jobs. If none of these ran
as long, the expected remaining time of a job is the time that it has already run, so that the job with the
least attained service is first (LAS; Tiresias, NSDI 2019, for GPUs and gangs).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

STRETCH = 10.0
"""The due time of a job is its arrival plus this many times its expected total time. Jobs that arrive later
with an earlier due time run before it."""
GAIN = 2.0
"""A running job is interrupted only for a job with at most 1/GAIN of its expected work. With a smaller
difference, wrong forecasts would make the loss larger than the gain."""
SHORTEST_PATIENCE_SECONDS, LONGEST_PATIENCE_SECONDS = 3_600.0, 10 * 86_400.0
PATIENCE_PER_BACKLOG = 2.5
"""A job counts as delayed after it has waited this many times as long as the resource needs for all waiting
jobs, within these limits: in a long queue every job waits, and an hour is short."""
DELAYED_SHARE = 0.7
"""The share of a resource that delayed jobs may hold with precedence, the most delayed job first. The rest is
assigned by due time, so that short jobs also run while long jobs have waited too long."""
UNKNOWN_SECONDS = 600.0
"""The expected time of a job if nothing was measured."""
RESTART_SECONDS = 60.0
"""The cost of interrupting a job that can resume: to write a checkpoint, to start again, and to read it."""
FIRST_LOOK_SECONDS, LOOK_GROWTH = 300.0, 1.5
"""A running job is protected for the first number of seconds after each start. Then its due time is computed
again each time its run time has grown by this factor."""
URGENT_ALONE_SECONDS = 10.0
"""The protection of a job from jobs of a higher priority, in seconds: about the time of a start."""
ALONE_GROWTH = 2.0
"""Each interruption multiplies the protection of a job by this factor: the cost of interruptions remains a
bounded share of the job's time, and the job finishes."""


class Interruptible(NamedTuple):
    """A running job that can resume: its present due time, the places that become free when it ends, its id,
    its `work`, its expected remaining work, and the places that it holds."""

    due: float
    gain: int
    id: str
    work: float = inf
    left_seconds: float = inf
    amount: float = 1.0


class Wanting(NamedTuple):
    """A waiting job for which there is no room: its due time, its `work`, its expected remaining work, and
    the places that it will hold."""

    due: float
    work: float = 0.0
    left_seconds: float = 0.0
    amount: float = 1.0


def expected_left(lasted: Sequence[float], attained: float) -> float:
    """Expected remaining seconds, by the Gittins index. `lasted` are the durations of similar jobs,
    ascending. `attained` is the time served so far. One more job, longer than all of them, keeps the result
    finite."""
    first = bisect_right(lasted, attained)
    longest = max(2 * attained, 2 * lasted[-1] if lasted else 0.0, UNKNOWN_SECONDS)
    count, served, best = len(lasted) - first + 1, 0.0, float("inf")
    for ended in range(1, count):
        more = lasted[first + ended - 1] - attained
        served += more
        best = min(best, (served + (count - ended) * more) / ended)
    return min(best, (served + longest - attained) / count)


def remaining(lasted: Sequence[float], attained: float, share: float) -> float:
    """Seconds until the given share has ended of the similar jobs that lasted longer than `attained`. If no
    similar job lasted longer, the job is expected to run as long again."""
    first = bisect_right(lasted, attained)
    longer = len(lasted) - first
    if not longer:
        return max(attained, 1.0) * 2 * share
    return lasted[first + min(longer - 1, int(share * longer))] - attained


def work(left_seconds: float, served_seconds: float, amount: float) -> float:
    """The measure that decides a job's place in the queue: its expected total time, times the amount that it
    holds while it runs (GPUs, or 1). The time served so far is included, because forecasts are worst for jobs
    that have already run long."""
    return (left_seconds + served_seconds) * amount


def due(since: float, expected_work: float) -> float:
    """The due time of a job; the job with the smallest due time is first. `since` is the arrival of the job.
    The due time does not change while the job waits."""
    return since + STRETCH * expected_work


def patience(backlog_seconds: float) -> float:
    """The waiting time after which a job is delayed, if the resource needs `backlog_seconds` for all waiting
    jobs."""
    limit = PATIENCE_PER_BACKLOG * backlog_seconds
    return min(max(limit, SHORTEST_PATIENCE_SECONDS), LONGEST_PATIENCE_SECONDS)


def has_share(held: float, more: float, whole: float) -> bool:
    """Whether delayed jobs that hold `held` may get `more` with precedence, out of `whole`. The first delayed
    job always may, whatever its size."""
    return held <= 0.0 or held + more <= DELAYED_SHARE * whole


def with_precedence(
    running: Iterable[tuple[float, float, str]], patience_seconds: float, whole: float
) -> tuple[float, frozenset[str]]:
    """The most delayed of the running jobs, up to the share of delayed jobs: the total amount that they hold,
    and their keys. `running` has the waiting time, the amount and the key of each job."""
    held, chosen = 0.0, set[str]()
    for delay, amount, key in sorted(running, key=lambda one: (-one[0], one[2])):
        if delay < patience_seconds:
            break
        if has_share(held, amount, whole):
            held += amount
            chosen.add(key)
    return held, frozenset(chosen)


def next_look(attained: float) -> float:
    """The service time at which the due time of a running job is computed again."""
    look = FIRST_LOOK_SECONDS
    while (
        look < attained + 1.0
    ):  # 1 s more: rounding can make it slightly less, and the same time would follow again
        look *= LOOK_GROWTH
    return look


def alone_seconds(interruptions: int, *, urgent: bool = False) -> float:
    """The seconds for which a job is protected after a start, after this number of interruptions. `urgent`
    means protection from jobs of a higher priority."""
    return (URGENT_ALONE_SECONDS if urgent else FIRST_LOOK_SECONDS) * ALONE_GROWTH**interruptions


def may_interrupt(waiting: Wanting, running: Interruptible) -> bool:
    """Whether a preemption gains more than it costs. The due time of the waiting job must be earlier by at
    least the cost of a preemption. Its work must be much less, because forecasts are uncertain. The gain of
    its places, which would otherwise wait for the end of the running job, must exceed the loss of the running
    job's places until that job starts again."""
    if not _comes_before(waiting, running) or running.work < GAIN * waiting.work:
        return False
    lost = (waiting.left_seconds + RESTART_SECONDS) * max(running.amount, waiting.amount)
    return running.left_seconds * waiting.amount >= lost


def _comes_before(waiting: Wanting, running: Interruptible) -> bool:
    return running.due > waiting.due + 2 * STRETCH * RESTART_SECONDS


def to_interrupt(
    needed: int, free: int, waiting: Wanting, latest_first: Iterable[Interruptible]
) -> tuple[str, ...]:
    """The running jobs to preempt so that `waiting` gets the needed places; jobs with the latest due times
    come first. Empty if these jobs do not have enough places, so that no job is preempted in vain."""
    chosen: list[Interruptible] = []
    for running in latest_first:
        if free >= needed or not _comes_before(waiting, running):
            break
        if may_interrupt(waiting, running):
            chosen.append(running)
            free += running.gain
    return tuple(one.id for one in chosen) if free >= needed else ()
