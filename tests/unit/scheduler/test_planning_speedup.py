"""Amdahl's law and the USL are found again in what they made, and no USL where there is none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridmill.scheduler.scaling_law import LEVEL, WorkMeasurement, fit, fit_coherent, invert, student

NUMBERS = (1, 2, 4, 8, 16, 32)


def trials(alone: float, contention: float, coherence: float, numbers=NUMBERS, noise: float = 0.0, seed=0):
    draw = random.Random(seed)
    return [
        WorkMeasurement(
            workers=n,
            work_seconds=alone
            * (1 + contention * (n - 1) + coherence * n * (n - 1))
            * max(0.1, draw.gauss(1.0, noise)),
        )
        for n in numbers
    ]


@given(st.floats(0.1, 1e5), st.floats(0.0, 0.2), st.floats(0.004, 0.05))
def test_exact_points_give_the_parameters_back(alone: float, contention: float, coherence: float) -> None:
    law = fit(trials(alone, contention, coherence))
    assert law.coherent
    found = (law.alone, law.contention / law.alone, law.coherence / law.alone)
    assert found == pytest.approx((alone, contention, coherence), rel=1e-4, abs=1e-6)


@settings(max_examples=60)
@given(st.floats(0.0, 0.4), st.floats(0.004, 0.03), st.integers(0, 10_000))
def test_usl_is_found_under_noise(contention: float, coherence: float, seed: int) -> None:
    law = fit(trials(100.0, contention, coherence, NUMBERS * 2, noise=0.02, seed=seed))
    assert law.coherent
    truth = 1 + contention * 23 + coherence * 24 * 23
    assert law.work(24) == pytest.approx(100 * truth, rel=0.08)


def test_amdahls_law_is_kept_where_nothing_else_shows() -> None:
    laws = [fit(trials(100.0, 0.05, 0.0, noise=0.03, seed=seed)) for seed in range(200)]
    assert sum(law.coherent for law in laws) <= 200 * 0.09
    errors = sorted(abs(law.work(16) / (100 * (1 + 0.05 * 15)) - 1) for law in laws)
    assert errors[100] < 0.03


def test_two_numbers_of_workers_are_never_enough_for_coherence() -> None:
    law = fit(trials(100.0, 0.0, 0.02, numbers=(1, 8, 8, 8)))
    assert not law.coherent
    assert law.contention > 0
    assert fit_coherent(trials(100.0, 0.0, 0.02, numbers=(1, 8))).work(32) > law.work(32)


def test_one_attempt_gives_its_work_and_nothing_more() -> None:
    law = fit([WorkMeasurement(workers=4, work_seconds=20.0)])
    assert law.parameters == (20.0, 0.0, 0.0)
    assert law.work(32) == 20.0


def test_contention_below_the_noise_is_none() -> None:
    assert fit(trials(100.0, 0.002, 0.0, numbers=(1, 8))).contention == 0.0
    assert fit(trials(100.0, 0.02, 0.0, numbers=(1, 8))).contention == pytest.approx(2.0)


def test_nothing_is_negative() -> None:
    law = fit([WorkMeasurement(workers=n, work_seconds=100.0 / n) for n in (1, 2, 4, 8)])
    assert min(law.parameters) >= 0


def test_intervals_hold_what_they_say() -> None:
    """Of 300 laws from noisy points the true work lies inside the interval about as often as it says."""
    inside = 0
    for seed in range(300):
        law = fit(trials(100.0, 0.05, 0.0, numbers=(1, 2, 4, 8), noise=0.03, seed=seed))
        row = (1.0, 15.0, 240.0)
        variance = sum(row[i] * row[j] * law.covariance[i][j] for i in range(3) for j in range(3))
        inside += abs(law.work(16) - 175.0) <= law.quantile * variance**0.5
    assert inside / 300 >= LEVEL - 0.06


@pytest.mark.parametrize(("freedom", "expected"), [(4, 2.132), (6, 1.943), (10, 1.812), (30, 1.697)])
def test_students_quantiles(freedom: int, expected: float) -> None:
    assert student(0.95, freedom) == pytest.approx(expected, rel=0.01)


def test_a_singular_matrix_has_no_inverse() -> None:
    assert invert([[1.0, 2.0], [2.0, 4.0]]) is None
    assert invert([[4.0, 0.0], [0.0, 2.0]]) == [[0.25, 0.0], [0.0, 0.5]]
