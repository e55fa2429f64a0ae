"""Training jobs: what they learn, what they refuse, and that what is saved is what was measured."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.kit.learning_data import ENTITIES, events_of, series, training_context, write_dataset

from gridmill.domain.training import ModelKind, Objective, TrainingSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.features import encode, windows
from gridmill.jobs.model_files import load_model, predict_rows
from gridmill.jobs.training.run import run
from gridmill.jobs.training.train_loop import NAME, read_checkpoint

FAST = {"sequence": 12, "hidden": 16, "epochs": 8, "learning_rate": 0.01, "batch_size": 64}
MLP = {"hidden": 16, "epochs": 12, "learning_rate": 0.01, "batch_size": 64}
OPTIONS = {"lstm": FAST, "mlp": MLP, "gbdt": {"trees": 60}, "linear": {}, "naive": {}}


def train(root: Path, model: str, columns: dict[str, object] | None = None, **options: object) -> JobResult:
    dataset = write_dataset(root, columns or series())
    return run(training_context(root, dataset, model, **(OPTIONS[model] | options)))


def classes(rows: int = 400, names: tuple[str, ...] = ("low", "high")) -> dict[str, object]:
    columns = series(rows)
    level = np.digitize(columns["ahead"], np.linspace(40, 60, len(names) + 1)[1:-1])
    return columns | {"ahead": np.array(names)[level]}


@pytest.mark.parametrize("model", ["lstm", "mlp", "gbdt", "linear"])
def test_learning_beats_the_naive_model_on_a_wave(tmp_path, model):
    result = train(tmp_path, model)
    assert result.metrics["test_skill"] > 0.5
    assert result.metrics["validation_r2"] > 0.8


def test_the_naive_model_repeats_the_present_value(tmp_path):
    result = train(tmp_path, "naive")
    assert result.metrics["validation_skill"] == pytest.approx(0)


@pytest.mark.parametrize("names", [("low", "high"), ("low", "middle", "high")])
@pytest.mark.parametrize("model", list(OPTIONS))
def test_classes_are_learned(tmp_path, model, names):
    result = train(tmp_path, model, classes(names=names))
    assert result.outputs[0].details["classes"] == sorted(names)
    if model != "naive":
        assert result.metrics["test_accuracy"] > 0.8
        assert result.metrics["test_auc"] > 0.9
        assert result.metrics["test_log_loss"] < 0.6


@pytest.mark.parametrize("model", list(OPTIONS))
def test_what_is_saved_predicts_what_was_measured_and_holds_no_code(tmp_path, model):
    result = train(tmp_path, model)
    folder = tmp_path / "outputs/m"
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".onnx", ".safetensors", ".arrow"}
    assert not any(path.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05", b"PK") for path in folder.iterdir())
    predictor = load_model(folder)
    table = pq.read_table(tmp_path / "datasets/d").sort_by([("city", "ascending"), ("time", "ascending")])
    inputs = encode(table, predictor.card.encodings)
    starts = np.repeat(np.arange(3) * 400, 400)
    rows = np.flatnonzero(np.asarray(table["split"]) == "test")
    predicted = predict_rows(predictor, inputs, starts, rows)
    error = np.sqrt(np.mean((predicted - np.asarray(table["ahead"])[rows]) ** 2))
    assert error == pytest.approx(result.metrics["test_rmse"])


@pytest.mark.parametrize("model", ["lstm", "gbdt"])
def test_the_same_seed_gives_the_same_model_and_another_does_not(tmp_path, model):
    runs = [train(tmp_path / str(number), model, seed=seed) for number, seed in enumerate((1, 1, 2))]
    first, again, other = (json.dumps(dict(result.metrics)) for result in runs)
    assert first == again
    assert model == "gbdt" or first != other


def test_an_lstm_tells_its_epochs_while_it_learns(tmp_path):
    dataset = write_dataset(tmp_path, series())
    context = training_context(tmp_path, dataset, "lstm", **FAST)
    result = run(context)
    curve = result.outputs[0].details["curve"]
    events = events_of(context)
    losses = [event for event in events if event.get("name") == "validation_loss"]
    assert [[event["step"], event["value"]] for event in losses] == [[point[0], point[2]] for point in curve]
    assert [event["done"] for event in events if event["type"] == "progress"] == [point[0] for point in curve]


def test_early_stopping_keeps_the_best_epoch(tmp_path):
    result = train(tmp_path, "lstm", epochs=40, patience=2)
    curve = result.outputs[0].details["curve"]
    best = min(range(len(curve)), key=lambda epoch: curve[epoch][2])
    assert len(curve) == 40 or len(curve) == best + 1 + 2


class StoppedHereError(Exception):
    pass


class Stopping(JobContext):
    """A context in which the third epoch never ends well."""

    def progress(self, done, total=None, unit="", note=""):
        if done == 3:
            raise StoppedHereError


@pytest.mark.parametrize("model", ["lstm", "mlp"])
def test_learning_goes_on_from_a_checkpoint_as_if_nothing_had_been(tmp_path, model):
    options = OPTIONS[model] | {"dropout": 0.3, "checkpoint_seconds": 0.0, "epochs": 5}
    dataset = write_dataset(tmp_path, series())
    whole = run(training_context(tmp_path, dataset, model, "whole", **options))
    context = training_context(tmp_path, dataset, model, "m", **options)
    order = replace(context.order, checkpoint_uri="checkpoints/p/m/f")
    with pytest.raises(StoppedHereError):
        run(Stopping(order=order, work=context.work))
    resumed = run(JobContext(order=order, work=context.work))
    read = [(tmp_path / "outputs" / name / "weights.safetensors").read_bytes() for name in ("whole", "m")]
    assert read[0] == read[1]
    assert resumed.outputs[0].details["options"]["resumed_in_epoch"] >= 1
    assert resumed.outputs[0].details["curve"] == whole.outputs[0].details["curve"]
    assert resumed.metrics == whole.metrics


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"torch": "0.1"}', '{"torch": "", "state": "x", "facts": {}}']
)
def test_a_checkpoint_that_cannot_be_used_means_beginning_anew(tmp_path, content):
    assert read_checkpoint(tmp_path) is None
    (tmp_path / NAME).write_text(content)
    assert read_checkpoint(tmp_path) is None


def test_gbdt_names_its_important_features(tmp_path):
    importance = train(tmp_path, "gbdt").outputs[0].details["importance"]
    assert next(iter(importance)) in ("wave", "slope", "value")
    assert sum(importance.values()) == pytest.approx(1)
    assert set(importance) == {"value", "humid", "wave", "slope", *(f"city={name}" for name in ENTITIES)}


def test_windows_never_cross_entities_nor_look_beyond_their_row():
    starts = np.array([0, 0, 0, 0, 4, 4, 4])
    found = windows(np.array([1, 3, 4, 6]), starts, 3)
    assert found.tolist() == [[0, 0, 1], [1, 2, 3], [4, 4, 4], [4, 5, 6]]


def test_rows_after_the_basis_row_do_not_change_a_prediction(tmp_path):
    train(tmp_path, "lstm")
    predictor = load_model(tmp_path / "outputs/m")
    inputs = np.random.default_rng(0).normal(50, 5, (60, len(predictor.card.inputs)))
    changed = inputs.copy()
    changed[31:] = -1e6
    starts, row = np.zeros(60, np.int64), np.array([30])
    first = predict_rows(predictor, inputs, starts, row)
    assert first == predict_rows(predictor, changed, starts, row)
    changed[30] += 1
    assert first != predict_rows(predictor, changed, starts, row)


def test_chosen_features_are_the_only_ones_used(tmp_path):
    details = train(tmp_path, "linear", features=("wave", "value")).outputs[0].details
    assert details["features"] == ["wave", "value"]
    assert details["inputs"] == 2


def test_an_integer_label_can_be_declared_a_class(tmp_path):
    columns = series()
    columns["ahead"] = (columns["ahead"] > 50).astype(int)
    result = train(tmp_path, "linear", columns, objective=Objective.CLASSIFICATION)
    assert result.outputs[0].details["classes"] == ["0", "1"]


def test_rows_without_a_label_are_left_out_of_learning_and_measuring(tmp_path):
    columns = series()
    columns["ahead"][::2] = np.nan
    result = train(tmp_path, "lstm", columns)
    assert result.outputs[0].details["rows"] == {"train": 300, "validation": 150, "test": 150}
    assert result.metrics["test_skill"] > 0.4


@pytest.mark.parametrize("model", list(OPTIONS))
def test_a_feature_that_is_always_missing_does_no_harm(tmp_path, model):
    result = train(tmp_path, model, series() | {"humid": np.full(1200, np.nan)})
    assert np.isfinite(list(result.metrics.values())).all()


def several() -> tuple[dict[str, object], dict[str, object]]:
    """Two columns, one and two rows ahead, as a dataset with `next_rows: 2` has them."""
    columns = series(ahead=1)
    columns["second"] = columns["wave"] * 4 + 100
    labels = [{"name": f"{name}_{step}", "column": name} for step in (1, 2) for name in ("value", "second")]
    columns |= {one["name"]: np.roll(columns[one["column"]], -int(one["name"][-1])) for one in labels}
    return columns, {"labels": labels, "features": ["value", "second", "wave", "slope"]}


@pytest.mark.parametrize("model", ["lstm", "mlp", "linear", "naive"])
def test_several_labels_are_learned_at_once(tmp_path, model):
    columns, details = several()
    dataset = write_dataset(tmp_path, columns, **details)
    result = run(training_context(tmp_path, dataset, model, **OPTIONS[model]))
    card = load_model(tmp_path / "outputs/m").card
    assert card.labels == ("value_1", "second_1", "value_2", "second_2")
    assert card.usual[1] == pytest.approx(np.mean(columns["second"]), abs=1)
    if model != "naive":
        assert result.metrics["test_skill"] > 0.4


def test_trees_refuse_several_labels(tmp_path):
    columns, details = several()
    dataset = write_dataset(tmp_path, columns, **details)
    with pytest.raises(InputError, match="a gbdt model needs exactly one label, but the dataset has 4"):
        run(training_context(tmp_path, dataset, "gbdt"))


def refused(
    error: type[Exception], root: Path, columns: dict[str, object], model: str = "linear", **options: object
):
    with pytest.raises(error) as caught:
        train(root, model, columns, **options)
    assert caught.value.hint or caught.value.place
    return str(caught.value)


def test_a_dataset_without_label_is_refused(tmp_path):
    dataset = write_dataset(tmp_path, series(), label=None)
    with pytest.raises(InputError, match="no label"):
        run(training_context(tmp_path, dataset, "linear"))


def test_a_constant_label_is_refused(tmp_path):
    assert "same in every training row" in refused(DataError, tmp_path, series() | {"ahead": np.ones(1200)})


def test_a_missing_label_is_refused(tmp_path):
    assert "missing in every row" in refused(DataError, tmp_path, series() | {"ahead": np.full(1200, np.nan)})


def test_an_empty_split_is_refused(tmp_path):
    message = refused(DataError, tmp_path, series() | {"split": np.full(1200, "train")})
    assert "validation split" in message
    assert "train" in message


def test_a_sequence_longer_than_any_entity_is_refused(tmp_path):
    assert "no training row has 300 rows" in refused(DataError, tmp_path, series(), "lstm", sequence=300)


def test_a_loss_that_is_no_number_names_the_learning_rate(tmp_path):
    assert "learning_rate 1e+30" in refused(InputError, tmp_path, series(), "lstm", learning_rate=1e30)


def test_an_unknown_feature_gets_a_suggestion(tmp_path):
    with pytest.raises(InputError) as caught:
        train(tmp_path, "linear", features=("waves",))
    assert caught.value.hint == "Did you mean `wave`?"


def test_a_naive_model_repeats_only_what_is_there(tmp_path):
    with pytest.raises(InputError, match="no numeric feature 'valu'"):
        train(tmp_path, "naive", repeat="valu")


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        ("gbdt", {"sequence": 24}, "a gbdt model does not use 'sequence'"),
        ("lstm", {"trees": 5}, "a lstm model does not use 'trees'"),
        ("naive", {"learning_rate": 0.1}, "a naive model does not use 'learning_rate'"),
        ("lstm", {"epochs": 0}, "epochs is 0"),
        ("lstm", {"dropout": 1.0}, "dropout is 1.0"),
        ("gbdt", {"learning_rate": -1.0}, "learning_rate is -1.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(model, options, text):
    with pytest.raises(InputError, match=text) as caught:
        TrainingSpec(dataset="d", model=ModelKind(model), **options).check()
    assert caught.value.place.startswith("training.")
