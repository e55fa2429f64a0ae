"""Out-of-fold predictions: no training row is predicted by a model that has seen it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.training import FoldsBy, ModelKind, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.out_of_fold import load_held_out
from gridmill.jobs.training.run import run as train

OVERFIT = {
    "gbdt": {"trees": 100, "patience": 100, "residual": False},
    "linear": {"regularization": 0.001},
    "mlp": {"epochs": 30, "patience": 30, "hidden": 64, "learning_rate": 0.01, "residual": False},
}


def noise(rows: int = 240, features: int = 60) -> dict[str, object]:
    """Features and labels that have nothing to do with each other: what is learned of them is leaked."""
    random = np.random.default_rng(5)
    hour = np.datetime64("2024-01-01T00", "us") + np.arange(rows) * np.timedelta64(1, "h")
    return {
        "city": np.repeat([f"c{n:02}" for n in range(rows // 8)], 8),
        "time": np.tile(hour[:8], rows // 8) + np.arange(rows) * np.timedelta64(1, "m"),
        **{f"f{n}": random.normal(size=rows) for n in range(features)},
        "ahead": random.normal(size=rows),
        "split": np.array((["train"] * 9 + ["validation"]) * (rows // 10)),
    }


def train_and_predict(root: Path, columns: dict[str, object], model: str, **options: object):
    dataset = write_dataset(root, columns)
    result = train(training_context(root, dataset, model, name="m", **options))
    trained = {"m": artifact_of("m", result.outputs[0])}
    made = predict(prediction_context(root, dataset, trained, split=None, cpus=1))
    return pq.read_table(root / "outputs/swarm"), result, made.outputs[0]


def correlation(table, columns) -> float:
    train_rows = np.flatnonzero(columns["split"][table["row"].to_numpy()] == "train")
    said, true = (table[name].to_numpy()[train_rows] for name in ("prediction", "truth"))
    known = np.isfinite(said)
    return float(np.corrcoef(said[known], true[known])[0, 1])


@pytest.mark.parametrize("by", list(FoldsBy))
@pytest.mark.parametrize(
    "model", [pytest.param(one, marks=pytest.mark.long if one == "mlp" else ()) for one in OVERFIT]
)
def test_labels_that_are_noise_are_not_predicted(tmp_path, model, by):
    columns = noise()
    table, _, made = train_and_predict(tmp_path, columns, model, folds=4, folds_by=by, **OVERFIT[model])
    assert abs(correlation(table, columns)) < 0.25
    assert made.details["train_rows"] == "held out"
    assert table.num_rows == len(columns["ahead"])


@pytest.mark.parametrize("model", list(OVERFIT))
def test_without_folds_a_model_knows_what_it_learned(tmp_path, model, capsys):
    columns = noise()
    table, _, made = train_and_predict(tmp_path, columns, model, **OVERFIT[model])
    assert correlation(table, columns) > 0.5
    assert made.details["train_rows"] == "seen"
    assert "on which it was trained" in capsys.readouterr().out


def hidden_labels(columns: dict[str, object], rows: np.ndarray) -> dict[str, object]:
    """The same, with other labels in these rows."""
    changed = np.array(columns["ahead"])
    changed[rows] += 1000
    return columns | {"ahead": changed}


def held_out_of(root: Path, columns: dict[str, object], model: str = "linear", **options: object):
    details = {"label_after": options.pop("label_after", {"seconds": 3 * 3600, "rows": 0})}
    dataset = write_dataset(root, columns, **details)
    train(training_context(root, dataset, model, name="m", **options))
    return load_held_out(root / "outputs/m")


@pytest.mark.parametrize("by", [FoldsBy.RANDOM, FoldsBy.ENTITY])
@pytest.mark.parametrize("model", ["linear", "gbdt"])
def test_a_folds_labels_do_not_change_its_predictions(tmp_path, by, model):
    columns = series(rows=80)
    options = {"folds": 3, "folds_by": by, "model": model} | ({"trees": 10} if model == "gbdt" else {})
    before = held_out_of(tmp_path / "a", columns, **options)
    mine = before.folds == 1
    after = held_out_of(tmp_path / "b", hidden_labels(columns, before.rows[mine]), **options)
    np.testing.assert_array_equal(after.predicted[mine], before.predicted[mine])
    assert not np.array_equal(after.predicted[~mine], before.predicted[~mine])


@pytest.mark.parametrize("after", [{"seconds": 3 * 3600, "rows": 0}, {"seconds": 0, "rows": 3}])
@pytest.mark.parametrize("model", ["linear", "gbdt"])
def test_by_time_no_label_counts_that_was_not_known_before_the_fold(tmp_path, model, after):
    columns = series(rows=120)
    options = {"folds": 4, "model": model, "label_after": after, "folds_by": FoldsBy.TIME}
    options |= {"trees": 10} if model == "gbdt" else {}
    before = held_out_of(tmp_path / "a", columns, **options)
    begin = columns["time"][before.rows[before.folds == 2]].min()
    unknown = np.flatnonzero(columns["time"] + np.timedelta64(3, "h") >= begin)
    mine = before.folds == 2
    later = held_out_of(tmp_path / "b", hidden_labels(columns, unknown), **options)
    np.testing.assert_array_equal(later.predicted[mine], before.predicted[mine])
    newest = np.flatnonzero(columns["time"] + np.timedelta64(20 if model == "gbdt" else 4, "h") == begin)
    other = held_out_of(tmp_path / "c", hidden_labels(columns, newest), **options)
    assert not np.array_equal(other.predicted[mine], before.predicted[mine])
    assert np.isnan(before.predicted[before.folds == 0]).all()
    assert np.isfinite(before.predicted[before.folds > 0]).all()


@pytest.mark.parametrize("model", ["gbdt", "linear", "mlp", "lstm", "naive"])
def test_the_same_seed_gives_the_same(tmp_path, model):
    options = {"trees": 10} if model == "gbdt" else {"epochs": 2} if model in ("mlp", "lstm") else {}
    options |= {"sequence": 4} if model == "lstm" else {}
    once, again = (
        held_out_of(tmp_path / name, series(rows=80), model, folds=2, folds_by=FoldsBy.RANDOM, **options)
        for name in "ab"
    )
    for name in ("rows", "folds", "predicted"):
        np.testing.assert_array_equal(getattr(again, name), getattr(once, name))


def test_an_entity_is_in_one_fold(tmp_path):
    columns = series(rows=80)
    found = held_out_of(tmp_path, columns, folds=3, folds_by=FoldsBy.ENTITY)
    folds = {city: set(found.folds[columns["city"][found.rows] == city].tolist()) for city in "abc"}
    assert sorted(map(tuple, folds.values())) == [(0,), (1,), (2,)]


def test_rows_out_of_order_find_their_own_predictions(tmp_path):
    columns = series(rows=80)
    mixed = np.random.default_rng(3).permutation(240)
    plain = held_out_of(tmp_path / "a", columns, folds=2)
    shuffled = held_out_of(tmp_path / "b", {name: one[mixed] for name, one in columns.items()}, folds=2)
    back = np.full(240, np.nan)
    back[mixed[shuffled.rows]] = shuffled.predicted
    np.testing.assert_allclose(back[plain.rows], plain.predicted)


def test_other_splits_are_predicted_by_the_whole_model(tmp_path):
    columns = series(rows=80)
    with_folds, result, _ = train_and_predict(tmp_path / "a", columns, "linear", folds=3)
    without, plain, _ = train_and_predict(tmp_path / "b", columns, "linear")
    rest = columns["split"] != "train"
    for name in ("prediction", "row"):
        np.testing.assert_array_equal(with_folds[name].to_numpy()[rest], without[name].to_numpy()[rest])
    assert with_folds["fold"].is_null().to_numpy().tolist() == rest.tolist()
    assert result.metrics["test_rmse"] == plain.metrics["test_rmse"]
    assert result.metrics["folds_rmse"] > 0


def test_classes_have_no_class_where_no_model_could_say_one(tmp_path):
    columns = series(rows=120)
    columns |= {"ahead": np.where(columns["ahead"] > 50, "high", "low")}
    table, result, _ = train_and_predict(tmp_path, columns, "linear", folds=3)
    first = np.asarray(table["fold"].to_numpy() == 0)
    assert first.sum() == 60
    for name in ("prediction", "probability_high"):
        np.testing.assert_array_equal(table[name].is_null().to_numpy(), first)
    assert 0.8 < result.metrics["folds_accuracy"] < 1


def test_several_labels_have_folds_too(tmp_path):
    columns = series(rows=80, ahead=1)
    columns |= {"second": np.roll(columns["ahead"], -1)}
    labels = [{"name": name, "column": "value"} for name in ("ahead", "second")]
    dataset = write_dataset(tmp_path, columns, labels=labels, features=["value", "wave", "slope"])
    result = train(training_context(tmp_path, dataset, "linear", folds=4))
    made = predict(
        prediction_context(tmp_path, dataset, {"m": artifact_of("m", result.outputs[0])}, split=None)
    )
    table = pq.read_table(tmp_path / "outputs/swarm")
    np.testing.assert_array_equal(table["prediction"].is_null().to_numpy(), table["fold"].to_numpy() == 0)
    assert made.metrics["all_rmse"] > 0


def test_rows_of_another_version_cannot_be_told(tmp_path):
    dataset = write_dataset(tmp_path, series(rows=80))
    result = train(training_context(tmp_path, dataset, "linear", folds=3))
    trained = {"m": artifact_of("m", result.outputs[0])}
    grown = replace(dataset, id="p/d@2", number=2, fingerprint="other")
    with pytest.raises(InputError, match="it is unknown on which rows the model was trained"):
        predict(prediction_context(tmp_path, grown, trained, split=None))
    assert predict(prediction_context(tmp_path, grown, trained)).outputs[0].rows == 60


def test_the_same_rows_made_again_are_known_again(tmp_path):
    dataset = write_dataset(tmp_path, series(rows=80))
    result = train(training_context(tmp_path, dataset, "linear", folds=3))
    trained = {"m": artifact_of("m", result.outputs[0])}
    again = replace(dataset, id="p/d@2", number=2)
    made = predict(prediction_context(tmp_path, again, trained, split="train"))
    assert made.outputs[0].details["train_rows"] == "held out"


def test_a_label_known_by_an_expression_has_no_folds_by_time(tmp_path):
    with pytest.raises(InputError, match="folds by time are not possible"):
        held_out_of(tmp_path, series(rows=80), folds=3, label_after=None)


def test_too_few_entities_are_told_before_anything_is_learned(tmp_path, monkeypatch):
    monkeypatch.setattr("gridmill.jobs.training.run._fit", None)
    with pytest.raises(InputError, match="too few entities for 4 folds"):
        held_out_of(tmp_path, series(rows=80), folds=4, folds_by=FoldsBy.ENTITY)


@pytest.mark.parametrize(("options", "says"), [
    ({"folds": 1}, "folds is 1; it must be at least 2"),
    ({"folds_by": FoldsBy.ENTITY}, "`folds_by` needs `folds`"),
    ({"folds": 3, "model": ModelKind.ENSEMBLE, "models": ("a",)}, "model ensemble has no folds"),
])  # fmt: skip
def test_folds_that_make_no_sense_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        TrainingSpec(**{"dataset": "d", "model": ModelKind.LINEAR} | options).check()


def test_a_retry_goes_on_in_each_fold_from_its_own_checkpoint(tmp_path):
    dataset = write_dataset(tmp_path, series(rows=80))
    options = {"folds": 2, "folds_by": FoldsBy.RANDOM, "epochs": 3, "batch_size": 32}
    train(training_context(tmp_path, dataset, "mlp", name="plain", **options))
    context = training_context(tmp_path, dataset, "mlp", name="m", checkpoint_seconds=0.0, **options)
    context = replace(context, order=replace(context.order, checkpoint_uri="checkpoints/m"))
    train(context)
    assert len(list((tmp_path / "checkpoints/m").glob("fold-*/checkpoint.json"))) == 2
    train(context)
    expected = load_held_out(tmp_path / "outputs/plain").predicted
    np.testing.assert_array_equal(load_held_out(tmp_path / "outputs/m").predicted, expected)
