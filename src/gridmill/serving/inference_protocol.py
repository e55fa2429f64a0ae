"""The Open Inference Protocol v2 over HTTP: health, metadata, inference, and binary tensors.

The inputs of a model are one tensor per field, in the shape [rows] (or [rows, 1]), or [rows, sequence] for a
model that reads sequences. Instead of them, a request can send the single tensor `inputs` with the encoded
inputs, in the shape [rows, inputs] or [rows, sequence, inputs]. The outputs have the names of the columns
that a prediction job writes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gridmill.jobs.features import Floats
from gridmill.serving.errors import FieldsError, MalformedError, Problem, RequestError
from gridmill.serving.fields import Field, FieldKind, not_json
from gridmill.serving.hosting import HostedModel
from gridmill.serving.keyed_features import KeyedInputs, KeyedRequest, as_of_time, wish_of
from gridmill.serving.predict import rows_not_finite
from gridmill.serving.request import Answer, Request, json_answer
from gridmill.serving.served_model import ServedModel
from gridmill.serving.tensors import Array, TensorError, datatype_of, from_binary, from_json, to_binary

INPUTS = "inputs"
HEADER_LENGTH = b"inference-header-content-length"
BINARY = b"application/octet-stream"
_DATATYPES = {FieldKind.NUMBER: "FP64", FieldKind.BOOLEAN: "BOOL", FieldKind.TEXT: "BYTES"}
DATATYPES_OF_SQL = {
    "TINYINT": "INT8",
    "SMALLINT": "INT16",
    "INTEGER": "INT32",
    "BIGINT": "INT64",
    "UTINYINT": "UINT8",
    "USMALLINT": "UINT16",
    "UINTEGER": "UINT32",
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "BOOLEAN": "BOOL",
}
"""The datatypes of the columns of a request; all others (texts, times and dates) are BYTES."""
_ENCODE = msgspec.json.Encoder().encode


class _Tensor(msgspec.Struct, gc=False):
    name: str
    shape: list[int]
    datatype: str
    data: Any = None
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class _Inference(msgspec.Struct, gc=False):
    inputs: list[_Tensor]
    id: str = ""
    outputs: list[_Output] = msgspec.field(default_factory=list)
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


_DECODER = msgspec.json.Decoder(_Inference)


async def infer(host: HostedModel, request: Request) -> Answer:
    """Answer an inference request. Raises RequestError."""
    asked, rest = _decoded(request)
    arrays = _arrays(asked.inputs, rest)
    wish = wish_of(asked.parameters.get("features", ""))
    keyed = await _keyed(host, arrays, asked.parameters.get("as_of"), request)
    inputs = keyed.inputs if keyed is not None else _inputs(host.model, arrays)
    request.rows = len(inputs)
    predicted = await host.predict(inputs)
    columns = host.model.columns(predicted)
    wanted = asked.outputs or [_Output(name) for name in columns]
    all_binary = asked.parameters.get("binary_data_output") is True
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for one in wanted:
        if one.name not in columns:
            known = ", ".join(columns)
            raise RequestError(f"the model has no output {one.name!r}", hint=f"Its outputs are: {known}.")
        _check_parameters(one)
        binary = one.parameters.get("binary_data", all_binary) is True
        outputs.append(_output(host.model, one.name, columns[one.name], predicted, blobs if binary else None))
    body: dict[str, Any] = {
        "model_name": host.service,
        "model_version": host.model.version,
        "outputs": outputs,
    }
    if asked.id:
        body["id"] = asked.id
    if keyed is not None and (about := keyed.about(wish)):
        body["parameters"] = {"features": _ENCODE(about).decode()}
    if not blobs:
        return json_answer(body)
    header = _ENCODE(body)
    return Answer(
        body=b"".join([header, *blobs]),
        media_type=BINARY,
        headers=((b"inference-header-content-length", b"%d" % len(header)),),
    )


async def _keyed(
    host: HostedModel, arrays: Mapping[str, Array], as_of: object, request: Request
) -> KeyedInputs | None:
    """Return the inputs with features that are computed by key. The result is None if the request sends the
    encoded inputs or complete sequences, or if requests send all features."""
    if host.keyed is None or _is_encoded(host.model, arrays):
        return None
    names = [field.name for field in host.model.reader.fields]
    if host.model.card.sequence is not None and all(
        name in arrays and arrays[name].ndim > 1 and arrays[name].shape[1] > 1 for name in names
    ):
        return None
    rows = _rows_of_tensors(arrays)
    try:
        asked = KeyedRequest(rows=rows, as_of=as_of_time(as_of))
        keyed = await host.keyed.inputs_of(asked.at(request.as_of_us))
    except FieldsError as error:  # the protocol has one status for all wrong requests
        raise RequestError(error.message, hint=error.hint, problems=error.problems) from error
    request.as_of_us = keyed.features.as_of_us
    return keyed


def _rows_of_tensors(arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return rows with named values. A number that is NaN is a missing value."""
    columns: dict[str, list[Any]] = {}
    for name, array in arrays.items():
        if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
            raise TensorError(name, f"the shape must be [rows] or [rows, 1], not {list(array.shape)}")
        values = array.reshape(-1).tolist()
        columns[name] = [None if isinstance(one, float) and math.isnan(one) else one for one in values]
    if len({len(one) for one in columns.values()}) > 1:
        counts = ", ".join(f"{name} {len(one)}" for name, one in columns.items())
        raise RequestError(f"the tensors have different numbers of rows: {counts}")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _is_encoded(model: ServedModel, arrays: Mapping[str, Array]) -> bool:
    """Return whether a request sends only the encoded inputs."""
    return set(arrays) == {INPUTS} and not any(field.name == INPUTS for field in model.reader.fields)


