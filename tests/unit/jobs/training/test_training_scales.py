"""Labels and features of any scale, on any offset: as good as scikit-learn on the same numbers around 0."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from tests.kit.learning_data import training_context, write_dataset

from gridmill.jobs.model_files import load_model, predict_rows
from gridmill.jobs.training.run import run
from gridmill.jobs.training.scaling import fit_scaler, fit_spread

ROWS = 1000
SPLIT = np.repeat(["train", "validation", "test"], [600, 200, 200])
OPTIONS = {
    "gbdt": {"trees": 100, "max_leaves": 8},
    "linear": {},
    "mlp": {"hidden": 16, "epochs": 12, "learning_rate": 0.03, "batch_size": 32},
    "lstm": {"sequence": 2, "hidden": 8, "epochs": 12, "learning_rate": 0.03, "batch_size": 32},
}
LABELS = {
    "a time in epoch seconds": (1.7e9, 1.0),
    "a wide time": (1.7e9, 100.0),
    "ten million": (1e7, 1.0),
    "at the last digits": (1e15, 1.0),
    "tiny": (0.0, 1e-200),
    "small on an offset": (1.0, 1e-9),
    "huge": (0.0, 1e150),
}


def columns(scale: float = 1.0, offset: float = 0.0) -> dict[str, np.ndarray]:
    """Two features times `scale` on `offset`, and the label of their values before."""
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 2))
    return {
        "time": np.datetime64("2024-01-01", "us") + np.arange(ROWS) * np.timedelta64(1, "h"),
        "a": offset + scale * x[:, 0],
        "b": offset + scale * x[:, 1],
        "ahead": 2 * x[:, 0] - x[:, 1] + random.normal(0, 0.05, ROWS),
        "split": SPLIT,
    }


def trained(root: Path, model: str, values: dict[str, np.ndarray]) -> dict[str, float]:
    dataset = write_dataset(root, values, entity=[], label_column=None)
    return dict(run(training_context(root, dataset, model, **OPTIONS[model])).metrics)


def r2(root: Path, values: dict[str, np.ndarray], offset: float, scale: float) -> float:
    """Of the stored model in the test rows, with labels taken back to around 0."""
    predictor = load_model(root / "outputs/m")
    inputs = np.stack([values["a"], values["b"]], axis=1)
    rows = np.flatnonzero(SPLIT == "test")
    said = predict_rows(predictor, inputs, np.zeros(ROWS, np.int64), rows)
    truth, said = ((one - offset) / scale for one in (values["ahead"][rows], said))
    return float(1 - np.mean((truth - said) ** 2) / np.var(truth))


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("model", OPTIONS)
def test_a_label_of_any_offset_and_scale_is_learned(tmp_path: Path, model: str, name: str):
    offset, scale = LABELS[name]
    values = columns()
    values["ahead"] = offset + scale * values["ahead"]
    trained(tmp_path, model, values)
    assert r2(tmp_path, values, offset, scale) > 0.95


@pytest.mark.parametrize("name", ["a time in epoch seconds", "ten million", "at the last digits"])
def test_trees_are_as_good_as_scikit_learns(tmp_path: Path, name: str):
    offset, scale = LABELS[name]
    values = columns()
    y = values["ahead"] = offset + scale * values["ahead"]
    x = np.stack([values["a"], values["b"]], axis=1)
    train, held, test = (np.flatnonzero(name == SPLIT) for name in ("train", "validation", "test"))
    model = HistGradientBoostingRegressor(
        max_iter=100, max_leaf_nodes=8, early_stopping=True, n_iter_no_change=20, random_state=0
    ).fit(x[train], y[train], X_val=x[held], y_val=y[held])
    ours = trained(tmp_path, "gbdt", values)
    error = np.sqrt(np.mean((model.predict(x[test]) - y[test]) ** 2))
    assert ours["test_rmse"] < 1.03 * error


FEATURES = {
    "tiny": (1e-13, 0.0),
    "at the least double": (1e-308, 0.0),
    "small": (1e-6, 1.0),
    "large": (1e154, 0.0),
    "at the largest double": (2e307, 0.0),
    "a time in epoch seconds": (1.0, 1.7e9),
    "a time in epoch nanoseconds": (1e4, 1.7e18),
    "at the last digits": (1.0, 1e15),
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("model", OPTIONS)
@pytest.mark.filterwarnings("error")
def test_features_of_any_offset_and_scale_are_learned_from(tmp_path: Path, model: str, name: str):
    scale, offset = FEATURES[name]
    metrics = trained(tmp_path, model, columns(scale, offset))
    assert metrics["test_r2"] > 0.95


@pytest.mark.parametrize("model", ["linear", "mlp", "lstm"])
def test_constant_features_say_nothing_at_any_scale(tmp_path: Path, model: str):
    plain = trained(tmp_path / "plain", model, columns())
    values = columns()
    for name, value in {"c": 0.1, "d": 1e-300, "e": 1.7e308, "f": -1e15, "g": 0.0}.items():
        values[name] = np.full(ROWS, value)
        values[name][::3] = np.nextafter(value, np.inf)  # what rounding leaves of a constant
    found = trained(tmp_path / "more", model, values)
    assert found["test_r2"] == pytest.approx(plain["test_r2"], abs=0.02)


@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e-60, 1e-20, 1e100])
def test_a_single_feature_keeps_its_mean_in_the_file(tmp_path: Path, scale: float):
    values = columns()
    alone = {name: values[name] for name in ("time", "split")}
    both = {"a": scale * (values["a"] + 3), "ahead": scale * (2 * values["a"] + 1)}
    trained(tmp_path, "linear", alone | both)  # compares the file with the model


def test_spread_of_what_lies_on_a_large_offset():
    random = np.random.default_rng(0)
    z = random.integers(-64, 64, (200_000, 1)) / 8
    found = fit_spread(z + 1e15)
    assert found.deviation[0] == pytest.approx(z.std(), rel=1e-9)
    assert found.mean[0] == pytest.approx(1e15, abs=0.25)


def test_spread_is_numpys_where_numpy_can():
    values = np.random.default_rng(1).normal(3, 2, (5000, 4))
    values[::7, 2] = np.nan
    values[:, 3] = np.nan
    found = fit_spread(values)
    np.testing.assert_allclose(found.mean[:3], np.nanmean(values[:, :3], axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.deviation[:3], np.nanstd(values[:, :3], axis=0), rtol=1e-12)
    assert (found.mean[3], found.deviation[3]) == (0.0, 1.0)


def test_an_input_far_beyond_training_stays_a_number():
    scaler = fit_scaler(np.array([[0.0], [1.0], [np.nan]]), 1e4)
    far = np.array([[1.7e308], [-1.7e308], [np.nan], [0.5]])
    assert scaler.apply(far).tolist() == [[1e4, 0], [-1e4, 0], [0, 1], [0, 0]]
