"""The Open Inference Protocol v2, in JSON and in binary, as its specification defines it."""

import json
import struct

import numpy as np
import pytest
from tests.kit.served_models import linear_model, order_of, row, run

INFER = "/v2/models/weather/infer"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return linear_model(tmp_path_factory.mktemp("models") / "m")


def tensors(rows: int = 2, **changed: object) -> list[dict[str, object]]:
    shapes = {"temp": [1.0, 2.0], "wind speed": [2, 0], "city": ["Ulm", "Köln"]}
    kinds = {"temp": "FP64", "wind speed": "INT32", "city": "BYTES"}
    return [
        {"name": name, "shape": [rows], "datatype": kinds[name], "data": data[:rows]} | changed.get(name, {})
        for name, data in shapes.items()
    ]


def binary(header: dict[str, object], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(header).encode()
    return b"".join([text, *blobs]), {"Inference-Header-Content-Length": str(len(text))}


def texts(*values: str) -> bytes:
    return b"".join(struct.pack("<I", len(one.encode())) + one.encode() for one in values)


def test_tensors_in_json_get_tensors_in_json(tmp_path, model):
    async def scenario(call, hosted):
        reply = await call(INFER, {"id": "7", "inputs": tensors()})
        assert reply.json() == {
            "model_name": "weather",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "prediction", "shape": [2], "datatype": "FP64", "data": [121.0, 1002.0]}],
        }
        nested = tensors(temp={"shape": [2, 1], "data": [[1.0], [2.0]]})
        assert (await call(INFER, {"inputs": nested})).json()["outputs"][0]["data"] == [121.0, 1002.0]
        encoded = {"name": "inputs", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 1, 0]}
        assert (await call(INFER, {"inputs": [encoded]})).json()["outputs"][0]["data"] == [121.0]

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize(
    ("datatype", "kind"),
    [("FP16", "<f2"), ("FP32", "<f4"), ("FP64", "<f8"), ("INT8", "i1"), ("UINT64", "<u8")],
)
def test_tensors_in_binary_get_tensors_in_binary(tmp_path, model, datatype, kind):
    blobs = [np.array([1, 2], kind).tobytes(), bytes([1, 0]), texts("Ulm", "Köln")]
    kinds = {"temp": datatype, "wind speed": "BOOL", "city": "BYTES"}
    inputs = [
        {"name": name, "shape": [2], "datatype": each, "parameters": {"binary_data_size": len(blob)}}
        for (name, each), blob in zip(kinds.items(), blobs, strict=True)
    ]

    async def scenario(call, hosted):
        body, headers = binary({"inputs": inputs, "parameters": {"binary_data_output": True}}, *blobs)
        reply = await call(INFER, body, headers=headers)
        length = int(reply.headers["inference-header-content-length"])
        output = json.loads(reply.body[:length])["outputs"][0]
        assert output["parameters"] == {"binary_data_size": 16}
        assert np.frombuffer(reply.body[length:], "<f8").tolist() == [111, 1002]
        assert reply.headers["content-type"] == "application/octet-stream"

    run(scenario, order_of(model), tmp_path)


def test_nan_is_allowed_in_binary_and_null_in_json(tmp_path, model):
    blob = np.array([np.nan, 1.0]).tobytes()
    first = {"name": "temp", "shape": [2], "datatype": "FP64", "parameters": {"binary_data_size": len(blob)}}

    async def scenario(call, hosted):
        body, headers = binary({"inputs": [first, *tensors()[1:]]}, blob)
        output = (await call(INFER, body, headers=headers)).json()["outputs"][0]
        assert (output["data"], output["parameters"]) == ([None, 1001.0], {"not_finite": "0"})
        body, headers = binary(
            {
                "inputs": [first, *tensors()[1:]],
                "outputs": [{"name": "prediction", "parameters": {"binary_data": True}}],
            },
            blob,
        )
        reply = await call(INFER, body, headers=headers)
        values = np.frombuffer(reply.body[int(reply.headers["inference-header-content-length"]) :], "<f8")
        assert np.isnan(values[0])
        assert values[1] == 1001

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize(
    ("shape", "data"), [([1] * 70, [1]), ([0, 10**30], []), ([0, 2**40], []), ([2**40, 0], []), ([-1], [1])]
)
def test_a_shape_that_no_array_can_have_is_refused(tmp_path, model, shape, data):
    async def scenario(call, hosted):
        for name, datatype in (("temp", "FP64"), ("inputs", "FP64"), ("temp", "BYTES"), ("temp", "BOOL")):
            tensor = {"name": name, "shape": shape, "datatype": datatype}
            for inputs, blob in (({"data": data}, b""), ({"parameters": {"binary_data_size": 8}}, b"\0" * 8)):
                body, headers = binary({"inputs": [tensor | inputs]}, blob)
                reply = await call(INFER, body, headers=headers)
                assert reply.status == 400, reply.body

    run(scenario, order_of(model), tmp_path)


