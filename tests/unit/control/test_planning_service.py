"""Who goes first, when nobody knows how long jobs take: properties, and the simulator that measures it."""

import random

from bench.disciplines import Easy, Fifo, Ours, ends_in
from bench.loads import bursts
from bench.queueing import Pool, Task
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.ordering import (
    DELAYED_SHARE,
    LONGEST_PATIENCE_SECONDS,
    RESTART_SECONDS,
    SHORTEST_PATIENCE_SECONDS,
    Interruptible,
    Wanting,
    expected_left,
    may_interrupt,
    next_check_seconds,
    patience,
    to_interrupt,
    with_precedence,
)
from gridmill.scheduler.reservation import may_pass, reserve

SECONDS = st.floats(0.1, 1e6)


def test_a_job_that_lasts_longer_than_all_before_is_expected_to_last_on():
    assert expected_left([100.0] * 50, 0.0) < expected_left([100.0] * 50, 150.0)


def test_a_job_about_to_end_as_those_before_it_did_is_nearly_done():
    assert expected_left([1000.0] * 50, 990.0) < expected_left([1000.0] * 50, 0.0) / 50


@given(st.lists(SECONDS, max_size=60), st.floats(0, 1e6))
def test_the_expectation_is_finite_and_positive(lasted: list[float], attained: float):
    assert 0 < expected_left(sorted(lasted), attained) < 1e8


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_patience_grows_with_the_queue_within_its_limits(backlog: float, more: float):
    assert (
        SHORTEST_PATIENCE_SECONDS <= patience(backlog) <= patience(backlog + more) <= LONGEST_PATIENCE_SECONDS
    )


RUNNING = st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 8)), max_size=12)


@given(RUNNING)
def test_the_most_delayed_hold_their_share_and_one_may_hold_more(running: list[tuple[float, int]]):
    jobs = [(delay, float(amount), str(key)) for key, (delay, amount) in enumerate(running)]
    held, chosen = with_precedence(jobs, 100.0, 16.0)
    late = [one for one in jobs if one[0] >= 100.0]
    assert held == sum(amount for _, amount, key in jobs if key in chosen)
    assert held <= max([DELAYED_SHARE * 16.0, *(amount for _, amount, _ in late)])
    assert bool(chosen) == bool(late)
    assert all(one[2] not in chosen for one in jobs if one[0] < 100.0)
    if late:
        assert max(late, key=lambda one: (one[0], -int(one[2])))[0] == max(
            delay for delay, _, key in jobs if key in chosen
        )


@given(st.floats(0, 1e7))
def test_looks_go_on(attained: float):
    assert next_check_seconds(attained) > attained


@given(st.integers(1, 40), st.integers(0, 8), st.lists(st.tuples(SECONDS, st.integers(1, 8)), max_size=20))
def test_nothing_is_interrupted_in_vain(needed: int, free: int, running: list[tuple[float, int]]):
    jobs = [Interruptible(when, amount, str(k)) for k, (when, amount) in enumerate(running)]
    latest = sorted(jobs, reverse=True)
    chosen = to_interrupt(needed, free, Wanting(1000.0), latest)
    given_back = sum(one.gain for one in jobs if one.id in chosen)
    assert not chosen or free + given_back >= needed
    assert all(one.due > 1000.0 for one in jobs if one.id in chosen)


@given(SECONDS, SECONDS, st.integers(1, 8), st.integers(1, 8))
def test_an_interruption_gains_more_than_it_loses(left: float, other: float, amount: int, others: int):
    waiting = Wanting(0.0, left * amount, left, amount)
    running = Interruptible(1e9, others, "a", other * others, other, others)
    if may_interrupt(waiting, running):
        assert other * amount >= (left + RESTART_SECONDS) * others
        assert other * others >= 2 * left * amount


def tasks(chance: random.Random, count: int = 60) -> list[Task]:
    now, made = 0.0, []
    for number in range(count):
        now += chance.expovariate(1 / 50)
        seconds = chance.choice([10.0, 100.0, 1000.0, 5000.0])
        made.append(
            Task(number=number, submitted=now, seconds=seconds, gpus=chance.choice([1, 1, 2, 8]), like="x")
        )
    return made


@given(st.integers(0, 10_000))
def test_backfilled_jobs_do_not_delay_the_reserved_one_when_forecasts_hold(seed: int):
    kept: dict[int, float] = {}

    class Watched(Easy):
        def decide(self, pool: Pool) -> None:
            super().decide(pool)
            if self._line:
                first = self._line[0][-1]
                found = reserve(first.gpus, pool.free, pool.now, ends_in(pool, self._durations))
                assert found is not None
                kept[first.number] = min(found.at, kept.get(first.number, found.at))

    done = tasks(random.Random(seed))
    Pool(8).run(done, Watched())
    for number, at in kept.items():
        started = done[number].started
        assert started is not None
        assert started <= at + 1e-6


def test_a_reservation_says_when_and_what_is_left_over():
    kept = reserve(6, 1, 100.0, [(150.0, 4), (200.0, 3), (300.0, 8)])
    assert kept == (200.0, 2)
    assert may_pass(kept, 5, 200.0)
    assert may_pass(kept, 2, 900.0)
    assert not may_pass(kept, 3, 201.0)
    assert reserve(6, 1, 100.0, [(150.0, 4)]) is None


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_every_job_ends_and_is_done_once(seed: int, resumable: float):
    done = tasks(random.Random(seed))
    for task in done:
        task.resumable = task.number < resumable * len(done)
    tally = Pool(8).run(done, Ours())
    assert all(
        task.started is not None and task.ended >= task.submitted + task.seconds - 1e-6 for task in done
    )
    assert tally.useful == sum(task.seconds * task.gpus for task in done)
    assert resumable or not tally.interruptions


def test_on_a_busy_pool_ours_is_several_times_better_than_first_come_first_served():
    means = []
    for discipline in (Fifo(), Ours()):
        done = bursts(1, 1500, 1.0)
        Pool(128).run(done, discipline)
        means.append(sum(task.ended - task.submitted for task in done) / len(done))
    assert means[0] > 2 * means[1]
