"""Columns as they come: how text, identifiers, dates and missing values become inputs, or are left out."""

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.remarks import remarks_of
from gridmill.errors import DataError, InputError
from gridmill.jobs.features import Encoding, count_unknown, encode
from gridmill.jobs.model_files import load_card
from gridmill.jobs.prediction.run import run as predict
from gridmill.jobs.training.columns import choose_encodings
from gridmill.jobs.training.run import run

COUNTS = [400 - number for number in range(300)]
"""How often each of 300 categories occurs: the 31 most frequent ones are the first."""
WHO = [f"who {number:03}" for number, count in enumerate(COUNTS) for _ in range(count)]


def chosen(declared: bool = False, **columns: object):
    table = pa.table(columns)
    return choose_encodings(table, table.column_names, declared=declared)


def test_of_hundreds_of_categories_the_most_frequent_have_an_input_each():
    found = chosen(who=WHO)
    (encoding,) = found.encodings
    assert encoding.categories == tuple(f"who {number:03}" for number in range(31))
    assert encoding.inputs[-1] == "who=(others)"
    assert found.grouped == {"who": (300, sum(COUNTS[:31]) / sum(COUNTS))}
    assert found.left_out == {}


def test_32_categories_have_an_input_each():
    (encoding,) = chosen(who=[f"{number:02}" for number in range(32)] * 2).encodings
    assert len(encoding.inputs) == 32
    assert not encoding.others


def test_equally_frequent_categories_are_chosen_by_their_order():
    values = [f"{number:02}" for number in range(40)] * 3
    for rows in (values, values[::-1]):
        assert chosen(who=rows).encodings[0].categories == tuple(sorted(values)[::3][:31])


@pytest.mark.parametrize("declared", [False, True])
def test_text_without_any_value_is_left_out(declared):
    found = chosen(note=pa.nulls(3, pa.string()), x=[1.0, 2.0, 3.0], declared=declared)
    assert [one.column for one in found.encodings] == ["x"]
    assert found.left_out == {"note": "text, no values in the training rows"}


def test_identifiers_and_times_are_left_out_with_what_they_are():
    names = [f"row {number}" for number in range(100)]
    found = chosen(id=names, born=[date(2000, 1, 1)] * 100, tags=[[1]] * 100, x=[1.0] * 100)
    assert [one.column for one in found.encodings] == ["x"]
    assert found.left_out == {
        "id": "text, 100 values in 100 rows",
        "born": "date32[day]",
        "tags": "list<item: int64>",
    }


def test_a_declared_feature_is_encoded_or_refused_but_never_left_out():
    (encoding,) = chosen(declared=True, id=[f"row {number}" for number in range(100)]).encodings
    assert len(encoding.inputs) == 32
    with pytest.raises(DataError, match="feature 'born' has type date32"):
        chosen(declared=True, born=[date(2000, 1, 1)])


def test_a_few_rows_with_a_value_each_are_categories():
    assert chosen(who=[f"{number}" for number in range(20)]).left_out == {}


@pytest.mark.parametrize("others", [False, True])
def test_unknown_and_missing_values(others):
    encoding = Encoding(column="c", type="string", categories=("a", "b"), others=others)
    table = pa.table({"c": ["a", "b", "z", None, ""]})
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]
    width = 3 if others else 2
    assert encode(table, [encoding]).tolist() == [row[:width] for row in expected]
    assert count_unknown(table, [encoding], np.arange(5)) == (0 if others else 2)


@pytest.mark.parametrize("model", ["gbdt", "linear", "mlp"])
def test_a_model_learns_and_predicts_with_them(tmp_path: Path, model: str):
    columns = series()
    names = np.array([f"id {number:04}" for number in range(1200)])
    kind = np.array([f"kind {number * number % 97:02}" for number in range(1200)])
    dataset = write_dataset(tmp_path, {**columns, "id": names, "kind": kind, "seen": columns["time"]})
    trained = run(training_context(tmp_path, dataset, model)).outputs[0]
    lines = [remark.text for remark in remarks_of(artifact_of("m", trained))]
    assert "2 columns not used as features: id (text, 600 values in 600 rows), seen (timestamp[us])" in lines
    assert any(line.startswith("kind has 49 values: the most frequent ones have") for line in lines)
    assert {"id", "seen"}.isdisjoint(trained.details["features"])
    card = load_card(tmp_path / "outputs/m")
    assert sum(name.startswith("kind=") for name in card.inputs) == 32
    result = predict(prediction_context(tmp_path, dataset, {"m": artifact_of("m", trained)}))
    assert result.outputs[0].rows == 300
    assert result.outputs[0].details["unpredicted_rows"] == 0


def test_a_dataset_of_nothing_but_identifiers_is_refused(tmp_path: Path):
    columns = series(100)
    rows = len(columns["time"])
    kept = {name: columns[name] for name in ("time", "ahead", "split")}
    dataset = write_dataset(tmp_path, kept | {"id": [f"id {n}" for n in range(rows)]}, entity=[])
    with pytest.raises(
        InputError, match=r"no features to learn from: id \(text, 150 values in 150 rows\) cannot"
    ):
        run(training_context(tmp_path, dataset, "linear"))
