"""Advice: what attempts measured, and what is said of it."""

from dataclasses import replace

import pytest

from gridmill.model.advice import Advice, Bound, LawKind
from gridmill.model.resource import Measurement
from gridmill.planning.advice import advise
from gridmill.testing.advising import known_of, parallel_attempt


def advice_on(*measured: Measurement, cpus: float = 8.0, shards: int | None = None) -> Advice:
    found = advise(known_of(*measured, cpus=cpus, shards=shards))
    assert found is not None
    return found


def speedup(found: Advice, workers: int) -> float:
    line = found.forecast(workers)
    assert line is not None
    return line.speedup


def test_one_attempt_tells_the_serial_share_from_within() -> None:
    found = advice_on(parallel_attempt(1, workers=1, work_seconds=57.5))
    assert found.law.kind == LawKind.AMDAHL
    assert found.law.serial == pytest.approx(2.5 / 60)
    assert speedup(found, 8) == pytest.approx(60 / (2.5 + 57.5 / 8))
    line = found.forecast(8)
    assert line is not None
    assert line.low == 1.0  # nothing says yet that more workers help
    assert any("only 1 was measured" in text for text in found.unknown)
    assert [probe.workers for probe in found.probes] == [8, 4]


def test_an_attempt_with_several_workers_says_nothing_of_more() -> None:
    found = advice_on(parallel_attempt(1, workers=4, work_seconds=57.5))
    line = found.forecast(16)
    assert line is not None
    assert line.low == pytest.approx(speedup(found, 4), rel=0.01)
    assert found.probes[0].workers == 1


def test_contention_is_learned_from_a_second_number() -> None:
    """Work that grows by 2 % with each worker is Amdahl's serial share."""
    found = advice_on(
        parallel_attempt(1, workers=1, work_seconds=100.0),
        parallel_attempt(2, workers=8, work_seconds=100.0 * 1.14),
        cpus=64,
    )
    assert found.law.kind == LawKind.AMDAHL
    assert found.law.serial == pytest.approx((2.5 + 2.0) / 102.5, rel=0.01)
    line = found.forecast(32)
    assert line is not None
    assert line.low < line.speedup * 0.8  # it may be coherence: not known from two numbers
    assert any("third number" in text for text in found.unknown)
    assert len(found.probes) == 1


def test_coherence_is_learned_from_three_numbers() -> None:
    cost = {n: 1 + 0.005 * n * (n - 1) for n in (1, 4, 8, 16)}
    found = advice_on(*(parallel_attempt(n, workers=n, work_seconds=100.0 * cost[n]) for n in cost), cpus=64)
    assert found.law.kind == LawKind.USL
    assert found.law.coherence == pytest.approx(0.5 / 102.5, rel=0.05)
    assert found.probes == ()
    assert speedup(found, 32) < speedup(found, 16)


def test_cpus_bound_what_computing_workers_can_do() -> None:
    found = advice_on(parallel_attempt(1, workers=1, work_seconds=100.0, cpu_share=0.95), cpus=2)
    assert found.bound == Bound.CPU
    assert speedup(found, 8) == pytest.approx(speedup(found, 4), rel=0.05)
    assert found.worth == 2
    assert [probe.workers for probe in found.probes] == [2]  # on 2 CPUs more tell nothing
    assert "keep the 2 CPUs of the site busy" in found.vertical


def test_waiting_workers_are_not_bound_by_cpus() -> None:
    found = advice_on(parallel_attempt(1, workers=1, work_seconds=100.0, cpu_share=0.01), cpus=2)
    assert found.bound == Bound.WAITING
    assert "buy almost nothing" in found.vertical
    assert speedup(found, 16) > 8


def test_disk_is_told_from_waiting() -> None:
    one = parallel_attempt(1, workers=2, work_seconds=100.0)
    assert one.parallel is not None
    found = advice_on(replace(one, parallel=replace(one.parallel, disk_seconds=80.0)))
    assert found.bound == Bound.DISK
    assert found.shares["disk"] == pytest.approx(0.8)


def test_probes_are_scaled_to_all_of_the_data() -> None:
    found = advice_on(
        parallel_attempt(1, workers=1, work_seconds=100.0, share=0.05),
        parallel_attempt(2, workers=8, work_seconds=100.0, share=0.1),
        cpus=64,
    )
    assert found.forecast(1) is not None
    assert found.work_seconds == pytest.approx(100.0)
    assert speedup(found, 8) == pytest.approx(102.5 / (2.5 + 12.5), rel=0.02)
    assert any("parts of the 64,000 rows" in text for text in found.unknown)


def test_a_fixed_number_of_shards_bounds_the_workers() -> None:
    found = advice_on(parallel_attempt(1, workers=1, work_seconds=57.5), shards=10, cpus=64)
    assert speedup(found, 16) == pytest.approx(60 / (2.5 + 5.75))
    assert speedup(found, 8) == pytest.approx(60 / (2.5 + 2 * 5.75))  # two rounds


def test_attempts_that_did_something_else_are_left_aside() -> None:
    old, new = (parallel_attempt(n, workers=n, work_seconds=60.0) for n in (1, 2))
    assert old.parallel is not None
    found = advice_on(replace(old, parallel=replace(old.parallel, work="weather/train (gbdt)")), new)
    assert [one.attempt_id for one in found.measured] == [new.attempt_id]


def test_no_advice_without_workers() -> None:
    assert advise(known_of(replace(parallel_attempt(1, workers=1, work_seconds=1.0), parallel=None))) is None


def test_worth_is_where_speed_for_its_cost_is_most() -> None:
    """For Amdahl's law that is (1 - s) / s workers."""
    found = advice_on(parallel_attempt(1, workers=4, work_seconds=47.5), cpus=64)
    assert found.law.serial == pytest.approx(0.05)
    assert found.worth == 16  # four times what was measured; the law alone says 19
    sure = advice_on(parallel_attempt(1, workers=8, work_seconds=47.5), cpus=64)
    assert sure.worth == 19
    assert sure.summary.startswith("19 workers: ")
    assert "from 19 to 38 you would pay 2 x for" in sure.summary


def test_other_programs_on_the_cpus_are_said_and_left_out() -> None:
    one = parallel_attempt(1, workers=1, work_seconds=100.0, cpu_share=0.2)
    assert one.parallel is not None
    found = advice_on(replace(one, parallel=replace(one.parallel, delay_seconds=40.0)))
    assert found.work_seconds == pytest.approx(60.0)
    assert any("others had the CPUs" in text for text in found.unknown)


def test_waiting_for_a_place_is_said() -> None:
    one = replace(parallel_attempt(1, workers=1, work_seconds=10.0), waited_seconds=100.0)
    assert any("before it began it waited" in text for text in advice_on(one).why)
