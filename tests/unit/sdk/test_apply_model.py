"""A loaded model predicts a program's own rows exactly as a prediction job predicts those of a dataset."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.clean_process import predict
from tests.kit.clean_process import train as train_clean
from tests.kit.learning_data import (
    artifact_of,
    by_code,
    prediction_context,
    series,
    training_context,
    write_dataset,
)

from gridmill.domain.artifact import Artifact, Input
from gridmill.errors import DataError, InputError
from gridmill.jobs.training.run import run as train
from gridmill.sdk.loaded import Version

pandas = pytest.importorskip("pandas")

OPTIONS = {
    "lstm": {"sequence": 5, "hidden": 8, "epochs": 1, "batch_size": 64},
    "mlp": {"hidden": 8, "epochs": 1, "batch_size": 64},
    "gbdt": {"trees": 20},
    "linear": {},
    "naive": {},
}
SHORT = "ignore:.*fewer than .* earlier rows"


def columns(classes: int = 0) -> dict[str, object]:
    known = series(60)
    if classes:
        names = np.array(["a", "b", "c"][:classes])
        known["ahead"] = names[np.digitize(known["ahead"], [47, 53][: classes - 1])]
    return known


def trained(root: Path, model: str, classes: int = 0, **options: object) -> tuple[Artifact, Artifact]:
    dataset = write_dataset(root, columns(classes))
    context = training_context(root, dataset, model, name=model, **(OPTIONS[model] | options))
    return dataset, artifact_of(model, train(context).outputs[0])


def job_result(root: Path, dataset: Artifact, model: Artifact, **options: object) -> pa.Table:
    """What a prediction job writes for all rows."""
    predict(prediction_context(root, dataset, {model.name.partition("/")[2]: model}, split=None, **options))
    return pq.read_table(root / "outputs/swarm")


def loaded(root: Path, artifact: Artifact) -> Version:
    return Version(artifact=artifact, root=str(root))


def rows_of(root: Path) -> pa.Table:
    return pq.read_table(root / "datasets/d")


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name


@pytest.mark.filterwarnings(SHORT)
@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("model", OPTIONS)
def test_each_kind_of_model_predicts_what_a_job_predicts(tmp_path: Path, model: str, classes: int):
    dataset, artifact = trained(tmp_path, model, classes)
    found = loaded(tmp_path, artifact).predict(rows_of(tmp_path))
    assert_same(found, job_result(tmp_path, dataset, artifact))


def test_quantiles_and_a_threshold_are_those_of_a_job(tmp_path: Path):
    for number, options in enumerate([{"quantiles": (0.1, 0.9)}, {"threshold": 0.7}]):
        root = tmp_path / str(number)
        dataset, artifact = trained(root, "linear", 2 * number, **options)
        assert_same(
            loaded(root, artifact).predict(rows_of(root)),
            job_result(root, dataset, artifact),
        )


@pytest.mark.filterwarnings(SHORT)
def test_an_ensemble_predicts_what_a_job_predicts(tmp_path: Path):
    dataset, lstm = trained(tmp_path, "lstm")
    gbdt = artifact_of(
        "gbdt", train(training_context(tmp_path, dataset, "gbdt", name="gbdt", trees=20)).outputs[0]
    )
    members = {"lstm": lstm, "gbdt": gbdt}
    context = training_context(tmp_path, dataset, "ensemble", name="both", models=tuple(members))
    inputs = (*context.order.inputs, *(Input(name=n, artifact=a) for n, a in members.items()))
    both = artifact_of(
        "both", train(replace(context, order=replace(context.order, inputs=inputs))).outputs[0]
    )
    found = loaded(tmp_path, both).predict(rows_of(tmp_path))
    assert_same(found, job_result(tmp_path, dataset, both))


def test_a_model_by_code_is_asked_where_it_is_trusted(tmp_path: Path):
    context = by_code(tmp_path, "np.stack([x[:, 3] % 1, 1 - x[:, 3] % 1], 1)")
    model = artifact_of("m", train_clean(context).outputs[0])
    version, rows = loaded(tmp_path, model), rows_of(tmp_path)
    with pytest.raises(InputError, match="predicts with its own code") as caught:
        version.predict(rows)
    assert "predict(rows, trust=True)" in caught.value.hint
    [dataset] = [one.artifact for one in context.order.inputs]
    found = version.predict(rows, trust=True)
    assert_same(found, job_result(tmp_path, dataset, model, trust=True))


@pytest.mark.filterwarnings(SHORT)
def test_rows_of_a_sequence_model_may_come_in_any_order(tmp_path: Path):
    _, artifact = trained(tmp_path, "lstm")
    rows = rows_of(tmp_path)
    order = np.random.default_rng(1).permutation(rows.num_rows)
    found = loaded(tmp_path, artifact).predict(rows.take(order))
    straight = loaded(tmp_path, artifact).predict(rows)
    assert found["prediction"].to_pylist() == straight.take(order)["prediction"].to_pylist()
    assert found["row"].to_pylist() == list(range(rows.num_rows))


def test_rows_without_their_history_are_counted(tmp_path: Path):
    _, artifact = trained(tmp_path, "lstm")
    with pytest.warns(UserWarning, match="3 of 3 rows have fewer than 4 earlier rows"):
        loaded(tmp_path, artifact).predict(rows_of(tmp_path).slice(10, 3))
    with pytest.raises(InputError, match="reads the last 5 rows of each entity, and needs 'time'"):
        loaded(tmp_path, artifact).predict(rows_of(tmp_path).drop_columns(["time"]))


def test_the_pieces_that_many_rows_are_predicted_in_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, artifact = trained(tmp_path, "lstm")
    rows = rows_of(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = loaded(tmp_path, artifact).predict(rows)
        monkeypatch.setattr("gridmill.jobs.apply_model.PIECE_ROWS", 7)
        assert_same(loaded(tmp_path, artifact).predict(rows), whole)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Version:
    root = tmp_path_factory.mktemp("linear")
    return loaded(root, trained(root, "linear")[1])


@pytest.fixture
def rows(linear: Version) -> pa.Table:
    return rows_of(Path(linear.root))


def test_the_result_has_the_form_of_the_rows(linear: Version, rows: pa.Table):
    expected = linear.predict(rows)
    frame = rows.to_pandas().set_index(np.arange(1000, 1000 + rows.num_rows))
    found = linear.predict(frame)
    assert list(found.index) == list(frame.index)
    assert found["prediction"].tolist() == expected["prediction"].to_pylist()
    assert linear.predict(rows.to_pylist()) == expected.to_pylist()
    batch = linear.predict(rows.combine_chunks().to_batches()[0])
    assert batch["prediction"].to_pylist() == expected["prediction"].to_pylist()[: batch.num_rows]


def test_polars_frames_are_rows_too(linear: Version, rows: pa.Table):
    polars = pytest.importorskip("polars")
    found = linear.predict(polars.from_arrow(rows))
    assert isinstance(found, polars.DataFrame)
    assert found["prediction"].to_list() == linear.predict(rows)["prediction"].to_pylist()


def test_categories_and_missing_values_of_pandas_are_taken(linear: Version, rows: pa.Table):
    frame = rows.to_pandas()
    other = frame.assign(city=frame["city"].astype("category"), humid=frame["humid"].astype("Float64"))
    assert linear.predict(other)["prediction"].tolist() == linear.predict(frame)["prediction"].tolist()


def test_columns_go_by_name_and_others_do_not_matter(linear: Version, rows: pa.Table):
    expected = linear.predict(rows)
    mixed = rows.select(rows.column_names[::-1]).append_column("note", pa.array(["x"] * rows.num_rows))
    assert_same(linear.predict(mixed), expected)
    without = linear.predict(rows.select(linear.columns))
    assert without.column_names == ["city", "row", "prediction"]
    assert without["prediction"].to_pylist() == expected["prediction"].to_pylist()


def test_missing_columns_are_all_named(linear: Version, rows: pa.Table):
    renamed = rows.rename_columns([{"humid": "humidity"}.get(n, n) for n in rows.column_names])
    with pytest.raises(
        InputError, match=r"needs the columns 'humid' \(there is `humidity`\), 'wave'"
    ) as caught:
        linear.predict(renamed.drop_columns(["wave"]))
    assert "The model needs city, value, humid, wave, slope, in any order" in caught.value.hint


def test_a_category_that_training_did_not_have_is_counted(linear: Version, rows: pa.Table):
    place = rows.column_names.index("city")
    other = rows.set_column(place, "city", pa.array(["a"] * (rows.num_rows - 1) + ["nowhere"]))
    with pytest.warns(
        UserWarning, match="1 of 180 rows have a category in city that model p/linear@1 did not"
    ):
        linear.predict(other)


def test_missing_values_and_no_rows_at_all_are_predicted(linear: Version, rows: pa.Table):
    [found] = linear.predict([dict.fromkeys(linear.columns)])
    assert isinstance(found["prediction"], float)
    assert linear.predict(rows.slice(0, 0)).num_rows == 0
    assert linear.predict(rows.slice(0, 0)).column_names == linear.predict(rows).column_names


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (5, InputError, "not int"),
        ({"value": 1.0}, InputError, "not dict"),
        ("rows.csv", InputError, "not str"),
        ([5], InputError, "row 0 is int"),
        ([{"value": 1.0}, {"value": "x"}], InputError, "cannot be read as a table"),
        (pa.table([[1], [2]], names=["a", "a"]), InputError, "several columns have the same name: 'a'"),
        (pandas.DataFrame({"value": [1.0, "x"]}), InputError, "cannot be read as a table"),
        ([], InputError, "needs the columns 'city'"),
    ],
)
def test_what_holds_no_rows_is_one_clear_error(linear: Version, given: object, error: type, text: str):
    with pytest.raises(error, match=text):
        linear.predict(given)


def test_a_column_of_another_type_is_an_error(linear: Version, rows: pa.Table):
    place = rows.column_names.index("wave")
    with pytest.raises(DataError, match=r"column 'wave' was double in training and is string now"):
        linear.predict(rows.set_column(place, "wave", pa.array(["x"] * rows.num_rows)))


@pytest.mark.filterwarnings(SHORT)
@pytest.mark.parametrize(("model", "classes"), [("lstm", 0), ("gbdt", 3), ("linear", 2), ("mlp", 0)])
def test_another_program_uses_the_graph_by_the_names_in_its_metadata(
    tmp_path: Path, model: str, classes: int
):
    _, artifact = trained(tmp_path, model, classes)
    version = loaded(tmp_path, artifact)
    version.write(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    facts = {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()}
    frame = rows_of(tmp_path).to_pandas()
    inputs = inputs_of(frame, facts["gridmill.columns"])
    assert inputs.shape[1] == len(facts["gridmill.inputs"])
    if model == "lstm":
        length = facts["gridmill.sequence"]
        assert (facts["gridmill.entity"], facts["gridmill.time"]) == (["city"], "time")
        inputs = np.stack([inputs[max(0, n + 1 - length) : n + 1] for n in range(length - 1, 60)])
    [answer] = session.run(None, {"inputs": inputs})
    expected = version.predict(frame)
    if classes:
        assert facts["gridmill.classes"] == list("abc"[:classes])
        for number, name in enumerate(facts["gridmill.classes"]):
            np.testing.assert_allclose(answer[:, number], expected[f"probability_{name}"], rtol=1e-6)
    else:
        first = facts.get("gridmill.sequence", 1) - 1
        np.testing.assert_allclose(answer, expected["prediction"][first : first + len(answer)], rtol=1e-6)


def inputs_of(frame: "pandas.DataFrame", described: list[dict[str, object]]) -> np.ndarray:
    """As docs/how-to/results.md shows it."""
    parts = []
    for column in described:
        values = frame[column["column"]]
        if column["categories"] is None:
            parts.append(values.to_numpy("float64", na_value=np.nan)[:, None])
            continue
        known = np.array([values == one for one in column["categories"]]).T
        if column["others"]:
            known = np.column_stack([known, values.notna() & ~known.any(axis=1)])
        parts.append(known.astype("float64"))
    return np.concatenate(parts, axis=1)


def test_neither_torch_nor_what_trains_is_loaded(tmp_path: Path):
    _, artifact = trained(tmp_path, "mlp")
    program = (
        "import sys, pyarrow.parquet as pq\n"
        "from gridmill.domain.artifact import Artifact, ArtifactKind, Output\n"
        "from gridmill.sdk.loaded import Version\n"
        f"output = Output(kind=ArtifactKind.MODEL, uri={artifact.output.uri!r})\n"
        "artifact = Artifact(id='p/m@1', name='p/m', number=1, output=output, fingerprint='f')\n"
        f"rows = pq.read_table({str(tmp_path / 'datasets/d')!r})\n"
        f"Version(artifact=artifact, root={str(tmp_path)!r}).predict(rows)\n"
        "print([name for name in ('torch', 'sklearn', 'optuna') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
