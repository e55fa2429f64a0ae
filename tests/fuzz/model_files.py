"""Random small trainings of every kind: plain ONNX Runtime computes what Gridmill predicts.

Columns, labels and classes are of any scale and offset, with missing and infinite values. Learning does not
depend on the scale: the same data around 0 is learned as well.
"""

import random
from pathlib import Path

import numpy as np
import onnxruntime

from gridmill.domain.training import Objective
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.features import encode, windows
from gridmill.jobs.model_files import load_model
from gridmill.jobs.training.run import run
from tests.kit.learning_data import training_context, write_dataset

ROWS = 360
SCALES = (1e-300, 1e-30, 1e-13, 1e-3, 1.0, 100.0, 1e9, 1e30, 1e154, 1e300)
OFFSETS = (0.0, 0.0, 1.0, -1e3, 1e7, 1.7e9)
OPTIONS: dict[str, dict[str, object]] = {
    "gbdt": {"trees": 20, "max_leaves": 6},
    "linear": {},
    "mlp": {"hidden": 8, "epochs": 8, "batch_size": 32, "learning_rate": 0.02},
    "lstm": {"hidden": 6, "sequence": 3, "epochs": 8, "batch_size": 32, "learning_rate": 0.02},
    "naive": {},
}


def case(seed: int, folder: Path) -> None:
    """Train a random model on random columns, and again on the same columns around 0."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    model, classes = draw.choice(list(OPTIONS)), draw.choice((0, 0, 2, 3, 12))
    raw = numbers.normal(size=(ROWS, draw.randint(1, 4)))
    label = raw @ numbers.normal(size=raw.shape[1]) + numbers.normal(0, 0.1, ROWS)
    holes = numbers.random(raw.shape) < draw.choice((0.0, 0.05, 0.3))
    scales = [draw.choice(SCALES) for _ in range(raw.shape[1])]
    moved = np.array([offset(draw, scale) for scale in scales]) + raw * np.array(scales)
    moved[holes] = np.where(numbers.random(holes.sum()) < 0.5, np.nan, np.inf)
    plain = np.where(holes, np.nan, raw)
    aim, plain_aim = aims(draw, label, classes)
    found = learn(folder / "moved", model, moved, aim, bool(classes))
    expected = learn(folder / "plain", model, plain, plain_aim, bool(classes))
    name, slack = ("test_log_loss", 0.1) if classes else ("test_r2", 0.05)
    if name in expected:
        assert abs(found[name] - expected[name]) < slack, (
            model,
            classes,
            scales,
            found[name],
            expected[name],
        )


def offset(draw: random.Random, scale: float) -> float:
    """An offset that leaves the scale some ten digits."""
    return draw.choice(OFFSETS) if 1e-3 <= scale <= 1e9 else 0.0


def aims(draw: random.Random, label: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The label to learn, and the same around 0; classes are whole numbers, others, booleans or text."""
    if not classes:
        scale = draw.choice(SCALES[2:8])
        return offset(draw, scale) + scale * label, label
    number = np.digitize(label, np.quantile(label, np.arange(1, classes) / classes))
    ways = [number * 3 - 5, number / 4, number.astype(str), np.array(["", *"abcdefghijk"])[number]]
    return draw.choice([*ways, number == 1] if classes == 2 else ways), number


def learn(
    root: Path, model: str, inputs: np.ndarray, label: np.ndarray, classified: bool
) -> dict[str, float]:
    """Train, compare the file with plain ONNX Runtime in all rows, and return the metrics."""
    columns: dict[str, object] = {f"x{n}": inputs[:, n] for n in range(inputs.shape[1])}
    columns |= {"ahead": label, "split": np.repeat(["train", "validation", "test"], ROWS // 3)}
    dataset = write_dataset(root, columns, entity=[], time=None, label_column=None)
    aim = Objective.CLASSIFICATION if classified else Objective.REGRESSION
    result = run(training_context(root, dataset, model, objective=aim, **OPTIONS[model]))
    predictor = load_model(root / "outputs/m")
    table = open_partitions(root / "datasets/d").read([one.column for one in predictor.card.encodings])
    known, length = encode(table, predictor.card.encodings), predictor.card.sequence
    rows = np.arange(ROWS)
    order = rows if length is None else windows(rows, np.zeros(ROWS, np.int64), length)
    session = onnxruntime.InferenceSession(root / "outputs/m/model.onnx", providers=["CPUExecutionProvider"])
    answer = session.run(None, {"inputs": inputs[order]})[0]
    expected = predictor.predict(known[order])
    assert np.isfinite(answer).all(), model
    np.testing.assert_allclose(answer, expected, rtol=1e-9, atol=0)
    return dict(result.metrics)
