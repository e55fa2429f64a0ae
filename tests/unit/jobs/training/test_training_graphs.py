"""ONNX graphs give what the libraries that learned them give, missing values included."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from gridmill.domain.training import ModelKind, Objective, TrainingSpec
from gridmill.jobs.features import Encoding
from gridmill.jobs.metrics import calibration, classification, regression
from gridmill.jobs.model_files import ModelCard, make_predictor
from gridmill.jobs.training.gbdt import collect_trees, tree_graph
from gridmill.jobs.training.label_scale import LabelScale
from gridmill.jobs.training.naive import BaselineInputs
from gridmill.jobs.training.networks import (
    NetworkShape,
    Perceptron,
    Recurrent,
    perceptron_graph,
    recurrent_graph,
)
from gridmill.jobs.training.scaling import fit_scaler

CARD = ModelCard(
    kind=ModelKind.LSTM,
    objective=Objective.REGRESSION,
    labels=("y",),
    encodings=(Encoding(column="x", type="d"),),
)


def with_classes(count: int) -> ModelCard:
    classes = tuple(f"c{number}" for number in range(count))
    return replace(CARD, objective=Objective.CLASSIFICATION, classes=classes) if count else CARD


def inputs(rows: int = 3000) -> np.ndarray:
    random = np.random.default_rng(3)
    values = random.normal(size=(rows, 6))
    values[:, 1] += 1.7e9  # single floats could not tell these apart
    values[:, 2] = np.round(values[:, 2], 1)
    values[random.random(values.shape) < 0.05] = np.nan
    return values


def test_trees_of_a_regressor():
    x = inputs()
    y = np.nan_to_num(x[:, 0]) * 3 + np.nan_to_num(x[:, 1] - 1.7e9) + 50
    model = HistGradientBoostingRegressor(max_iter=80, random_state=0).fit(x, y)
    found = make_predictor(CARD, tree_graph(collect_trees(model), 6, 0, LabelScale())).predict(x)
    np.testing.assert_allclose(found, model.predict(x), rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_of_a_classifier(classes):
    x = inputs()
    y = np.digitize(np.nan_to_num(x[:, 0]), [-0.4, 0.4][: classes - 1])
    model = HistGradientBoostingClassifier(max_iter=30, random_state=0).fit(x, y)
    found = make_predictor(
        with_classes(classes), tree_graph(collect_trees(model), 6, classes, LabelScale())
    ).predict(x)
    np.testing.assert_allclose(found, model.predict_proba(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("classes", [0, 3])
def test_networks(layers, classes):
    x = inputs(400)
    scaler = fit_scaler(x, 1e4)
    spec = TrainingSpec(dataset="d", model=ModelKind.LSTM, hidden=8, layers=layers)
    torch.manual_seed(0)
    shape = NetworkShape(width=scaler.width, outputs=classes or 1, classes=bool(classes), relative=(0, 2))
    network = Recurrent(shape, spec).eval()
    answer = LabelScale(base=BaselineInputs(presents=(0,), fallback=(0.25,)), mean=(1.5,), deviation=(2.0,))
    windows = x.reshape(40, 10, 6)
    graph = recurrent_graph(network, scaler, 10, answer)
    found = make_predictor(with_classes(classes), graph).predict(windows)
    scaled = torch.from_numpy(scaler.apply(x).reshape(40, 10, -1).astype(np.float32))
    with torch.inference_mode():
        raw = network(scaled).double()
    present = np.where(np.isnan(windows[:, -1, 0]), 0.25, windows[:, -1, 0])
    expected = torch.softmax(raw, 1).numpy() if classes else raw[:, 0].numpy() * 2 + 1.5 + present
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_several_labels_of_a_perceptron_are_added_to_their_own_present_values():
    x = inputs(60)
    scaler = fit_scaler(x, 1e4)
    spec = TrainingSpec(dataset="d", model=ModelKind.MLP, hidden=8, layers=2)
    torch.manual_seed(0)
    network = Perceptron(NetworkShape(width=scaler.width, outputs=3), spec).eval()
    base = BaselineInputs(presents=(0, None, 2), fallback=(0.25, 0.0, 0.5))
    answer = LabelScale(base=base, mean=(1.0, 2.0, 3.0), deviation=(2.0, 1.0, 0.5), scale=(1.0, 1.0, 1.0))
    found = make_predictor(
        replace(CARD, labels=("a", "b", "c")), perceptron_graph(network, scaler, answer)
    ).predict(x)
    with torch.inference_mode():
        raw = network(torch.from_numpy(scaler.apply(x).astype(np.float32))).double().numpy()
    present = np.stack([np.nan_to_num(x[:, 0], nan=0.25), np.zeros(60), np.nan_to_num(x[:, 2], nan=0.5)], 1)
    np.testing.assert_allclose(found, raw * [2, 1, 0.5] + [1, 2, 3] + present, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(base.values(x), present)


def test_metrics_of_known_numbers():
    found = regression(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0]), np.array([1.0, 2.0, 7.0]))
    assert found["mae"] == pytest.approx(2 / 3)
    assert found["skill"] == pytest.approx(0.5)
    assert found["r2"] == pytest.approx(1 - 4 / 2)
    shares = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    found = classification(np.array([0, 0, 1, 1]), shares)
    assert found["accuracy"] == 0.5
    assert found["auc"] == 0.75


def test_brier_is_as_its_author_wrote_it_and_half_of_that_for_two_classes():
    two = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    assert classification(np.array([0, 0, 1, 1]), two)["brier"] == pytest.approx(
        (0.1**2 + 0.6**2 + 0.6**2 + 0.2**2) / 4
    )
    three = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    assert classification(np.array([2, 0]), three)["brier"] == pytest.approx((0.2**2 + 0.3**2 + 0.5**2) / 2)
    assert classification(np.array([1, 2]), np.eye(3)[[0, 0]])["brier"] == pytest.approx(2.0)


def test_brier_of_a_class_the_model_never_saw_is_that_of_a_wrong_one():
    sure = np.array([[1.0, 0.0]])
    assert (
        classification(np.array([-1]), sure)["brier"] == classification(np.array([1]), sure)["brier"] == 1.0
    )


def test_calibration_says_how_often_what_was_said_came_true():
    said = np.array([0.05, 0.05, 0.62, 0.68, 1.0])
    found = calibration(np.array([0, 1, 1, 1, 1]), np.stack([1 - said, said], axis=1))
    assert np.round(found, 6).tolist() == [[0.05, 0.5, 2], [0.65, 1.0, 2], [1.0, 1.0, 1]]
    several = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    assert np.round(calibration(np.array([0, 1]), several), 6).tolist() == [[0.4, 0.0, 1], [0.7, 1.0, 1]]


def test_a_class_the_model_never_saw_counts_as_wrong():
    found = classification(np.array([0, -1]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert found["accuracy"] == 0.5
    assert found["log_loss"] > 10
