"""A new version and that of an alias are measured on the newest labelled rows from which neither learned."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kit.clean_process import predict
from tests.kit.learning_data import artifact_of, prediction_context, series, training_context, write_dataset

from gridmill.codec import from_builtins
from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.promotion import PROMOTION, PromotionMeasurement, PromotionSpec
from gridmill.errors import InputError
from gridmill.jobs.training.run import run as train

FEATURES = ["value", "humid", "wave", "slope"]
ALIAS = "p/m@champion"


def version(root: Path, number: int, columns: dict[str, object]) -> Artifact:
    return write_dataset(root, columns, number=number, features=FEATURES)


def learn(root: Path, dataset: Artifact, number: int) -> Artifact:
    made = training_context(root, dataset, "linear", f"m{number}")
    output = train(made).outputs[0]
    return replace(artifact_of("m", output), id=f"p/m@{number}", number=number)


def until(
    columns: dict[str, object], rows: int, train_until: int, validation_until: int
) -> dict[str, object]:
    """The first rows of each entity, with these borders of the splits."""
    place = np.tile(np.arange(400), 3)
    split = np.where(place < train_until, "train", np.where(place < validation_until, "validation", "test"))
    return {name: np.asarray(values)[place < rows] for name, values in (columns | {"split": split}).items()}


def measured(
    root: Path, dataset: Artifact, new: Artifact, old: Artifact | None, **terms
) -> PromotionMeasurement:
    spec = PromotionSpec(alias=ALIAS, **terms)
    context = prediction_context(root, dataset, {"m": new}, promote=spec)
    if old is not None:
        inputs = (*context.order.inputs, Input(name=ALIAS, artifact=old))
        context = replace(context, order=replace(context.order, inputs=inputs))
    return from_builtins(predict(context).outputs[0].details[PROMOTION], PromotionMeasurement)


@pytest.fixture
def old_and_new(tmp_path):
    """The old model has seen the first 150 rows of each entity; then the label changed its sign."""
    columns = series()
    columns["ahead"] = np.where(np.tile(np.arange(400), 3) >= 150, -columns["ahead"], columns["ahead"])
    old = learn(tmp_path, version(tmp_path, 1, until(columns, 150, 80, 120)), 1)
    dataset = version(tmp_path, 2, until(columns, 400, 300, 350))
    return tmp_path, dataset, learn(tmp_path, dataset, 2), old


def test_both_are_measured_on_the_newest_rows_with_the_same_metric(old_and_new):
    root, dataset, new, old = old_and_new
    result = measured(root, dataset, new, old)
    assert (result.candidate, result.serving, result.metric) == ("p/m@2", "p/m@1", "rmse")
    assert (result.rows, result.problem) == (150, "")
    assert (result.begins, result.ends) == ("2024-01-15T14:00:00", "2024-01-17T15:00:00")
    assert result.candidate_value is not None
    assert result.serving_value is not None
    assert result.candidate_value < result.serving_value


def test_a_period_keeps_only_its_newest_rows(old_and_new):
    root, dataset, new, old = old_and_new
    result = measured(root, dataset, new, old, period_seconds=36_000.0, min_rows=30)
    assert (result.rows, result.begins) == (30, "2024-01-17T06:00:00")


def test_rows_without_a_label_do_not_count(tmp_path):
    columns = series()
    place = np.tile(np.arange(400), 3)
    columns["ahead"] = np.where(place >= 360, np.nan, columns["ahead"])
    old = learn(tmp_path, version(tmp_path, 1, until(columns, 150, 80, 120)), 1)
    dataset = version(tmp_path, 2, until(columns, 400, 300, 350))
    result = measured(tmp_path, dataset, learn(tmp_path, dataset, 2), old)
    assert result.problem == "30 rows with a label, and at least 100 are needed"
    assert result.candidate_value is None


def test_a_version_that_learned_from_the_rows_is_not_compared(tmp_path):
    columns = series()
    old = learn(tmp_path, version(tmp_path, 1, until(columns, 400, 385, 395)), 1)
    dataset = version(tmp_path, 2, until(columns, 400, 300, 350))
    result = measured(tmp_path, dataset, learn(tmp_path, dataset, 2), old)
    assert result.problem == (
        "only 15 of 150 rows with a label are newer than the rows from which p/m@1 has learned, and at least "
        "100 are needed"
    )


def test_without_a_version_of_the_alias_nothing_is_compared(old_and_new):
    root, dataset, new, _ = old_and_new
    assert measured(root, dataset, new, None) == PromotionMeasurement(candidate="p/m@2", metric="rmse")


def test_a_version_that_predicts_something_else_is_not_compared(old_and_new):
    root, dataset, new, _ = old_and_new
    classes = series() | {"ahead": np.where(series()["ahead"] > 50, "high", "low")}
    other = learn(root, version(root, 3, classes), 3)
    result = measured(root, dataset, new, other)
    assert "predicts" in result.problem
    assert result.serving_value is None


def test_an_alias_of_another_model_is_refused(old_and_new):
    root, dataset, new, _ = old_and_new
    context = prediction_context(root, dataset, {"m": new}, promote=PromotionSpec(alias="p/other@champion"))
    with pytest.raises(InputError, match="is an alias of p/other, but the model is p/m") as error:
        predict(context)
    assert error.value.place == "prediction.promote.alias"
