"""Models from ONNX files without a dataset: each file becomes a version that predicts as the file does, or an
error that names the file and the part that is wrong."""

import json
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from tests.kit.learning_data import context_of
from tests.kit.served_models import order_of
from tests.kit.served_models import run as serve

from gridmill.domain.artifact import Output
from gridmill.domain.job import Job
from gridmill.domain.serving import ServedVersion, Verification
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.apply_model import apply_model
from gridmill.jobs.context import CODE
from gridmill.jobs.golden_rows import check_golden, load_golden
from gridmill.jobs.model_files import load_model
from gridmill.jobs.training.run import run
from gridmill.serving.served_model import load_version


def graph(nodes, inputs, outputs, constants=(), *, opset=17, domains=()) -> bytes:
    """An ONNX file. Each input and output is (name, type, shape)."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(np.array(values), name) for name, values in constants],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(one, 1) for one in domains)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8).SerializeToString()


def weighted(*, rows: object = "rows", width: int = 2, kind: int = T.FLOAT) -> bytes:
    """A file whose output is x0 + 2 · x1 + ..."""
    weights = np.arange(1, width + 1, dtype=np.float32).reshape(width, 1)
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=T.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    return graph(nodes, [("x", kind, [rows, width])], [("y", T.FLOAT, [rows, 1])], [("w", weights)])


def imported(root: Path, content: bytes, **files: str) -> Output:
    """Import a file, with a `signature` and `samples` as texts."""
    names = {"signature": "signature.yaml", "samples": files.pop("called", "rows.csv")}
    given = {one: name for one, name in names.items() if one in files}
    spec = TrainingSpec(model=ModelKind.CUSTOM, file="net.onnx", **given)
    context = context_of(root, Job(name="m", training=spec), {})
    (context.work / CODE).mkdir()
    (context.work / CODE / "net.onnx").write_bytes(content)
    for name, text in files.items():
        (context.work / CODE / names[name]).write_text(text)
    return run(context).outputs[0]


def test_a_file_becomes_a_version_with_golden_rows(tmp_path):
    output = imported(
        tmp_path,
        weighted(),
        signature="{features: [temp, wind], label: rain}",
        samples="temp,wind\n" + "".join(f"{n},{2 * n}\n" for n in range(50)),
    )
    folder = tmp_path / output.uri
    golden = load_golden(folder)
    assert golden is not None
    assert len(golden) == 20
    assert check_golden(load_model(folder), golden) <= 1
    assert output.details["imported"]["golden_rows"] == 20
    assert len(output.details["imported"]["sha256"]) == 64
    assert output.details["features"] == ["temp", "wind"]
    predicted = apply_model(folder, "m", pa.table({"wind": [1.0, 3.0], "temp": [10.0, 20.0]}))
    assert predicted["prediction"].to_pylist() == [12.0, 26.0]


def test_a_mean_over_the_rows_is_refused_without_samples(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    content = graph(nodes, [("x", T.FLOAT, ["rows", 1])], [("y", T.FLOAT, ["rows", 1])])
    with pytest.raises(InputError, match="predicts a row differently"):
        imported(tmp_path, content)


def test_a_file_that_accepts_few_values_is_imported_without_samples(tmp_path):
    nodes = [helper.make_node("Gather", ["w", "x"], ["y"], axis=0)]
    content = graph(
        nodes, [("x", T.INT64, ["rows", 1])], [("y", T.FLOAT, ["rows", 1])], [("w", np.ones(1, np.float32))]
    )
    assert imported(tmp_path, content).details["features"] == ["x"]


def test_a_service_verifies_and_serves_the_version(tmp_path):
    output = imported(
        tmp_path,
        weighted(),
        signature=json.dumps({"features": ["temp", "wind"], "label": "rain"}),
        samples='[{"temp": 1, "wind": 2}, {"temp": 3, "wind": null}]',
        called="rows.json",
    )
    folder = tmp_path / output.uri
    served = load_version(ServedVersion(label="rain/model@1", folder=str(folder)), "1", 1)
    assert served.verification is Verification.VERIFIED

    async def scenario(call, hosted):
        reply = await call("/predict", {"rows": [{"temp": 1, "wind": 2}]})
        assert [one["prediction"] for one in reply.json()["predictions"]] == [5]

    serve(scenario, order_of(folder), tmp_path / "service")


def test_names_and_classes_follow_from_the_file(tmp_path):
    output = imported(tmp_path / "a", weighted())
    assert output.details["features"] == ["x_0", "x_1"]
    assert output.details["labels"] == ["y"]
    nodes = [helper.make_node("Softmax", ["x"], ["probabilities"], axis=1)]
    softmax = graph(nodes, [("x", T.FLOAT, ["n", 3])], [("probabilities", T.FLOAT, ["n", 3])])
    output = imported(tmp_path / "b", softmax)
    assert (output.details["objective"], output.details["classes"]) == ("classification", ["0", "1", "2"])
    table = pa.table({"x_0": [9.0, 0.0], "x_1": [0.0, 9.0], "x_2": [0.0, 0.0]})
    assert apply_model(tmp_path / "b" / output.uri, "m", table)["prediction"].to_pylist() == [0, 1]


def test_a_file_with_an_input_for_each_column_gets_its_columns(tmp_path):
    nodes = [
        helper.make_node("Cast", ["count"], ["c"], to=T.FLOAT),
        helper.make_node("Add", ["temp", "c"], ["y"]),
    ]
    content = graph(
        nodes, [("temp", T.FLOAT, ["n", 1]), ("count", T.INT64, ["n", 1])], [("y", T.FLOAT, ["n", 1])]
    )
    output = imported(tmp_path, content, samples="count,temp\n3,0.5\n4,1.5\n")
    folder = tmp_path / output.uri
    assert output.details["features"] == ["temp", "count"]
    table = pa.table({"count": [1, 2], "temp": [0.25, 0.5]})
    assert apply_model(folder, "m", table)["prediction"].to_pylist() == [1.25, 2.5]

    async def scenario(call, hosted):
        good, wrong = {"temp": 1, "count": 2}, {"temp": 1, "count": 2.5}
        assert (await call("/predict", {"rows": [good]})).status == 200
        reply = await call("/predict", {"rows": [good, wrong]})
        assert (reply.status, reply.json()["code"]) == (422, "wrong-fields")
        assert "whole numbers" in reply.json()["error"]

    serve(scenario, order_of(folder), tmp_path / "service")


def test_texts_and_sequences_are_read_as_the_signature_says(tmp_path):
    signature = """
    features: [temp, {name: city, categories: [Ulm, Köln]}, {name: wet, type: boolean}]
    label: y
    """
    output = imported(
        tmp_path / "a",
        weighted(width=4),
        signature=signature,
        samples="temp,city,wet\n1,Köln,true\n2,Bonn,\n",
    )
    golden = load_golden(tmp_path / "a" / output.uri)
    assert golden is not None
    assert golden.outputs[0].tolist() == [1 + 3 + 4]
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    content = graph(
        nodes, [("x", T.FLOAT, ["n", 3, 2])], [("y", T.FLOAT, ["n"])], [("axes", np.array([1, 2], np.int64))]
    )
    rows = json.dumps([[{"a": 1, "b": 2}, {"a": 3, "b": 4}], [{"a": 1, "b": 1}] * 5])
    output = imported(
        tmp_path / "b", content, signature="{features: [a, b], label: y}", samples=rows, called="r.json"
    )
    golden = load_golden(tmp_path / "b" / output.uri)
    assert golden is not None
    assert golden.outputs.tolist() == [[1 + 2 + 1 + 2 + 3 + 4], [6.0]]


def test_a_graph_that_gridmill_made_keeps_its_signature(tmp_path):
    from tests.unit.jobs.training.test_training_stored import trained

    _, artifact = trained(tmp_path / "made", "linear", 3)
    folder = tmp_path / "made" / artifact.output.uri
    output = imported(tmp_path / "again", (folder / "model.onnx").read_bytes())
    for name in ("features", "feature_types", "classes", "class_type", "labels", "objective", "sequence"):
        assert output.details[name] == artifact.output.details[name]


def broken_external() -> bytes:
    model = onnx.load_model_from_string(weighted())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = T.EXTERNAL
    tensor.external_data.add(key="location", value="net.onnx.data")
    return model.SerializeToString()


def mean_of_batch() -> bytes:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return graph(nodes, [("x", T.FLOAT, ["n", 1])], [("y", T.FLOAT, ["n", 1])])


IDENTITY = [helper.make_node("Identity", ["x"], ["y"])]


@pytest.mark.parametrize(
    ("content", "files", "message"),
    [
        (b"no model", {}, "net.onnx is not an ONNX file"),
        (b"", {}, "net.onnx is not an ONNX file, or its graph is empty"),
        (graph(IDENTITY, [("x", T.FLOAT, ["n", 1])], []), {}, "net.onnx has no outputs"),
        (weighted(rows=4), {}, "input 'x' of net.onnx takes exactly 4 rows"),
        (broken_external(), {}, r"the tensor 'w' of net.onnx is in another file \(net.onnx.data\)"),
        (
            graph(IDENTITY, [("x", T.STRING, ["n", 1])], [("y", T.STRING, ["n", 1])]),
            {},
            r"input 'x' of net.onnx has the type tensor\(string\)",
        ),
        (
            graph(IDENTITY, [("x", T.FLOAT, ["n", 1])], [("y", T.FLOAT, ["n", 1])], opset=999),
            {},
            "net.onnx has opset 999",
        ),
        (
            graph(
                [helper.make_node("Magic", ["x"], ["y"], domain="acme")],
                [("x", T.FLOAT, ["n", 1])],
                [("y", T.FLOAT, ["n", 1])],
                domains=("acme",),
            ),
            {},
            "operator 'Magic' of the domain 'acme'",
        ),
        (
            graph(
                [helper.make_node("Magic", ["x"], ["y"])],
                [("x", T.FLOAT, ["n", 1])],
                [("y", T.FLOAT, ["n", 1])],
            ),
            {},
            "ONNX Runtime cannot load net.onnx",
        ),
        (
            graph(IDENTITY, [("x", T.FLOAT, ["n", "m"])], [("y", T.FLOAT, ["n", "m"])]),
            {},
            "input 'x' of net.onnx has an unknown number of columns",
        ),
        (
            graph(IDENTITY, [("x", T.FLOAT, ["n", "t", 2])], [("y", T.FLOAT, ["n", "t", 2])]),
            {},
            "takes sequences of any length",
        ),
        (mean_of_batch(), {"samples": "x\n1\n2\n"}, "net.onnx predicts a row differently if other rows"),
        (weighted(), {"signature": "features: [a]"}, r"features are 1 inputs .* have 2 columns: x \(2\)"),
        (weighted(), {"signature": "features: [a, a]"}, "signature.yaml: features has 'a' twice"),
        (weighted(), {"signature": "fetures: [a, b]"}, "no field 'fetures'; did you mean `features`"),
        (weighted(), {"signature": "features: [a, {nme: b}]"}, r"features\[1\] must be a name"),
        (weighted(), {"signature": "features: [a, b\n"}, "signature.yaml: not valid YAML"),
        (weighted(), {"signature": "output: z"}, "net.onnx has no output 'z'"),
        (weighted(), {"signature": "classes: [a, b, c]"}, "has 3 classes, but output 'y'.* has 1 values"),
        (weighted(), {"samples": "x_0,x_2\n1,2\n"}, "rows.csv: row 0: column 'x_1' is missing"),
        (weighted(), {"samples": "x_0,x_1\n1,2\n3,much\n"}, "row 1: column 'x_1' is 'much', not a number"),
        (weighted(), {"samples": "x_0,x_1\n"}, "rows.csv has no rows"),
        (weighted(), {"samples": "[1, 2", "called": "rows.json"}, "rows.json cannot be read"),
        (weighted(kind=T.INT64), {"samples": "x_0,x_1\n1,0.5\n"}, "an input is 0.5.*whole numbers"),
    ],
)
def test_an_error_names_the_file_and_what_is_wrong(tmp_path, content, files, message):
    with pytest.raises(InputError, match=message) as caught:
        imported(tmp_path, content, **files)
    assert caught.value.place.startswith("training.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"script": "train.py"}, "needs `dataset`"),
        ({"file": "m.onnx", "dataset": "d", "signature": "s.yaml"}, "without a `dataset` has a signature"),
        ({"file": "m.onnx", "features": ("a",)}, "has no 'features'"),
        ({"file": "m.onnx", "quantiles": (0.1,)}, "has no 'quantiles'"),
    ],
)
def test_fields_that_do_not_fit_an_import_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainingSpec(model=ModelKind.CUSTOM, **settings).check()
    TrainingSpec(model=ModelKind.CUSTOM, file="m.onnx", signature="s.yaml", samples="r.csv").check()
