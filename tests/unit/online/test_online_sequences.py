"""Sequences at request time equal those of training: the last rows of the entity, with their own features."""

from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.dataset_case import DatasetCase
from tests.kit.online_case import OnlineCase
from tests.oracles.dataset_cases import note_version
from tests.unit.online.test_online_same import is_close

from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Label, Lag, Window
from gridmill.errors import InputError
from gridmill.jobs.features import runs, windows
from gridmill.online.build import ViewLimits

LENGTH = 4
SPEC = DatasetSpec(
    basis=Basis(table="temps", time="at", entity=("id",)),
    windows=(Window(column="x", aggregates=(Aggregate.MEAN, Aggregate.LAST), span_seconds=3600.0),),
    lags=(Lag(column="word", steps=(1,)),),
    features={"twice": "2 * x + coalesce(x_mean_1h, 0)"},
)
START = datetime(2024, 1, 1)


def make_case(folder: Path, seed: int) -> OnlineCase:
    random = Random(seed)
    rows = [
        {
            "id": random.choice(("a", "b", "c")),
            "at": START + timedelta(minutes=10 * random.randint(0, 30)),
            "x": random.choice((None, random.random(), float(number))),
            "word": random.choice(("u", "v", None, "")),
        }
        for number in range(60)
    ]
    tables = DatasetCase(folder)
    tables.give("temps", pa.Table.from_pylist(rows).cast(pa.schema(SCHEMA)))
    note_version(tables, "temps")
    case = OnlineCase(tables, SPEC, limits=ViewLimits(reach_back_seconds=1.0), sequence=LENGTH)
    case.build()
    return case


SCHEMA = [
    ("id", pa.string()),
    ("at", pa.timestamp("us", "UTC")),
    ("x", pa.float64()),
    ("word", pa.string()),
]


@pytest.mark.parametrize("seed", range(3))
def test_a_sequence_has_the_rows_and_features_of_training(seed: int, tmp_path: Path):
    case = make_case(tmp_path, seed)
    table = case.tables.table(case.tables.make(SPEC))
    rows = table.to_pylist()
    # of rows with the same key and time, only the first has no row of its own time in its sequence
    firsts = runs(table, ["id", "at"])
    asked = np.unique(firsts)
    places = windows(asked, runs(table, ["id"]), LENGTH)
    features = case.features()
    made = features.features_for(
        [{name: rows[at][name] for name in ("id", "at", "x", "word")} for at in asked]
    )
    features.close()
    found = made.columns.to_pylist()
    assert len(found) == LENGTH * len(asked)
    for number, place in enumerate(places.reshape(-1)):
        for name in made.columns.column_names:
            assert is_close(found[number][name], rows[place][name]), f"{name} of row {place}"
    assert {len(one) for one in made.statuses.values()} == {len(found)}


def test_an_unknown_key_repeats_its_own_row(tmp_path: Path):
    case = make_case(tmp_path, 0)
    features = case.features()
    made = features.features_for([{"id": "new", "x": 1.5, "word": "u"}]).columns.to_pylist()
    features.close()
    assert [row["x"] for row in made] == [1.5] * LENGTH
    assert [row["twice"] for row in made] == [3.0] * LENGTH


def test_earlier_rows_lack_what_only_requests_send(tmp_path: Path):
    label = Label(column="x", horizon_seconds=600.0, name="later")
    over = Window(column="later", aggregates=(Aggregate.MEAN,), span_seconds=3600.0)
    case = make_case(tmp_path, 0)
    spec = DatasetSpec(basis=SPEC.basis, windows=(over,), label=label)
    with pytest.raises(InputError, match="requests send later_mean_1h, which earlier rows do not have"):
        OnlineCase(case.tables, spec, sequence=2).make_plan(sent=["later_mean_1h"])
