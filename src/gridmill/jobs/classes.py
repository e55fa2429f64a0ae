"""Class labels: the order, the names and the type of the classes."""

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
    """The classes of a label, in the order of the probabilities that the model returns.

    Classes are sorted by value if they are numbers or booleans, by time if they are times, and by code
    points if they are texts. `names` are the classes as texts, and `type` is the Arrow name of the type of
    the label. Labels that are neither numbers nor booleans have the type `string`.
    """

    names: tuple[str, ...] = ()
    type: str = TEXT

    def values(self) -> pa.Array:
        """Return the classes as values of the type of the label."""
        return pa.array(self.names, pa.string()).cast(_arrow_type(self.type))

    def numbers(self, label: pa.ChunkedArray) -> Floats:
        """Return for each row the number of its class: -1 for a class that the training rows do not have,
        NaN for a missing label.

        If the label has another numeric type than in training, its values are compared as doubles. Labels
        that are not numbers are compared as texts.
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
        """Return the true labels as a prediction table stores them: numbers and booleans unchanged, all
        other labels as texts."""
        return label.cast(pa.string()) if self.type == TEXT else _plain(label)


def find_classes(label: pa.ChunkedArray) -> Classes:
    """Return the classes that occur in a column of labels. The empty text is a class, but a missing label is
    not."""
    values = pc.unique(_plain(label)).drop_null()
    values = values.take(pc.sort_indices(values))
    return Classes(
        names=tuple(values.cast(pa.string()).to_pylist()),
        type=str(values.type) if is_number(values.type) else TEXT,
    )


def _plain(label: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert all texts of a label column to the type `string`. Among numbers, replace NaN and infinity by
    missing values, and negative zero by zero."""
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
    """Return the names of the columns of a prediction that hold the probabilities of the classes."""
    return tuple(f"probability_{name}" for name in classes)
