"""Golden rows: what a model predicted when it was trained, predicted again from the files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_training_stored import OPTIONS, joined, own_or_imported, trained

from gridmill.domain.drift import STATISTICS_FILE
from gridmill.domain.serving import ServedVersion, Verification
from gridmill.errors import DataError
from gridmill.jobs.apply_model import apply_model
from gridmill.jobs.golden_rows import GOLDEN, MOST, GoldenRows, check_golden, load_golden
from gridmill.jobs.model_files import load_model
from gridmill.serving.drift_counter import drift_counter
from gridmill.serving.served_model import load_version


def golden_of(folder: Path) -> GoldenRows:
    found = load_golden(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("model", OPTIONS)
def test_each_kind_of_model_carries_rows_that_it_reproduces(tmp_path: Path, model: str, classes: int):
    _, artifact = trained(tmp_path, model, classes)
    folder = tmp_path / artifact.output.uri
    golden = golden_of(folder)
    assert len(golden) == MOST
    assert golden.outputs.shape == (MOST, classes or 1)
    assert {GOLDEN, STATISTICS_FILE} <= set(artifact.output.details["files"])
    assert check_golden(load_model(folder), golden) <= 1
    lengths = {table.num_rows for table in golden.groups()}
    assert lengths == ({1} if model != "lstm" else {5})


def test_a_row_is_as_a_program_passes_it(tmp_path: Path):
    # the public way of predictions gets the same columns and returns the same numbers
    _, artifact = trained(tmp_path, "lstm")
    folder = tmp_path / artifact.output.uri
    golden = golden_of(folder)
    for table, output in zip(golden.groups(), golden.outputs, strict=True):
        answer = apply_model(folder, "m", table)["prediction"].to_pylist()[-1]
        assert answer == pytest.approx(output[0])
    assert set(golden.example()) == set(golden.rows.column_names)


def test_an_imported_graph_and_an_ensemble_carry_rows_too(tmp_path: Path):
    _, artifact = own_or_imported(tmp_path / "a", "custom", 0)
    folder = tmp_path / "a" / artifact.output.uri
    assert check_golden(load_model(folder), golden_of(folder)) <= 1
    artifact = joined(tmp_path / "b", ("linear", "lstm", "gbdt"), "weighted", 0)
    folder = tmp_path / "b" / artifact.output.uri
    golden = golden_of(folder)
    assert {table.num_rows for table in golden.groups()} == {5}
    assert check_golden(load_model(folder), golden) <= 1


def test_another_prediction_is_refused_with_its_row(tmp_path: Path):
    _, artifact = trained(tmp_path, "gbdt")
    folder = tmp_path / artifact.output.uri
    golden = golden_of(folder)
    outputs = golden.outputs.copy()
    outputs[6] += 0.02 * load_model(folder).card.spread[0]
    changed = GoldenRows(rows=golden.rows, ends=golden.ends, outputs=outputs)
    with pytest.raises(DataError, match=r"golden row 7 of 20.*1 rows differ"):
        check_golden(load_model(folder), changed)
    outputs[6] = np.nan
    with pytest.raises(DataError, match="golden row 7"):
        check_golden(load_model(folder), changed)


def test_a_damaged_file_is_an_error_and_a_missing_one_is_not(tmp_path: Path):
    assert load_golden(tmp_path) is None
    (tmp_path / GOLDEN).write_bytes(b"ARROW1\0\0 and nothing else")
    with pytest.raises(DataError, match=GOLDEN):
        load_golden(tmp_path)
    table = pa.table({"x": [1]})
    with pa.OSFile(str(tmp_path / GOLDEN), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="cannot be read"):
        load_golden(tmp_path)


@pytest.mark.parametrize(("models", "classes"), [(("linear", "lstm", "gbdt"), 0), (("gbdt", "linear"), 3)])
def test_a_service_verifies_an_ensemble_and_counts_its_rows(
    tmp_path: Path, models: tuple[str, ...], classes: int
):
    artifact = joined(tmp_path, models, "vote" if classes else "weighted", classes)
    folder = tmp_path / artifact.output.uri
    model = load_version(ServedVersion(label="p/e@1", folder=str(folder)), "1", 1)
    assert model.verification is Verification.VERIFIED
    counter = drift_counter(model)
    assert counter is not None
    inputs = np.zeros((30, *model.input_shape))
    counter.add(inputs, model.predict(inputs))
    counter.count()
    assert {sum(one) for one in counter.counts} == {30}
