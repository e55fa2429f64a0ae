"""Classes of every type: their order, what they are called, and that they come back as what they were."""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.training import Objective
from gridmill.errors import DataError
from gridmill.jobs.classes import Classes, find_classes
from gridmill.jobs.context import CODE
from gridmill.jobs.model_files import CARD, load_card
from gridmill.jobs.training.run import run

CLASSES = Objective.CLASSIFICATION


@pytest.mark.parametrize(
    ("values", "kind", "names"),
    [
        ([10, 2, 0, 11, 1, None, -3], pa.int32(), ("-3", "0", "1", "2", "10", "11")),
        ([2**63, 2**63 + 1, 7], pa.uint64(), ("7", "9223372036854775808", "9223372036854775809")),
        ([10.0, 2.5, -0.0, 0.0, float("nan"), float("inf")], pa.float64(), ("0", "2.5", "10")),
        ([0.1, 1 / 3], pa.float32(), None),
        ([True, False, None], pa.bool_(), ("false", "true")),
        ([Decimal("10.50"), Decimal("9.25")], pa.decimal128(6, 2), ("9.25", "10.50")),
        (["b", "", None, "a", "10", "9"], pa.string(), ("", "10", "9", "a", "b")),
        (["b", "", "a"], pa.dictionary(pa.int32(), pa.string()), ("", "a", "b")),
    ],
)
def test_classes_are_in_the_order_of_their_values_and_keep_their_type(values, kind, names):
    label = pa.chunked_array([pa.array(values, kind)])
    found = find_classes(label)
    assert names is None or found.names == names
    read = Classes(names=found.names, type=found.type).values()
    assert read.type == (pa.string() if pa.types.is_dictionary(kind) else kind)
    numbers, back = found.numbers(label), read.to_pylist()
    for number, value in zip(numbers, label.to_pylist(), strict=True):
        known = value is not None and value == value and value != float("inf")
        assert back[int(number)] == value if known else np.isnan(number)


def test_numbers_of_another_type_are_compared_by_value_and_unknown_ones_are_none():
    classes = find_classes(pa.chunked_array([pa.array([0, 1, 10, 2])]))
    assert classes.numbers(pa.chunked_array([pa.array([10.0, 2.5, 0.0, None])]))[:3].tolist() == [3, -1, 0]
    assert classes.numbers(pa.chunked_array([pa.array(["10", "x"])])).tolist() == [3, -1]


def digits(count: int = 12) -> dict[str, object]:
    """A label of so many whole numbers; the feature `code` has the same."""
    columns = series()
    code = np.random.default_rng(1).integers(0, count, 1200)
    return {name: columns[name] for name in ("city", "time", "split", "wave")} | {"code": code, "ahead": code}


def one_hot(width: int, place: int, classes: int) -> bytes:
    """A graph of [rows, width] that is sure of the class whose number is in the input `place`."""
    nodes = [
        helper.make_node("Gather", ["x", "place"], ["code"], axis=1),
        helper.make_node("Cast", ["code"], ["whole"], to=TensorProto.INT64),
        helper.make_node("OneHot", ["whole", "depth", "values"], ["p"], axis=-1),
    ]
    constants = [
        helper.make_tensor("place", TensorProto.INT64, [], [place]),
        helper.make_tensor("depth", TensorProto.INT64, [], [classes]),
        helper.make_tensor("values", TensorProto.FLOAT, [2], [0.0, 1.0]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [None, width])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, [None, classes])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def test_an_imported_graph_of_twelve_whole_numbers_is_right_in_every_row(tmp_path: Path):
    dataset = write_dataset(tmp_path, digits())
    made = training_context(tmp_path, dataset, "custom", file="model.onnx", objective=CLASSES)
    (made.work / CODE).mkdir()
    (made.work / CODE / "model.onnx").write_bytes(one_hot(5, 4, 12))
    output = run(made).outputs[0]
    assert output.metrics["test_accuracy"] == 1.0
    assert output.details["classes"] == [str(number) for number in range(12)]
    assert output.details["class_type"] == "int64"
    predicted = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", output)}))
    table = pq.read_table(tmp_path / "outputs/swarm")
    assert table.schema.field("prediction").type == table.schema.field("truth").type == pa.int64()
    assert table["prediction"].equals(table["truth"])
    assert [name for name in table.column_names if name.startswith("probability_")] == [
        f"probability_{number}" for number in range(12)
    ]
    assert predicted.metrics["test_accuracy"] == 1.0


