"""Chooses how the columns of a dataset become inputs of a model. The choice depends only on the training
rows."""

from collections.abc import Mapping, Sequence
from dataclasses import field

import pyarrow as pa
import pyarrow.compute as pc

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError
from gridmill.jobs.features import Encoding, is_number, is_text

MOST_CATEGORIES = 32
"""The largest number of 0/1 inputs of a text column. With more inputs, the text column would outweigh the
other columns."""
ROWS_PER_VALUE = 2
"""If a text column has fewer rows per distinct value than this number, it is treated as an identifier or
free text, which is of little use for a model."""
_HINT = (
    "In the dataset, compute numbers from the column (from a time, for example hour(...)), or leave it out "
    "of `features`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenColumns:
    """The encodings of the columns, and remarks for the user.

    `left_out` contains the columns without an encoding, with the reason. `grouped` contains the text columns
    that have more values than inputs. For each of these columns, `grouped` contains the number of values and
    the fraction of rows whose value has its own input.
    """

    encodings: tuple[Encoding, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    grouped: Mapping[str, tuple[int, float]] = field(default_factory=dict)


def choose_encodings(train: pa.Table, names: Sequence[str], *, declared: bool) -> ChosenColumns:
    """Choose the encodings of these columns from the training rows.

    A numeric column becomes a single input. In a text column with up to 32 values, each value has an input.
    If a text column has more values, the 31 most frequent values have an input each, and all other values
    share an input. Columns of other types, and text columns with fewer than two rows per value, are left
    out, unless the declaration names them (`declared`). If such a text column is declared, it is encoded. If
    a column of another type is declared, the function raises an error. A text column without any value is
    always left out, because it would have no input. Raises DataError.
    """
    encodings: list[Encoding] = []
    left_out: dict[str, str] = {}
    grouped: dict[str, tuple[int, float]] = {}
    for name in names:
        column = train[name]
        if is_number(column.type):
            encodings.append(Encoding(column=name, type=str(column.type)))
        elif not is_text(column.type):
            if declared:
                problem = f"feature {name!r} has type {column.type}, which no model can use"
                raise DataError(problem, hint=_HINT, place="training.features")
            left_out[name] = str(column.type)
        else:
            values, counts = _by_frequency(column)
            rows = sum(counts)
            if rows == 0:
                left_out[name] = "text, no values in the training rows"
                continue
            if not declared and len(values) > MOST_CATEGORIES and rows < ROWS_PER_VALUE * len(values):
                left_out[name] = f"text, {len(values):,} values in {rows:,} rows"
                continue
            encodings.append(_categories(name, values))
            if encodings[-1].others:
                own = len(encodings[-1].categories or ())
                grouped[name] = (len(values), sum(counts[:own]) / rows)
    return ChosenColumns(encodings=tuple(encodings), left_out=left_out, grouped=grouped)


def _by_frequency(column: pa.ChunkedArray) -> tuple[list[str], list[int]]:
    """Return the values and their counts, the most frequent value first. Equally frequent values are sorted
    by value."""
    counts = pc.value_counts(column.cast(pa.string()).drop_null())
    pairs = sorted(
        zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True),
        key=lambda pair: (-pair[1], pair[0]),
    )
    return [value for value, _ in pairs], [count for _, count in pairs]


def _categories(name: str, values: Sequence[str]) -> Encoding:
    others = len(values) > MOST_CATEGORIES
    own = values[: MOST_CATEGORIES - 1] if others else values
    return Encoding(column=name, type="string", categories=tuple(sorted(own)), others=others)
