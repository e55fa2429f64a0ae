"""A model whose labels are drawn with what it says is shown as calibrated; one that exaggerates is not."""

import numpy as np
import pytest

from gridmill.domain.metrics import judge
from gridmill.jobs.metrics import calibration

ROWS = 20_000


def drawn(seed: int, classes: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [rows, classes], and labels drawn with exactly these."""
    random = np.random.default_rng(seed)
    said = random.dirichlet(np.full(classes, 0.8), rows)
    came = (random.random(rows)[:, None] > said.cumsum(axis=1)).sum(axis=1)
    return np.minimum(came, classes - 1), said


def sharpened(said: np.ndarray, power: float) -> np.ndarray:
    """Surer than it ought to be (power above 1), or less sure; the likeliest class stays the same."""
    raised = said**power
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_an_honest_model_is_calibrated(seed: int, classes: int):
    curve = calibration(*drawn(seed, classes))
    for said, came, rows in curve:
        assert came == pytest.approx(said, abs=4 * np.sqrt(max(said * (1 - said), 0.01) / rows))
    found = judge(curve)
    assert found.by_chance
    assert found.off < 0.015
    assert found.text.endswith("could be chance")


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("power", [0.5, 1.5, 3.0])
def test_a_dishonest_model_is_not(power: float, classes: int):
    labels, said = drawn(1, classes)
    curve = calibration(labels, sharpened(said, power))
    found = judge(curve)
    assert not found.by_chance
    assert found.off > 0.02
    assert ", more than chance explains" in found.text


def test_too_sure_lies_below_the_diagonal_and_not_sure_enough_above_it():
    labels, said = drawn(2, 4)
    assert all(came < said for said, came, _ in common(calibration(labels, sharpened(said, 3.0))))
    assert all(came > said for said, came, _ in common(calibration(labels, sharpened(said, 0.5))))


def common(curve: list[list[float]]) -> list[list[float]]:
    """Bins of so many rows that chance decides nothing."""
    return [point for point in curve if point[2] > ROWS / 20]


def test_one_in_a_hundred_honest_models_at_most_is_called_dishonest():
    wrong = sum(not judge(calibration(*drawn(seed, 2, 4_000))).by_chance for seed in range(200, 300))
    assert wrong <= 4


def test_one_row_that_was_surely_said_to_come_otherwise_proves_nothing():
    assert judge([(0.9999, 0.99, 100)]).by_chance
    assert not judge([(0.9999, 0.9, 100)]).by_chance


def test_how_far_off_is_the_mean_over_the_rows():
    assert judge([(0.2, 0.3, 10), (0.8, 0.4, 30)]).off == pytest.approx(0.325)
