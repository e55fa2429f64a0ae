"""Rows of a request have the same inputs as their columns, in whatever order texts and numbers are."""

import itertools
import json
import math

import numpy as np
import pytest

from gridmill.jobs.features import Encoding
from gridmill.serving.fields import RowReader

KINDS = {
    "n": Encoding(column="", type="double"),
    "b": Encoding(column="", type="bool"),
    "t": Encoding(column="", type="string", categories=("x", "y")),
    "o": Encoding(column="", type="string", categories=("x", "y"), others=True),
    "e": Encoding(column="", type="string", categories=()),
}
VALUES = {"n": [1.5, None, -0.0], "b": [True, None, 0], "t": ["y", None, "z"], "o": ["x", None, "z"]}


@pytest.mark.parametrize("sequence", [None, 2])
@pytest.mark.parametrize("kinds", ["n", "t", "nn", "tn", "nt", "tt", "nto", "nnotbn", "oonnet", "bnntnno"])
def test_rows_and_columns_have_the_same_inputs(kinds, sequence):
    encodings = [
        Encoding(
            column=f"c {place}",
            type=KINDS[kind].type,
            categories=KINDS[kind].categories,
            others=KINDS[kind].others,
        )
        for place, kind in enumerate(kinds)
    ]
    reader = RowReader(encodings, sequence)
    choices = [VALUES.get(kind, ["x", None]) for kind in kinds]
    rows = list(itertools.islice(itertools.product(*choices), 40))
    objects = [{f"c {place}": value for place, value in enumerate(row)} for row in rows]
    body = json.dumps(objects if sequence is None else [[one] for one in objects]).encode()
    read = reader.read(body)
    columns = reader.inputs_of_columns([list(column) for column in zip(*rows, strict=True)])
    expected = columns if sequence is None else np.stack([columns] * sequence, axis=1)
    np.testing.assert_array_equal(read, expected)
    assert read.dtype == np.float64
    empty = reader.read(b"[]")
    assert (len(empty), math.prod(empty.shape)) == (0, 0)
    assert empty.shape[1:] == expected.shape[1:]
