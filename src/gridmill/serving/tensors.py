"""Tensors of the Open Inference Protocol v2, in JSON and in binary.

The binary form is little-endian and row-major. An element of BYTES is its length in 4 bytes, and then its
bytes. An element of BOOL is 1 byte. FP16 exists only in binary, because JSON has no such numbers.
Source: the specification of KServe and the binary extension of Triton Inference Server.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gridmill.serving.errors import Problem, RequestError

_BYTES, _BOOL, _FP16 = "BYTES", "BOOL", "FP16"
_NUMBERS: dict[str, str] = {
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    _FP16: "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
_LENGTH = struct.Struct("<I")
MOST_VALUES = 1 << 28
"""The largest number of values in a tensor. A larger shape is refused before memory is allocated."""
MOST_AXES = 8
"""The largest number of axes of a tensor. The model reads at most 3."""

Array = npt.NDArray[Any]


class TensorError(RequestError):
    """A tensor of a request does not match its shape, its datatype or the signature of the model."""

    code = "wrong-tensor"
    status = 400

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"tensor {name!r}: {problem}", problems=(Problem(field=name, problem=problem),))


def size_of(name: str, shape: Sequence[Any]) -> int:
    """Return the number of values of a tensor. Raises TensorError."""
    if len(shape) > MOST_AXES:
        raise TensorError(name, f"the shape has {len(shape)} axes, and at most {MOST_AXES} are possible")
    size = 1
    for length in shape:
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise TensorError(name, f"the shape {list(shape)[:8]} must be a list of whole numbers from 0")
        size *= length
        if max(size, length) > MOST_VALUES:  # beside an axis of 0, a long axis still has no array
            raise TensorError(name, f"the shape has more than {MOST_VALUES} values")
    return size


def from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Array:
    """Return the array [shape] of a tensor whose `data` is a flat or nested list. Raises TensorError."""
    values = _flat(data)
    if len(values) != size_of(name, shape):
        raise TensorError(name, f"the data has {len(values)} values, but the shape is {list(shape)}")
    if datatype == _FP16:
        raise TensorError(name, "FP16 data must be sent in binary")
    if datatype == _BYTES:
        return _texts(name, values).reshape(shape)
    if datatype == _BOOL:
        if not all(isinstance(one, bool | int) and one in (0, 1) for one in values):
            raise TensorError(name, "the data of a BOOL tensor must be true or false")
        return np.array(values, np.bool_).reshape(shape)
    return _numbers(name, datatype, values).reshape(shape)


def _numbers(name: str, datatype: str, values: list[Any]) -> Array:
    kind = np.dtype(_known(name, datatype))
    # the types are checked first, because NumPy would also convert texts to numbers
    allowed = {int, float, type(None)} if kind.kind == "f" else {int}
    if not set(map(type, values)) <= allowed:
        raise TensorError(name, f"the data of a {datatype} tensor has a value of another type")
    try:
        return np.array(values, kind)
    except (OverflowError, ValueError) as error:
        raise TensorError(name, f"a value does not fit into {datatype}") from error


def _texts(name: str, values: list[Any]) -> Array:
    if not set(map(type, values)) <= {str, type(None)}:
        raise TensorError(name, "the data of a BYTES tensor must be texts")
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _flat(data: object) -> list[Any]:
    values = data if isinstance(data, list) else [data]
    while list in set(map(type, values)):
        values = [one for part in values for one in (part if isinstance(part, list) else [part])]
    return values


def from_binary(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Array:
    """Return the array [shape] of a tensor from its binary form. Texts are Python texts in an array of
    objects. Raises TensorError."""
    size = size_of(name, shape)
    if datatype == _BYTES:
        return _binary_texts(name, size, data).reshape(shape)
    kind = np.dtype("?" if datatype == _BOOL else _known(name, datatype))
    if len(data) != size * kind.itemsize:
        raise TensorError(
            name,
            f"{len(data)} bytes were sent, but the shape {list(shape)} of {datatype} needs "
            f"{size * kind.itemsize}",
        )
    return np.frombuffer(data, kind).reshape(shape)


def _binary_texts(name: str, size: int, data: memoryview) -> Array:
    if len(data) < size * _LENGTH.size:
        raise TensorError(name, f"{len(data)} bytes are too few for {size} elements of BYTES")
    array = np.empty(size, object)
    at = 0
    for number in range(size):
        if at + _LENGTH.size > len(data):
            raise TensorError(name, f"the data ends before element {number}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise TensorError(name, f"element {number} is longer than the data")
        array[number] = _text(name, number, data[at : at + length])
        at += length
    if at != len(data):
        raise TensorError(name, f"{len(data) - at} bytes follow the last element")
    return array


def _text(name: str, number: int, data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise TensorError(name, f"element {number} is not valid UTF-8") from error


def _known(name: str, datatype: str) -> str:
    if datatype not in _NUMBERS:
        raise TensorError(name, f"the datatype {datatype[:40]!r} is unknown")
    return _NUMBERS[datatype]


def datatype_of(values: Array | tuple[Any, ...]) -> str:
    """Return the datatype of a column of a prediction."""
    if not isinstance(values, tuple):
        return "FP64"
    present = [one for one in values if one is not None]
    if present and all(isinstance(one, bool) for one in present):
        return _BOOL
    if present and all(isinstance(one, int) for one in present):
        return "INT64"
    if present and all(isinstance(one, int | float) for one in present):
        return "FP64"
    return _BYTES


def to_binary(values: Array | tuple[Any, ...], datatype: str) -> bytes:
    """Return the binary form of a column of a prediction. A missing text is the empty text."""
    if datatype == _BYTES:
        texts = ["" if one is None else str(one) for one in values]
        encoded = [one.encode("utf-8") for one in texts]
        return b"".join(_LENGTH.pack(len(one)) + one for one in encoded)
    if datatype == _BOOL:
        return bytes(bool(one) for one in values)
    if datatype == "INT64":
        return np.array([0 if one is None else one for one in values], "<i8").tobytes()
    return np.ascontiguousarray(np.array(values, "<f8")).tobytes()
