"""Advice: what attempts measured, and what is said of it."""

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.advice import Advice, Bottleneck, ScalingLawKind
from gridmill.domain.resource import MeasuredUse, Measurement
from gridmill.scheduler.advice import advise
from gridmill.scheduler.history import PROBE
from gridmill.testing.fake_advising import known_of, parallel_attempt


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
    assert found.law.kind == ScalingLawKind.AMDAHL
    assert found.law.serial == pytest.approx(2.5 / 60)
    assert speedup(found, 8) == pytest.approx(60 / (2.5 + 57.5 / 8))
    line = found.forecast(8)
    assert line is not None
    assert line.low == 1.0  # nothing says yet that more workers help
    assert any("only runs with 1 worker were measured" in text for text in found.unknown)
    assert [probe.workers for probe in found.probes] == [8]


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
    assert found.law.kind == ScalingLawKind.AMDAHL
    assert found.law.serial == pytest.approx((2.5 + 2.0) / 102.5, rel=0.01)
    line = found.forecast(32)
    assert line is not None
    assert line.low < line.speedup * 0.8  # it may be coherence: not known from two numbers
    assert any("third number" in text for text in found.unknown)
    assert len(found.probes) == 1


def test_coherence_is_learned_from_three_numbers() -> None:
    cost = {n: 1 + 0.005 * n * (n - 1) for n in (1, 4, 8, 16)}
    found = advice_on(*(parallel_attempt(n, workers=n, work_seconds=100.0 * cost[n]) for n in cost), cpus=64)
    assert found.law.kind == ScalingLawKind.USL
    assert found.law.coherence == pytest.approx(0.5 / 102.5, rel=0.05)
    assert found.probes == ()
    assert speedup(found, 32) < speedup(found, 16)


def test_cpus_bound_what_computing_workers_can_do() -> None:
    found = advice_on(parallel_attempt(1, workers=1, work_seconds=100.0, cpu_share=0.95), cpus=2)
    assert found.bound == Bottleneck.CPU
    assert speedup(found, 8) == pytest.approx(speedup(found, 4), rel=0.05)
    assert found.worth == 2
    assert [probe.workers for probe in found.probes] == [2]  # on 2 CPUs more tell nothing
    assert "keep the 2 CPUs of the site busy" in found.vertical


def test_waiting_workers_are_not_bound_by_cpus() -> None:
    found = advice_on(parallel_attempt(1, workers=1, work_seconds=100.0, cpu_share=0.01), cpus=2)
    assert found.bound == Bottleneck.WAITING
    assert "give almost no speed-up" in found.vertical
    assert speedup(found, 16) > 8


def test_disk_is_told_from_waiting() -> None:
    one = parallel_attempt(1, workers=2, work_seconds=100.0)
    assert one.parallel is not None
    found = advice_on(replace(one, parallel=replace(one.parallel, disk_seconds=80.0)))
    assert found.bound == Bottleneck.DISK
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
    assert "has room for (64 workers) and 4 times the most workers measured" in found.rule
    sure = advice_on(parallel_attempt(1, workers=8, work_seconds=47.5), cpus=64)
    assert sure.worth == 19
    assert sure.summary.startswith("19 workers: ")
    assert "from 19 to 38 twice the workers give" in sure.summary


def test_other_programs_on_the_cpus_are_said_and_left_out() -> None:
    one = parallel_attempt(1, workers=1, work_seconds=100.0, cpu_share=0.2)
    assert one.parallel is not None
    found = advice_on(replace(one, parallel=replace(one.parallel, delay_seconds=40.0)))
    assert found.work_seconds == pytest.approx(60.0)
    assert any("other programs had the CPUs" in text for text in found.unknown)


def test_waiting_for_a_place_is_said() -> None:
    one = replace(parallel_attempt(1, workers=1, work_seconds=10.0), waited_seconds=100.0)
    assert any("the job waited" in text for text in advice_on(one).why)


def told(one: Measurement, **changed: float | None) -> Measurement:
    assert one.parallel is not None
    return replace(one, parallel=replace(one.parallel, **changed))  # type: ignore[arg-type]


