"""Orders waiting jobs whose durations are unknown by the Gittins index of measured durations.

The expected remaining time of a job is its Gittins index: the minimum, over all service times that it might
be given, of the expected service until then divided by the chance that it ends by then (Gittins 1979; Aalto,
Ayesta and Righter 2009 for queues). The distribution is that of similar measured jobs. If none ran as long, a
job is expected to take as long again as it has taken, so that the job with the least attained service is
first (LAS; Tiresias, NSDI 2019, for GPUs and gangs).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

STRETCH = 20.0
"""A job lets others pass that arrive within this many times its expected remaining time."""
LONGEST_PASSED_SECONDS = 86_400.0
"""Before its first start it lets none pass that arrive more than a day later: it cannot starve."""
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
    """A running job that can resume: its due time now, what it holds, and who it is."""

    due: float
    amount: int
    id: str


def expected_left(lasted: Sequence[float], attained: float) -> float:
    """Seconds, the Gittins index: `lasted` are the seconds that jobs like it took, ascending; `attained` is
    what it was served so far. One more job that lasts beyond all of them keeps it finite."""
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


def due(since: float, left_seconds: float, amount: float, *, started: bool) -> float:
    """When a job would have its turn: smaller goes first. `since`: when it came; `amount`: what it holds
    while it runs (GPUs, or 1). It does not change while a job waits."""
    allowance = STRETCH * left_seconds * amount
    return since + (allowance if started else min(allowance, LONGEST_PASSED_SECONDS))


def next_look(attained: float) -> float:
    """The service at which a running job's due time is worked out again."""
    look = FIRST_LOOK_SECONDS
    while look < attained + 1.0:  # not the same again where rounding made it a trifle less
        look *= LOOK_GROWTH
    return look


def alone_seconds(interruptions: int, *, urgent: bool = False) -> float:
    """For how long a job is left alone after a start, having been interrupted so often; `urgent`: by jobs of
    a higher priority."""
    return (URGENT_ALONE_SECONDS if urgent else FIRST_LOOK_SECONDS) * ALONE_GROWTH**interruptions


def may_interrupt(waiting_due: float, running_due: float) -> bool:
    """Whether a job's turn comes so much before another's that interrupting that one is worth its cost."""
    return running_due > waiting_due + 2 * STRETCH * RESTART_SECONDS


def to_interrupt(
    needed: int, free: int, waiting_due: float, latest_first: Iterable[Interruptible]
) -> tuple[str, ...]:
    """Which running jobs make room for one that needs so much: those whose turn is last. Empty where they
    are not enough: none is interrupted in vain."""
    chosen: list[Interruptible] = []
    for running in latest_first:
        if free >= needed or not may_interrupt(waiting_due, running.due):
            break
        chosen.append(running)
        free += running.amount
    return tuple(one.id for one in chosen) if free >= needed else ()
