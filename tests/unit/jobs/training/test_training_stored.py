"""A model's files are the model: compared before the version is made, for each kind."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper, load_from_string, numpy_helper
from sklearn.ensemble import HistGradientBoostingRegressor
from test_answers import by_code
from tests.kit.learning_data import artifact_of, series, training_context, write_dataset

from gridmill.cli.describe import graph_words
from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.training import Combine
from gridmill.errors import InputError, InternalError
from gridmill.jobs.context import CODE, JobContext
from gridmill.jobs.dataset_reader import open_partitions
from gridmill.jobs.features import encode, windows
from gridmill.jobs.model_files import GraphPredictor, ModelCard, load_model
from gridmill.jobs.training import gbdt, linear, mlp
from gridmill.jobs.training.check_files import EXTREMES, check_stored, edge_rows, sample_rows
from gridmill.jobs.training.data import SortedFrame, read_frame
from gridmill.jobs.training.gbdt import collect_trees, tree_graph
from gridmill.jobs.training.label_scale import LabelScale
from gridmill.jobs.training.result import FittedModel
from gridmill.jobs.training.run import run

OPTIONS = {
    "lstm": {"sequence": 5, "hidden": 8, "epochs": 2, "batch_size": 64},
    "mlp": {"hidden": 8, "epochs": 2, "batch_size": 64},
    "gbdt": {"trees": 30},
    "linear": {},
    "naive": {},
}


def columns(classes: int = 0) -> dict[str, object]:
    """With missing and infinite values in training, and a feature on a large offset."""
    known = series(160)
    known["humid"] = np.where(np.arange(480) % 50 == 0, np.inf, known["humid"])
    known["since"] = 1.7e9 + 60.0 * np.arange(480)
    if classes:
        names = np.array(["a", "b", "c"][:classes])
        known["ahead"] = names[np.digitize(known["ahead"], [47, 53][: classes - 1])]
    return known


def trained(root: Path, model: str, classes: int = 0, **options: object) -> tuple[Artifact, Artifact]:
    """The dataset and the model."""
    dataset = write_dataset(root, columns(classes))
    context = training_context(root, dataset, model, name=model, **(OPTIONS[model] | options))
    return dataset, artifact_of(model, run(context).outputs[0])


def rows_of(root: Path, card: ModelCard) -> np.ndarray:
    """The dataset's inputs as the model takes them."""
    table = open_partitions(root / "datasets/d").read([one.column for one in card.encodings])
    inputs = encode(table, card.encodings)
    starts = np.repeat(np.arange(3) * 160, 160)
    return inputs if card.sequence is None else inputs[windows(np.arange(480), starts, card.sequence)]


