"""Metrics, computed again by scikit-learn on random data."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.metric_tables import breakdown_of
from gridmill.domain.remarks import remarks_of
from gridmill.domain.training import Objective
from gridmill.jobs import metrics
from gridmill.jobs.features import has_all_values
from gridmill.jobs.metrics import OTHER, best_threshold, by_class, decide
from gridmill.jobs.training.run import run as train


def drawn(seed: int, classes: int, rows: int = 200, decimals: int = 1):
    """Truth and probabilities with many ties."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, classes, rows)
    scores = np.round(random.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[truth], decimals)
    shares = np.exp(scores)
    return truth, shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(10))
def test_metrics_of_two_classes_are_those_of_scikit_learn(seed):
    truth, shares = drawn(seed, 2)
    predicted = shares.argmax(axis=1)
    found = metrics.classification(truth, shares)
    assert set(found) == set(metrics.NAMES[Objective.CLASSIFICATION])
    assert found == pytest.approx(
        {
            "log_loss": sk.log_loss(truth, shares),
            "accuracy": sk.accuracy_score(truth, predicted),
            "auc": sk.roc_auc_score(truth, shares[:, 1]),
            "brier": sk.brier_score_loss(truth, shares[:, 1]),
            "average_precision": sk.average_precision_score(truth, shares[:, 1]),
            "f1": sk.f1_score(truth, predicted),
            "precision": sk.precision_score(truth, predicted),
            "recall": sk.recall_score(truth, predicted),
        }
    )


@pytest.mark.parametrize("seed", range(10))
def test_metrics_of_several_classes_are_means_of_one_against_the_rest(seed):
    truth, shares = drawn(seed, 4)
    if seed % 2:
        truth = np.where(truth == 3, -1, truth)  # a class that training never saw
    predicted = shares.argmax(axis=1)
    found = metrics.classification(truth, shares)
    for name in ("f1", "precision", "recall"):
        of = getattr(sk, f"{name}_score")
        assert found[name] == pytest.approx(of(truth, predicted, average="macro", zero_division=0))
    there = [n for n in range(4) if (truth == n).any()]
    areas = [sk.average_precision_score(truth == n, shares[:, n]) for n in there]
    assert found["average_precision"] == pytest.approx(np.mean(areas))


@pytest.mark.parametrize("seed", range(5))
def test_each_class_and_the_confusion_matrix_are_those_of_scikit_learn(seed):
    truth, shares = drawn(seed, 3)
    truth = np.where(np.arange(200) % 17 == 0, -1, truth)
    found = by_class(("a", "b", "c"), truth, shares)
    predicted = shares.argmax(axis=1)
    matrix = sk.confusion_matrix(truth, predicted, labels=[0, 1, 2, -1])[:, :3]
    assert found["confusion"] == {
        "truth": ["a", "b", "c", OTHER], "predicted": ["a", "b", "c"], "counts": matrix.tolist(),
    }  # fmt: skip
    each = sk.precision_recall_fscore_support(truth, predicted, labels=[0, 1, 2], zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "rows"), each, strict=True):
        assert [one[name] for one in found["classes"]] == pytest.approx(list(values))
        if name != "rows":
            of = getattr(sk, f"{name}_score")
            mean = of(truth, predicted, average="macro", zero_division=0)
            assert found["macro"][name] == pytest.approx(mean), "the unknown class counts, with 0"
            assert found["macro"][name] == metrics.classification(truth, shares)[name]


def test_what_is_undefined_is_left_out():
    truth, shares = drawn(0, 2)
    none = metrics.classification(np.zeros(200, int), shares)
    assert set(none) == {"log_loss", "accuracy", "brier"}
    sure = metrics.classification(np.array([0, 1]), np.eye(2))
    assert str(sure["log_loss"]) == "0.0"
    assert metrics.classification(truth, np.tile([1.0, 0.0], (200, 1)))["precision"] == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_the_threshold_has_the_best_f1_of_all(seed):
    truth, shares = drawn(seed, 2, decimals=2)
    best = best_threshold(truth, shares)
    tried = np.concatenate([np.unique(shares[:, 1]), [best, 0.0, 1.0]])
    scores = {float(one): sk.f1_score(truth, shares[:, 1] >= one, zero_division=0) for one in tried}
    assert scores[best] == max(scores.values())
    assert not np.isclose(shares[:, 1], best, atol=1e-12).any()
    assert metrics.classification(truth, shares, best)["f1"] == pytest.approx(scores[best])
    np.testing.assert_array_equal(decide(shares, best), shares[:, 1] >= best)


@pytest.mark.parametrize("seed", range(5))
def test_units_of_labels_do_not_matter(seed):
    random = np.random.default_rng(seed)
    truth = random.normal(size=(300, 2))
    predicted = truth + random.normal(size=(300, 2)) * [0.1, 0.9]
    naive, units = np.zeros((300, 2)), np.array([1.0, 1e6])
    plain = metrics.regression(truth, predicted, naive, np.ones(2))
    scaled = metrics.regression(truth * units, predicted * units, naive, units)
    assert scaled == pytest.approx(plain)
    assert plain["mse"] == pytest.approx(sk.mean_squared_error(truth, predicted))
    assert plain["mae"] == pytest.approx(sk.mean_absolute_error(truth, predicted))
    assert plain["r2"] == pytest.approx(sk.r2_score(truth, predicted))