def test_classes_are_texts_with_probabilities(tmp_path):
    model = linear_model(tmp_path / "classes", classes=("dry", "wet"))
    encoded = {"name": "inputs", "shape": [2, 4], "datatype": "FP64", "data": [0.25, 0, 0, 0, 0.75, 0, 0, 0]}

    async def scenario(call, hosted):
        outputs = {one["name"]: one for one in (await call(INFER, {"inputs": [encoded]})).json()["outputs"]}
        assert outputs["prediction"]["data"] == ["dry", "wet"]
        assert outputs["prediction"]["datatype"] == "BYTES"
        assert outputs["probability_wet"]["data"] == [0.25, 0.75]
        body = {"inputs": [encoded], "outputs": [{"name": "prediction", "parameters": {"binary_data": True}}]}
        reply = await call(INFER, body)
        assert reply.body[int(reply.headers["inference-header-content-length"]) :] == texts("dry", "wet")

    run(scenario, order_of(model), tmp_path)


def test_a_sequence_model_takes_a_second_dimension(tmp_path):
    model = linear_model(tmp_path / "sequence", sequence=3)
    inputs = [
        {"name": "temp", "shape": [2, 3], "datatype": "FP64", "data": [[1, 2, 3], [4, 5, 6]]},
        {"name": "wind speed", "shape": [2, 3], "datatype": "FP64", "data": [0] * 6},
        {"name": "city", "shape": [2, 3], "datatype": "BYTES", "data": ["Ulm"] * 6},
    ]

    async def scenario(call, hosted):
        assert (await call("/v2/models/weather")).json()["inputs"][0]["shape"] == [-1, 3]
        output = (await call(INFER, {"inputs": inputs})).json()["outputs"][0]
        assert output["data"] == [306.0, 315.0]

    run(scenario, order_of(model), tmp_path)