@pytest.mark.parametrize(
    "make", [lambda code: code > 5, lambda code: code / 4, lambda code: code.astype(str)]
)
def test_labels_come_back_in_their_own_type(tmp_path: Path, make):
    columns = digits() | {"ahead": make(digits()["code"])}
    dataset = write_dataset(tmp_path, columns)
    output = run(training_context(tmp_path, dataset, "linear", objective=CLASSES)).outputs[0]
    predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", output)}))
    table = pq.read_table(tmp_path / "outputs/swarm")
    assert table.schema.field("prediction").type == pa.array(columns["ahead"]).type
    assert set(table["prediction"].to_pylist()) <= set(columns["ahead"].tolist())


def test_a_model_stored_before_classes_had_types_predicts_text_as_it_did(tmp_path: Path):
    dataset = write_dataset(tmp_path, digits())
    output = run(training_context(tmp_path, dataset, "linear", objective=CLASSES)).outputs[0]
    path = tmp_path / output.uri / CARD
    card = json.loads(path.read_bytes())
    old = card | {"format": 2, "classes": sorted(card["classes"])}
    path.write_text(json.dumps({name: value for name, value in old.items() if name != "class_type"}))
    result = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", output)}))
    table = pq.read_table(tmp_path / "outputs/swarm")
    assert table.schema.field("prediction").type == table.schema.field("truth").type == pa.string()
    assert "test_accuracy" in result.metrics


def test_a_card_of_a_later_format_is_refused(tmp_path: Path):
    (tmp_path / CARD).write_text('{"format": 99}')
    with pytest.raises(DataError, match="has format 99") as caught:
        load_card(tmp_path)
    assert "newer version of Gridmill" in caught.value.hint


def with_text(names: list[str]) -> dict[str, object]:
    """The label is the first name in the lower half of `wave`, the second above."""
    columns = series()
    return columns | {"ahead": np.array(names)[(columns["wave"] > 0).astype(int)]}


@pytest.mark.parametrize("model", ["lstm", "mlp", "gbdt", "linear", "naive"])
def test_the_empty_text_is_a_class_like_others(tmp_path: Path, model):
    options = {"sequence": 4, "epochs": 2} if model == "lstm" else {"epochs": 2} if model == "mlp" else {}
    dataset = write_dataset(tmp_path, with_text(["", "yes"]))
    output = run(training_context(tmp_path, dataset, model, **options)).outputs[0]
    assert output.details["classes"] == ["", "yes"]
    assert output.metrics["test_log_loss"] < 0.8


@pytest.mark.parametrize("model", ["lstm", "mlp", "gbdt", "linear", "naive", "custom"])
@pytest.mark.parametrize("name", ["", "one"])
def test_one_class_alone_is_refused(tmp_path: Path, model, name):
    columns = with_text([name, name])
    options = {"file": "m.onnx"} if model == "custom" else {}
    made = training_context(tmp_path, write_dataset(tmp_path, columns), model, **options)
    with pytest.raises(DataError, match="'ahead' is the same in every training row"):
        run(made)


def test_a_script_gets_the_classes_in_their_own_type(tmp_path: Path):
    script = """
def fit(data):
    (data.output / "classes").write_text(repr(data.classes))

def predict(folder, inputs):
    return inputs[:, -1:] == range(12)
"""
    dataset = write_dataset(tmp_path, digits())
    options = {"script": "train.py:fit", "predict": "train.py:predict", "objective": CLASSES}
    made = training_context(tmp_path, dataset, "custom", **options)
    (made.work / CODE).mkdir()
    (made.work / CODE / "train.py").write_text(script)
    assert run(made).metrics["test_accuracy"] == 1.0
    assert (made.output / "classes").read_text() == str(list(range(12)))
