"""The comparison of the answer of a shadow with the answer that the client got, row by row."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.serving.row_log import predictions_of
from gridmill.serving.tensors import from_binary, from_json

PROBABILITY_TOLERANCE = 1e-3
"""The difference of a probability, or of a number in standard deviations of the label, up to which two rows
are equal: the tolerance of golden rows."""
_RELATIVE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for the rows of one request. `differences` are those of the different rows that have numbers
    in both answers."""

    equal: int = 0
    different: int = 0
    differences: tuple[float, ...] = field(default=())


def compare(
    served: Sequence[Mapping[str, Any]], shadow: Sequence[Mapping[str, Any]], tolerance: float
) -> Comparison:
    """Compare the rows of two answers. Two rows are equal if their classes and missing values are the same,
    their probabilities differ by at most PROBABILITY_TOLERANCE, and their other numbers by at most
    `tolerance`. Rows with an error in both answers do not count. Raises ValueError for answers with a
    different number of rows."""
    pairs = zip(served, shadow, strict=True)
    found = [
        _compared(one, other, tolerance) for one, other in pairs if not ("error" in one and "error" in other)
    ]
    differences = tuple(size for is_equal, size in found if not is_equal and size is not None)
    equal = sum(is_equal for is_equal, _ in found)
    return Comparison(equal=equal, different=len(found) - equal, differences=differences)


def rows_of_answer(answer: bytes, length: bytes, *, is_inference: bool) -> Sequence[Mapping[str, Any]]:
    """Return the predictions in the body of an answer, as objects. `length` is the length of the JSON in an
    answer with binary tensors, and otherwise empty. With `is_inference`, it is an answer of the Open
    Inference Protocol."""
    if not is_inference:
        return predictions_of(answer)
    end = int(length) if length else len(answer)
    rest = memoryview(answer)[end:]
    columns: dict[str, list[Any]] = {}
    for output in json.loads(answer[:end])["outputs"]:
        name, datatype, shape = output["name"], output["datatype"], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = from_json(name, datatype, shape, output["data"])
        else:
            array, rest = from_binary(name, datatype, shape, rest[:size]), rest[size:]
        columns[name] = [_without_nan(one) for one in array.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _without_nan(value: Any) -> Any:  # noqa: ANN401  a value of a tensor
    """Return a value of a tensor as JSON has it: a number that is not finite is missing."""
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compared(
    served: Mapping[str, Any], shadow: Mapping[str, Any], tolerance: float
) -> tuple[bool, float | None]:
    """Return whether two rows are equal, and the largest difference of their numbers; None if they have no
    numbers to compare."""
    if ("error" in served) or ("error" in shadow):
        return False, None
    is_equal, largest = _names(served) == _names(shadow), None
    for name in _names(served) & _names(shadow):
        allowed = PROBABILITY_TOLERANCE if name.startswith("probability_") else tolerance
        own, others = _values(served[name]), _values(shadow[name])
        is_equal &= len(own) == len(others)
        for one, other in zip(own, others, strict=False):
            if not (_is_number(one) and _is_number(other)):
                is_equal &= one == other
                continue
            size = abs(one - other)
            is_equal &= size <= allowed + _RELATIVE * abs(one)
            largest = max(size, largest or 0.0)
    return is_equal, largest


def _names(row: Mapping[str, Any]) -> set[str]:
    return {name for name in row if name not in ("features", "not_finite")}


def _values(value: Any) -> Sequence[Any]:  # noqa: ANN401  any JSON
    return value if isinstance(value, list) else [value]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
