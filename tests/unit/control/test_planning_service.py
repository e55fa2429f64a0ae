"""Who goes first, when nobody knows how long jobs take: properties, and the simulator that measures it."""

import random

from bench.disciplines import Easy, Fifo, Ours
from bench.loads import generated
from bench.queueing import Pool, Task
from bench.reservation import may_pass, reserve
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.ordering import (
    LONGEST_PASSED_SECONDS,
    Interruptible,
    due,
    expected_left,
    next_look,
    to_interrupt,
)

SECONDS = st.floats(0.1, 1e6)


def test_a_job_that_lasts_longer_than_all_before_is_expected_to_last_on():
    assert expected_left([100.0] * 50, 0.0) < expected_left([100.0] * 50, 150.0)


def test_a_job_about_to_end_as_those_before_it_did_is_nearly_done():
    assert expected_left([1000.0] * 50, 990.0) < expected_left([1000.0] * 50, 0.0) / 50


@given(st.lists(SECONDS, max_size=60), st.floats(0, 1e6))
def test_the_expectation_is_finite_and_positive(lasted: list[float], attained: float):
    assert 0 < expected_left(sorted(lasted), attained) < 1e8


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 64), st.floats(0, 1e6))
def test_no_job_that_never_started_lets_pass_what_comes_more_than_a_day_later(
    since: float, left: float, amount: int, later: float
):
    waiting = due(since, left, amount, started=False)
    assert waiting <= due(since + LONGEST_PASSED_SECONDS + later, 0.0, 1, started=False)


@given(st.floats(0, 1e7))
def test_looks_go_on(attained: float):
    assert next_look(attained) > attained


@given(st.integers(1, 40), st.integers(0, 8), st.lists(st.tuples(SECONDS, st.integers(1, 8)), max_size=20))
def test_nothing_is_interrupted_in_vain(needed: int, free: int, running: list[tuple[float, int]]):
    jobs = [Interruptible(when, amount, str(k)) for k, (when, amount) in enumerate(running)]
    latest = sorted(jobs, reverse=True)
    chosen = to_interrupt(needed, free, 1000.0, latest)
    given_back = sum(one.amount for one in jobs if one.id in chosen)
    assert not chosen or free + given_back >= needed
    assert all(one.due > 1000.0 for one in jobs if one.id in chosen)


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
            first = next(iter(self._line.values()), None)
            if first is not None:
                ends = ((end, gpus) for end, _, gpus in self._ends)
                found = reserve(first.gpus, pool.free, pool.now, ends)
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
        done = generated(1.0, jobs=1500, gpus=64)
        Pool(64).run(done, discipline)
        means.append(sum(task.ended - task.submitted for task in done) / len(done))
    assert means[0] > 2 * means[1]
