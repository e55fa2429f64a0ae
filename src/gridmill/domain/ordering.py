"""Orders waiting jobs whose durations are unknown by the Gittins index of measured durations.

The expected remaining time of a job is its Gittins index: the minimum, over all service times that it might
be given, of the expected service until then divided by the chance that it ends by then (Gittins 1979; Aalto,
Ayesta and Righter 2009 for queues). The distribution is that of similar measured jobs. If none ran as long, a
job is expected to take as long again as it has taken, so that the job with the least attained service is
first (LAS; Tiresias, NSDI 2019, for GPUs and gangs).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

STRETCH = 10.0
"""A job lets others pass that arrive within this many times the time that it is expected to take in all."""
GAIN = 2.0
"""A running job is interrupted for one that is expected to take at most this part of its work: less would be
gained than lost when the forecasts are wrong."""
SHORTEST_PATIENCE_SECONDS, LONGEST_PATIENCE_SECONDS = 3_600.0, 10 * 86_400.0
PATIENCE_PER_BACKLOG = 2.5
"""A job counts as delayed once it has waited this many times as long as the resource would take for all that
waits, within these limits: in a long queue everybody waits, and an hour is nothing."""
DELAYED_SHARE = 0.7
"""The share of a resource that delayed jobs may hold with precedence: the most delayed first. The rest is
given by due time, so that short jobs are served also while long ones have waited too long."""
UNKNOWN_SECONDS = 600.0
"""The expected time of a job if nothing was measured."""
RESTART_SECONDS = 60.0
"""The cost of interrupting a job that can resume: writing a checkpoint, starting again, reading it."""
FIRST_LOOK_SECONDS, LOOK_GROWTH = 300.0, 1.5
"""A running job is protected for the first number of seconds after each start; then its place is computed
again each time it has run this many times as long."""
URGENT_ALONE_SECONDS = 10.0
"""How long a job is protected from jobs of a higher priority: less is hardly a start."""
ALONE_GROWTH = 2.0
"""With each interruption the protection becomes this many times as long: the cost of interruptions stays a
bounded share of the job's time, and the job finishes."""


class Interruptible(NamedTuple):
    """A running job that can resume: its due time now, the places that its end frees, its id, its `work`,
    its expected remaining work, and the places it holds."""

    due: float
    gain: int
    id: str
    work: float = inf
    left_seconds: float = inf
    amount: float = 1.0


class Wanting(NamedTuple):
    """A waiting job without room: its due time, its `work`, its expected remaining work, and the places
    it will hold."""

    due: float
    work: float = 0.0
    left_seconds: float = 0.0
    amount: float = 1.0


def expected_left(lasted: Sequence[float], attained: float) -> float:
    """Expected remaining seconds, by the Gittins index. `lasted` are the durations of similar jobs,
    ascending; `attained` is the time served so far. One more job, longer than all of them, keeps the
    result finite."""
    first = bisect_right(lasted, attained)
    longest = max(2 * attained, 2 * lasted[-1] if lasted else 0.0, UNKNOWN_SECONDS)
    count, served, best = len(lasted) - first + 1, 0.0, float("inf")
    for ended in range(1, count):
        more = lasted[first + ended - 1] - attained
        served += more
        best = min(best, (served + (count - ended) * more) / ended)
    return min(best, (served + longest - attained) / count)


def remaining(lasted: Sequence[float], attained: float, share: float) -> float:
    """Seconds until a job ends that was served so long, of which that share of the jobs like it that lasted
    longer had ended too. One that lasted longer than all of them is expected to last as long again."""
    first = bisect_right(lasted, attained)
    longer = len(lasted) - first
    if not longer:
        return max(attained, 1.0) * 2 * share
    return lasted[first + min(longer - 1, int(share * longer))] - attained


def work(left_seconds: float, served_seconds: float, amount: float) -> float:
    """What decides a job's place: the time that it is expected to take in all, times what it holds while it
    runs (GPUs, or 1). What was served counts, as forecasts are worst for what has run long."""
    return (left_seconds + served_seconds) * amount


def due(since: float, expected_work: float) -> float:
    """The due time of a job: the smallest is first. `since` is when it arrived. It does not change while
    a job waits."""
    return since + STRETCH * expected_work


def patience(backlog_seconds: float) -> float:
    """For how long a job waits before it is delayed, where the resource would take so long for all that
    waits."""
    limit = PATIENCE_PER_BACKLOG * backlog_seconds
    return min(max(limit, SHORTEST_PATIENCE_SECONDS), LONGEST_PATIENCE_SECONDS)


def has_share(held: float, more: float, whole: float) -> bool:
    """Whether delayed jobs that hold so much of the whole may have so much more with precedence. One may
    always, however large it is."""
    return held <= 0.0 or held + more <= DELAYED_SHARE * whole


def with_precedence(
    running: Iterable[tuple[float, float, str]], patience_seconds: float, whole: float
) -> tuple[float, frozenset[str]]:
    """Of running jobs (for how long each has waited, what it holds, who it is) the most delayed, as many as
    the share of the delayed is for: what they hold together, and who they are."""
    held, chosen = 0.0, set[str]()
    for delay, amount, key in sorted(running, key=lambda one: (-one[0], one[2])):
        if delay < patience_seconds:
            break
        if has_share(held, amount, whole):
            held += amount
            chosen.add(key)
    return held, frozenset(chosen)


def next_look(attained: float) -> float:
    """The service at which a running job's due time is worked out again."""
    look = FIRST_LOOK_SECONDS
    while (
        look < attained + 1.0
    ):  # 1 s more: rounding can make it slightly less, and the same time would follow again
        look *= LOOK_GROWTH
    return look


def alone_seconds(interruptions: int, *, urgent: bool = False) -> float:
    """For how long a job is left alone after a start, having been interrupted so often; `urgent`: by jobs of
    a higher priority."""
    return (URGENT_ALONE_SECONDS if urgent else FIRST_LOOK_SECONDS) * ALONE_GROWTH**interruptions


def may_interrupt(waiting: Wanting, running: Interruptible) -> bool:
    """Whether a preemption gains more than it costs. The waiting job must be due enough earlier to be
    worth the cost of a preemption, and must have much less work, because forecasts are uncertain. The
    gain of its places, which would otherwise wait for the end of the running job, must exceed the loss of
    the running job's places until that job starts again."""
    if not _comes_before(waiting, running) or running.work < GAIN * waiting.work:
        return False
    lost = (waiting.left_seconds + RESTART_SECONDS) * max(running.amount, waiting.amount)
    return running.left_seconds * waiting.amount >= lost


def _comes_before(waiting: Wanting, running: Interruptible) -> bool:
    return running.due > waiting.due + 2 * STRETCH * RESTART_SECONDS


def to_interrupt(
    needed: int, free: int, waiting: Wanting, latest_first: Iterable[Interruptible]
) -> tuple[str, ...]:
    """The running jobs to preempt for one that needs this many places: those whose turn is last. Empty if
    they are not enough, so that no job is preempted in vain."""
    chosen: list[Interruptible] = []
    for running in latest_first:
        if free >= needed or not _comes_before(waiting, running):
            break
        if may_interrupt(waiting, running):
            chosen.append(running)
            free += running.gain
    return tuple(one.id for one in chosen) if free >= needed else ()