def test_a_model_that_is_blind_to_the_label_of_the_small_unit_does_not_win(tmp_path):
    extra = np.random.default_rng(3).normal(size=1200)
    columns = series() | {"extra": extra, "second": extra * 1e-3}
    labels = [{"name": "ahead", "column": "value"}, {"name": "second", "column": "extra"}]
    features = ["value", "slope", "extra"]
    dataset = write_dataset(tmp_path, columns, labels=labels, features=features)
    models = {}
    for name, chosen in {"blind": ("value", "slope"), "seeing": ("value", "extra")}.items():
        context = training_context(tmp_path, dataset, "linear", name, features=chosen)
        models[name] = artifact_of(name, train(context).outputs[0])
    output = predict(prediction_context(tmp_path, dataset, models)).outputs[0]
    assert output.details["model"] == "seeing", "in the labels' own units the other one is better"
    table = pq.read_table(tmp_path / "outputs/swarm")
    truth, predicted = (np.array(table[name].to_pylist()) for name in ("truth", "prediction"))
    spread = [np.std(columns[name][columns["split"] == "train"]) for name in ("ahead", "second")]
    error = sk.mean_squared_error(truth / spread, predicted / spread)
    assert output.metrics["test_mse"] == pytest.approx(error)
    learned = models["seeing"].output
    assert learned.metrics["test_mse"] == pytest.approx(error)
    both = (one.details["breakdown"]["test"] for one in (output, learned))
    for n, (here, there) in enumerate(zip(*both, strict=True)):
        assert here == pytest.approx(there)
        assert here["label"] == ("ahead", "second")[n]
        assert here["rmse"] == pytest.approx(sk.root_mean_squared_error(truth[:, n], predicted[:, n]))
        assert here["r2"] == pytest.approx(sk.r2_score(truth[:, n], predicted[:, n]))
    (shown,) = breakdown_of(artifact_of("swarm", output))
    assert [row[0] for row in shown.rows] == ["ahead", "second"]


@pytest.mark.parametrize("encoders", [(), ("value", "extra"), ("value",)])
@pytest.mark.parametrize("second", ["value", "extra"])
def test_errors_of_labels_in_one_unit_are_in_that_unit(tmp_path, encoders, second):
    columns = series() | {"extra": np.random.default_rng(3).normal(size=1200)}
    columns["second"] = 1000 * columns[second]
    dataset = write_dataset(
        tmp_path,
        columns,
        labels=[{"name": "ahead", "column": "value"}, {"name": "second", "column": second}],
        features=["value", "slope", "extra"],
        encoders=[{"column": name, "method": "standard"} for name in encoders],
    )
    output = train(training_context(tmp_path, dataset, "linear", "m")).outputs[0]
    own = [one["mse"] for one in output.details["breakdown"]["test"]]
    if second == "value" or len(encoders) == 2:
        assert output.metrics["test_mse"] == pytest.approx(np.mean(own))
    else:
        train_rows = columns["split"] == "train"
        spread = [np.var(columns[name][train_rows]) for name in ("ahead", "second")]
        assert output.metrics["test_mse"] == pytest.approx(np.mean(np.divide(own, spread)))


def test_rows_lost_because_one_of_the_labels_is_missing_are_counted(tmp_path):
    columns = series()
    second = np.where(np.arange(1200) % 10 == 0, columns["value"], np.nan)
    labels = [{"name": name, "column": "value"} for name in ("ahead", "second")]
    dataset = write_dataset(
        tmp_path, columns | {"second": second}, labels=labels, features=["value", "wave", "slope"]
    )
    output = train(training_context(tmp_path, dataset, "linear", "m")).outputs[0]
    assert output.details["missing_labels"] == {"second": 540}
    lines = [one.line for one in remarks_of(artifact_of("m", output))]
    assert any("warning" in line and "540 train" in line for line in lines)
    assert any("540 second" in line for line in lines)


def test_a_prediction_measures_the_rows_with_all_labels_as_training_does(tmp_path):
    columns = series()
    second = columns["ahead"] + 1.0
    second[np.flatnonzero(columns["split"] == "test")[:7]] = np.nan
    labels = [{"name": name, "column": "value"} for name in ("ahead", "second")]
    dataset = write_dataset(
        tmp_path, columns | {"second": second}, labels=labels, features=["value", "wave", "slope"]
    )
    trained = train(training_context(tmp_path, dataset, "linear", "m")).outputs[0]
    made = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", trained)})).outputs[0]
    tested = {name: value for name, value in trained.metrics.items() if name.startswith("test_")}
    assert made.metrics == pytest.approx(tested)
    for here, there in zip(*(one.details["breakdown"]["test"] for one in (made, trained)), strict=True):
        assert here == pytest.approx(there)
    assert made.details["learned_rows"]["measured"] == 293
    assert made.details["unpredicted_rows"] == 0


@pytest.mark.parametrize("chunks", [1, 2])
def test_rows_have_all_values_where_none_is_missing(chunks):
    rows = [[1.0, 2.0], [1.0, None], None, [None, None], [np.nan, 1.0], [3.0, 4.0]]
    step = len(rows) // chunks
    parts = [pa.array(rows[at : at + step], pa.list_(pa.float64())) for at in range(0, len(rows), step)]
    assert has_all_values(pa.chunked_array(parts)).tolist() == [True, False, False, False, False, True]
    assert has_all_values(pa.chunked_array([["a", None]])).tolist() == [True, False]


def test_a_model_of_classes_shows_each_of_them(tmp_path):
    columns = series() | {"ahead": np.where(series()["ahead"] > 50, "high", "low")}
    output = train(training_context(tmp_path, write_dataset(tmp_path, columns), "linear", "m")).outputs[0]
    classes, matrix = breakdown_of(artifact_of("m", output))
    assert [row[0] for row in classes.rows] == ["high", "low", "mean of the classes"]
    assert matrix.head == ("truth \\ predicted", "high", "low")
    assert sum(int(cell) for row in matrix.rows for cell in row[1:]) == 300
