"""What a model's errors are and what it uses: residuals and permutation importance."""

import numpy as np
import pytest
from tests.kit.learning_data import series, training_context, write_dataset

from gridmill.jobs.training import explain
from gridmill.jobs.training.run import run as train


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    """A busy machine must not change what is measured."""
    monkeypatch.setattr(explain, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(explain, "MOST_SECONDS", 60.0)


def details_of(root, model, columns=None, **options):
    dataset = write_dataset(root, columns or dict(series()))
    return train(training_context(root, dataset, model, **options)).outputs[0].details


@pytest.mark.parametrize("model", ["linear", "gbdt"])
def test_the_features_that_a_model_uses_are_found(tmp_path, model):
    random = np.random.default_rng(1)
    columns = dict(series())
    rows = len(columns["ahead"])
    columns |= {"useless": random.random(rows), "kind": random.choice(["x", "y"], rows)}
    columns["ahead"] = 5 * columns["wave"] + np.where(columns["kind"] == "x", 3.0, -3.0)
    measured = details_of(tmp_path, model, columns)["permutation"]
    found = measured["features"]
    assert measured["split"] == "validation"
    assert measured["rows"] == 300
    assert measured["not_measured"] == 0
    assert set(found) == {"city", "value", "humid", "wave", "slope", "useless", "kind"}
    assert found["wave"] > 0.05
    assert found["kind"] > 0.3
    assert abs(found["useless"]) < 0.01


def test_the_same_training_gives_the_same_importance(tmp_path):
    first, second = (details_of(tmp_path / f"{n}", "linear", seed=3)["permutation"] for n in range(2))
    assert first["features"] == second["features"]
    assert first["seed"] == 3


def test_classes_have_importance_and_no_residuals(tmp_path):
    columns = dict(series())
    columns["ahead"] = np.where(columns["wave"] > 0, "high", "low")
    found = details_of(tmp_path, "linear", columns)
    assert found["permutation"]["metric"] == "log_loss"
    assert found["permutation"]["features"]["wave"] > 0.2
    assert found["residuals"] == {}


def test_a_sequence_is_shuffled_with_its_history(tmp_path):
    found = details_of(tmp_path, "lstm", epochs=1, sequence=4)["permutation"]
    assert set(found["features"]) == {"city", "value", "humid", "wave", "slope"}
    assert found["features"]["value"] != 0


def test_what_takes_longer_than_its_share_of_the_time_is_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(explain, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(explain, "SHARE_OF_TIME", 0.0)
    measured = details_of(tmp_path, "linear")["permutation"]
    assert measured["features"] == {}
    assert measured["not_measured"] == 5
    assert "time limit" in measured["skipped"]


def test_residuals_are_those_of_the_test_rows(tmp_path):
    found = details_of(tmp_path, "linear")["residuals"]
    [one] = found["labels"]
    assert found["split"] == "test"
    assert one["rows"] == sum(one["counts"]) == 300
    assert len(one["edges"]) == len(one["counts"]) + 1
    assert one["quantiles"] == sorted(one["quantiles"])
    assert len(one["sample"]) == explain.SAMPLE
    assert abs(one["mean"]) < 2


def test_the_naive_model_has_residuals_alone(tmp_path):
    found = details_of(tmp_path, "naive")
    assert found["permutation"] == {}
    assert found["residuals"]["labels"]


def test_a_perfect_model_has_a_histogram_of_zeros(tmp_path):
    columns = dict(series())
    columns["ahead"] = columns["value"]
    one = details_of(tmp_path, "naive", columns)["residuals"]["labels"][0]
    assert sum(one["counts"]) == one["rows"]
