"""Models are compared on the same rows, which none has learned from, and only if they predict the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, mean_squared_error
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.comparison import best_models
from gridmill.domain.remarks import remarks_of
from gridmill.domain.training import Combine
from gridmill.errors import DataError, InputError
from gridmill.jobs.training.run import run as train

FEATURES = ["value", "humid", "wave", "slope"]


def learn(root: Path, dataset: Artifact, model: str, name: str, **options: object) -> Artifact:
    return artifact_of(name, train(training_context(root, dataset, model, name, **options)).outputs[0])


def ensemble(root: Path, dataset: Artifact, members: dict[str, Artifact], combine: Combine) -> Artifact:
    context = training_context(root, dataset, "ensemble", "both", models=tuple(members), combine=combine)
    inputs = (*context.order.inputs, *(Input(name=name, artifact=one) for name, one in members.items()))
    return artifact_of(
        "both", train(replace(context, order=replace(context.order, inputs=inputs))).outputs[0]
    )


def version(root: Path, number: int, columns: dict[str, object] | None = None, **details: object) -> Artifact:
    return write_dataset(
        root, columns or series(), number=number, features=details.pop("features", FEATURES), **details
    )


def said(root: Path, dataset: Artifact, model: Artifact, split: str):
    """What a model says of a split, alone."""
    output = predict(prediction_context(root, dataset, {"m": model}, split=split)).outputs[0]
    table = pq.read_table(root / "outputs/swarm")
    for path in (root / "outputs/swarm").iterdir():
        path.unlink()
    return output, table


def moved(columns: dict[str, object], train_until: int, validation_until: int) -> dict[str, object]:
    """The series with other borders, in rows of each entity."""
    number = np.tile(np.arange(400), 3)
    split = np.where(number < train_until, "train", np.where(number < validation_until, "validation", "test"))
    return columns | {"split": split}


def changed(columns: dict[str, object], since: int) -> dict[str, object]:
    """The label follows another rule from that row of each entity on."""
    late = np.tile(np.arange(400), 3) >= since
    return columns | {"ahead": np.where(late, -3 * columns["ahead"], columns["ahead"])}


def test_a_model_of_an_easier_time_does_not_win_by_what_it_was_measured_on(tmp_path):
    easy, hard = moved(series(), 60, 90), changed(moved(series(), 250, 330), 100)
    old = learn(tmp_path, version(tmp_path, 1, easy), "linear", "old")
    now = version(tmp_path, 2, hard)
    new = learn(tmp_path, now, "linear", "new")
    models = {"old": old, "new": new}
    errors = {}
    for name, model in models.items():
        _, table = said(tmp_path, now, model, "validation")
        errors[name] = mean_squared_error(table["truth"], table["prediction"]) ** 0.5
    assert old.output.metrics["validation_rmse"] < new.output.metrics["validation_rmse"] / 10
    details = predict(prediction_context(tmp_path, now, models)).outputs[0].details
    assert details["model"] == min(errors, key=errors.get) == "new"
    measured = {one["name"]: one["measured"]["rmse"] for one in details["candidates"]}
    assert measured == pytest.approx(errors)
    assert details["comparison"]["rows"] == details["comparison"]["labelled"] == 240


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("classes", [False, True])
def test_the_best_is_the_best_of_a_plain_evaluation(tmp_path, seed, classes):
    random = np.random.default_rng(seed)
    columns = series(seed=seed)
    if classes:
        columns |= {"ahead": np.where(columns["ahead"] + random.normal(0, 5, 1200) > 50, "high", "low")}
    dataset = version(tmp_path, 1, columns)
    kinds = {
        "naive": {},
        "linear": {"regularization": float(10 ** random.uniform(0, 4))},
        "gbdt": {"trees": 9},
    }
    models = {kind: learn(tmp_path, dataset, kind, kind, **options) for kind, options in kinds.items()}
    scores = {}
    for name, model in models.items():
        _, table = said(tmp_path, dataset, model, "validation")
        scores[name] = (
            log_loss(table["truth"], np.stack([table["probability_high"], table["probability_low"]], axis=1))
            if classes
            else mean_squared_error(table["truth"], table["prediction"]) ** 0.5
        )
    details = predict(prediction_context(tmp_path, dataset, models)).outputs[0].details
    measured = {
        one["name"]: one["measured"]["log_loss" if classes else "rmse"] for one in details["candidates"]
    }
    assert measured == pytest.approx(scores)
    assert details["model"] == min(scores, key=scores.get)


HOUR = {"column": "value", "horizon_seconds": 3600.0}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"label_of": HOUR | {"horizon_seconds": 86400.0}},
            "differ in horizon: .*value, 1h later.*value, 1d",
        ),
        ({"label_of": HOUR | {"column": "humid"}}, "differ in column"),
        ({"label_of": {"column": "value", "steps": 1}}, "differ in horizon, steps"),
        ({"columns": {"ahead": series()["ahead"] > 50}}, "differ in type, objective"),
    ],
)
def test_models_of_other_labels_are_refused_and_both_are_named(tmp_path, other, words):
    columns = series() | other.pop("columns", {})
    here = version(tmp_path, 1, label_of=HOUR)
    there = version(tmp_path, 2, columns, **({"label_of": HOUR} | other))
    models = {"a": learn(tmp_path, here, "linear", "a"), "b": learn(tmp_path, there, "linear", "b")}
    with pytest.raises(InputError, match=f"model 'a' and model 'b' {words}"):
        predict(prediction_context(tmp_path, here, models))
    with pytest.raises(InputError, match="model 'b' and dataset p/d@1 differ in"):
        predict(prediction_context(tmp_path, here, {"b": models["b"]}))
    with pytest.raises(InputError, match="model 'a' and model 'b' differ"):
        ensemble(tmp_path, here, models, Combine.MEAN)


def test_models_of_other_classes_are_refused(tmp_path):
    large = series()["ahead"] > 50
    here = version(tmp_path, 1, series() | {"ahead": np.where(large, "P", "Q")})
    there = version(tmp_path, 2, series() | {"ahead": np.where(large, "p", "q")})
    models = {"a": learn(tmp_path, here, "linear", "a"), "b": learn(tmp_path, there, "linear", "b")}
    with pytest.raises(InputError, match=r"differ in classes.*classes P, Q.*classes p, q"):
        predict(prediction_context(tmp_path, here, models))


def test_a_model_whose_columns_the_dataset_lacks_is_named_with_it(tmp_path):
    wide = version(tmp_path, 1)
    narrow = version(
        tmp_path, 2, {k: v for k, v in series().items() if k != "humid"}, features=["value", "wave", "slope"]
    )
    models = {"a": learn(tmp_path, narrow, "linear", "a"), "b": learn(tmp_path, wide, "linear", "b")}
    with pytest.raises(DataError, match="model 'b' needs column 'humid', which dataset p/d@2 does not have"):
        predict(prediction_context(tmp_path, narrow, models))


def test_rows_that_a_candidate_has_learned_from_are_left_out_for_all(tmp_path):
    first = version(tmp_path, 1, moved(series(), 220, 300))
    now = version(tmp_path, 2, moved(series(), 200, 300))
    models = {"old": learn(tmp_path, first, "gbdt", "old"), "new": learn(tmp_path, now, "linear", "new")}
    output = predict(prediction_context(tmp_path, now, models)).outputs[0]
    comparison = output.details["comparison"]
    assert (comparison["rows"], comparison["labelled"]) == (240, 300)
    assert comparison["learned"] == {"old": 60}
    for one in output.details["candidates"]:
        _, table = said(tmp_path, now, models[one["name"]], "validation")
        rest = np.flatnonzero(table["row"].to_numpy() % 400 >= 220)
        error = mean_squared_error(table["truth"].take(rest), table["prediction"].take(rest)) ** 0.5
        assert one["measured"]["rmse"] == pytest.approx(error)
    assert any("compared on 240 of 300 validation rows" in one.text for one in remarks_of(predicted(output)))


def predicted(output) -> Artifact:
    return artifact_of("swarm", output)


def test_a_candidate_that_has_learned_from_nearly_all_validation_rows_is_not_compared(tmp_path):
    later = version(tmp_path, 1, moved(series(), 290, 350))
    now = version(tmp_path, 2, moved(series(), 200, 300))
    models = {"seen": learn(tmp_path, later, "gbdt", "seen"), "new": learn(tmp_path, now, "naive", "new")}
    output = predict(prediction_context(tmp_path, now, models)).outputs[0]
    assert output.details["model"] == "new"
    assert output.details["comparison"]["left_out"] == {
        "seen": "the model was trained on 270 of the 300 validation rows"
    }
    assert any(one.warning and "seen is not compared" in one.text for one in remarks_of(predicted(output)))
    with pytest.raises(InputError, match="cannot be compared on the validation rows of p/d@2"):
        predict(prediction_context(tmp_path, now, {"seen": models["seen"], "again": models["seen"]}))


def test_without_validation_rows_only_models_of_the_same_rows_are_compared(tmp_path):
    dataset = version(tmp_path, 1)
    future = version(tmp_path, 2, {name: some for name, some in series().items() if name != "ahead"})
    models = {name: learn(tmp_path, dataset, name, name) for name in ("naive", "linear")}
    output = predict(prediction_context(tmp_path, future, models)).outputs[0]
    assert output.details["model"] == "linear"
    assert output.details["comparison"]["stored"]
    other = learn(tmp_path, version(tmp_path, 3, changed(series(), 250)), "linear", "other")
    with pytest.raises(
        InputError, match=r"measured on different validation rows .'naive' on p/d@1, 'other' on p/d@3"
    ):
        predict(prediction_context(tmp_path, future, {"naive": models["naive"], "other": other}))


def test_a_test_split_is_measured_without_the_rows_that_the_model_has_learned_from(tmp_path):
    before = version(tmp_path, 1, moved(series(), 250, 320))
    now = version(tmp_path, 2, moved(series(), 150, 200))
    model = learn(tmp_path, before, "gbdt", "m")
    output, table = said(tmp_path, now, model, "test")
    rest = table["row"].to_numpy() % 400 >= 320
    kept = np.flatnonzero(rest)
    error = mean_squared_error(table["truth"].take(kept), table["prediction"].take(kept)) ** 0.5
    assert output.metrics["test_rmse"] == pytest.approx(error)
    assert output.details["learned_rows"] == {
        "train": 150, "validation": 210, "unknown": 0, "excluded": 360, "measured": 240,
    }  # fmt: skip
    lines = [one.line for one in remarks_of(predicted(output))]
    assert any("warning: " in line and "was trained on 150 of the 600 rows" in line for line in lines)


def test_a_model_of_random_rows_is_warned_of_and_not_measured_where_it_has_seen_all(tmp_path):
    random = np.random.default_rng(0)
    drawn = series() | {"split": random.choice(["train", "validation"], 1200, p=[0.8, 0.2])}
    model = learn(tmp_path, version(tmp_path, 1, drawn), "gbdt", "m")
    output, _ = said(tmp_path, version(tmp_path, 2), model, "test")
    assert output.metrics == {}
    assert output.details["learned_rows"]["excluded"] == 300
    assert any("there are no metrics" in one.text and one.warning for one in remarks_of(predicted(output)))


def test_rows_are_known_again_by_their_values_where_keys_do_not_tell_them_apart(tmp_path):
    same = series() | {"time": np.full(1200, np.datetime64("2024-01-01", "us"))}
    before = version(tmp_path, 1, moved(same, 250, 320))
    order = np.random.default_rng(1).permutation(1200)
    now = {name: values[order] for name, values in moved(same, 150, 200).items()}
    output, _ = said(tmp_path, version(tmp_path, 2, now), learn(tmp_path, before, "linear", "m"), "test")
    assert output.details["learned_rows"]["excluded"] == 360


def test_an_ensemble_is_weighed_and_measured_on_rows_that_no_member_has_learned_from(tmp_path):
    before = version(tmp_path, 1, moved(series(), 240, 320))
    now = version(tmp_path, 2, moved(series(), 200, 300))
    members = {"a": learn(tmp_path, before, "gbdt", "a"), "b": learn(tmp_path, now, "linear", "b")}
    both = ensemble(tmp_path, now, members, Combine.WEIGHTED)
    assert both.output.details["not_measured"] == {"validation": 120, "test": 60}
    errors, answers = [], {}
    for member in members.values():
        _, table = said(tmp_path, now, member, "validation")
        kept = np.flatnonzero(table["row"].to_numpy() % 400 >= 240)
        errors.append(mean_squared_error(table["truth"].take(kept), table["prediction"].take(kept)))
        answers[member.name] = said(tmp_path, now, member, "test")[1]
    weights = (1 / np.array(errors)) / (1 / np.array(errors)).sum()
    assert list(both.output.details["importance"].values()) == pytest.approx(sorted(weights, reverse=True))
    tables = list(answers.values())
    kept = np.flatnonzero(tables[0]["row"].to_numpy() % 400 >= 320)
    mixed = sum(
        w * table["prediction"].take(kept).to_numpy() for w, table in zip(weights, tables, strict=True)
    )
    error = mean_squared_error(tables[0]["truth"].take(kept), mixed) ** 0.5
    assert both.output.metrics["test_rmse"] == pytest.approx(error)
    output, _ = said(tmp_path, now, both, "test")
    assert output.metrics["test_rmse"] == pytest.approx(error)


def test_the_best_model_of_a_run_is_of_the_same_label_and_rows(tmp_path):
    here = version(tmp_path, 1, label_of=HOUR)
    there = version(tmp_path, 2, moved(series(), 60, 90), label_of=HOUR)
    models = [learn(tmp_path, here, kind, kind) for kind in ("naive", "linear")]
    models.append(learn(tmp_path, there, "linear", "easy"))
    assert models[2].output.metrics["validation_rmse"] != models[1].output.metrics["validation_rmse"]
    assert [one.id for one, *_ in best_models(models[:2])] == ["p/linear@1"]
    ((best, name, of),) = best_models(models)
    assert (best.id, name, of) == (
        "p/linear@1",
        "validation_rmse",
        " of ahead: value, 1h later (regression) on p/d@1",
    )


def test_a_dataset_of_another_label_is_predicted_and_said_to_measure_nothing(tmp_path):
    model = learn(tmp_path, version(tmp_path, 1), "linear", "m")
    columns = series()
    other = {name: some for name, some in columns.items() if name != "ahead"} | {"later": columns["ahead"]}
    output, _ = said(tmp_path, version(tmp_path, 2, other, label="later"), model, "test")
    assert output.metrics == {}
    lines = [one.text for one in remarks_of(predicted(output))]
    assert "no metrics: the model predicts ahead, the dataset's label is later" in lines