def asked(folder: Path, inputs: np.ndarray) -> np.ndarray:
    """What plain ONNX Runtime answers by `model.onnx`."""
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"inputs": inputs})[0]


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("model", OPTIONS)
def test_every_kind_of_model_is_compared_with_its_files(tmp_path: Path, model: str, classes: int):
    _, artifact = trained(tmp_path, model, classes)
    found = artifact.output.details["file_check"]
    assert found["rows"] == artifact.output.details["rows"]["train"] == 240
    assert found["edge_rows"] > len(EXTREMES)
    assert 0 <= found["difference"] <= 1
    folder = tmp_path / artifact.output.uri
    predictor = load_model(folder)
    inputs = rows_of(tmp_path, predictor.card)[::7]
    expected = predictor.predict(inputs)
    np.testing.assert_allclose(asked(folder, inputs), expected, rtol=1e-6, atol=1e-7)
    facts = onnxruntime.InferenceSession(folder / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(facts.get("gridmill.classes", "[]")) == list("abc"[:classes])
    assert json.loads(facts["gridmill.inputs"]) == list(predictor.card.inputs)


@pytest.mark.parametrize("model", OPTIONS)
def test_infinite_inputs_of_the_file_count_as_missing(tmp_path: Path, model: str):
    _, artifact = trained(tmp_path, model)
    folder = tmp_path / artifact.output.uri
    predictor = load_model(folder)
    inputs = rows_of(tmp_path, predictor.card)[:50]
    random = np.random.default_rng(0)
    chosen = random.random(inputs.shape) < 0.3
    infinite, missing = inputs.copy(), inputs.copy()
    infinite[chosen] = np.where(random.random(chosen.sum()) < 0.5, np.inf, -np.inf)
    missing[chosen] = np.nan
    expected = predictor.predict(missing)
    np.testing.assert_array_equal(asked(folder, infinite), expected)
    assert np.isfinite(expected).all()
    assert (expected != predictor.predict(inputs)).any()


def own_or_imported(root: Path, name: str, classes: int) -> tuple[Artifact, Artifact]:
    if name != "custom":
        return trained(root, name, classes)
    dataset = write_dataset(root, columns())
    context = training_context(root, dataset, "custom", name=name, file="model.onnx")
    (context.work / CODE).mkdir()
    (context.work / CODE / "model.onnx").write_bytes(single_graph(8))
    return dataset, artifact_of(name, run(context).outputs[0])


def joined(root: Path, models: tuple[str, ...], combine: str, classes: int) -> Artifact:
    made = {name: own_or_imported(root / name, name, classes) for name in models}
    dataset = write_dataset(root, columns(classes))
    for name in models:
        (root / f"outputs-{name}").mkdir()
        (root / name / "outputs" / name).rename(root / f"outputs-{name}/m")
    inputs = [
        Input(name=name, artifact=replace(one, output=replace(one.output, uri=f"outputs-{name}/m")))
        for name, (_, one) in made.items()
    ]
    context = training_context(root, dataset, "ensemble", name="e", models=models, combine=Combine(combine))
    order = replace(context.order, inputs=(*context.order.inputs, *inputs))
    return artifact_of("e", run(replace(context, order=order)).outputs[0])


@pytest.mark.parametrize(
    ("models", "combine", "classes"),
    [
        (("linear", "gbdt", "naive"), "mean", 0),
        (("linear", "lstm", "gbdt"), "weighted", 0),
        (("linear", "mlp", "lstm", "naive"), "mean", 2),
        (("gbdt", "mlp", "linear"), "vote", 3),
    ],
)
def test_an_ensemble_is_one_graph_too(tmp_path: Path, models: tuple[str, ...], combine: str, classes: int):
    artifact = joined(tmp_path, models, combine, classes)
    assert artifact.output.details["file_check"]["difference"] <= 1
    assert "model.onnx" in artifact.output.details["files"]
    folder = tmp_path / artifact.output.uri
    predictor = load_model(folder)
    inputs = rows_of(tmp_path, predictor.card)
    np.testing.assert_allclose(asked(folder, inputs), predictor.predict(inputs), rtol=1e-9, atol=1e-9)


def test_an_ensemble_with_an_imported_graph_says_that_it_has_none_itself(tmp_path: Path):
    output = joined(tmp_path, ("linear", "custom"), "mean", 0).output
    assert "model.onnx" not in output.details["files"]
    assert output.details["file_check"]["difference"] <= 1
    words = graph_words(output.details)
    assert words == "none: this version of Gridmill did not create the graph of one of its models"


def test_show_says_what_the_graph_was_compared_by(tmp_path: Path):
    details = trained(tmp_path, "linear")[1].output.details
    edges = details["file_check"]["edge_rows"]
    expected = f"equals the trained model in 240 training rows and {edges} rows of extreme values"
    assert graph_words(details) == expected
    assert graph_words({}) == ""


def fitted(root: Path, kind: object, name: str) -> tuple[SortedFrame, FittedModel, ModelCard]:
    dataset = write_dataset(root, columns())
    context = training_context(root, dataset, name, **OPTIONS[name])
    spec = context.order.job.training
    assert spec is not None
    frame = read_frame(context, spec)
    result = run(context)
    assert result.outputs
    return frame, kind.fit(frame, spec, context), load_model(root / "outputs/m").card


@pytest.mark.parametrize(("kind", "name"), [(gbdt, "gbdt"), (linear, "linear"), (mlp, "mlp")])
def test_a_file_that_is_a_little_off_is_refused(tmp_path: Path, kind: object, name: str):
    frame, made, card = fitted(tmp_path, kind, name)
    sample = sample_rows(frame, None)
    assert check_stored([GraphPredictor(card=card, graph=made.graph)], made.trained, sample)
    model = load_from_string(made.graph)
    nudge = numpy_helper.from_array(np.array(frame.target[frame.rows["train"]].std() / 1000), "nudge")
    model.graph.initializer.append(nudge)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Add", ["before", "nudge"], ["output"]))
    wrong = GraphPredictor(card=card, graph=model.SerializeToString())
    with pytest.raises(
        InternalError, match=r"for training row \d+ the files give .* and the model in memory"
    ):
        check_stored([wrong], made.trained, sample)


def test_a_file_that_takes_infinite_inputs_otherwise_is_refused(tmp_path: Path):
    frame, made, card = fitted(tmp_path, gbdt, "gbdt")
    model = load_from_string(made.graph)
    for node in model.graph.node:
        node.input[:] = ["inputs" if name == "v3" else name for name in node.input]
    wrong = GraphPredictor(card=card, graph=model.SerializeToString())
    with pytest.raises(InternalError, match=r"for a row with an input of -?inf the files give"):
        check_stored([wrong], made.trained, sample_rows(frame, None))


def test_edge_rows_hold_every_extreme_in_every_input(tmp_path: Path):
    dataset = write_dataset(tmp_path, columns())
    context = training_context(tmp_path, dataset, "linear")
    frame = read_frame(context, context.order.job.training)
    names, rows = zip(
        *((name, rows.copy()) for name, rows in edge_rows(sample_rows(frame, None))), strict=True
    )
    every = np.concatenate(rows)
    for extreme in EXTREMES:
        same = np.isnan(every) if np.isnan(extreme) else every == extreme
        assert same.any(axis=0).all()
        assert same.all(axis=1).any()
    assert "with an unseen category in 'city'" in names


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("(x[:, 3:4] > x[:, 3].mean()) == [0, 1]", "if other rows are in the same call"),
        ("np.random.default_rng().dirichlet([1, 1], len(x))", "if other rows are in the same call"),
    ],
)
def test_code_that_answers_by_other_rows_or_by_chance_is_refused(tmp_path: Path, answer: str, text: str):
    with pytest.raises(InputError, match=text) as caught:
        run(by_code(tmp_path, answer))
    assert caught.value.place == "training.predict"