def test_the_metadata_and_the_health_of_the_model_are_shown(tmp_path, model):
    async def scenario(call, hosted):
        assert (await call("/v2")).json()["extensions"] == ["binary_tensor_data", "statistics"]
        assert (await call("/v2/models/weather/versions/2")).json() == {
            "name": "weather",
            "versions": ["1", "2"],
            "platform": "onnx_onnxv1",
            "inputs": [
                {"name": "temp", "datatype": "FP64", "shape": [-1]},
                {"name": "wind speed", "datatype": "FP64", "shape": [-1]},
                {"name": "city", "datatype": "BYTES", "shape": [-1]},
            ],
            "outputs": [{"name": "prediction", "datatype": "FP64", "shape": [-1]}],
        }
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/weather/ready"):
            assert (await call(path)).status == 200
        assert (await call("/v2/models/weather/versions/2/ready")).status == 200
        index = (await call("/v2/repository/index", {})).json()
        assert [(one["version"], one["state"]) for one in index] == [("1", "READY"), ("2", "READY")]
        await call("/v2/models/weather/versions/2/infer", {"inputs": tensors()})
        stats = (await call("/v2/models/weather/versions/2/stats")).json()["model_stats"]
        assert [(one["version"], one["inference_count"]) for one in stats] == [("2", 2)]

    run(scenario, order_of(model, model), tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/other",
        "/v2/models/weather/versions/9/infer",
        "/v2/models/weather/what",
        "/v2/logging",
        "/v2/models",
    ],
)
def test_what_does_not_exist_is_not_found(tmp_path, model, path):
    async def scenario(call, hosted):
        reply = await call(path)
        assert reply.status == 404
        assert reply.json()["error"]

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        tensors()[:2],
        [*tensors(), tensors()[0]],
        tensors(temp={"shape": [3]}),
        tensors(temp={"shape": [-1]}),
        tensors(temp={"shape": [1 << 40, 1 << 40]}),
        tensors(temp={"shape": [1], "data": [1.0]}),
        tensors(temp={"shape": [1, 2]}),
        tensors(temp={"shape": []}),
        tensors(temp={"datatype": "FP16"}),
        tensors(temp={"datatype": "FP128"}),
        tensors(temp={"data": ["1", "2"]}),
        tensors(temp={"data": [True, False]}),
        tensors(temp={"data": {"a": 1}}),
        tensors(temp={"data": None}),
        tensors(temp={"datatype": "BYTES", "data": ["1", "2"]}),
        tensors(temp={"parameters": {"binary_data_size": 16}}),
        tensors(city={"datatype": "FP64", "data": [1, 2]}),
        tensors(city={"data": [1, 2]}),
        tensors(**{"wind speed": {"data": [1 << 40, 0]}}),
        [{"name": "inputs", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}],
        [{"name": "inputs", "shape": [4], "datatype": "FP64", "data": [1, 2, 3, 4]}],
    ],
)
def test_a_wrong_tensor_is_refused(tmp_path, model, inputs):
    async def scenario(call, hosted):
        reply = await call(INFER, {"inputs": inputs})
        assert reply.status == 400, reply.body
        assert reply.json()["error"]

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize(
    ("length", "blob"),
    [("x", b""), ("0", b""), ("99999", b""), ("-1", b""), ("", b"123"), ("", b"1" * 17), ("5", b"")],
)
def test_a_wrong_length_of_the_binary_part_is_refused(tmp_path, model, length, blob):
    first = {"name": "temp", "shape": [2], "datatype": "FP64", "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [first, *tensors()[1:]]}).encode()

    async def scenario(call, hosted):
        headers = {"Inference-Header-Content-Length": length or str(len(text))}
        assert (await call(INFER, text + blob, headers=headers)).status == 400

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x00\x00\x00",
        texts("Ulm"),
        texts("Ulm", "Ulm", "Ulm"),
        b"\xff\xff\xff\xff" * 2,
        texts("Ulm") + b"\2\0\0\0\xff\xfe",
    ],
)
def test_wrong_elements_of_bytes_are_refused(tmp_path, model, blob):
    last = {"name": "city", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}}

    async def scenario(call, hosted):
        body, headers = binary({"inputs": [*tensors()[:2], last]}, blob)
        reply = await call(INFER, body, headers=headers)
        assert reply.status == 400
        assert "city" in reply.json()["error"]

    run(scenario, order_of(model), tmp_path)


def test_an_unknown_output_is_refused_with_the_known_outputs(tmp_path, model):
    async def scenario(call, hosted):
        reply = await call(INFER, {"inputs": tensors(), "outputs": [{"name": "what"}]})
        assert (reply.status, "prediction" in reply.json()["hint"]) == (400, True)

    run(scenario, order_of(model), tmp_path)


def test_the_example_of_the_openapi_document_is_a_valid_request(tmp_path, model):
    async def scenario(call, hosted):
        document = (await call("/openapi.json")).json()
        content = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
        assert (await call("/predict", content["example"])).status == 200
        assert set(row()) == set(document["components"]["schemas"]["Row"]["required"])

    run(scenario, order_of(model), tmp_path)


def test_a_body_that_is_not_json_is_explained_as_for_named_fields(tmp_path, model):
    async def scenario(call, hosted):
        tensor = b'{"name": "temp", "shape": [1], "datatype": "FP64", "data": [NaN]}'
        reply = await call(INFER, b'{"inputs": [' + tensor + b"]}")
        assert reply.status == 400
        assert reply.json()["error"] == "the body is not valid JSON: invalid character (byte 72)"
        assert "Send null" in reply.json()["hint"]
        headers = {"Inference-Header-Content-Length": "5"}
        reply = await call(INFER, b'{"inputs": []}', headers=headers)
        assert reply.json()["error"] == "the JSON part of the body is not valid JSON: it is not complete"

    run(scenario, order_of(model), tmp_path)


@pytest.mark.parametrize("name", ["shared_memory_region", "classification"])
def test_a_parameter_that_would_change_the_answer_is_refused(tmp_path, model, name):
    async def scenario(call, hosted):
        wrong = {"parameters": {name: 1}}
        reply = await call(INFER, {"inputs": tensors(), "outputs": [{"name": "prediction"} | wrong]})
        assert (reply.status, reply.json()["error"].count("not offered")) == (400, 1), reply.body
        reply = await call(INFER, {"inputs": tensors(temp=wrong)})
        assert (reply.status, reply.json()["error"][:14]) == (400, "tensor 'temp':"), reply.body
        assert "not offered" in reply.json()["error"]

    run(scenario, order_of(model), tmp_path)
