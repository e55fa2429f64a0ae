"""Random datasets of columns that are hard to describe: each is made, shown and reported."""

import json
import random
from pathlib import Path

import pyarrow as pa

from gridmill.domain.dataset import DatasetSpec, Label
from tests.kit.dataset_case import DatasetCase

_VALUES = (
    "NULL",
    "'nan'::DOUBLE",
    "'inf'::DOUBLE",
    "'-inf'::DOUBLE",
    "-0.0::DOUBLE",
    "5e-324",
    "1.7976931348623157e308",
    "-1e308",
    "1790000000000000000",
    "9007199254740993",
    "19.99",
    "19.990000000000002",
    "i",
    "-i * i",
    "i / 3.0",
)


def case(seed: int, folder: Path) -> None:
    """Make a dataset whose columns are drawn from nasty values, and check its statistics."""
    draw = random.Random(seed)
    rows = draw.choice((1, 2, 3, 50, 400))
    dataset = DatasetCase(folder)
    dataset.give("t", {"i": pa.array(range(rows), pa.int64())})
    columns = {f"x{number}": _column(draw) for number in range(draw.randint(1, 6))}
    listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    label = Label(column="i") if rows > 1 and draw.random() < 0.5 else None
    output = dataset.make(DatasetSpec(sql=f"SELECT i, {listed} FROM t", tables=("t",), label=label))
    details = json.loads(json.dumps(output.details, allow_nan=False))
    problems = {name: facts for name, facts in details["statistics"]["columns"].items() if "problem" in facts}
    assert output.rows == rows, (columns, output.rows)
    assert not problems, (columns, problems)


def _column(draw: random.Random) -> str:
    values = [draw.choice(_VALUES) for _ in range(draw.randint(1, 3))]
    cases = "".join(f" WHEN i % {len(values)} = {at} THEN {sql}" for at, sql in enumerate(values))
    kind = draw.choice(("DOUBLE", "DOUBLE", "FLOAT", "VARCHAR"))
    return f"TRY_CAST(CASE{cases} END AS {kind})"
