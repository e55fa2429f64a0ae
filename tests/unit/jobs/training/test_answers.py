"""What models that Gridmill did not make may answer: probabilities, for rows whose keys are left alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper
from tests.kit.clean_process import predict
from tests.kit.learning_data import (
    artifact_of,
    by_code,
    prediction_context,
    series,
    training_context,
    write_dataset,
)

from gridmill.errors import DataError, InputError
from gridmill.jobs.model_files import EnsemblePredictor, check_probabilities, load_graph, load_model
from gridmill.jobs.training.run import run

ROWS = np.arange(100, 103)
NAN = float("nan")


def shares(*middle: float) -> np.ndarray:
    """Three rows of probabilities; the second is this."""
    found = np.full((3, len(middle)), 1 / len(middle))
    found[1] = middle
    return found


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((1.0, 1.0, 1.0), "row 101 are 1, 1, 1: their sum is 3, not 1"),
        ((0.0, 0.0), "row 101 are 0, 0: their sum is 0, not 1"),
        ((-0.5, 1.5), "row 101 are -0.5, 1.5: -0.5 is negative"),
        ((0.5, 0.5015), "their sum is 1.0015, not 1"),
        ((0.5, NAN), "1 of 2 are NaN"),
        ((np.inf, 0.0), "their sum is inf, not 1"),
        ((np.inf, -np.inf), "-inf is negative"),
        ((0.5, *[0.25] * 7), r"row 101 are 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, \.\.\.: their sum is 2.25"),
    ],
)
def test_what_is_no_probability_is_refused_by_row(row: tuple[float, ...], text: str):
    with pytest.raises(DataError, match=text):
        check_probabilities(shares(*row), ROWS)


@pytest.mark.parametrize("row", [(1.0, 0.0), (0.5, 0.5009), (1 + 5e-7, -5e-7), (NAN, NAN)])
def test_rounding_is_allowed_and_a_row_without_an_answer_is_left_to_the_caller(row: tuple[float, ...]):
    check_probabilities(shares(*row), ROWS)


def test_no_rows_are_no_problem():
    check_probabilities(np.zeros((0, 3)), ROWS[:0])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("np.ones((len(x), 2))", "their sum is 2, not 1"),
        ("x[:, 3]", "is negative"),
        ("np.stack([x[:, 3], 100 - x[:, 3]], 1)", "their sum is 100, not 1"),
        ("np.full((len(x), 2), [0.5, np.nan])", "1 of 2 are NaN"),
        ("np.full((len(x), 2), np.nan)", "predicted no number"),
    ],
)
def test_a_training_whose_model_answers_no_probabilities_fails(tmp_path: Path, answer: str, text: str):
    with pytest.raises(DataError, match=text):
        run(by_code(tmp_path, answer))


LATE = "np.where((x[:, 3:4] > 1e6), 1.0, 0.5) * np.ones((1, 2))"
"""Probabilities, but for rows that come later."""


def test_a_prediction_names_the_row_of_the_dataset(tmp_path: Path):
    made = by_code(tmp_path, LATE)
    output = run(made).outputs[0]
    columns = {name: np.array(values) for name, values in series(100).items()}
    columns["value"][[277, 288]] = 1e7
    columns["ahead"] = np.where(columns["ahead"] > 50, "high", "low")
    later = write_dataset(tmp_path / "later", columns)
    dataset = replace(later, output=replace(later.output, uri="later/datasets/d"), fingerprint="g")
    models = {"m": artifact_of("m", output)}
    context = prediction_context(tmp_path, dataset, models, trust=True, shards=3, split=None)
    with pytest.raises(DataError, match="probabilities for row 277 are 1, 1: their sum is 2, not 1"):
        predict(context)


@pytest.mark.parametrize("name", ["row", "prediction", "truth", "fold", "probability_high"])
def test_a_key_that_the_result_would_overwrite_is_refused(tmp_path: Path, name: str):
    columns = series(100)
    columns = {name if key == "city" else key: values for key, values in columns.items()}
    columns["ahead"] = np.where(columns["ahead"] > 50, "high", "low")
    dataset = write_dataset(tmp_path, columns, entity=[name], features=["value", "wave"])
    output = run(training_context(tmp_path, dataset, "linear")).outputs[0]
    with pytest.raises(InputError, match=f"column '{name}' of the dataset would be overwritten") as caught:
        predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", output)}))
    assert caught.value.place == "prediction.dataset"


def test_a_member_without_an_answer_has_no_vote(tmp_path: Path):
    columns = series(100)
    columns["ahead"] = np.where(columns["ahead"] > 50, "high", "low")
    run(training_context(tmp_path, write_dataset(tmp_path, columns), "linear"))
    member = load_model(tmp_path / "outputs/m")

    class Silent:
        card = member.card

        def predict(self, inputs: np.ndarray) -> np.ndarray:
            return np.full((len(inputs), 2), np.nan)

    card = type(member.card)(
        kind=member.card.kind, objective=member.card.objective, labels=member.card.labels,
        encodings=member.card.encodings, classes=member.card.classes, weights=(0.5, 0.5), vote=True,
    )  # fmt: skip
    answer = EnsemblePredictor(card=card, members=(member, Silent())).predict(np.zeros((2, 7)))
    assert np.isnan(answer).all()


def test_a_graph_that_gives_maps_names_the_option_that_makes_arrays(tmp_path: Path):
    floats = TensorProto.FLOAT
    nodes = [helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])]
    value = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(floats, []))
    )
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", floats, [None, 2])],
        [helper.make_value_info("p", value)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    (tmp_path / "m.onnx").write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    with pytest.raises(DataError, match=r"the output p of m.onnx is seq\(map") as caught:
        load_graph(tmp_path / "m.onnx")
    assert "zipmap" in caught.value.hint


def test_a_prediction_keeps_its_keys(tmp_path: Path):
    dataset = write_dataset(tmp_path, series(100))
    output = run(training_context(tmp_path, dataset, "linear")).outputs[0]
    predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", output)}))
    assert set(pq.read_table(tmp_path / "outputs/swarm")["city"].to_pylist()) == {"a", "b", "c"}