def test_what_no_serial_share_explains_is_what_workers_cost_each_other() -> None:
    """Amdahl's law slows nothing down: eight workers that take longer than one are the USL's."""
    slower = (
        parallel_attempt(1, workers=1, work_seconds=10.0, serial_seconds=0.2),
        parallel_attempt(2, workers=8, work_seconds=110.0, serial_seconds=0.2),
    )
    found = advice_on(*slower, cpus=16)
    assert found.law.kind == ScalingLawKind.USL
    assert found.law.serial <= 1.0
    assert found.law.coherence > 0.0
    assert speedup(found, 8) == pytest.approx(10.7 / (0.7 + 110 / 8), rel=0.02)
    assert found.worth == 1
    assert "do not make the job faster" in found.vertical
    assert any("third number" in text for text in found.unknown)
    line = found.forecast(2)
    assert line is not None
    assert line.high > 1.3, "two workers may still help: nothing says that they do not"


def test_parts_of_the_workers_time_are_of_one_whole() -> None:
    """CPU time is that of all threads, the time without a CPU that of the first."""
    many = told(parallel_attempt(1, workers=2, work_seconds=100.0), cpu_seconds=190.0, delay_seconds=28.0)
    found = advice_on(many)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.shares["delay"] == pytest.approx(0.28)
    assert found.bound == Bottleneck.CPU


def test_a_probe_of_all_the_rows_is_one_all_the_same() -> None:
    attempt = parallel_attempt(1, workers=1, work_seconds=1.0)
    probe = replace(parallel_attempt(2, workers=2, work_seconds=1.0), subject=f"prediction{PROBE}")
    assert [one.probe for one in advice_on(attempt, probe).measured] == [False, True]


@pytest.mark.parametrize(("cpus", "probed"), [(2.0, []), (16.0, [8])])
def test_a_third_number_is_asked_for_where_one_can_be_had(cpus: float, probed: list[int]) -> None:
    pair = [parallel_attempt(n, workers=n, work_seconds=60.0, cpu_share=1.0) for n in (1, 2)]
    found = advice_on(*pair, cpus=cpus)
    assert [one.workers for one in found.probes] == probed
    said = next(text for text in found.unknown if "third number" in text)
    assert ("have no room for one" in said) == (not probed)


SECONDS = st.one_of(st.sampled_from([0.0, 1e-12, 0.012, 1.0]), st.floats(0.0, 1e9))
COUNTS = st.integers(0, 10**12)


@st.composite
def attempts(draw: st.DrawFn, number: int) -> Measurement:
    """Whatever a pod, or a kernel that counts badly, may come to tell."""
    return replace(
        told(
            parallel_attempt(number, workers=1, work_seconds=1.0),
            workers=draw(st.integers(1, 64)),
            shards=draw(st.integers(0, 1000)),
            rows=draw(COUNTS),
            whole_rows=draw(COUNTS),
            deviation=draw(st.floats(0.0, 1e3)),
            read_bytes=draw(st.none() | COUNTS),
            delay_seconds=draw(st.none() | SECONDS),
            disk_seconds=draw(st.none() | SECONDS),
            pods=draw(st.integers(1, 4)),
            **{name: draw(SECONDS) for name in TIMES},
        ),
        use=MeasuredUse(
            wall_seconds=draw(SECONDS),
            cpu_seconds=draw(SECONDS),
            peak_memory_bytes=draw(COUNTS),
            disk_seconds=draw(st.none() | SECONDS),
        ),
        waited_seconds=draw(SECONDS),
    )


TIMES = (
    *("stage_seconds", "opening_seconds", "opening_cpu_seconds", "opening_delay_seconds"),
    *("busy_seconds", "longest_seconds", "cpu_seconds"),
)


@given(
    st.lists(st.integers(1, 9).flatmap(attempts), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.5, 2.0, 64.0]),
)
def test_whatever_was_measured_there_is_advice_in_finite_numbers(
    measured: list[Measurement], cpus: float
) -> None:
    found = advice_on(*measured, cpus=cpus)
    assert all(0.0 <= share <= 1.0 for share in found.shares.values())
    assert sum(found.shares.values()) <= 1.0 + 1e-9
    assert 0.0 <= found.law.serial <= 1.0 + 1e-9
    assert found.worth >= 1
    numbers = [
        found.law.coherence,
        found.law.noise,
        found.serial_seconds,
        found.opening_seconds,
        found.work_seconds,
    ]
    numbers += [value for one in found.measured for value in (one.seconds, one.speedup, one.share)]
    for line in found.forecasts:
        assert line.low <= line.speedup * (1 + 1e-9)
        assert line.speedup <= line.high * (1 + 1e-9)
        assert line.seconds > 0.0
        numbers += [line.seconds, line.speedup, line.low, line.high, line.cost]
    numbers += [one.expected_seconds for one in found.probes if one.expected_seconds is not None]
    assert all(isfinite(value) and value >= 0.0 for value in numbers)
    assert all(0.0 < one.share <= 1.0 for one in found.probes)
