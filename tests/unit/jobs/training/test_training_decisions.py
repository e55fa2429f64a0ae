"""Thresholds and quantiles: chosen on validation rows, kept with the model, applied by predictions."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk
from tests.kit.clean_process import predict
from tests.kit.clean_process import train as clean
from tests.kit.learning_data import (
    artifact_of,
    context_of,
    prediction_context,
    series,
    training_context,
    write_dataset,
)

from gridmill.domain.job import Job
from gridmill.domain.training import FoldsBy, ModelKind, ThresholdBy, TrainingSpec
from gridmill.domain.tuning import Range, Search
from gridmill.errors import InputError
from gridmill.jobs.intervals import error_quantiles, measure_quantiles, quantile_columns, quantiles_of
from gridmill.jobs.model_files import load_card
from gridmill.jobs.out_of_fold import load_held_out
from gridmill.jobs.training.run import run as train


def rare(share: float = 0.15):
    """A class that is rare, and never the likelier one."""
    columns = series()
    random = np.random.default_rng(5)
    chance = 0.45 * (columns["value"] > np.quantile(columns["value"], 1 - 2 * share))
    return columns | {"ahead": np.where(random.random(1200) < chance, "yes", "no")}


@pytest.mark.parametrize("model", ["linear", "gbdt", "mlp"])
def test_a_threshold_by_f1_is_kept_and_applied(tmp_path, model):
    dataset = write_dataset(tmp_path, rare())
    options = {"gbdt": {"trees": 10}, "mlp": {"epochs": 5}}.get(model, {})
    plain = train(training_context(tmp_path, dataset, model, "plain", **options)).outputs[0]
    found = train(
        training_context(tmp_path, dataset, model, "m", threshold_by=ThresholdBy.F1, **options)
    ).outputs[0]
    assert found.metrics["validation_f1"] > plain.metrics["validation_f1"]
    threshold = found.details["options"]["threshold"]
    output = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", found)})).outputs[0]
    table = pq.read_table(tmp_path / "outputs/swarm")
    chosen = np.where(table["probability_yes"].to_numpy() >= threshold, "yes", "no")
    assert table["prediction"].to_pylist() == chosen.tolist()
    truth = table["truth"].to_pylist()
    assert output.metrics["test_f1"] == pytest.approx(sk.f1_score(truth, chosen, pos_label="yes"))
    assert output.metrics["test_accuracy"] == pytest.approx(sk.accuracy_score(truth, chosen))
    matrix = output.details["breakdown"]["test"]["confusion"]["counts"]
    assert matrix == sk.confusion_matrix(truth, chosen, labels=["no", "yes"]).tolist()
    for name in ("test_f1", "test_precision", "test_log_loss"):
        assert found.metrics[name] == pytest.approx(output.metrics[name])


def test_a_declared_threshold_is_the_probability_from_which_on_the_second_class_is_predicted(tmp_path):
    dataset = write_dataset(tmp_path, rare())
    found = train(training_context(tmp_path, dataset, "linear", "m", threshold=0.25)).outputs[0]
    predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", found)}))
    table = pq.read_table(tmp_path / "outputs/swarm")
    chosen = np.where(table["probability_yes"].to_numpy() >= 0.25, "yes", "no")
    assert table["prediction"].to_pylist() == chosen.tolist()


def test_metrics_of_folds_are_measured_with_the_threshold(tmp_path):
    dataset = write_dataset(tmp_path, rare())
    options = {"threshold": 0.25, "folds": 3, "folds_by": FoldsBy.RANDOM}
    found = train(training_context(tmp_path, dataset, "linear", "m", **options)).outputs[0]
    held_out = load_held_out(tmp_path / "outputs/m")
    truth = rare()["ahead"][held_out.rows] == "yes"
    expected = sk.f1_score(truth, held_out.predicted[:, 1] >= 0.25)
    assert found.metrics["folds_f1"] == pytest.approx(expected)
    assert expected > 0


def test_a_search_by_f1_measures_with_each_trials_threshold(tmp_path):
    dataset = write_dataset(tmp_path, rare())
    search = Search(trials=2, parallel=1, metric="f1", parameters={"regularization": Range(among=(1.0,))})
    context = training_context(tmp_path, dataset, "linear", "m", threshold_by=ThresholdBy.F1, search=search)
    found = clean(context).outputs[0]
    values = [trial["value"] for trial in found.details["search"]["trials"]]
    assert values == pytest.approx([found.metrics["validation_f1"]] * 2)


@pytest.mark.parametrize("rows", [9, 19, 50, 199])
@pytest.mark.parametrize("seed", range(3))
def test_quantiles_of_errors_cover_what_they_promise(rows, seed):
    random = np.random.default_rng(seed)
    levels = (0.1, 0.5, 0.9)
    inside = []
    for _ in range(400):
        truth = random.normal(size=rows + 20)
        offsets = error_quantiles(truth[:rows], np.zeros(rows), levels)
        low, _, high = quantiles_of(np.zeros(20), offsets)
        inside.append(np.mean((truth[rows:] >= low) & (truth[rows:] <= high)))
    assert 0.78 < np.mean(inside) < 0.8 + 2 / (rows + 1) + 0.02


def test_quantiles_are_ranks_of_the_errors():
    errors = np.arange(1.0, 100.0)  # 99 of them: rank 100 q
    found = error_quantiles(errors, np.zeros(99), (0.05, 0.5, 0.95))
    assert found == ((5.0,), (50.0,), (95.0,))
    with pytest.raises(
        InputError, match=r"the quantile 0.001 needs at least 999 validation rows.*there are 99"
    ):
        error_quantiles(errors, np.zeros(99), (0.001,))
    assert quantile_columns((0.05, 0.5, 0.975)) == ("prediction_q5", "prediction_q50", "prediction_q97.5")


@pytest.mark.parametrize("seed", range(5))
def test_the_pinball_loss_is_that_of_scikit_learn(seed):
    random = np.random.default_rng(seed)
    truth, values = random.normal(size=100), [random.normal(size=100) + shift for shift in (-1, 0, 1)]
    levels = (0.1, 0.5, 0.9)
    expected = [
        sk.mean_pinball_loss(truth, one, alpha=level) for one, level in zip(values, levels, strict=True)
    ]
    assert measure_quantiles(truth, values, levels)["pinball"] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("model", ["linear", "gbdt", "naive"])
def test_predictions_have_quantiles_and_their_coverage_is_measured(tmp_path, model):
    dataset = write_dataset(tmp_path, series())
    found = train(training_context(tmp_path, dataset, model, "m", quantiles=(0.1, 0.9))).outputs[0]
    output = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", found)})).outputs[0]
    table = pq.read_table(tmp_path / "outputs/swarm")
    low, high, truth = (table[name].to_numpy() for name in ("prediction_q10", "prediction_q90", "truth"))
    assert output.metrics["test_coverage"] == pytest.approx(np.mean((truth >= low) & (truth <= high)))
    assert 0.7 < output.metrics["test_coverage"] < 0.9
    assert found.metrics["test_coverage"] == output.metrics["test_coverage"]
    assert found.metrics["test_pinball"] == pytest.approx(output.metrics["test_pinball"])
    assert "validation_coverage" not in found.metrics


def test_several_labels_have_quantiles_of_their_own(tmp_path):
    columns = series() | {"second": series()["ahead"] * 1000}
    labels = [{"name": name, "column": "value"} for name in ("ahead", "second")]
    features = ["value", "wave", "slope"]
    dataset = write_dataset(tmp_path, columns, labels=labels, features=features)
    found = train(training_context(tmp_path, dataset, "linear", "m", quantiles=(0.1, 0.9))).outputs[0]
    output = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", found)})).outputs[0]
    table = pq.read_table(tmp_path / "outputs/swarm")
    low, high = (np.array(table[name].to_pylist()) for name in ("prediction_q10", "prediction_q90"))
    np.testing.assert_allclose((high - low)[:, 1], 1000 * (high - low)[:, 0])
    assert output.metrics["test_coverage"] == pytest.approx(found.metrics["test_coverage"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": 0.5, "threshold_by": ThresholdBy.F1}, "only one is allowed"),
        ({"quantiles": (0.9, 0.1)}, "ascending"),
        ({"quantiles": (0.0, 0.5)}, "between 0 and 1"),
    ],
)
def test_wrong_declarations_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        TrainingSpec(dataset="d", model=ModelKind.LINEAR, **options).check()


@pytest.mark.parametrize(("options", "used"), [({}, 0), ({"threshold_by": ThresholdBy.F1}, 300)])
def test_an_ensemble_notes_the_validation_rows_that_its_threshold_is_chosen_by(tmp_path, options, used):
    dataset = write_dataset(tmp_path, rare())
    inputs = {"d": dataset}
    for name in ("one", "two"):
        inputs[name] = artifact_of(
            name, train(training_context(tmp_path, dataset, "linear", name)).outputs[0]
        )
    spec = TrainingSpec(dataset="d", model=ModelKind.ENSEMBLE, models=("one", "two"), **options)
    train(context_of(tmp_path, Job(name="e", training=spec), inputs))
    learned = load_card(tmp_path / "outputs/e").learned
    assert (learned.train, learned.validation) == (0, used)


def test_a_search_is_refused_before_its_first_trial(tmp_path, capfd):
    dataset = write_dataset(tmp_path, series())
    search = Search(trials=2, parallel=1, parameters={"regularization": Range(among=(1.0,))})
    with pytest.raises(InputError, match="separates two classes, but the label has numbers"):
        clean(training_context(tmp_path, dataset, "linear", threshold=0.5, search=search))
    assert "trial" not in capfd.readouterr().out


def test_a_threshold_by_f1_needs_a_validation_row_of_the_second_class(tmp_path):
    columns = rare()
    columns["ahead"] = np.where(columns["split"] == "validation", "no", columns["ahead"])
    with pytest.raises(InputError, match="no validation row is of class 'yes'"):
        train(
            training_context(
                tmp_path, write_dataset(tmp_path, columns), "linear", threshold_by=ThresholdBy.F1
            )
        )


def test_what_the_label_cannot_have_is_refused_before_learning(tmp_path):
    numbers = write_dataset(tmp_path, series())
    classes = write_dataset(tmp_path, rare(), number=2)
    with pytest.raises(InputError, match="separates two classes, but the label has numbers"):
        train(training_context(tmp_path, numbers, "linear", threshold=0.5))
    with pytest.raises(InputError, match="quantiles need a numeric label"):
        train(training_context(tmp_path, classes, "linear", quantiles=(0.5,)))
    none = {**rare(), "split": np.where(series()["split"] == "validation", "train", series()["split"])}
    with pytest.raises(InputError, match="no validation rows"):
        train(
            training_context(
                tmp_path, write_dataset(tmp_path, none, number=3), "linear", threshold_by=ThresholdBy.F1
            )
        )
