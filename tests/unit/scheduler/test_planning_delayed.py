"""Nobody starves: what the most delayed get before their turn, what is kept for them, and who goes before."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.test_planning_interrupting import asked, grid, running, waiting
from tests.unit.scheduler.test_planning_plan import NOW, a_job, started

from gridmill.domain.amounts import GIB
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import JobKind
from gridmill.domain.ordering import SHORTEST_PATIENCE_SECONDS
from gridmill.domain.run import Preemption
from gridmill.domain.states import AttemptState, Cause
from gridmill.scheduler.delayed import DelayedJobs
from gridmill.scheduler.draft import DraftPlan
from gridmill.scheduler.outcomes import settle
from gridmill.scheduler.plan import plan
from gridmill.scheduler.queue import Demand
from gridmill.scheduler.reservation import after, may_pass, reservation_in, reserve

HOUR = SHORTEST_PATIENCE_SECONDS
LATE = NOW + HOUR + 10.0


def lasting(job, seconds, left=2000.0):
    """`left` decides its turn, `seconds` whether it goes before a reservation."""
    return replace(job, sizing=replace(job.sizing, left_seconds=left, expected_seconds=seconds))


def fixed(*nouns):
    """They cannot resume."""
    return [replace(one, resumable=False) if hasattr(one, "resumable") else one for one in nouns]


def long_one(name="long", *, workers=1, left=1000.0, memory=4 * GIB, **fields):
    job = lasting(a_job(name, memory=memory, **fields), left, left)
    return replace(job, job=replace(job.job, command=CommandSpec(run="true", workers=workers)))


def test_a_job_that_waited_an_hour_goes_before_shorter_ones():
    short = waiting("short", memory=4 * GIB, ready=LATE)
    assert started(plan(grid(long_one(), short), NOW + HOUR - 1.0)) == ["p-2/short"]
    assert started(plan(grid(long_one(), short), LATE)) == ["p-1/long"]


def test_a_running_job_that_was_delayed_is_not_interrupted_again():
    """By jobs of its priority: what it has waited for counts, whether or not it was interrupted."""
    fresh = running("one", memory=4 * GIB, began=LATE)
    late = (replace(fresh[0], ready=NOW), replace(fresh[1], placed=LATE))
    again = (
        replace(fresh[0], ready=LATE, waited_seconds=HOUR, interruptions=1),
        replace(fresh[1], placed=LATE),
    )
    later = LATE + 50_000.0
    assert asked(plan(grid(*(replace(fresh[0], ready=LATE), late[1]), waiting(ready=later)), later))
    for one in (late, again):
        assert not asked(plan(grid(*one, waiting(ready=later)), later))
        assert asked(plan(grid(*one, waiting(ready=later, priority=1)), later))


def test_a_delayed_job_interrupts_one_that_was_delayed_less_however_short_that_is():
    one = running("one", memory=4 * GIB)
    assert not asked(plan(grid(*one, long_one(left=5000.0)), NOW + HOUR - 1.0))
    assert asked(plan(grid(*one, long_one(left=5000.0)), LATE)) == ["p-1.one.1"]


def test_the_delayed_have_their_share_only_and_the_rest_goes_by_turn():
    """One of two pods is half: a second delayed job would have more than the share with precedence."""
    jobs = [long_one(f"long{k}", ready=NOW + k) for k in range(3)]
    short = waiting("short", memory=4 * GIB, ready=LATE)
    wanted = plan(grid(*jobs, short, pods=2, memory=8 * GIB), LATE)
    assert sorted(started(wanted)) == ["p-1/long0", "p-2/short"]
    assert wanted.again_at is None or wanted.again_at > LATE, "it would plan again and again"


def test_what_an_interrupted_job_waited_is_not_forgotten():
    job, attempt = running("one", began=NOW + 500.0)
    job, attempt = replace(job, ready=NOW), replace(attempt, placed=NOW + 400.0)
    why = Preemption(job_run="p-2/short", left_seconds=1.0)
    ended = replace(attempt, state=AttemptState.STOPPED, cause=Cause.STOPPED, interrupted=why)
    after = settle(job, ended, NOW + 900.0, largest=GIB)
    assert (after.waited_seconds, after.served_seconds) == (400.0, 400.0)
    again = settle(after, replace(ended, placed=NOW + 1000.0), NOW + 2000.0, largest=GIB)
    assert again.waited_seconds == 500.0


def test_pods_that_a_waiting_gang_does_not_need_are_for_others():
    """It keeps as many as have places for all its ranks, not all that are large enough for one."""
    busy = fixed(*running("busy", memory=4 * GIB))
    gang = long_one(workers=2, left=10.0)
    draft = DraftPlan(grid(*busy, gang, pods=4, memory=16 * GIB), NOW + 60.0, None)
    lane = draft.lane("a")
    assert lane is not None
    lane.keep(Demand(4 * GIB, 0, 0.0, 0, JobKind.COMMAND, workers=2), 2)
    assert (len(lane.kept), len(lane.open)) == (2, 2)


def test_what_ends_in_time_goes_before_the_gang_that_room_is_kept_for():
    """The other pod is expected to be free in ten minutes: nothing was measured."""
    busy = fixed(*running("busy", memory=4 * GIB))
    gang = long_one(workers=2, left=10.0)
    for seconds, goes in ((500.0, True), (700.0, False)):
        short = lasting(waiting("short", memory=4 * GIB, ready=NOW + 60.0), seconds)
        wanted = plan(grid(*busy, gang, short, pods=2, memory=8 * GIB), NOW + 60.0)
        assert started(wanted) == (["p-2/short"] if goes else [])


def oracle(needed, free, now, ends):
    """The first time at which enough is free, by trying all."""
    times = sorted({now, *(max(now, end) for end, _ in ends)})
    return next(
        (at for at in times if free + sum(amount for end, amount in ends if end <= at) >= needed), None
    )


@given(st.integers(0, 100_000))
@settings(max_examples=60)
def test_backfill_never_postpones_the_reservation(seed):
    """Whatever is let pass, one after the other: enough is free at the time that was said."""
    chance = random.Random(seed)
    whole, now = 16, 100.0
    ends, used = [], 0
    while used < chance.randint(6, 16):
        amount = chance.randint(1, min(6, whole - used))
        ends.append((now + chance.choice([10.0, 50.0, 200.0, 900.0]), amount))
        used += amount
    needed, free = chance.randint(1, whole), whole - used
    kept = reserve(needed, free, now, sorted(ends))
    assert kept is not None
    assert kept.at == oracle(needed, free, now, ends)
    for _ in range(20):
        amount, end = chance.randint(1, 4), now + chance.choice([5.0, 50.0, 300.0, 2000.0])
        if amount <= free and may_pass(kept, amount, end):
            kept = after(kept, amount, end)
            free -= amount
            ends.append((end, amount))
            assert oracle(needed, free, now, ends) <= kept.at


def test_the_reservation_in_pods_is_that_of_all_orders_of_ends():
    """Of two pods with two jobs each a gang of two 4 GiB ranks needs both pods whole."""
    jobs = [noun for k in range(4) for noun in running(f"j{k}", memory=2 * GIB, began=NOW - 1000.0 * k)]
    nouns = [
        replace(one, pod_id=f"a-1.{int(one.id[5]) % 2}") if hasattr(one, "resumable") else one for one in jobs
    ]
    snapshot = grid(*nouns, pods=2, memory=8 * GIB)
    draft = DraftPlan(snapshot, NOW + 700.0, None)
    lane = draft.lane("a")
    assert lane is not None
    kept = reservation_in(
        snapshot, NOW + 700.0, lane.open, Demand(4 * GIB, 0, 0.0, 0, JobKind.COMMAND, workers=2)
    )
    assert kept == (NOW + 700.0 + 3700.0, 0)  # the one that has run longest is expected to last as long again
    assert DelayedJobs(snapshot, lane).held == 0.0
