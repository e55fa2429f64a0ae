"""Default settings: the steps of a network, and built-in models beside scikit-learn's with its defaults."""

from pathlib import Path

import numpy as np
import pytest
from learning_data import series, training_context, write_dataset
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.unit.learning_data import artifact_of

from gridmill.errors import DataError
from gridmill.jobs.training.course import Course, course_of
from gridmill.jobs.training.run import run
from gridmill.model.artifact import Output
from gridmill.model.remarks import remarks_of
from gridmill.model.training import ModelKind, TrainingSpec

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
    assert course_of(spec, 100) == Course(epochs=7, batch_size=300, patience=9)


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
    (line,) = curved({"max_iter": 10, "trees_used": 10}, falling)
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
    with pytest.raises(DataError, match="120 validation rows are of classes that no training row has"):
        run(training_context(tmp_path, write_dataset(tmp_path, columns), model))
