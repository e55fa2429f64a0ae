"""Datasets of what models said: joined by key and time, the truth left aside; two models in a row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.clean_process import predict
from tests.kit.dataset_case import DatasetCase
from tests.kit.learning_data import prediction_context, series, training_context

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.dataset import AsOfJoin, Basis, DatasetSpec, Join, Label, Split
from gridmill.domain.training import FoldsBy
from gridmill.errors import InputError
from gridmill.jobs.tables import columns_of
from gridmill.jobs.training.run import run as train

HOUR = np.timedelta64(1, "h")
DAY = np.datetime64("2024-01-01T00", "us")
SALES = Basis(table="sales", time="moment", entity=("shop",))


def said(case: DatasetCase, **details: object) -> None:
    """A prediction `said` of the hours 0, 1 and 2."""
    table = pa.table(
        {
            "shop": ["a"] * 3,
            "moment": pa.array(DAY + np.arange(3) * HOUR, pa.timestamp("us", "UTC")),
            "row": [0, 1, 2],
            "prediction": [None, 10.0, 20.0],
            "truth": [7.0, 8.0, 9.0],
            "fold": [0, 1, 2],
        }
    )
    folder = case.folder / "root/predictions/said"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-00000.parquet")
    case.tables["said"] = Output(
        kind=ArtifactKind.PREDICTION,
        uri="predictions/said",
        rows=3,
        columns=columns_of(table.schema),
        details={"time": "moment", "entity": ["shop"]} | details,
    )


@pytest.fixture
def case(tmp_path: Path) -> DatasetCase:
    found = DatasetCase(tmp_path)
    at = pa.array(DAY + np.arange(4) * HOUR, pa.timestamp("us", "UTC"))
    found.give("sales", {"shop": ["a"] * 4, "moment": at, "sold": [1.0, 2.0, 3.0, 4.0]})
    said(found)
    return found


def test_a_prediction_is_known_with_its_own_row(case):
    spec = DatasetSpec(basis=SALES, joins=(Join(table="said", on=("shop", "moment"), prefix="m_"),))
    output = case.make(spec)
    table = case.table(output)
    assert table.column_names == ["shop", "moment", "sold", "m_prediction"]
    assert table["m_prediction"].to_pylist() == [None, 10.0, 20.0, None]
    assert output.details["predictions"] == ["said"]
    assert output.details["static"] == []


def test_an_as_of_join_sees_only_what_was_said_before(case):
    spec = DatasetSpec(basis=SALES, asof_joins=(AsOfJoin(table="said", known_at="moment", on=("shop",)),))
    table = case.table(case.make(spec))
    assert table.column_names == ["shop", "moment", "sold", "prediction"]
    assert table["prediction"].to_pylist() == [None, None, 10.0, 20.0]


def test_the_truth_is_added_where_it_is_named(case):
    join = Join(table="said", on=("shop", "moment"), columns=("prediction", "truth"))
    assert "truth" in case.table(case.make(DatasetSpec(basis=SALES, joins=(join,)))).column_names


def test_predictions_can_be_the_rows_and_their_error_a_label(case):
    basis = Basis(table="said", time="moment", entity=("shop",))
    output = case.make(DatasetSpec(basis=basis, label=Label(column="truth", name="target")))
    assert output.details["features"] == ["prediction"]
    assert case.table(output)["target"].to_pylist() == [7.0, 8.0, 9.0]


def test_one_of_several_labels_that_were_said_is_a_feature(case):
    path = case.folder / "root/predictions/said/part-00000.parquet"
    lists = pa.array([None, [1.0, 2.0], [3.0, 4.0]])
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("prediction"), "prediction", lists), path)
    spec = DatasetSpec(
        basis=SALES, joins=(Join(table="said", on=("shop", "moment")),), features={"second": "prediction[2]"}
    )
    output = case.make(spec)
    assert case.table(output)["second"].to_pylist() == [None, 2.0, 4.0, None]
    assert "prediction" not in output.details["features"]


def test_predictions_are_a_table_of_sql(case):
    rows = case.rows(
        DatasetSpec(sql="SELECT row, truth - prediction AS missed FROM said ORDER BY row", tables=("said",))
    )
    assert [row["missed"] for row in rows] == [None, -2.0, -11.0]


def test_another_table_with_times_still_says_when_it_was_known(case):
    other = case.table(case.tables["said"])
    case.give("other", other)
    with pytest.raises(InputError, match="does not declare when its rows become known"):
        case.make(DatasetSpec(basis=SALES, joins=(Join(table="other", on=("shop", "moment")),)))


@pytest.mark.parametrize("by", [FoldsBy.TIME, None])
def test_a_cascade_over_noise_learns_only_what_leaks(tmp_path, by):
    """A second model of what the first says: with folds it finds nothing in noise, without them it does."""
    case, columns = DatasetCase(tmp_path), noise()
    case.give("raw", columns)
    basis = Basis(table="raw", time="time", entity=("city",))
    label, split = Label(column="ahead"), Split(validation=0.15, test=0.15)
    first = case.make(DatasetSpec(basis=basis, label=label, split=split), name="first")
    root = tmp_path / "root"
    dataset = Artifact(id="p/first@1", name="p/first", number=1, output=first, fingerprint="f")
    folds = {"folds": 4, "folds_by": by} if by else {}
    model = train(training_context(root, dataset, "linear", regularization=0.001, **folds)).outputs[0]
    trained = {"m": Artifact(id="p/m@1", name="p/m", number=1, output=model, fingerprint="g")}
    case.tables["said"] = predict(prediction_context(root, dataset, trained, split=None)).outputs[0]
    slim = replace(basis, columns=("city",))
    join = Join(table="said", on=("city", "time"))
    spec = DatasetSpec(basis=slim, joins=(join,), label=label, split=split, required=("prediction",))
    table = case.table(case.make(spec, name="second"))
    rows = table.filter(pa.compute.equal(table["split"], "train"))
    found = np.corrcoef(rows["prediction"].to_numpy(), rows["label"].to_numpy())[0, 1]
    assert abs(found) < 0.25 if by else found > 0.4


def noise(rows: int = 300, features: int = 60) -> dict[str, object]:
    random = np.random.default_rng(1)
    plain = {name: values[:rows] for name, values in series(rows=rows).items() if name in ("city", "time")}
    return (
        plain
        | {f"f{n}": random.normal(size=rows) for n in range(features)}
        | {"ahead": random.normal(size=rows)}
    )
