"""Weights of rows and classes: what is learned is what scikit-learn learns with them."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.training import ClassWeight, ModelKind, TrainingSpec
from gridmill.errors import DataError, InputError
from gridmill.jobs.training.run import run as train

FEATURES = ("value", "wave", "slope")


def weighted(seed: int = 0, classes: bool = False):
    random = np.random.default_rng(seed)
    columns = series(seed=seed) | {"weight": random.uniform(0, 3, 1200)}
    if classes:
        late = columns["ahead"] + random.normal(0, 6, 1200)
        columns |= {"ahead": np.where(late > 58, "high", np.where(late > 45, "mid", "low"))}
    return columns


def said(root, columns, model, **options):
    """The test predictions of a model of these columns, and its version."""
    dataset = write_dataset(root, columns, features=[*FEATURES, "weight"])
    output = train(training_context(root, dataset, model, "m", **options)).outputs[0]
    predict(prediction_context(root, dataset, {"m": artifact_of("m", output)}))
    return pq.read_table(root / "outputs/swarm"), output


def arrays(columns):
    inputs = np.stack([columns[name] for name in FEATURES], axis=1)
    return inputs, columns["split"] == "train", columns["split"] == "test"


@pytest.mark.parametrize("seed", range(3))
def test_a_linear_regression_is_that_of_scikit_learn_with_the_weights(tmp_path, seed):
    columns = weighted(seed)
    table, output = said(tmp_path, columns, "linear", weight="weight", regularization=5.0)
    inputs, learned, test = arrays(columns)
    scaler = StandardScaler().fit(inputs[learned])
    weights = columns["weight"][learned] / columns["weight"][learned].mean()
    target = (columns["ahead"][learned] - columns["ahead"][learned].mean()) / columns["ahead"][learned].std()
    model = Ridge(alpha=5.0).fit(scaler.transform(inputs[learned]), target, sample_weight=weights)
    found = model.predict(scaler.transform(inputs[test])) * columns["ahead"][learned].std()
    np.testing.assert_allclose(table["prediction"], found + columns["ahead"][learned].mean(), rtol=1e-6)
    assert output.details["features"] == list(FEATURES)
    assert output.details["options"]["weight"] == "weight"


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"class_weight": ClassWeight.BALANCED}, None),
        ({"class_weights": {"high": 5.0, "low": 0.5}}, {"high": 5.0, "mid": 1.0, "low": 0.5}),
    ],
)
def test_class_weights_are_those_of_scikit_learn(tmp_path, options, factors):
    columns = weighted(classes=True)
    inputs, learned, test = arrays(columns)
    labels, names = columns["ahead"][learned], np.array(["high", "low", "mid"])
    if factors is None:
        balanced = compute_class_weight("balanced", classes=names, y=labels)
        factors = dict(zip(names, balanced, strict=True))
    weights = np.array([factors[name] for name in labels])
    table, _ = said(tmp_path, columns, "linear", **options, features=FEATURES)
    scaler = StandardScaler().fit(inputs[learned])
    model = LogisticRegression(max_iter=1000).fit(
        scaler.transform(inputs[learned]), labels, sample_weight=weights / weights.mean()
    )
    expected = model.predict_proba(scaler.transform(inputs[test]))
    found = np.stack([table[f"probability_{name}"].to_numpy() for name in names], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_trees_are_those_of_scikit_learn_with_weights_in_learning_and_in_stopping(tmp_path):
    columns = weighted(classes=True)
    table, _ = said(tmp_path, columns, "gbdt", weight="weight", trees=40)
    inputs, learned, test = arrays(columns)
    held, weights = columns["split"] == "validation", columns["weight"] / columns["weight"][learned].mean()
    model = HistGradientBoostingClassifier(
        max_iter=40,
        learning_rate=0.1,
        max_leaf_nodes=31,
        n_iter_no_change=20,
        early_stopping=True,
        random_state=0,
    ).fit(
        inputs[learned],
        columns["ahead"][learned],
        weights[learned],
        X_val=inputs[held],
        y_val=columns["ahead"][held],
        sample_weight_val=weights[held],
    )
    found = np.stack([table[f"probability_{name}"].to_numpy() for name in model.classes_], axis=1)
    np.testing.assert_allclose(found, model.predict_proba(inputs[test]), atol=1e-6)


OPTIONS = {
    "linear": {},
    "gbdt": {"trees": 40},
    "mlp": {"epochs": 15, "learning_rate": 0.01, "residual": False},
    "lstm": {"sequence": 4, "epochs": 15, "learning_rate": 0.02, "hidden": 16},
    "naive": {},
}


@pytest.mark.parametrize("model", list(OPTIONS))
@pytest.mark.parametrize("classes", [False, True])
def test_rows_without_weight_teach_nothing(tmp_path, model, classes):
    columns = weighted(classes=classes)
    random = np.random.default_rng(1)
    wrong = (random.random(1200) < 0.5) & (columns["split"] != "test")
    right = columns["ahead"]
    lie = np.full(1200, "low") if classes else right + 500.0
    columns |= {"ahead": np.where(wrong, lie, right), "weight": np.where(wrong, 0.0, 2.0)}
    options = OPTIONS[model] | {"features": FEATURES}
    _, fooled = said(tmp_path / "fooled", columns, model, **options)
    _, found = said(tmp_path / "found", columns, model, weight="weight", **options)
    name = "test_log_loss" if classes else "test_rmse"
    if model == "naive" and not classes:
        assert fooled.metrics[name] == found.metrics[name], "it repeats the present value"
        return
    assert found.metrics[name] < fooled.metrics[name]
    if not classes:
        assert found.metrics[name] < 20


@pytest.mark.parametrize("model", ["mlp", "lstm"])
def test_weights_that_are_all_alike_change_next_to_nothing(tmp_path, model):
    columns = weighted() | {"weight": np.full(1200, 7.0)}
    options = OPTIONS[model] | {"features": FEATURES, "epochs": 3}
    plain, _ = said(tmp_path / "plain", columns, model, **options)
    alike, _ = said(tmp_path / "alike", columns, model, weight="weight", **options)
    np.testing.assert_allclose(alike["prediction"], plain["prediction"], rtol=1e-3)


def test_folds_are_learned_with_weights(tmp_path):
    columns = weighted()
    dataset = write_dataset(tmp_path, columns, features=[*FEATURES, "weight"])
    context = training_context(tmp_path, dataset, "linear", weight="weight", folds=3)
    assert train(context).metrics["folds_r2"] > 0.9


def test_shares_of_classes_add_up_to_1_in_each_fold(tmp_path):
    dataset = write_dataset(tmp_path, weighted(classes=True), features=[*FEATURES, "weight"])
    found = train(training_context(tmp_path, dataset, "naive", weight="weight", folds=3)).metrics
    assert found["folds_log_loss"] < 1.2


@pytest.mark.parametrize("model", ["naive", "linear", "gbdt"])
def test_a_fold_whose_earlier_rows_have_no_weight_stays_without_predictions(tmp_path, model, capsys):
    columns = weighted()
    half = np.sort(columns["time"][columns["split"] == "train"])[300]
    columns["weight"][(columns["split"] == "train") & (columns["time"] < half)] = 0.0
    dataset = write_dataset(tmp_path, columns, features=[*FEATURES, "weight"])
    options = {"trees": 10} if model == "gbdt" else {}
    train(training_context(tmp_path, dataset, model, weight="weight", folds=4, **options))
    said = capsys.readouterr().out
    assert [f"fold {fold} of 4: 150 rows get no prediction" in said for fold in (1, 2, 3, 4)] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("model", ["gbdt", "mlp", "lstm"])
@pytest.mark.parametrize("classes", [False, True])
def test_validation_rows_without_weight_cannot_end_the_learning(tmp_path, model, classes):
    columns = weighted(classes=classes)
    columns["weight"][columns["split"] == "validation"] = 0.0
    dataset = write_dataset(tmp_path, columns, features=[*FEATURES, "weight"])
    with pytest.raises(DataError, match="weights of all 300 validation rows are 0") as error:
        train(training_context(tmp_path, dataset, model, weight="weight"))
    assert error.value.place == "training.weight"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight": "wieght"}, "no column 'wieght'"),
        ({"weight": "city"}, "weights must be numbers"),
        ({"weight": "weight", "features": ("value", "weight")}, "listed in `features`"),
        ({"class_weight": ClassWeight.BALANCED}, "the label has numbers"),
    ],
)
def test_wrong_columns_are_refused(tmp_path, options, words):
    dataset = write_dataset(tmp_path, weighted(), features=[*FEATURES, "weight"])
    with pytest.raises(InputError, match=words):
        train(training_context(tmp_path, dataset, "linear", **options))


def test_a_class_that_is_not_there_is_named(tmp_path):
    dataset = write_dataset(tmp_path, weighted(classes=True), features=list(FEATURES))
    with pytest.raises(InputError, match="no class 'hihg'"):
        train(training_context(tmp_path, dataset, "linear", class_weights={"hihg": 2.0}))


@pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
def test_rows_with_no_weight_or_a_negative_one_are_counted(tmp_path, value):
    columns = weighted()
    columns["weight"][:7] = value
    dataset = write_dataset(tmp_path, columns, features=[*FEATURES, "weight"])
    with pytest.raises(DataError, match="missing or negative in 7 of 900 train and validation rows"):
        train(training_context(tmp_path, dataset, "linear", weight="weight"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ModelKind.ENSEMBLE, "models": ("a",), "weight": "w"}, "an ensemble is not trained"),
        ({"model": ModelKind.CUSTOM, "file": "m.onnx", "weight": "w"}, "a model from a file is not trained"),
        ({"class_weight": ClassWeight.BALANCED, "class_weights": {"a": 1.0}}, "only one is allowed"),
        ({"class_weights": {"a": -1.0}}, "at least 0 and finite"),
    ],
)
def test_wrong_declarations_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        TrainingSpec(**({"dataset": "d", "model": ModelKind.LINEAR} | options)).check()


CODE = """
import numpy as np

def fit(data):
    mean = np.average(data.target[data.train], weights=data.weights[data.train])
    (data.output / "mean").write_text(str(mean))
    return {"weight": float(data.weights[data.train].mean())}

def predict(folder, inputs):
    return np.full(len(inputs), float((folder / "mean").read_text()))
"""


def test_a_function_of_ones_own_gets_the_weights(tmp_path):
    columns = weighted()
    dataset = write_dataset(tmp_path, columns, features=[*FEATURES, "weight"])
    context = training_context(
        tmp_path, dataset, "custom", script="t.py:fit", predict="t.py:predict", weight="weight"
    )
    (context.work / "code").mkdir()
    (context.work / "code/t.py").write_text(CODE)
    train(context)
    learned = columns["split"] == "train"
    expected = np.average(columns["ahead"][learned], weights=columns["weight"][learned])
    assert float((context.output / "mean").read_text()) == pytest.approx(expected)
