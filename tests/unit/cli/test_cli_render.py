"""Nouns as cells: what fits into one."""

import pytest

from gridmill.domain.metrics import headline

LEARNED = {"train_loss": 0.17, "data_wait_share": 0.03, "validation_rmse": 3.5, "validation_skill": 0.5}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, ""),
        ({"rows": 5.0, "rows_added": 2.0, "rejected": 1.0}, "rows 5, rows_added 2, rejected 1"),
        ({"rows": 9.0, "test_rows": 2.0, "train_rows": 7.0}, "rows 9, test_rows 2"),
        (LEARNED, "validation_rmse 3.5, validation_skill 0.5"),
        (
            {**LEARNED, "test_mae": 2.0, "test_rmse": 4.0, "test_skill": 0.25},
            "test_rmse 4, test_skill 0.25",
        ),
        ({"test_log_loss": 0.4, "test_auc": 0.8, "test_accuracy": 0.75}, "test_auc 0.8, test_accuracy 0.75"),
    ],
)
def test_a_cell_has_the_metrics_that_say_most(values: dict[str, float], shown: str) -> None:
    assert headline(values) == shown
