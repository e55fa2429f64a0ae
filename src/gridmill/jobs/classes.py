"""Class labels: their order, their names and their type."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Floats, is_number, is_text

TEXT = "string"
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The classes of a label, in the order of a model's probabilities.

    The order is numeric for numbers and booleans, by time for times, and by code points for text. `names` are
    the values as text, `type` is Arrow's name of the label's type. Labels that are neither numbers nor
    booleans have the type `string`.
    """

    names: tuple[str, ...] = ()
    type: str = TEXT

    def values(self) -> pa.Array:
        """The classes as values of the label's type."""
        return pa.array(self.names, pa.string()).cast(_arrow_type(self.type))

    def numbers(self, label: pa.ChunkedArray) -> Floats:
        """Return for each row the number of its class: -1 for a class that was not in training, NaN for a
        missing value.

        Numbers of another type are compared as doubles, and all other values as text.
        """
        label, values = _plain(label), self.values()
        if label.type != values.type:
            common = pa.float64() if is_number(label.type) and is_number(values.type) else pa.string()
            label, values = (pc.cast(one, common, safe=False) for one in (label, values))
        missing = np.asarray(pc.is_null(label).to_numpy(), bool)
        result: Floats = pc.fill_null(pc.index_in(label, value_set=values), -1).to_numpy().astype(np.float64)
        result[missing] = np.nan
        return result

    def truth(self, label: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the labels in the form in which they are written beside predictions: numbers and booleans
        unchanged, all other labels as text."""
        return label.cast(pa.string()) if self.type == TEXT else _plain(label)


def find_classes(label: pa.ChunkedArray) -> Classes:
    """The classes of these labels. The empty text is a class; a missing label is not."""
    values = pc.unique(_plain(label)).drop_null()
    values = values.take(pc.sort_indices(values))
    return Classes(
        names=tuple(values.cast(pa.string()).to_pylist()),
        type=str(values.type) if is_number(values.type) else TEXT,
    )


def _plain(label: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert all texts to the type `string`; in numbers, replace NaN and infinity by missing values, and
    negative zero by zero."""
    if is_text(label.type):
        return label.cast(pa.string())
    if not pa.types.is_floating(label.type):
        return label
    return pc.if_else(
        pc.is_finite(label), pc.add(label, pa.scalar(0, label.type)), pa.scalar(None, label.type)
    )


def _arrow_type(name: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(name):
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    return pa.type_for_alias(name)


def probability_columns(classes: Sequence[str]) -> tuple[str, ...]:
    """The columns of a prediction that hold the classes' probabilities."""
    return tuple(f"probability_{name}" for name in classes)