def _decoded(request: Request) -> tuple[_Inference, memoryview]:
    """Return the JSON part of the body, and the bytes that follow it."""
    body = memoryview(request.body)
    length = len(body)
    if HEADER_LENGTH in request.headers:
        given = request.headers[HEADER_LENGTH]
        if not given.isdigit() or len(given) > 18 or not 0 < int(given) <= len(body):
            text = given[:20].decode("latin-1")
            raise MalformedError(
                f"Inference-Header-Content-Length is {text!r}, but the body has {len(body)} bytes"
            )
        length = int(given)
    try:
        return _DECODER.decode(body[:length]), body[length:]
    except msgspec.ValidationError as error:
        raise RequestError(f"not an inference request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "body" if length == len(body) else "JSON part of the body"
        raise not_json(what, bytes(body[:length]), error) from error


_NOT_OFFERED = {
    "shared_memory_region": "shared memory is not offered; the data is part of the request and the answer",
    "classification": "the parameter `classification` is not offered; without it, the answer has all values",
}


def _check_parameters(tensor: _Tensor | _Output) -> None:
    """Raise TensorError for a parameter without which the answer would be another one."""
    for name, problem in _NOT_OFFERED.items():
        if tensor.parameters.get(name):
            raise TensorError(tensor.name, problem)


def _arrays(tensors: Sequence[_Tensor], rest: memoryview) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for one in tensors:
        if one.name in arrays:
            raise TensorError(one.name, "the request has this tensor twice")
        _check_parameters(one)
        size = one.parameters.get("binary_data_size")
        if size is None:
            if one.data is None:
                raise TensorError(one.name, "the tensor has no data")
            arrays[one.name] = from_json(one.name, one.datatype, one.shape, one.data)
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(rest):
            raise TensorError(one.name, f"binary_data_size is {size!r}, but {len(rest)} bytes are left")
        if one.data is not None:
            raise TensorError(one.name, "the tensor has both data and binary_data_size")
        arrays[one.name] = from_binary(one.name, one.datatype, one.shape, rest[:size])
        rest = rest[size:]
    if len(rest):
        raise RequestError(f"{len(rest)} bytes follow the last binary tensor")
    return arrays


def _inputs(model: ServedModel, arrays: Mapping[str, Array]) -> Floats:
    fields = model.reader.fields
    if _is_encoded(model, arrays):
        return _encoded(model, arrays[INPUTS])
    missing = [field.name for field in fields if field.name not in arrays]
    if missing:
        raise RequestError(
            f"the request lacks the tensors {', '.join(missing[:10])}",
            hint="Send one tensor per field, or the encoded inputs as the tensor `inputs`.",
            problems=tuple(Problem(field=name, problem="the tensor is missing") for name in missing),
        )
    length = model.card.sequence or 1
    columns = [_column(field, arrays[field.name], model.card.sequence) for field in fields]
    rows = {len(one) // length for one in columns}
    if len(rows) > 1:
        raise RequestError(f"the tensors have different numbers of rows: {', '.join(map(str, sorted(rows)))}")
    encoded = model.reader.inputs_of_columns(columns)
    return encoded.reshape(rows.pop() if rows else 0, *model.input_shape)


def _encoded(model: ServedModel, array: Array) -> Floats:
    if array.dtype == object or array.shape[1:] != model.input_shape:
        shape = [-1, *model.input_shape]
        raise TensorError(INPUTS, f"the tensor must have numbers in the shape {shape}")
    numbers = np.array(array, np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def _column(field: Field, array: Array, sequence: int | None) -> Array:
    """Return the values of a field in one dimension."""
    if (array.dtype == object) != (field.kind == FieldKind.TEXT):
        need = "BYTES" if field.kind == FieldKind.TEXT else "numbers"
        raise TensorError(field.name, f"the field takes {need}")
    shape = array.shape[:-1] if array.ndim > 1 and array.shape[-1] == 1 and sequence != 1 else array.shape
    if sequence is None and len(shape) != 1:
        raise TensorError(field.name, f"the shape must be [rows] or [rows, 1], not {list(array.shape)}")
    if sequence is not None and (len(shape) != 2 or shape[1] != sequence):
        raise TensorError(field.name, f"the shape must be [rows, {sequence}], not {list(array.shape)}")
    return array.reshape(-1)


def _output(
    model: ServedModel,
    name: str,
    values: Array | tuple[Any, ...],
    predicted: Floats,
    blobs: list[bytes] | None,
) -> dict[str, Any]:
    datatype = _class_datatype(model) if isinstance(values, tuple) else "FP64"
    shape = [len(values)] if isinstance(values, tuple) else list(values.shape)
    output: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
    if blobs is not None:
        blobs.append(to_binary(values, datatype))
        output["parameters"] = {"binary_data_size": len(blobs[-1])}
        return output
    output["data"] = list(values) if isinstance(values, tuple) else values.reshape(-1).tolist()
    if wrong := rows_not_finite(predicted):
        output["parameters"] = {"not_finite": ",".join(map(str, wrong))}
    return output


def _class_datatype(model: ServedModel) -> str:
    return datatype_of(model.class_values)


def server_metadata(version: str) -> Answer:
    """Answer `GET /v2`."""
    return json_answer(
        {"name": "gridmill", "version": version, "extensions": ["binary_tensor_data", "statistics"]}
    )


def model_metadata(hosted: HostedModel, versions: Sequence[str]) -> Answer:
    """Answer `GET /v2/models/NAME`."""
    return json_answer(
        {
            "name": hosted.service,
            "versions": list(versions),
            "platform": "onnx_onnxv1",
            "inputs": input_metadata(hosted.model),
            "outputs": output_metadata(hosted.model),
        }
    )


def input_metadata(model: ServedModel) -> list[dict[str, Any]]:
    """Return the name, the datatype and the shape of each input tensor."""
    if model.features is not None:
        return [
            {"name": name, "datatype": DATATYPES_OF_SQL.get(kind, "BYTES"), "shape": [-1]}
            for name, kind in model.plan.request.items()
        ]
    shape = [-1] if model.card.sequence is None else [-1, model.card.sequence]
    return [
        {"name": field.name, "datatype": _DATATYPES[field.kind], "shape": shape}
        for field in model.reader.fields
    ]


def output_metadata(model: ServedModel) -> list[dict[str, Any]]:
    """Return the name, the datatype and the shape of each output tensor."""
    return [
        {
            "name": name,
            "datatype": _class_datatype(model) if isinstance(values, tuple) else "FP64",
            "shape": [-1] if isinstance(values, tuple) else [-1, *values.shape[1:]],
        }
        for name, values in model.columns(model.no_rows).items()
    ]


def model_config(hosted: HostedModel, max_batch: int) -> Answer:
    """Answer `GET /v2/models/NAME/config` in the form of Triton Inference Server."""
    kinds = {"BYTES": "TYPE_STRING"}

    def listed(tensors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "name": one["name"],
                "data_type": kinds.get(one["datatype"], f"TYPE_{one['datatype']}"),
                "dims": one["shape"],
            }
            for one in tensors
        ]

    return json_answer(
        {
            "name": hosted.service,
            "platform": "onnxruntime_onnx",
            "backend": "onnxruntime",
            "max_batch_size": 0,
            "input": listed(input_metadata(hosted.model)),
            "output": listed(output_metadata(hosted.model)),
            "dynamic_batching": {"preferred_batch_size": [max_batch]},
        }
    )


def repository_index(hosted: Sequence[HostedModel]) -> Answer:
    """Answer `POST /v2/repository/index`."""
    return json_answer(
        [
            {"name": one.service, "version": one.model.version, "state": "READY", "reason": ""}
            for one in hosted
        ]
    )


def _batch_statistics(hosted: HostedModel) -> dict[str, Any]:
    batcher = hosted.batcher
    duration = {"count": batcher.batches, "ns": int(batcher.seconds * 1e9)}
    return {
        "name": hosted.service,
        "version": hosted.model.version,
        "inference_count": batcher.rows,
        "execution_count": batcher.batches,
        "inference_stats": {"success": duration, "compute_infer": duration},
        "batch_stats": [],
    }


def statistics(hosted: Sequence[HostedModel]) -> Answer:
    """Answer the statistics of one or all models. They are the statistics of this replica."""
    return json_answer({"model_stats": [_batch_statistics(one) for one in hosted]})
