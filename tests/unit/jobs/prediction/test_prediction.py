"""Prediction jobs: the best model, every row of the split exactly once, as good as training measured."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.clean_process import predict
from tests.kit.learning_data import (
    artifact_of,
    events_of,
    prediction_context,
    series,
    training_context,
    write_dataset,
)

from gridmill.domain.artifact import Artifact, Input
from gridmill.domain.footprint import count_shards
from gridmill.domain.training import Combine
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset_reader import fetch_piece, open_partitions
from gridmill.jobs.prediction.shards import cut
from gridmill.jobs.prediction.swarm import ShardQueue
from gridmill.jobs.training.run import run as train

OPTIONS = {
    "lstm": {"sequence": 12, "hidden": 8, "epochs": 2, "learning_rate": 0.01, "batch_size": 64},
    "gbdt": {"trees": 30},
    "linear": {},
    "naive": {},
}


def prepare(
    root: Path, *models: str, columns: dict[str, object] | None = None
) -> tuple[Artifact, dict[str, Artifact]]:
    dataset = write_dataset(root, columns or series())
    trained = {}
    for name in models:
        result = train(training_context(root, dataset, name, name=name, **OPTIONS[name]))
        trained[name] = artifact_of(name, result.outputs[0])
    return dataset, trained


def result_of(root: Path):
    return pq.read_table(root / "outputs/swarm")


@pytest.mark.parametrize("model", list(OPTIONS))
@pytest.mark.parametrize("workers", [1, 3])
def test_a_swarm_gives_what_training_measured(tmp_path, model, workers):
    dataset, trained = prepare(tmp_path, model)
    result = predict(prediction_context(tmp_path, dataset, trained, workers=workers))
    measured = {
        name: value for name, value in trained[model].output.metrics.items() if name.startswith("test_")
    }
    assert dict(result.metrics) == pytest.approx(measured)


def test_every_row_of_the_split_is_there_once_and_in_order(tmp_path):
    dataset, trained = prepare(tmp_path, "lstm")
    context = prediction_context(tmp_path, dataset, trained, workers=2, shards=7)
    output = predict(context).outputs[0]
    columns = series()
    expected = np.flatnonzero(columns["split"] == "test")
    table = result_of(tmp_path)
    assert table["row"].to_pylist() == expected.tolist()
    assert table["city"].to_pylist() == columns["city"][expected].tolist()
    np.testing.assert_allclose(table["truth"], columns["ahead"][expected])
    assert output.rows == 300
    names = {path.name for path in (tmp_path / "outputs/swarm").iterdir()}
    assert names == {f"part-{shard:05}.parquet" for shard in range(7)}  # any reader takes the folder
    progress = [event for event in events_of(context) if event["type"] == "progress"]
    assert [event["total"] for event in progress] == [300] * 7
    assert progress[-1]["done"] == 300


def test_the_best_model_is_chosen_and_it_says_why(tmp_path):
    dataset, trained = prepare(tmp_path, "naive", "linear")
    details = predict(prediction_context(tmp_path, dataset, trained)).outputs[0].details
    assert details["model"] == "linear"
    assert details["model_id"] == "p/linear@1"
    assert details["why"].startswith("linear has the lowest validation rmse")
    assert [candidate["name"] for candidate in details["candidates"]] == ["naive", "linear"]


def test_best_by_goes_the_way_of_its_metric(tmp_path):
    dataset, trained = prepare(tmp_path, "naive", "linear")
    details = predict(prediction_context(tmp_path, dataset, trained, best_by="skill")).outputs[0].details
    assert details["model"] == "linear"
    assert "highest validation skill" in details["why"]


def test_the_sample_holds_points_of_each_entity(tmp_path):
    dataset, trained = prepare(tmp_path, "naive")
    sample = predict(prediction_context(tmp_path, dataset, trained)).outputs[0].details["sample"]
    assert list(sample) == ["a", "b", "c"]
    assert len(sample["a"]) == 100
    assert sample["a"][0][0] == "2024-01-13T12:00:00"


def test_all_rows_can_be_predicted_even_an_entitys_first(tmp_path):
    dataset, trained = prepare(tmp_path, "lstm")
    result = predict(prediction_context(tmp_path, dataset, trained, split=None))
    table = result_of(tmp_path)
    assert table["row"].to_pylist() == list(range(1200))
    assert np.isfinite(table["prediction"].to_numpy()).all()
    assert "all_rmse" in result.metrics


def test_the_number_of_shards_and_workers_changes_nothing(tmp_path):
    dataset, trained = prepare(tmp_path, "lstm")
    predict(prediction_context(tmp_path, dataset, trained, workers=1, shards=1))
    alone = result_of(tmp_path)["prediction"].to_numpy()
    for path in (tmp_path / "outputs/swarm").iterdir():
        path.unlink()
    predict(prediction_context(tmp_path, dataset, trained, workers=3, shards=50))
    np.testing.assert_allclose(result_of(tmp_path)["prediction"].to_numpy(), alone, rtol=1e-6)


def test_classes_come_with_their_probabilities(tmp_path):
    columns = series()
    columns |= {"ahead": np.where(columns["ahead"] > 50, "high", "low")}
    dataset, trained = prepare(tmp_path, "linear", columns=columns)
    result = predict(prediction_context(tmp_path, dataset, trained))
    table = result_of(tmp_path)
    shares = table["probability_high"].to_numpy() + table["probability_low"].to_numpy()
    np.testing.assert_allclose(shares, 1)
    assert set(table["prediction"].to_pylist()) == {"high", "low"}
    assert result.metrics["test_accuracy"] > 0.8


def test_rows_without_truth_are_predicted_and_not_measured(tmp_path):
    dataset, trained = prepare(tmp_path, "linear")
    later = series()
    later["ahead"][later["split"] == "test"] = np.nan
    future = write_dataset(tmp_path / "later", later)
    for name in ("outputs",):
        (tmp_path / "later" / name).symlink_to(tmp_path / name)
    moved = Artifact(
        id="p/d@2", name="p/d", number=2, fingerprint="g", output=future.output.__class__(
            kind=future.output.kind, uri="later/datasets/d", details=future.output.details
        ),
    )  # fmt: skip
    result = predict(prediction_context(tmp_path, moved, trained))
    assert result.metrics == {}
    assert result.outputs[0].rows == 300
    assert dataset.id != moved.id


def test_a_split_without_rows_names_those_there_are(tmp_path):
    dataset, trained = prepare(tmp_path, "naive")
    with pytest.raises(
        DataError, match=r"split 'tests' has no rows \(splits with rows: train, validation, test\)"
    ):
        predict(prediction_context(tmp_path, dataset, trained, split="tests"))


def test_an_unknown_metric_gets_a_suggestion(tmp_path):
    dataset, trained = prepare(tmp_path, "naive")
    with pytest.raises(InputError) as caught:
        predict(prediction_context(tmp_path, dataset, trained, best_by="rsme"))
    assert caught.value.hint == "Did you mean `rmse`?"


def test_an_unsorted_dataset_is_refused_for_sequences(tmp_path):
    order = np.random.default_rng(0).permutation(1200)
    columns = {name: values[order] for name, values in series().items()}
    dataset, trained = prepare(tmp_path, "lstm", columns=columns)
    with pytest.raises(DataError, match="not sorted by entity and time"):
        predict(prediction_context(tmp_path, dataset, trained))


def test_a_column_the_model_needs_and_the_dataset_lacks_is_named(tmp_path):
    dataset, trained = prepare(tmp_path, "linear")
    for path in (tmp_path / "datasets/d").iterdir():
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["humid"]), path)
    with pytest.raises(DataError, match="'humid'"):
        predict(prediction_context(tmp_path, dataset, trained))


@pytest.mark.parametrize(("rows", "workers", "wanted", "expected"), [
    (3000, 2, None, 8), (100, 4, None, 1), (10_000_000, 2, None, 200), (5, 2, 9, 5),
])  # fmt: skip
def test_shards_are_neither_tiny_nor_beyond_memory(rows, workers, wanted, expected):
    assert count_shards(rows, workers, wanted) == expected


def test_each_worker_goes_on_where_it_is_and_helps_out_at_the_end():
    shards = ShardQueue(open=set(range(8)))
    assert [shards.take(-1), shards.take(-1)] == [0, 4]
    assert [shards.take(0), shards.take(4), shards.take(4 + 1), shards.take(6)] == [1, 5, 6, 7]
    assert shards.take(7) == 3  # the other is on its way through 2
    assert [shards.take(1), shards.take(2)] == [2, None]
    shards.lose(5, "killed")
    assert shards.take(2) == 5


def test_a_worker_reads_a_row_group_once_for_all_its_shards(tmp_path):
    rows = pa.table({"n": np.arange(1000)})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=250)
    parts, read = open_partitions(tmp_path), []

    @lru_cache(maxsize=2)
    def fetch(piece, columns):
        read.append(piece.start)
        return fetch_piece(piece, columns)

    found = [parts.read(["n"], max(0, n - 23), n + 100, fetch=fetch) for n in range(0, 1000, 100)]
    assert [len(some) for some in found] == [100] + [123] * 9
    assert found[-1]["n"].to_pylist() == list(range(877, 1000))
    assert read == [0, 250, 500, 750]


def test_a_cut_skips_what_lies_far_between():
    rows = np.concatenate([np.arange(10), np.arange(50_000, 50_010), np.arange(50_050, 50_060)])
    spans = [[(span.start, span.stop) for span in shard] for shard in cut(rows, 2)]
    assert spans == [[(0, 10), (50_000, 50_005)], [(50_005, 50_060)]]


def test_a_series_without_entities_is_sorted_by_time_alone(tmp_path):
    columns = {name: values[:400] for name, values in series().items() if name != "city"}
    dataset = write_dataset(tmp_path, columns, entity=[])
    result = train(training_context(tmp_path, dataset, "lstm", name="lstm", **OPTIONS["lstm"]))
    predict(prediction_context(tmp_path, dataset, {"lstm": artifact_of("lstm", result.outputs[0])}))
    assert result_of(tmp_path).num_rows == 100


def test_several_labels_are_predicted_as_lists(tmp_path):
    columns = series(ahead=1)
    columns |= {"second": np.roll(columns["ahead"], -1)}
    labels = [{"name": name, "column": "value"} for name in ("ahead", "second")]
    dataset = write_dataset(tmp_path, columns, labels=labels, features=["value", "wave", "slope"])
    result = train(training_context(tmp_path, dataset, "lstm", name="lstm", **OPTIONS["lstm"]))
    models = {"lstm": artifact_of("lstm", result.outputs[0])}
    predicted = predict(prediction_context(tmp_path, dataset, models))
    assert predicted.metrics["test_mse"] == pytest.approx(result.metrics["test_mse"])
    table = result_of(tmp_path)
    assert {len(one) for one in table["prediction"].to_pylist()} == {2}
    assert table["truth"].to_pylist()[0] == pytest.approx([columns["ahead"][300], columns["second"][300]])


@pytest.mark.parametrize("combine", ["mean", "weighted"])
def test_an_ensemble_is_the_mean_of_its_models(tmp_path, combine):
    dataset, models = prepare(tmp_path, "lstm", "linear", "gbdt")
    context = training_context(
        tmp_path, dataset, "ensemble", name="both", models=tuple(models), combine=Combine(combine)
    )
    order = context.order
    inputs = (*order.inputs, *(Input(name=name, artifact=artifact) for name, artifact in models.items()))
    result = train(replace(context, order=replace(order, inputs=inputs)))
    answers = {}
    for name, artifact in {**models, "both": artifact_of("both", result.outputs[0])}.items():
        predict(prediction_context(tmp_path, dataset, {name: artifact}))
        answers[name] = result_of(tmp_path)["prediction"].to_numpy()
    errors = [models[name].output.metrics["validation_mse"] for name in models]
    weights = np.ones(3) / 3 if combine == "mean" else (1 / np.array(errors)) / (1 / np.array(errors)).sum()
    expected = sum(weight * answers[name] for weight, name in zip(weights, models, strict=True))
    np.testing.assert_allclose(answers["both"], expected, rtol=1e-9)
    mean = np.mean([models[name].output.metrics["test_rmse"] for name in models])
    assert result.metrics["test_rmse"] < mean


def test_an_ensemble_of_numbers_cannot_vote_and_needs_members_alike(tmp_path):
    dataset, models = prepare(tmp_path, "linear")
    context = training_context(
        tmp_path, dataset, "ensemble", name="e", models=("linear",), combine=Combine.VOTE
    )
    inputs = (*context.order.inputs, Input(name="linear", artifact=models["linear"]))
    with pytest.raises(InputError, match="a vote needs a label with classes"):
        train(replace(context, order=replace(context.order, inputs=inputs)))