def test_code_that_answers_row_by_row_is_not(tmp_path: Path):
    result = run(by_code(tmp_path, "(x[:, 3:4] > 50) == [0, 1]"))
    assert 8 <= result.outputs[0].details["file_check"]["rows"] <= 75


def test_thresholds_of_a_time_in_seconds_are_doubles(tmp_path: Path):
    random = np.random.default_rng(0)
    x = np.stack([1.7e9 + random.integers(0, 400, 2000) / 8, random.normal(size=2000)], axis=1)
    y = np.sin(x[:, 0]) * 3 + x[:, 1]
    model = HistGradientBoostingRegressor(max_iter=40, random_state=0).fit(x, y)
    trees = collect_trees(model)
    graph = tree_graph(trees, 2, 0, LabelScale())
    near = []
    for feature, threshold in zip(trees.feature[~trees.leaf], trees.threshold[~trees.leaf], strict=True):
        for value in (threshold, np.nextafter(threshold, np.inf), np.nextafter(threshold, -np.inf)):
            row = x[len(near) % 2000].copy()
            row[feature] = value
            near.append(row)
    (tmp_path / "model.onnx").write_bytes(graph)
    np.testing.assert_allclose(asked(tmp_path, np.array(near)), model.predict(near), rtol=0, atol=2e-6)


def single_graph(width: int) -> bytes:
    """A graph over 32-bit floats that gives its fourth input back."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "place"], ["y"], axis=1)],
        "g",
        [helper.make_tensor_value_info("x", 1, [None, width])],
        [helper.make_tensor_value_info("y", 1, [None])],
        [helper.make_tensor("place", 7, [], [3])],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def imported(root: Path, **more: object) -> JobContext:
    known = series(100) | more
    context = training_context(root, write_dataset(root, known), "custom", file="model.onnx")
    (context.work / CODE).mkdir()
    (context.work / CODE / "model.onnx").write_bytes(single_graph(7 + len(more)))
    return context


def test_an_imported_graph_over_single_floats_names_the_inputs_it_cannot_tell_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    run(imported(tmp_path, since=1.7e9 + np.arange(300), code=np.arange(300)))
    said = capfd.readouterr().out
    assert "32-bit floats" in said
    assert "since" in said
    assert "code" not in said.split("32-bit floats")[1]


def test_an_imported_graph_over_single_floats_gets_no_infinite_inputs(tmp_path: Path):
    card = ModelCard(kind="custom", objective="regression", labels=("y",), encodings=())
    predictor = GraphPredictor(card=card, graph=single_graph(5))
    found = predictor.predict(np.array([[0, 0, 0, 1e300, 0], [0, 0, 0, -1e300, 0]]))
    assert found.tolist() == [float(np.finfo(np.float32).max), -float(np.finfo(np.float32).max)]
