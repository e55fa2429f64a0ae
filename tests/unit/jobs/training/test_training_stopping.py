"""Training without a validation split: what ends learning early, that it is said, and what is refused."""

import numpy as np
import pytest
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.training import FoldsBy, TrainingSpec
from gridmill.domain.tuning import Range, Search
from gridmill.errors import DataError, InputError
from gridmill.jobs.model_files import load_card
from gridmill.jobs.prediction.run import run as predict
from gridmill.jobs.training.data import read_frame
from gridmill.jobs.training.run import run
from gridmill.jobs.training.stopping_rows import with_stopping_rows

SMALL = {"sequence": 12, "hidden": 16, "epochs": 8, "learning_rate": 0.01, "batch_size": 64}
OPTIONS = {
    "lstm": SMALL,
    "mlp": {"hidden": 16, "epochs": 12, "learning_rate": 0.01, "batch_size": 64},
    "gbdt": {"trees": 60},
    "linear": {},
    "naive": {},
}
EARLY = ("lstm", "mlp", "gbdt")


def two_splits() -> dict[str, object]:
    """300 hours of training and 100 of test of three entities."""
    columns = series()
    split = np.asarray(columns["split"])
    return columns | {"split": np.where(split == "validation", "train", split)}


@pytest.mark.parametrize("model", list(OPTIONS))
def test_built_in_models_learn_without_validation_and_are_measured_on_test(tmp_path, model, capfd):
    dataset = write_dataset(tmp_path, two_splits(), label_after={"seconds": 3 * 3600.0, "rows": 0})
    result = run(training_context(tmp_path, dataset, model, **OPTIONS[model]))
    assert {name.partition("_")[0] for name in result.metrics} <= {"test", "data"}
    assert model == "naive" or result.metrics["test_skill"] > 0.5
    said = "on the last 138 training rows, from 2024-01-11 14:00; 9 rows before them are left out"
    told = str(result.outputs[0].details["options"].get("early_stopping", ""))
    assert told.startswith(said if model in EARLY else "")
    assert load_card(tmp_path / "outputs/m").options.get("early_stopping", "") == told
    assert (f"no validation split: early stopping {said}" in capfd.readouterr().out) == (model in EARLY)


@pytest.mark.parametrize("model", EARLY)
def test_test_rows_change_nothing_that_is_learned(tmp_path, model):
    files = []
    for number in range(2):
        columns = two_splits()
        ahead = np.array(columns["ahead"])
        ahead[np.asarray(columns["split"]) == "test"] += number * 100
        root = tmp_path / str(number)
        run(training_context(root, write_dataset(root, columns | {"ahead": ahead}), model, **OPTIONS[model]))
        files.append((root / "outputs/m/model.onnx").read_bytes())
    assert files[0] == files[1]


def test_the_rows_to_stop_by_come_after_all_that_is_learned_and_no_label_reaches_in(tmp_path):
    dataset = write_dataset(tmp_path, two_splits(), label_after={"seconds": 3 * 3600.0, "rows": 0})
    context = training_context(tmp_path, dataset, "gbdt")
    whole = read_frame(context, context.order.job.training)
    frame, _ = with_stopping_rows(whole, context.order.job.training, context)
    hours = np.tile(np.arange(400), 3)
    learned, held = hours[frame.rows["train"]], hours[frame.rows["validation"]]
    assert held.tolist() == sorted(range(254, 300)) * 3
    assert learned.max() + 3 < held.min() <= learned.max() + 4
    assert len(frame.rows["test"]) == 300


@pytest.mark.parametrize(
    ("time", "begin"),
    [
        (lambda time: time.astype("datetime64[ns]") + np.timedelta64(1, "ns"), "2024-01-11 14:00"),
        (lambda time: time + np.timedelta64(9000 * 365, "D"), "11018-01-20 14:00"),
    ],
    ids=["nanoseconds", "after the year 9999"],
)
def test_times_that_python_cannot_hold_are_no_obstacle(tmp_path, time, begin):
    columns = two_splits()
    columns["time"] = time(columns["time"])
    dataset = write_dataset(tmp_path, columns, label_after={"seconds": 3 * 3600.0, "rows": 0})
    context = training_context(tmp_path, dataset, "gbdt")
    spec = context.order.job.training
    _, said = with_stopping_rows(read_frame(context, spec), spec, context)
    assert said.startswith(f"on the last 138 training rows, from {begin}; 9 rows before")


def test_without_a_time_the_rows_to_stop_by_are_drawn_by_the_seed(tmp_path):
    dataset = write_dataset(tmp_path, two_splits(), time=None)
    results = []
    for name in ("one", "two"):
        results.append(run(training_context(tmp_path, dataset, "gbdt", name, trees=40, seed=3)))
    assert "training rows, drawn at random" in results[0].outputs[0].details["options"]["early_stopping"]
    assert results[0].metrics == results[1].metrics


@pytest.mark.parametrize("by", ["time", "random"])
def test_folds_without_validation(tmp_path, by):
    dataset = write_dataset(tmp_path, two_splits())
    result = run(training_context(tmp_path, dataset, "gbdt", trees=40, folds=3, folds_by=FoldsBy(by)))
    assert result.metrics["folds_skill"] > 0.5


def test_a_class_that_comes_last_only_is_refused(tmp_path):
    columns = two_splits()
    late = np.tile(np.arange(400), 3) >= 280
    dataset = write_dataset(tmp_path, columns | {"ahead": np.where(late, "late", "early")})
    with pytest.raises(DataError, match=r"no validation split.*a class is missing"):
        run(training_context(tmp_path, dataset, "gbdt"))


def test_a_search_needs_validation(tmp_path):
    search = Search(parameters={"regularization": Range(between=(0.1, 1.0))}, trials=2)
    context = training_context(tmp_path, write_dataset(tmp_path, two_splits()), "linear", search=search)
    with pytest.raises(InputError, match="a search compares its trials on the validation split"):
        run(context)


def test_a_prediction_takes_an_only_model_and_refuses_to_choose_among_several(tmp_path):
    dataset = write_dataset(tmp_path, two_splits())
    models = {
        name: artifact_of(name, run(training_context(tmp_path, dataset, name, name)).outputs[0])
        for name in ("linear", "naive")
    }
    only = {"linear": models["linear"]}
    result = predict(prediction_context(tmp_path, dataset, only, split="test"))
    assert result.metrics["test_rmse"] > 0
    assert result.outputs[0].details["why"] == "linear is the only candidate"
    with pytest.raises(
        InputError, match=r"`models` names 2 models, but none has a 'rmse' of a validation split"
    ):
        predict(prediction_context(tmp_path, dataset, models, split="test"))


def test_a_dataset_of_training_rows_only_measures_nothing_and_is_refused(tmp_path):
    columns = series() | {"split": np.full(1200, "train")}
    with pytest.raises(DataError, match="the validation split has no row"):
        run(training_context(tmp_path, write_dataset(tmp_path, columns), "linear"))


def test_the_kinds_that_stop_early_are_those_with_patience():
    assert all(TrainingSpec(dataset="d", model=model, patience=3).check() is None for model in EARLY)
