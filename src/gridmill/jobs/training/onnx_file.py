"""Checks an ONNX file of a user before it becomes a version of a model.

The file is untrusted: it is read as data, and ONNX Runtime computes only operators that it contains itself.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

import onnx
import onnxruntime

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.jobs.model_files import NUMBER_TYPES, answer_of

PLACE = "training.file"
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_MOST_AXES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphValue:
    """An input or an output of a graph. `shape` has the length of each axis, or None for a length that is not
    fixed. `type` is the type as ONNX Runtime names it, such as `tensor(float)`."""

    name: str
    type: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFile:
    """An ONNX file that can be a model: its content, its inputs and outputs in order, and facts about its
    origin. `answer` is the name of the output that contains the prediction unless a signature names another.
    `metadata` are the texts that the program that wrote the file has stored in it."""

    name: str
    content: bytes
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    answer: str
    opset: int
    producer: str
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_onnx(path: Path) -> OnnxFile:
    """Read and check an ONNX file. Raises InputError, which names the file and the input, the output, the
    operator or the tensor that cannot be used."""
    content = path.read_bytes()
    model = _parsed(path.name, content)
    opset = _check_operators(path.name, model)
    _check_complete(path.name, model)
    session = _loaded(path.name, content)
    inputs = tuple(map(_value, session.get_inputs()))
    if not inputs:
        raise _wrong(f"{path.name} has no inputs", "Export the model with its inputs.")
    if not session.get_outputs():
        raise _wrong(f"{path.name} has no outputs", "Export the model with its outputs.")
    for one in inputs:
        _check_input(path.name, one, alone=len(inputs) == 1)
    return OnnxFile(
        name=path.name,
        content=content,
        inputs=inputs,
        outputs=tuple(map(_value, session.get_outputs())),
        answer=str(answer_of(session).name),
        opset=opset,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        metadata=dict(session.get_modelmeta().custom_metadata_map),
    )


def _wrong(message: str, hint: str = "", place: str = PLACE) -> InputError:
    return InputError(message, hint=hint, place=place)


def _parsed(name: str, content: bytes) -> onnx.ModelProto:
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # the DecodeError of protobuf, which is a dependency of onnx only
        raise _wrong(f"{name} is not an ONNX file: {error}") from error
    if not model.graph.node:
        raise _wrong(f"{name} is not an ONNX file, or its graph is empty")
    return model


def _check_operators(name: str, model: onnx.ModelProto) -> int:
    """Return the version of the standard operators. Raises InputError for operators that cannot be
    computed."""
    versions = {one.domain: int(one.version) for one in model.opset_import}
    for node in model.graph.node:
        if node.domain not in _KNOWN_DOMAINS:
            raise _wrong(
                f"{name} has the operator {node.op_type!r} of the domain {node.domain!r}, which is not part "
                "of ONNX",
                "Export the model with standard operators only.",
            )
    opset, newest = versions.get("", versions.get("ai.onnx", 0)), onnx.defs.onnx_opset_version()
    if opset > newest:
        raise _wrong(
            f"{name} has opset {opset}, but this version of Gridmill computes opsets up to {newest}",
            f"Export the model with opset {newest} or lower, or update onnx and onnxruntime.",
        )
    return opset


def _check_complete(name: str, model: onnx.ModelProto) -> None:
    """Raise InputError if weights of the model are in other files."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((one.value for one in tensor.external_data if one.key == "location"), "")
            raise _wrong(
                f"the tensor {tensor.name!r} of {name} is in another file ({location})",
                f"Write one file: python -c \"import onnx; onnx.save(onnx.load('{name}'), 'whole.onnx')\"",
            )


def _loaded(name: str, content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        raise _wrong(f"ONNX Runtime cannot load {name}: {error}") from error


def _value(one: onnxruntime.NodeArg) -> GraphValue:
    shape = tuple(length if isinstance(length, int) else None for length in one.shape or ())
    return GraphValue(name=one.name, type=one.type, shape=shape)


def _check_input(name: str, one: GraphValue, *, alone: bool) -> None:
    where = f"input {one.name!r} of {name}"
    if one.type not in NUMBER_TYPES:
        raise _wrong(
            f"{where} has the type {one.type}, but a model must take numbers",
            "Encode texts before the model, and name their categories in the signature.",
        )
    if not 1 <= len(one.shape) <= (_MOST_AXES if alone else 2):
        raise _wrong(
            f"{where} has the shape {list(one.shape)}, but the shape must be [rows] or [rows, columns]"
            + (", or [rows, sequence, columns]" if alone else "")
        )
    if one.shape[0] is not None:
        raise _wrong(
            f"{where} takes exactly {one.shape[0]} rows, but a model must take any number of rows",
            "Export it with a dynamic first axis, for PyTorch: "
            f"dynamic_axes={{'{one.name}': {{0: 'rows'}}}}.",
        )
    if not alone and None in one.shape[1:]:
        raise _wrong(f"{where} has a second axis of unknown length", "Export it with a fixed second axis.")
    if len(one.shape) == _MOST_AXES and one.shape[1] is None:
        raise _wrong(
            f"{where} takes sequences of any length, but a model must read a fixed number of rows",
            "Export it with a fixed second axis.",
        )
